"""What an iteration would do: its stages, requests and tokens, before anything runs."""

from dataclasses import dataclass

from schemas.config import Config
from tasks.environments import make_environment
from tasks.environments.base import Unplayable
from tasks.pipeline.registry import STAGES, stages_of


@dataclass(frozen=True)
class PlanRow:
    """What one stage of an iteration would do, roughly.

    Attributes:
        stage: its name.
        pool: the work pool it runs on.
        requests: texts asked for, at most.
        tokens: completion tokens at most (inference), or label tokens trained on (training).
        note: what the numbers are made of.
    """

    stage: str
    pool: str
    requests: int
    tokens: int
    note: str


def plan(config: Config) -> list[PlanRow]:
    """What iteration 0 would do: stages, requests, tokens; upper bounds, since caps on lengths are seldom
    reached."""
    roles, drawn = config.roles, config.replay.transitions
    states = min(config.improvement.states, drawn)
    k, m = config.futures, config.improvement.rounds
    turns = config.rollout.max_steps
    distilled = _distilled(config)
    judged = states * m if m > 1 else 0
    rewrites = config.correction.attempts if config.correction.enabled else 0
    label = roles.bootstrap.max_tokens
    played = f"episodes x {turns} steps at most"
    bounds = {
        "warm-start": (0, 0, "the rows of warm_start.file"),
        "rollout": (config.rollout.episodes * turns, roles.policy.max_tokens, played),
        "bellman-targets": (
            (1 + 2 * config.backup.draws) * drawn,
            (roles.policy.max_tokens + roles.predict.max_tokens + roles.bootstrap.max_tokens) / 3,
            "a', d' and the backup of each draw; terminal ones need the backup alone",
        ),
        "cot-correction": (rewrites * drawn, roles.correct.max_tokens, "rewrites, where a thought leaks; and scoring"),
        "critic-sft": (0, 0, f"{drawn * config.critic.epochs} rows, {_steps(config, 'critic')} steps"),
        "replay-draw": (0, 0, f"{drawn} transitions drawn uniformly"),
        "critique": (
            states * (2 + k),
            (roles.policy.max_tokens + k * roles.predict.max_tokens + roles.evaluate.max_tokens) / (2 + k),
            f"an action, {k} futures and a verdict a state",
        ),
        "refinement": (
            states * (m + rewrites) + judged * (k + 1) + (states if m > 1 else 0),
            roles.refine.max_tokens,
            f"{m} rounds and corrections; none where the action is judged optimal",
        ),
        "policy-distillation": (
            0, 0, f"up to {distilled * config.policy.epochs} rows, {_steps(config, 'policy')} steps"
        ),
        "evaluation": (
            config.evaluation.episodes * config.evaluation.repeats * turns, roles.policy.max_tokens, played
        ),
    }  # fmt: skip
    speaks = config.environment.model
    if speaks is not None:
        text = (roles.policy.max_tokens + speaks.max_tokens) / 2
        for stage in ("rollout", "evaluation"):
            bounds[stage] = (
                2 * bounds[stage][0],
                text,
                f"{played}, an answer of the environment's model to each",
            )
    if config.algorithm == "nlql":
        tried = states * config.improvement.actions
        text = (roles.policy.max_tokens + k * roles.predict.max_tokens) / (1 + k)
        bounds["critique"] = (
            tried * (1 + k),
            text,
            f"{tried} actions and {k} futures of each; verdicts are scored",
        )
        bounds["refinement"] = (0, 0, "the best of each state's actions is picked")
    if config.algorithm == "self_distillation":
        # Rollouts stand for nearly all of it, and theirs are the policy's requests.
        per, text = k * turns, roles.policy.max_tokens
        bounds["critique"] = (states * (2 + per), text, f"an action, {k} rollouts and a verdict a state")
        requests = states * (m + rewrites) + judged * (per + 1) + (states if m > 1 else 0)
        bounds["refinement"] = (
            requests,
            text if judged else roles.refine.max_tokens,
            bounds["refinement"][2],
        )
    if isinstance(make_environment(config.environment), Unplayable):
        bounds["evaluation"] = (0, 0, "skipped: nothing can be played")
    rows = []
    for stage in stages_of(config, 0):
        requests, tokens, note = bounds[stage]
        trained = {
            "critic-sft": drawn * config.critic.epochs * label,
            "policy-distillation": distilled * config.policy.epochs * roles.refine.max_tokens,
        }
        pool = getattr(config.pools, STAGES[stage].pool)
        rows.append(PlanRow(stage, pool, requests, trained.get(stage, round(requests * tokens)), note))
    return rows


def _distilled(config: Config) -> int:
    """Rows of the policy's own in policy-distillation, at most."""
    if config.algorithm == "rft":
        return config.replay.transitions
    return min(config.improvement.states, config.replay.transitions)


def _steps(config: Config, section: str) -> int:
    training = getattr(config, section)
    rows = config.replay.transitions if section == "critic" else _distilled(config)
    own = max(1, training.batch_rows - round(training.batch_rows * config.mix(section)))  # type: ignore[arg-type]
    return -(-rows // own) * int(training.epochs)
