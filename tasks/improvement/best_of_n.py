"""Best of n: of several sampled actions, distil the one that the evaluator values highest.

The value of an action is the probability of "Optimal: yes" against "Optimal: no", given k futures.
"""

from collections.abc import Iterator, Mapping, Sequence

from schemas.config import Config
from schemas.rows import Critique, Refinement
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.environments.base import Environment, Task
from tasks.improvement.distillation import decided, most_probable
from tasks.improvement.refine import Improved
from tasks.improvement.validate import make_proposal
from tasks.roles.answers import read_whole_action
from tasks.runtime.algorithm import Algorithm, Method
from tasks.runtime.context import StageContext
from tasks.runtime.stage import Bound
from tasks.text.correction import label_reasoning


async def best_action(
    ctx: StageContext,
    tried: Sequence[Critique],
    transition: DrawnTransition,
    task: Task,
    futures: Mapping[str, list[str]],
) -> Improved:
    """The tried action of the highest `yes_probability`, drawn among equals, with the thought that the policy wrote.
    It is distilled if the environment would accept it."""
    best = tried[most_probable(tried, ctx.roles.seed("choice", tried[0].sample_id))]
    row = await chosen_action(ctx, best, transition, task)
    update = {"generation": best.action_generation, "reasoning": best.action_reasoning}
    return Improved([row.model_copy(update=update)])


async def chosen_action(
    ctx: StageContext, critique: Critique, transition: DrawnTransition, task: Task
) -> Refinement:
    """A tried action as the one to distil, with the thought that the policy wrote, if the environment would accept
    it."""
    row = await make_proposal(
        ctx,
        critique,
        transition.state,
        task,
        round_=1,
        kind="chosen",
        text=critique.action_text,
        action=read_whole_action(
            critique.action_text, critique.action_generation, ctx.environment.action_format
        ),
    )
    row = decided(row, "chosen" if row.status == "ok" else "failed")
    config = ctx.config
    hidden = label_reasoning(config.roles.policy, config.correction, critique.action_reasoning)
    return row.model_copy(update={"label_reasoning": hidden})


def check_actions(config: Config, environment: Environment) -> Iterator[str]:
    """What comparing n actions of the policy in a state needs."""
    if config.improvement.action == "replayed":
        yield f"improvement.action: algorithm {config.algorithm} samples its actions; set it to fresh"
    if config.improvement.actions < 2:
        yield (
            f"improvement.actions: algorithm {config.algorithm} compares several actions of a state; set it to 2 or "
            "more"
        )


def best_of_n_bound(config: Config, algorithm: Algorithm) -> Bound:
    """It asks for no text."""
    return Bound(0, 0, "the best of each state's actions is picked")


BEST_OF_N = Method(
    actions=lambda config: range(config.improvement.actions), improve=best_action, bound=best_of_n_bound
)
