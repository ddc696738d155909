"""AdamW whose state is an artifact: saved by parameter name and carried from stage to stage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

from schemas.config import FineTuningSection
from tasks.training.processes import placed_as, to_write, whole
from tasks.training.records import TrainingError

MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW with a linear warm-up and a constant rate after it.

    The warm-up counts all steps that the state has seen, so carried state is not warmed up again, and training in two
    stages equals training in one. The rate decays from stage to stage: each gets its `lr_scale`.

    Args:
        parameters: what trains, by name.
        section: rate, warm-up, weight decay, clipping.
        state: file of an earlier state; None: a fresh one.
        lr_scale: share of the section's rate in this stage.

    Raises:
        TrainingError: the state is of other parameters, or can't be read.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        section: FineTuningSection,
        state: Path | None,
        lr_scale: float = 1.0,
    ) -> None:
        self.parameters = dict(parameters)
        self.section = section
        self.rate = section.learning_rate * lr_scale
        self.steps = 0
        # The kernels take either sharded or whole tensors, not both.
        values = self.parameters.values()
        kinds = [[p for p in values if isinstance(p, DTensor) == sharded] for sharded in (False, True)]
        self.kinds = [kind for kind in kinds if kind]
        groups = [{"params": kind} for kind in self.kinds]
        self.adamw = torch.optim.AdamW(groups, self.rate, weight_decay=section.weight_decay, fused=True)
        if state is not None:
            self._restore(state)

    @property
    def learning_rate(self) -> float:
        """Rate of the next step."""
        warm = self.section.warmup_steps
        return self.rate * min(1.0, (self.steps + 1) / warm if warm else 1.0)

    def clip(self) -> float:
        """Cap the global gradient norm; returns the norm before."""
        most = self.section.clip_norm
        if len(self.kinds) == 1:
            norm = clip_grad_norm_(self.kinds[0], most)
            return float(whole(norm))
        norms = [whole(get_total_norm(p.grad for p in kind if p.grad is not None)) for kind in self.kinds]
        together = torch.linalg.vector_norm(torch.stack(norms))
        for kind in self.kinds:
            clip_grads_with_norm_(kind, most, together.to(kind[0].device))
        return float(together)

    def step(self) -> None:
        """One update; then the gradients are freed."""
        for group in self.adamw.param_groups:
            group["lr"] = self.learning_rate
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        self.steps += 1

    def state(self) -> dict[str, Any]:
        """The moments by parameter name, 0 before the first step, and the step count; loads with `weights_only=True`.
        Where parameters are sharded, every process must call it."""
        moments = {
            name: {
                moment: to_write(whole(self.adamw.state[parameter].get(moment, torch.zeros_like(parameter))))
                for moment in MOMENTS
            }
            for name, parameter in self.parameters.items()
        }
        return {"steps": self.steps, "moments": moments}

    def _restore(self, path: Path) -> None:
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            saved = {"steps": int(saved["steps"]), "moments": saved["moments"]}
        except Exception as error:  # whatever torch's zip and pickle readers raise
            raise TrainingError(
                f"{path}: the optimizer state can't be read ({error}); set `optimizer: reset` in that training section"
            ) from error
        self.resume(saved, path)

    def resume(self, saved: Mapping[str, Any], path: Path) -> None:
        """Take over an earlier `state`, read from `path`.

        Raises:
            TrainingError: it is of other parameters.
        """
        remedy = "set `optimizer: reset` in that training section"
        steps, moments = saved["steps"], saved["moments"]
        if differing := sorted(self.parameters.keys() ^ moments.keys()):
            raise TrainingError(
                f"{path}: the optimizer state is of other parameters ({len(differing)} names differ, the "
                f"first is {differing[0]}); {remedy}"
            )
        for name, parameter in self.parameters.items():
            for moment in MOMENTS:
                shape = tuple(moments[name][moment].shape)
                if shape != tuple(parameter.shape):
                    raise TrainingError(
                        f"{path}: the optimizer state of {name} has shape {shape}, the parameter has "
                        f"{tuple(parameter.shape)}; {remedy}"
                    )
            self.adamw.state[parameter] = {
                "step": torch.tensor(float(steps), device=parameter.device),
                **{moment: placed_as(moments[name][moment], parameter) for moment in MOMENTS},
            }
        self.steps = steps
