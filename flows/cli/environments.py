"""`nlac env`: list the built-in environments, check any environment without a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.cli.options import FAILED, USAGE, ListAs, ListFormat, fail, load, say, say_json
from schemas.shown import counted

if TYPE_CHECKING:
    from schemas.config import EnvironmentSection

app = typer.Typer(no_args_is_help=True, help="List environments, or check one without a model.")


@app.command("list")
def list_environments(format: ListAs = ListFormat.table) -> None:
    """The built-in environments: what each is, what it needs, and whether that is there."""
    from tasks.environments.registry import BUILTIN

    if format is ListFormat.json:
        parts = ("description", "needs", "missing")
        say_json(
            [
                {"name": name, **{part: getattr(one, part) for part in parts}}
                for name, one in sorted(BUILTIN.items())
            ]
        )
        return
    width = max(map(len, BUILTIN))
    for name, builtin in sorted(BUILTIN.items()):
        say(f"{name:<{width}}  {builtin.description}")
        if builtin.needs:
            say(f"{'':<{width}}  needs {builtin.needs}")
        if builtin.missing:
            say(f"{'':<{width}}  not usable: {builtin.missing}")
    typer.echo("Any other is named by import path, 'module:factory' (docs/environments.md).")


@app.command()
def validate(
    name: Annotated[str, typer.Argument(help="a built-in name, or an import path 'module:factory'")],
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="an argument of the environment, its value as in YAML; repeatable"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="take environment.options from this configuration")
    ] = None,
) -> None:
    """Check an environment without a model: it can be made, and its own validation finds no fault.

    An import path given here is allowed by being given.
    """
    from tasks.environments import UnusableEnvironment, make_environment
    from tasks.environments.checks import faults_of
    from tasks.environments.splits import SPLITS, own_validation_tasks, played_tasks
    from tasks.imports import allow_imports

    allow_imports([name.partition(":")[0]] if ":" in name else [])
    try:
        environment = make_environment(_section(name, option or [], config))
    except UnusableEnvironment as error:
        fail(str(error), USAGE)
    faults = faults_of(environment)
    for fault in faults:
        say(fault, err=True)
    if faults:
        fail(f"{environment.name}: {counted(len(faults), 'fault')}", FAILED)
    counts = ", ".join(f"{len(played_tasks(environment, split))} {split} tasks" for split in SPLITS)
    lent = "" if own_validation_tasks(environment) else "; the validation tasks are lent training tasks"
    say(f"{environment.name}: no fault ({counts}{lent})")


def _section(name: str, given: list[str], config: Path | None) -> "EnvironmentSection":
    """The section that makes the environment; options `given` on the command line come over the file's."""
    import yaml

    from schemas.config import EnvironmentSection

    section = EnvironmentSection(name=name, options={})
    if config is not None:
        section = load(config).environment
        if section.name != name:
            fail(f"{config}: environment.name is {section.name}, not {name}", USAGE)
    options: dict[str, Any] = dict(section.options)
    for pair in given:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            fail(f"--option {pair}: write KEY=VALUE", USAGE)
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            fail(f"--option {pair}: the value is not YAML ({' '.join(str(error).split())})", USAGE)
    return section.model_copy(update={"options": options})
