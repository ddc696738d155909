"""Which parameters play what: where a stage finds its committed tables and adapters."""

from collections.abc import Callable
from dataclasses import dataclass

from schemas.config import Config
from storage.store import Committed
from tasks.engines.protocol import Adapter
from tasks.runtime.algorithm import Algorithm
from tasks.runtime.stage import StageFailed


@dataclass(frozen=True)
class Resolver:
    """Finds a stage's inputs in the store. Which parameters play what in iteration i is written down here,
    once.

    | use | shared | separate |
    |---|---|---|
    | rollout, a' | theta_i | phi_i |
    | d', backup, corrector of targets | theta_bar_i | psi_bar_i |
    | critic SFT starts from | theta_i | psi_i |
    | futures | theta'_i, after critic SFT | psi_{i+1} |
    | fresh action to improve | theta'_i | phi_i |
    | evaluator, refiner, corrector of thoughts | theta'_i | the base model |
    | distillation starts from, gives | theta'_i, theta_{i+1} | phi_i, phi_{i+1} |
    | target moves on | every step of both stages | critic steps only |

    In iterations before `improvement.from_iteration` the critic alone trains (shared parameters): there theta_{i+1}
    is theta'_i.

    Algorithm sac has a value head on the critic's parameters instead of a successor: "d'" and "futures" are its values.
    Its a' and the actions that the policy is trained on are drawn by theta_i or phi_i.

    Algorithms without a critic have policy parameters alone: theta'_i is theta_i, there is no target, and with
    separate parameters the base model still evaluates and refines. theta_i plays the rollouts that stand in for
    predicted futures. The policy of an algorithm that trains nothing is the base model in every iteration.

    With a warm start (`warm_start.file`) the fine-tuned model stands wherever the base model would. A role that is
    `frozen` is played by it (without a warm start by the base model) in every row of the table.
    """

    config: Config
    algorithm: Algorithm
    iteration: int
    committed: Callable[
        [str, int], Committed
    ]  # (stage, iteration); raises StageFailed if it is not committed
    rollouts_of: Callable[[str], list[Committed]]  # (another run): all its committed rollouts

    @property
    def shared(self) -> bool:
        return self.config.parameters == "shared"

    @property
    def mixes_policy_rows(self) -> bool:
        """Whether rows that the policy was trained on an iteration ago are mixed into the critic's batches."""
        before = self.iteration - 1
        mixed = self.algorithm.mix(self.config, "critic") > 0
        return mixed and before >= self.config.improvement.from_iteration

    def here(self, stage: str) -> Committed:
        """A stage of this iteration."""
        return self.committed(stage, self.iteration)

    def upto(self, stage: str, last: int) -> list[Committed]:
        """A stage of iterations 0..last, in order."""
        return [self.committed(stage, i) for i in range(last + 1)]

    def replay(self, *, drawing: bool = False) -> list[Committed]:
        """The rollouts whose transitions are replayed: of iterations 0..i, then all of `replay.from_runs`. With
        `rollout: none` what was imported for them stands in the place of this run's rollouts.

        Args:
            drawing: what can be drawn now, without this run's iterations older than `replay.max_age`; else all
                that may have been drawn at any time.

        Raises:
            StageFailed: another run has nothing committed, or on another environment; nothing is imported.
        """
        section = self.config.replay
        if self.config.rollout.source == "none":
            parts = [c for c in self.rollouts_of(self.config.run) if c.manifest.iteration <= self.iteration]
        else:
            oldest = 0 if section.max_age is None or not drawing else max(0, self.iteration - section.max_age)
            parts = [self.committed("rollout", i) for i in range(oldest, self.iteration + 1)]
        for part in parts:
            self._same_environment(part)
        for run in section.from_runs:
            others = self.rollouts_of(run) if run != self.config.run else []
            if not others:
                raise StageFailed(
                    f"replay.from_runs: no other run '{run}' with a committed rollout is under this data root; "
                    "correct the name, or play it first"
                )
            if not all(map(self._fits, others)):
                raise StageFailed(
                    f"replay.from_runs: run '{run}' was played on another environment, or with other options, than "
                    "this run's `environment`; remove it"
                )
            parts += others
        if not parts:
            raise StageFailed(
                f"rollout: none, and no episode is imported into run '{self.config.run}': nlac import FILE --run "
                f"{self.config.run} (or name the run that has them in replay.from_runs)"
            )
        return parts

    def _fits(self, rollout: Committed) -> bool:
        """Whether another run's episodes are of this run's environment: played in it with the same options, or
        imported, which depends on none."""
        made, here = (
            rollout.manifest.fingerprint_inputs.config,
            self.config.environment.model_dump(mode="json"),
        )
        if "logged" in made:
            return bool(made["environment"]["name"] == here["name"])
        return bool(made.get("environment") == here)

    def _same_environment(self, rollout: Committed) -> None:
        """Refuse this run's own episodes of another environment: they were imported, or the configuration changed."""
        name = (rollout.manifest.fingerprint_inputs.config.get("environment") or {}).get("name")
        here = self.config.environment.name
        if name not in (None, here):
            raise StageFailed(
                f"run '{self.config.run}' holds episodes of environment {name} (iteration "
                f"{rollout.manifest.iteration}), and environment.name is {here}; name the configuration that they are "
                "for (imported ones: configs/examples/logged.yaml), or another run"
            )

    def last(self, stage: str, iteration: int) -> list[Committed]:
        """A stage of one earlier iteration; nothing before iteration 0."""
        return [self.committed(stage, iteration)] if iteration >= 0 else []

    def optimizer(self, section: str, stage: str, iteration: int) -> dict[str, Committed]:
        """The optimizer state a training stage carries on from, if it carries and there is one."""
        if getattr(self.config, section).optimizer == "reset" or iteration < 0:
            return {}
        return {"optimizer": self.committed(stage, iteration)}

    def value_heads(self) -> dict[str, Committed]:
        """The value heads that the last iteration left, where there are any; before iteration 0 there are none. They
        lie beside the parameters that they stand on: theta_i, or psi_i and its target."""
        before = self.iteration - 1
        if before < 0:
            return {}
        if self.algorithm.has_values:
            return {"value_head": self.committed("policy-distillation", before)}
        if not self.algorithm.has_action_values:
            return {}
        return self._critic_heads(self.last_trained(before) if self.shared else "critic-sft", before)

    def critic_heads(self) -> dict[str, Committed]:
        """The value heads of the new critic, where it has them."""
        return self._critic_heads("critic-sft", self.iteration) if self.algorithm.has_action_values else {}

    def _critic_heads(self, stage: str, iteration: int) -> dict[str, Committed]:
        return dict.fromkeys(("value_head", "target_value_head"), self.committed(stage, iteration))

    def demonstrations(self, section: str) -> list[Committed]:
        """The warm start's demonstrations, where a training stage rehearses them."""
        return [self.committed("warm-start", 0)] if getattr(self.config, section).rehearse_share else []

    def replay_samples(self) -> Committed:
        """The stage that made this iteration's replay draw."""
        return self.here(self.algorithm.drawing_stage)

    def last_trained(self, iteration: int) -> str:
        """The stage that leaves theta_{i+1} (with separate parameters: phi_{i+1}) at the end of an iteration."""
        return "critic-sft" if iteration < self.config.improvement.from_iteration else "policy-distillation"

    def base(self) -> Adapter | None:
        """What every role begins from: the warm-started model; None: the base model."""
        return None if self.config.warm_start.file is None else self.adapter("warm-start", "warm_start", 0)

    def anchor(self) -> dict[str, Adapter | None]:
        """What the KL anchor of a training stage ties to, if there is one."""
        section = self.config.anchor
        return {"anchor": self.base() if section.to == "warm_start" else None} if section.kl else {}

    def adapter(self, stage: str, kind: str, iteration: int) -> Adapter | None:
        """An adapter that a training stage made; before iteration 0, `base`."""
        if iteration < 0:
            return self.base()
        made = self.committed(stage, iteration)
        entry = made.manifest.adapters[kind]
        return Adapter(entry.version, made.path / entry.folder, entry.digest)

    def policy_after(self, iteration: int) -> Adapter | None:
        """theta_{i+1} or phi_{i+1}: the policy that an iteration leaves."""
        if not self.algorithm.trains:
            return self.base()
        stage = self.last_trained(iteration)
        return self.adapter(stage, "critic" if stage == "critic-sft" else "policy", iteration)

    def policy(self) -> Adapter | None:
        """theta_i or phi_i: acts in the rollout and writes a'."""
        return self.policy_after(self.iteration - 1)

    def target(self) -> Adapter | None:
        """theta_bar_i or psi_bar_i: writes d' and the backup, corrects targets."""
        before = self.iteration - 1
        return self.adapter(self.last_trained(before) if self.shared else "critic-sft", "target", before)

    def critic_start(self) -> Adapter | None:
        """Where critic SFT starts from."""
        return self.policy() if self.shared else self.adapter("critic-sft", "critic", self.iteration - 1)

    def critic(self) -> Adapter | None:
        """The new critic: writes futures."""
        return self.adapter("critic-sft", "critic", self.iteration)

    def successor(self) -> dict[str, Adapter | None]:
        """Behind the futures: the critic that predicts them, or the policy that plays them."""
        return {"critic": self.critic()} if self.algorithm.has_critic else {"policy": self.policy()}

    def actor(self) -> Adapter | None:
        """Writes the fresh action to improve."""
        return self.critic() if self.shared and self.algorithm.has_critic else self.policy()

    def refiner(self) -> Adapter | None:
        """Evaluator, refiner and corrector of thoughts."""
        return self.actor() if self.shared else self.base()
