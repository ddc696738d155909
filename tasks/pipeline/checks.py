"""Checking a configuration whole, before the first stage and without creating anything."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prompts import NAMES, PromptError, template_text
from schemas.config import Config, RoleSection
from schemas.load import ConfigError, find_file
from tasks.algorithms import ALGORITHMS, algorithm_of
from tasks.datasets.chats import BrokenConversations, chat_file, load_conversations
from tasks.datasets.demonstrations import BrokenDemonstrations, read_demonstrations
from tasks.engines.backends import (
    EngineConfigError,
    NotHere,
    check_engine,
    declared_capabilities,
    find_backend,
)
from tasks.engines.models import MissingModel, ModelError, check_model
from tasks.environments import (
    AbsentEnvironment,
    UnusableEnvironment,
    check_environment_model,
    make_environment,
)
from tasks.environments.base import Environment, ListsActions, OffersTools, Unplayable
from tasks.environments.splits import LENT, played_tasks, shared_tasks
from tasks.prompting.rendering import role_templates
from tasks.runtime.algorithm import Algorithm
from tasks.training.records import TrainingError
from tasks.training.torchrun import rendezvous


def check_config(config: Config, root: Path, *, elsewhere: bool = False) -> None:
    """Refuse what would fail later.

    Args:
        config: a configuration whose fields are already of the right types.
        root: the data root; it need not exist, but must be creatable.
        elsewhere: it is for another machine, so that models, vLLM, a GPU, API keys, the data root,
            and the environment's package and files need not be here.

    Raises:
        ConfigError: one line per problem, each naming the field and the remedy.
    """
    algorithm = algorithm_of(config)
    problems = [*_algorithm(config, algorithm), *_problems(config, algorithm, elsewhere)]
    if not elsewhere:
        problems += _data_root(root)
    if problems:
        raise ConfigError("\n".join(problems))


def _problems(config: Config, algorithm: Algorithm, elsewhere: bool) -> Iterator[str]:
    absent: tuple[type[Exception], ...] = (MissingModel, NotHere) if elsewhere else ()
    unusable = ""
    try:
        with suppress(*absent):
            check_model(config.model)
    except ModelError as error:
        unusable = str(error)
        yield unusable
    used = {section.engine for section in _played(config).values()}
    for name in sorted(config.engines):
        section = config.engines[name]
        try:
            find_backend(section)  # an unknown backend is refused in an engine out of use too
            if name not in used:
                continue
            with suppress(*absent):
                check_engine(section, config.model)
            yield from _lacking(config, name)
            yield from _token_kl(config, algorithm, name)
            yield from _retention(config, name)
        except EngineConfigError as error:
            problem = str(error)
            if problem != unusable:  # said already
                yield problem if problem.startswith("model.") else f"engines.{name}.{problem}"
    yield from _whole_weights(config)
    yield from _meeting(config, elsewhere)
    overrides: dict[str, Path] = dict(role_templates(config))
    try:
        environment = make_environment(config.environment)
        check_environment_model(config.environment, environment)
        overrides = {**environment.templates, **overrides}
        yield from _exploration(config, environment)
        yield from _training_tasks(config, algorithm, environment)
        yield from _validation_tasks(config, environment)
        yield from _native_calls(config, environment)
        for check in algorithm.checks:
            yield from check(config, environment)
        yield from _playing(config, environment)
    except UnusableEnvironment as error:
        if not (elsewhere and isinstance(error, AbsentEnvironment)):
            yield str(error)
    for name in NAMES:
        try:
            template_text(name, overrides)
        except PromptError as error:
            yield f"roles: {error}"
    yield from _limits(config, algorithm)
    yield from _general_chat(config)
    yield from _warm_start(config)


def _algorithm(config: Config, algorithm: Algorithm) -> Iterator[str]:
    """Fields that don't fit the algorithm, whatever the environment."""
    if config.improvement.from_iteration and (config.parameters == "separate" or not algorithm.has_critic):
        having = ", ".join(known.name for known in ALGORITHMS.values() if known.has_critic)
        yield (
            f"improvement.from_iteration: only algorithms with a critic ({having}) and shared parameters can train the "
            "critic alone; set it to 0"
        )
    for name in ("critic", "policy"):
        rows, mix = getattr(config, name).batch_rows, algorithm.mix(config, name)
        rehearse = f"{name}.rehearse_share"
        further = {
            "anchor.chat_share": config.anchor.chat_share,
            rehearse: getattr(config, name).rehearse_share,
        }
        further = {field: share for field, share in further.items() if share}
        if further and sum(round(rows * share) for share in (mix, *further.values())) >= rows:
            yield (
                f"{', '.join(further)}: with {name}.mix {mix:g} and {name}.batch_rows {rows} no row of the stage's own "
                f"is left in a batch; lower {', '.join(further)} or {name}.mix"
            )
        if rehearse in further and config.warm_start.file is None:
            yield f"{rehearse}: there is no warm start to rehearse; set it to 0, or name warm_start.file"


def _whole_weights(config: Config) -> Iterator[str]:
    """Full checkpoints in vLLM beside another copy of the weights, or with another version asked for at every move."""
    played, engines = _played(config), config.engines
    playing = {section.engine for section in played.values() if engines[section.engine].model is None}
    served = {name for name in playing if engines[name].backend == "vllm" or engines[name].serve is not None}
    if config.model.train != "full" or not served:
        return
    holding = sorted(served | {name for name in playing if engines[name].backend == "transformers"})
    if len(holding) > 1:
        yield (
            f"engines.{', engines.'.join(holding)}: with model.train full each holds all weights, in versions of its "
            "own; let one of them play all roles, so that versions take turns"
        )
    speaks = config.environment.model
    if speaks is not None and speaks.engine in served:
        yield (
            f"environment.model.engine: with model.train full '{speaks.engine}' would start vLLM anew at every move, "
            "for the policy's weights and for the model's own; name an engine with a `model`"
        )


def _meeting(config: Config, elsewhere: bool) -> Iterator[str]:
    """Training over several hosts without a place where they meet."""
    if config.trainer.hosts > 1 and not elsewhere:
        try:
            rendezvous()
        except TrainingError as error:
            yield str(error)


def _limits(config: Config, algorithm: Algorithm) -> Iterator[str]:
    """Limits that leave no room for a prompt, or under which the successor could not write what it learns to write."""
    for place, section in _played(config).items():
        engine = config.engines[section.engine]
        limit = engine.context_length or config.model.context_length
        if engine.backend != "scripted" and section.max_tokens >= limit:
            field = f"engines.{section.engine}" if engine.context_length else "model"
            yield (
                f"{place}.max_tokens: {section.max_tokens} leaves no room for a prompt in {field}.context_length "
                f"{limit}; lower it, or raise the other"
            )
    own, label = config.roles.predict, config.roles.bootstrap
    if not algorithm.has_successor:
        return
    names = ["max_tokens"] if own.thinking or not label.thinking else []  # a hidden thought takes tokens too
    names += ["line_chars"] if own.structured and label.structured else []
    for name in names:
        if getattr(own, name) < getattr(label, name):
            yield (
                f"roles.predict.{name}: {getattr(own, name)} is less than roles.bootstrap.{name} "
                f"{getattr(label, name)}, whose texts the role learns to write; raise it, or lower the other"
            )


def _played(config: Config) -> dict[str, RoleSection]:
    """The sections of the roles, and of the environment model where there is one, by their place."""
    played = {f"roles.{role}": section for role, section in config.roles}
    return played | ({"environment.model": config.environment.model} if config.environment.model else {})


def _lacking(config: Config, engine: str) -> Iterator[str]:
    """Roles, or an environment model, that need more than the engine declares."""
    able = declared_capabilities(config.engines[engine])
    for place, section in _played(config).items():
        if section.engine == engine and section.structured and not able.structured:
            yield (
                f"{place}.structured: engine '{engine}' can't hold a format; set it to false, or route the role "
                f"to an engine that can"
            )


def _token_kl(config: Config, algorithm: Algorithm, engine: str) -> Iterator[str]:
    """token_kl without the backup's top-k log-probabilities, or over other tokens than the critic's."""
    trains = config.backup.loss == "token_kl" and algorithm.has_successor
    if not trains or config.roles.bootstrap.engine != engine:
        return
    section = config.engines[engine]
    if not declared_capabilities(section).topk:
        yield (
            f"backup.loss: token_kl needs top-k log-probabilities, which engine '{engine}' of roles.bootstrap (backend "
            f"{section.backend}) does not give; set it to sft, or route the role to an engine that gives them"
        )
    elif section.model is not None:
        yield (
            f"backup.loss: token_kl needs the bootstrap played by the model in training, whose tokens it trains on; "
            f"engines.{engine}.model is {section.model}: empty it, or set backup.loss to sft"
        )


def _native_calls(config: Config, environment: Environment) -> Iterator[str]:
    """Native calls of tools in an environment without tools."""
    if config.roles.policy.tool_calls == "native" and not (
        isinstance(environment, OffersTools) and environment.tools
    ):
        yield f"roles.policy.tool_calls: {environment.name} offers no tools to call; set it to text"


def _exploration(config: Config, environment: Environment) -> Iterator[str]:
    """Random actions without an environment that lists them."""
    for field in ("exploration", "uniform_until"):
        if getattr(config.rollout, field) and not isinstance(environment, ListsActions):
            yield f"rollout.{field}: {environment.name} does not list its legal actions; set it to 0"


def _training_tasks(config: Config, algorithm: Algorithm, environment: Environment) -> Iterator[str]:
    """An algorithm that trains, with an environment that has nothing to train on."""
    plays = config.rollout.source == "environment" and not isinstance(environment, Unplayable)
    if plays and algorithm.trains and not environment.tasks("train"):
        yield (
            f"environment: {environment.name} has no tasks to train on with these options, only held-out ones; change "
            f"environment.options, or set algorithm to react, which evaluates alone"
        )


def _validation_tasks(config: Config, environment: Environment) -> Iterator[str]:
    """Validation without tasks for it, or on tasks that another split has too."""
    if not config.evaluation.validation_count:
        return
    if not played_tasks(environment, "validation"):
        field = "validation_episodes" if config.evaluation.validation_episodes else "patience"
        yield (
            f"evaluation.{field}: {environment.name} has no validation tasks with these options, and fewer than {LENT} "
            f"training tasks to lend one of; change environment.options, or leave evaluation.{field} empty"
        )
    for shared in shared_tasks(environment):
        yield f"environment: {environment.name}: {shared}; give each split tasks of its own"


def _retention(config: Config, engine: str) -> Iterator[str]:
    """A retention check that the policy's engine can't do."""
    if not config.evaluation.retention or config.roles.policy.engine != engine:
        return
    able = declared_capabilities(config.engines[engine])
    if config.engines[engine].model or not (able.scoring and able.topk):
        yield (
            f"evaluation.retention: engine '{engine}' of role policy does not play the model in training, or gives no "
            "top-k log-probabilities; set it to false, or route the policy to a transformers or vllm engine without "
            "`model`"
        )


def _general_chat(config: Config) -> Iterator[str]:
    """General chat that can't be read."""
    if config.anchor.chat_share or config.anchor.chat_file:
        try:
            load_conversations(chat_file(config.anchor))
        except BrokenConversations as error:
            yield f"anchor.chat_file: {error}"


def _warm_start(config: Config) -> Iterator[str]:
    """Demonstrations that can't be read."""
    if config.warm_start.file is not None:
        try:
            read_demonstrations(find_file(config.warm_start.file))
        except BrokenDemonstrations as error:
            yield f"warm_start.file: {error}"


def _playing(config: Config, environment: Environment) -> Iterator[str]:
    """Playing in an environment that is known from logged episodes alone."""
    if not isinstance(environment, Unplayable):
        return
    if config.rollout.source == "environment":
        yield (
            f"rollout.source: environment {environment.name} can't be played; set rollout to none, and import "
            "episodes: nlac import FILE"
        )


def _data_root(root: Path) -> Iterator[str]:
    """Whether the data root can be written, found out without creating it."""
    existing = next(p for p in (root, *root.parents) if p.exists())
    if not existing.is_dir():
        yield f"data root {root}: {existing} is not a folder; choose another with --data or NLAC_DATA"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"data root {root}: {existing} can't be written to; choose another with --data or NLAC_DATA"
