"""Checking a configuration whole, before the first stage and without creating anything; and what it would
do."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prompts import NAMES, PromptError, template_text
from schemas.config import Config, RolesSection
from schemas.load import ConfigError
from tasks.context import role_templates
from tasks.engines import EngineConfigError, check_engine, declared_capabilities
from tasks.engines.models import ModelError, check_model
from tasks.environments import UnusableEnvironment, make_environment
from tasks.pipeline import STAGES, stages_of


def check_config(config: Config, root: Path) -> None:
    """Refuse what would fail later.

    Args:
        config: a configuration whose fields are already of the right types.
        root: the data root; it need not exist, but must be creatable.

    Raises:
        ConfigError: one line a problem, each naming the field and the remedy.
    """
    problems = list(_problems(config, root))
    if problems:
        raise ConfigError("\n".join(problems))


def _problems(config: Config, root: Path) -> Iterator[str]:
    unusable = ""
    try:
        check_model(config.model)
    except ModelError as error:
        unusable = str(error)
        yield unusable
    used = {getattr(config.roles, role).engine for role in RolesSection.model_fields}
    for name in sorted(used):
        section = config.engines[name]
        try:
            check_engine(section, config.model)
            yield from _lacking(config, name)
        except EngineConfigError as error:
            problem = str(error)
            if problem != unusable:  # said already
                yield problem if problem.startswith("model.") else f"engines.{name}.{problem}"
    overrides: dict[str, Path] = dict(role_templates(config))
    try:
        environment = make_environment(config.environment)
        overrides = {**environment.templates, **overrides}
    except UnusableEnvironment as error:
        yield str(error)
    for name in NAMES:
        try:
            template_text(name, overrides)
        except PromptError as error:
            yield f"roles: {error}"
    yield from _data_root(root)


def _lacking(config: Config, engine: str) -> Iterator[str]:
    """Roles that need more than the engine declares."""
    able = declared_capabilities(config.engines[engine])
    for role in RolesSection.model_fields:
        section = getattr(config.roles, role)
        if section.engine == engine and section.structured and not able.structured:
            yield (
                f"roles.{role}.structured: engine '{engine}' can't hold a format; set it to false, or route the role "
                f"to an engine that can"
            )


def _data_root(root: Path) -> Iterator[str]:
    """Whether the data root can be written, found out without creating it."""
    existing = next(p for p in (root, *root.parents) if p.exists())
    if not existing.is_dir():
        yield f"data root {root}: {existing} is not a folder; choose another with --data or NLAC_DATA"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"data root {root}: {existing} can't be written to; choose another with --data or NLAC_DATA"


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
    k, m = config.improvement.futures, config.improvement.rounds
    turns = config.rollout.max_steps
    judged = states * m if m > 1 else 0
    rewrites = config.correction.attempts if config.correction.enabled else 0
    label = roles.bootstrap.max_tokens
    played = f"episodes x {turns} steps at most"
    bounds = {
        "rollout": (config.rollout.episodes * turns, roles.policy.max_tokens, played),
        "bellman-targets": (
            3 * drawn,
            (roles.policy.max_tokens + roles.predict.max_tokens + roles.bootstrap.max_tokens) / 3,
            "a', d' and the backup of each draw; terminal ones need the backup alone",
        ),
        "cot-correction": (rewrites * drawn, roles.correct.max_tokens, "rewrites, where a thought leaks; and scoring"),
        "critic-sft": (0, 0, f"{drawn * config.critic.epochs} rows, {_steps(config, 'critic')} steps"),
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
        "policy-distillation": (0, 0, f"up to {states * config.policy.epochs} rows, {_steps(config, 'policy')} steps"),
        "evaluation": (config.evaluation.episodes * turns, roles.policy.max_tokens, played),
    }  # fmt: skip
    rows = []
    for stage in stages_of(config, 0):
        requests, tokens, note = bounds[stage]
        trained = {
            "critic-sft": drawn * config.critic.epochs * label,
            "policy-distillation": states * config.policy.epochs * roles.refine.max_tokens,
        }
        pool = getattr(config.pools, STAGES[stage].pool)
        rows.append(PlanRow(stage, pool, requests, trained.get(stage, round(requests * tokens)), note))
    return rows


def _steps(config: Config, section: str) -> int:
    training = getattr(config, section)
    rows = config.replay.transitions if section == "critic" else config.improvement.states
    own = max(1, training.batch_rows - round(training.batch_rows * config.mix(section)))  # type: ignore[arg-type]
    return -(-rows // own) * int(training.epochs)
