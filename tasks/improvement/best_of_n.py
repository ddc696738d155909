"""Best of n: of several sampled actions, distil the one that the evaluator values highest.

The value of an action is the probability of "Optimal: yes" against "Optimal: no", given k futures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from schemas.config import Config
from schemas.rows import Critique
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Task
from tasks.improvement.refine import Improved
from tasks.improvement.validate import make_proposal
from tasks.roles.answers import why_cut
from tasks.runtime.algorithm import Algorithm, Method
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Bound
from tasks.text.correction import label_reasoning
from tasks.text.formats import read_action


async def best_action(
    ctx: StageContext,
    tried: Sequence[Critique],
    transition: DrawnTransition,
    task: Task,
    futures: Mapping[str, list[str]],
) -> Improved:
    """The tried action of the highest `yes_probability`, the first of equals, with the thought that the policy wrote.
    It is distilled if the environment would accept it."""
    best = max(tried, key=lambda critique: critique.yes_probability or 0.0)
    action = read_action(best.action_text, ctx.environment.action_format)
    whole = why_cut(best.action_text, best.action_generation) is None
    row = await make_proposal(
        ctx,
        best,
        transition.state,
        task,
        round_=1,
        kind="chosen",
        text=best.action_text,
        action=replace(action, valid=action.valid and whole),
    )
    config = ctx.config
    update = {
        "distil": row.status == "ok",
        "generation": best.action_generation,
        "reasoning": best.action_reasoning,
        "label_reasoning": label_reasoning(config.roles.policy, config.correction, best.action_reasoning),
    }
    return Improved([row.model_copy(update=update)])


def best_of_n_bound(config: Config, algorithm: Algorithm) -> Bound:
    """It asks for no text."""
    return Bound(0, 0, "the best of each state's actions is picked")


BEST_OF_N = Method(
    actions=lambda config: range(config.improvement.actions), improve=best_action, bound=best_of_n_bound
)
