"""What benchmarks/overhead.py deploys beside the program's own stages: empty flows, and training in no time."""

from prefect import flow

from benchmarks.instant import install_trainer

install_trainer()

from flows.stages import critic_sft, policy_distillation, warm_start  # noqa: E402

__all__ = ["critic_sft", "empty", "policy_distillation", "warm_start"]


@flow(name="empty", persist_result=False)
def empty() -> None:
    """Nothing."""
