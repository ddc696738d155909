"""The evaluator's verdict: written with its reason, scored as a probability, or both."""

from collections.abc import Iterator

from schemas.config import Config
from schemas.rows import Critique
from tasks.chat.messages import RequestError
from tasks.datasets.drawn_transitions import DrawnTransition
from tasks.engines.backends import EngineConfigError, declared_capabilities
from tasks.environments.base import Environment
from tasks.improvement.critique import failed
from tasks.roles.evaluator import evaluate, yes_probability
from tasks.runtime.algorithm import VerdictSource
from tasks.runtime.context import StageContext

TEXTS = 2  # "Optimal: yes" and "Optimal: no"


async def explain(
    ctx: StageContext, row: Critique, transition: DrawnTransition, futures: list[str]
) -> Critique:
    """q ~ E(.|s,a,d1..dk): a verdict and its reason. A verdict that can't be read is a row with a status.

    A scored verdict comes first, and the reason is written for it, so that the two agree. An evaluator that thinks
    writes its reason first, and the verdict is scored after it.
    """
    scored, thinks = scores_verdicts(ctx.config), ctx.config.roles.evaluate.thinking
    if scored and not thinks:
        row = await score(ctx, row, transition, futures)
        if row.status != "ok":
            return row
    answer, verdict = await evaluate(
        ctx,
        transition.state,
        row.action_text,
        futures,
        adapter="refiner",
        request_key=row.critique_id,
        verdict=row.optimal,
    )
    asked = row.optimal
    row = row.model_copy(
        update={
            "optimal": verdict.optimal if asked is None else asked,
            "critique": verdict.reason,
            "generation": answer.generation,
            "reasoning": answer.reasoning,
        }
    )
    if answer.error:
        return failed(row, "engine_error", answer.error)
    if verdict.optimal is None:
        return failed(row, "unreadable_verdict", "neither 'Optimal: yes' nor 'Optimal: no'")
    if asked not in (None, verdict.optimal):
        fault = "the reason is written for the other verdict; set roles.evaluate.structured to true"
        return failed(row, "contradicted_verdict", fault)
    return await score(ctx, row, transition, futures, verdict.reason) if scored and thinks else row


async def score(
    ctx: StageContext,
    row: Critique,
    transition: DrawnTransition,
    futures: list[str],
    reason: str | None = None,
) -> Critique:
    """The probability of "Optimal: yes", after a reason where one is given."""
    try:
        yes = await yes_probability(
            ctx,
            transition.state,
            row.action_text,
            futures,
            adapter="refiner",
            request_key=row.critique_id,
            reason=reason,
        )
    except RequestError as error:
        return failed(row, "score_failed", str(error))
    return row.model_copy(update={"yes_probability": yes, "optimal": yes > 0.5})


def scores_verdicts(config: Config) -> bool:
    """Whether critiques with a reason have scored verdicts."""
    if config.improvement.verdict == "auto":
        return _engine_scores(config)
    return config.improvement.verdict == "scored"


def check_verdicts(config: Config, environment: Environment) -> Iterator[str]:
    """Scored verdicts, or a gain in them, from an evaluator whose verdicts are not scored."""
    section = config.improvement
    try:
        able = _engine_scores(config)
    except EngineConfigError:
        return  # reported with the engine
    engine = config.roles.evaluate.engine
    if section.require_gain and section.verdict == "written":
        yield "improvement.require_gain: compares probabilities; set improvement.verdict to auto or scored"
    elif not able and (section.require_gain or section.verdict == "scored"):
        field = "require_gain" if section.require_gain else "verdict"
        yield (
            f"improvement.{field}: needs the probability of a verdict, and engine '{engine}' of roles.evaluate does "
            "not score; route the role to an engine that does"
        )


def _engine_scores(config: Config) -> bool:
    return declared_capabilities(config.engines[config.roles.evaluate.engine]).scoring


REASONED = VerdictSource(
    read=explain, requests=1, scores=lambda config: TEXTS if scores_verdicts(config) else 0
)
SCORED = VerdictSource(read=score, requests=0, scores=lambda config: TEXTS)
