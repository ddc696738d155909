"""Reads and writes configurations, and finds the data root."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from schemas.config import Config

PROJECT_ROOT = Path(__file__).resolve().parent.parent
"""The folder that holds the packages and configs/: the checkout, or site-packages of an installed wheel."""
DEFAULT_CONFIG = PROJECT_ROOT / "configs" / "default.yaml"
EXTENDS = "extends"
"""Key of a configuration file: a list of files, relative to it, whose fields lie under its own. Later ones win."""
MOST_VALUES = 100_000
"""Of a configuration file."""
STARTED_IN = "NLAC_STARTED_IN"
"""Holds, in every process of a stack, the folder in which the person stood who started it. Workers run elsewhere."""


def python_path(*before: Path) -> str:
    """PYTHONPATH of a process that imports this program: folders before it, the program, and what is searched here."""
    return os.pathsep.join(filter(None, [*map(str, before), str(PROJECT_ROOT), os.environ.get("PYTHONPATH")]))


class ConfigError(Exception):
    """A configuration can't be used. The message has one line per problem, with the field and the remedy."""


def data_root(explicit: str | Path | None = None) -> Path:
    """The folder of the data root: `explicit` (--data), else NLAC_DATA, else `data/` in the checkout. That of a URL is
    what `schemas.data_url` says.

    Without a checkout, where the program is installed from a wheel, it is `data/` in the working directory.

    Raises:
        ConfigError: it is a URL that can't be one of a data root.
    """
    home = PROJECT_ROOT if (PROJECT_ROOT / "pyproject.toml").exists() else Path.cwd()
    chosen = explicit or os.environ.get("NLAC_DATA") or home / "data"
    if "://" in str(chosen):
        from schemas.data_url import folder_of

        return folder_of(str(chosen))
    return Path(chosen).expanduser().resolve()


def find_file(named: str | Path) -> Path:
    """The file or folder that a user names. A relative path is looked up from the folder in which the stack was
    started, then the working directory, then the project's root. One that is nowhere is meant in the first of them."""
    file = Path(named).expanduser()
    places = [Path(os.environ[STARTED_IN])] if STARTED_IN in os.environ else []
    places += [Path(), PROJECT_ROOT]
    return next((place / file for place in places if (place / file).exists()), places[0] / file)


def load_config(path: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> "Config":
    """Read a YAML configuration, with the files that it extends, and check every field.

    Args:
        path: the file; None reads configs/default.yaml.
        overrides: top-level fields that replace the file's, for instance {"run": "trial", "seed": 1}.

    Raises:
        ConfigError: the file is missing, not YAML, or a field is unknown or of the wrong type.
    """
    file = find_file(path) if path is not None else DEFAULT_CONFIG
    if path is not None and not file.exists():
        raise ConfigError(
            f"{path}: no such configuration file; give an absolute path, or one of the shipped ones in configs/"
        )
    return parse_config({**_content(file), **(overrides or {})}, str(file))


def _content(file: Path, *readers: Path) -> dict[str, Any]:
    """The fields of a file over those of the files that it extends."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        values = _values(content, {})
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: can't be read ({error}){_extended_by(readers)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {_said(error)}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a date that is none, thousands of digits, a thousand brackets
        raise ConfigError(f"{file}: holds what can't be read as a value: {error}") from None
    if values > MOST_VALUES:
        raise ConfigError(f"{file}: holds more than {MOST_VALUES:,} values, counting what its aliases repeat")
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{file}: must hold fields (name: value), found {type(content).__name__}")
    own = dict(content or {})
    named = own.pop(EXTENDS, [])
    if not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise ConfigError(f"{file}: {EXTENDS}: must be a list of files, for instance [base.yaml]")
    merged: dict[str, Any] = {}
    for name in named:
        base = file.parent / Path(name).expanduser()
        if base.resolve() in map(Path.resolve, (file, *readers)):
            raise ConfigError(f"{file}: {EXTENDS}: {name} extends this file; remove one of the two")
        merged = merge(merged, _content(base, file, *readers))
    return merge(merged, own)


def _values(content: Any, known: dict[int, int]) -> int:
    """How many values a content holds, each as often as aliases repeat it; a few lines may stand for billions."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) not in known:
        known[id(content)] = MOST_VALUES  # one that holds itself has no end
        parts = content.values() if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(content)]


def _said(error: yaml.YAMLError) -> str:
    """What is wrong with a YAML file, and where. The line itself may hold a password."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark):
        return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})"
    return " ".join(str(error).split())


def _extended_by(readers: Sequence[Path]) -> str:
    return f"; {readers[0]} extends it" if readers else ""


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with the values of `over` in place of its own; mappings in both are merged in the same way."""
    both = {
        name: merge(under[name], value)
        for name, value in over.items()
        if isinstance(value, Mapping) and isinstance(under.get(name), Mapping)
    }
    return {**under, **over, **both}


def parse_config(content: Mapping[str, Any], source: str) -> "Config":
    """Check a mapping as a configuration; see load_config."""
    from schemas.config import Config  # importing it takes longer than a small query

    try:
        return Config.model_validate(dict(content))
    except ValidationError as error:
        raise ConfigError(
            "\n".join(_explain(source, e["loc"], e["type"], e["msg"], e.get("input")) for e in error.errors())
        ) from None


def _explain(source: str, loc: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    from schemas.config.engines import mask_password

    field = ".".join(str(part) for part in loc)
    if kind == "extra_forbidden":
        return f"{source}: {field}: unknown field{_meant(loc)} remove it or see docs/configuration.md"
    said = message.removeprefix("Value error, ")
    if not field:
        return f"{source}: {said}"
    if isinstance(value, str):
        value = mask_password(value)[0]
    shown = f" (it is {value!r})" if isinstance(value, str | int | float | bool | None) else ""
    return f"{source}: {field}: {said}{shown}; see docs/configuration.md"


def _meant(loc: tuple[int | str, ...]) -> str:
    """Asks for the known field that an unknown one is nearest to, of the same section where one is near."""
    from difflib import get_close_matches

    from schemas.config import Config

    *above, name = map(str, loc)
    known = list(_fields(Config, loc))
    here = [path[-1] for path in known if list(path[:-1]) == above]
    near = [".".join((*above, field)) for field in get_close_matches(name, here, n=1)]
    near = near or get_close_matches(".".join((*above, name)), map(".".join, known), n=1)
    return f", did you mean {near[0]}? If not," if near else ";"


def _fields(section: type[BaseModel], loc: tuple[int | str, ...], *path: str) -> Iterator[tuple[str, ...]]:
    """Where each field of a section stands, and of the sections below it; of a mapping's keys only that of `loc`."""
    for name, field in section.model_fields.items():
        here = (*path, name)
        yield here
        if get_origin(field.annotation) is dict:
            if loc[: len(here)] != here or len(loc) <= len(here):
                continue
            here = (*here, str(loc[len(here)]))
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _fields(kind, loc, *here)


def dump_config(config: "Config", *, masked: bool = False) -> str:
    """The resolved configuration as YAML. load_config reads it back to an equal configuration, unless `masked` puts ***
    in place of passwords, for people."""
    from schemas.config.engines import mask_password

    content = config.model_dump(mode="json")
    for engine in content["engines"].values() if masked else ():
        engine["base_url"] = engine["base_url"] and mask_password(engine["base_url"])[0]
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
