"""What `benchmarks.overhead.pipeline` deploys beside the program's stages: an empty flow, and training in no time."""

from prefect import flow

from benchmarks.overhead.instant import install_trainer

install_trainer()

from flows.deployments.stages import stage_flow  # noqa: E402

critic_sft, policy_distillation, warm_start = map(
    stage_flow, ("critic-sft", "policy-distillation", "warm-start")
)

__all__ = ["critic_sft", "empty", "policy_distillation", "warm_start"]


@flow(name="empty", persist_result=False)
def empty() -> None:
    """Nothing."""
