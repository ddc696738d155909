"""Checking a configuration whole, before the first stage and without creating anything."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prompts import NAMES, PromptError, template_text
from schemas.config import Config
from schemas.load import ConfigError, find_file
from tasks.algorithms import ALGORITHMS, algorithm_of
from tasks.datasets.chats import BrokenConversations, chat_file, load_conversations
from tasks.datasets.demonstrations import BrokenDemonstrations, read_demonstrations
from tasks.engines.backends import (
    EngineConfigError,
    NotHere,
    check_engine,
    find_backend,
)
from tasks.engines.models import MissingModel, ModelError, check_model
from tasks.environments import (
    AbsentEnvironment,
    UnusableEnvironment,
    check_environment_model,
    make_environment,
)
from tasks.pipeline.engine_checks import check_limits, check_playing, check_weights, played_roles
from tasks.pipeline.environment_checks import check_environment
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
    used = {section.engine for section in played_roles(config).values()}
    for name in sorted(config.engines):
        section = config.engines[name]
        try:
            find_backend(section)  # an unknown backend is refused in an engine out of use too
            if name not in used:
                continue
            with suppress(*absent):
                check_engine(section, config.model)
            yield from check_playing(config, algorithm, name)
        except EngineConfigError as error:
            problem = str(error)
            if problem != unusable:  # said already
                yield problem if problem.startswith("model.") else f"engines.{name}.{problem}"
    yield from check_weights(config)
    yield from _meeting(config, elsewhere)
    overrides: dict[str, Path] = dict(role_templates(config))
    try:
        environment = make_environment(config.environment)
        check_environment_model(config.environment, environment)
        overrides = {**environment.templates, **overrides}
        yield from check_environment(config, algorithm, environment)
    except UnusableEnvironment as error:
        if not (elsewhere and isinstance(error, AbsentEnvironment)):
            yield str(error)
    for name in NAMES:
        try:
            template_text(name, overrides)
        except PromptError as error:
            yield f"roles: {error}"
    yield from check_limits(config, algorithm)
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


def _meeting(config: Config, elsewhere: bool) -> Iterator[str]:
    """Training over several hosts without a place where they meet."""
    if config.trainer.hosts > 1 and not elsewhere:
        try:
            rendezvous()
        except TrainingError as error:
            yield str(error)


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


def _data_root(root: Path) -> Iterator[str]:
    """Whether the data root can be written, found out without creating it."""
    existing = next(p for p in (root, *root.parents) if p.exists())
    if not existing.is_dir():
        yield f"data root {root}: {existing} is not a folder; choose another with --data or NLAC_DATA"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"data root {root}: {existing} can't be written to; choose another with --data or NLAC_DATA"
