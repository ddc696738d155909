"""The page of the commands, from the commands themselves; docs/reference.py writes it."""

import inspect
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from typer.main import get_command

from flows.cli.examples import EXAMPLES, EXIT_CODES
from flows.cli.main import app


def commands() -> str:
    """docs/commands.md without its first line: exit codes, then every command with arguments, options and examples."""
    known = list(_walk(get_command(app), ""))
    lines = [
        "# Commands\n",
        "`nlac COMMAND --help` prints what this page says. `nlac --install-completion` teaches your shell to complete "
        "commands and options. Every list takes `--format json`.\n",
        "| command | what it does |",
        "|---|---|",
        *(f"| [`nlac {name}`](#nlac-{name.replace(' ', '-')}) | {_cell(_help(c))} |" for name, c in known),
        "\n## Exit codes\n",
        "| code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
        "",
    ]
    for name, command in known:
        lines += [f"## nlac {name}\n", f"{_help(command)}\n", *_parameters(command)]
        lines += ["```", *EXAMPLES.get(name, (f"nlac {name}",)), "```", ""]
    return "\n".join(lines)


def _walk(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _walk(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _parameters(command: Any) -> list[str]:
    rows = [
        f"| {_cell(_written(one, command))} | {_cell(_given(one))} | {_cell(' '.join((one.help or '').split()))} |"
        for one in command.params
        if one.name != "help"
    ]
    return ["| argument or option | default | meaning |", "|---|---|---|", *rows, ""] if rows else []


def _written(parameter: Any, command: Any) -> str:
    annotation = inspect.signature(command.callback).parameters[parameter.name].annotation
    taken = _type(annotation)
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return f"`{parameter.opts[0]} {parameter.metavar or taken}`" if taken else f"`{parameter.opts[0]}`"


def _type(annotation: Any) -> str:
    """What an option takes; nothing for a flag."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    if isinstance(kinds[0], type) and issubclass(kinds[0], StrEnum):
        return "|".join(kinds[0])
    return {bool: "", int: "NUMBER", Path: "FILE"}.get(kinds[0], "TEXT")


def _given(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    return "" if default in (None, False, ()) else f"`{getattr(default, 'value', default)}`"


def _help(command: Any) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
