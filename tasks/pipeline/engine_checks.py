"""Checks of a configuration: whether its engines can play the roles that it gives them."""

from collections.abc import Iterator

from schemas.config import Config, RoleSection
from tasks.engines.backends import declared_capabilities
from tasks.runtime.algorithm import Algorithm


def check_playing(config: Config, algorithm: Algorithm, engine: str) -> Iterator[str]:
    """What an engine in use lacks for the roles that it plays.

    Raises:
        EngineConfigError: its backend is not known.
    """
    yield from _lacking(config, engine)
    yield from _token_kl(config, algorithm, engine)
    yield from _retention(config, engine)


def _lacking(config: Config, engine: str) -> Iterator[str]:
    """Roles, or an environment model, that need more than the engine declares."""
    able = declared_capabilities(config.engines[engine])
    for place, section in played_roles(config).items():
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


def check_weights(config: Config) -> Iterator[str]:
    """Full checkpoints in vLLM beside another copy of the weights, or with another version asked for at every move."""
    played, engines = played_roles(config), config.engines
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


def check_limits(config: Config, algorithm: Algorithm) -> Iterator[str]:
    """Limits that leave no room for a prompt, or under which the successor could not write what it learns to write."""
    for place, section in played_roles(config).items():
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


def played_roles(config: Config) -> dict[str, RoleSection]:
    """The sections of the roles, and of the environment model where there is one, by their place."""
    played = {f"roles.{role}": section for role, section in config.roles}
    return played | ({"environment.model": config.environment.model} if config.environment.model else {})
