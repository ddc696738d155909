"""One HTML file: template, styles, scripts and data, under a policy that loads nothing and runs nothing else."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from schemas.shown import visible
from storage.history import without_middle
from storage.sql.views import connect
from storage.store import Store
from tasks.export.view.episodes import DRAWS, Episodes
from tasks.export.view.overview import LOSS_POINTS, overview
from tasks.export.view.sample import RULE, sample

CHARS = 8_000
"""Of a longer text the page holds beginning and end."""
HERE = Path(__file__).parent
LIBRARIES = {"uPlot": "uPlot.iife.min.js", "table-core": "table-core.min.js", "diff": "diff.min.js"}
SCRIPTS = ("dom.js", "data.js", "charts.js", "overview.js", "episodes.js", "texts.js", "draws.js", "episode.js",
           "compare.js", "app.js")  # fmt: skip
STYLES = (HERE / "vendor" / "uPlot.min.css", HERE / "page" / "view.css")


class NothingToView(Exception):
    """The page can't be made; the message says what to do."""


@dataclass(frozen=True)
class Page:
    """The file's content, and how many of the episodes it holds."""

    html: str
    shown: int
    episodes: int


def make_page(store: Store, runs: Sequence[str], room: int, problems: list[str]) -> Page:
    """The page of some runs.

    Args:
        store: the artifact store.
        runs: names of runs.
        room: bytes that the page may take.
        problems: broken files are appended here, by name, and left out.

    Raises:
        NothingToView: the figures alone take more than `room`.
    """
    database = connect(store, problems)
    figures = _json(overview(database, runs))
    left = room - len(_render(figures, [], "").encode()) - 1_000  # the rule, with its numbers
    if left < 0:
        raise NothingToView(
            f"the page's figures alone take {(room - left) / 1e6:.1f} MB: raise --megabytes, or choose runs with --run"
        )
    episodes = Episodes(store, database)
    found = sample(database, runs, left, lambda ids: [_json(episode) for episode in episodes.read(ids)])
    shown, total = len(found.episodes), found.total
    rule = f"All {total} episodes." if shown == total else f"{shown} of {total} episodes: {RULE}."
    rule += (
        f" Of a text longer than {CHARS} characters the middle is left out, of a step's draws from replay all but the "
        f"newest {DRAWS}. A loss curve has up to {LOSS_POINTS} points, each a mean. Figures are of all data."
    )
    return Page(_render(figures, found.episodes, rule), shown, total)


def _render(figures: str, episodes: Sequence[str], rule: str) -> str:
    scripts = [_library(name, file) for name, file in LIBRARIES.items()]
    own = "\n".join((HERE / "page" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    scripts.append(f'"use strict";\n{own}')
    style = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    policy = "; ".join((
        "default-src 'none'",
        f"script-src {' '.join(map(_source, scripts))}",
        f"style-src {_source(style)}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",  # no text becomes markup, not even by a library
        "trusted-types 'none'",
    ))  # fmt: skip
    loader = FileSystemLoader(HERE / "page")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("page.html.j2").render(
        policy=policy, rule=rule, style=Markup(style), scripts=[Markup(script) for script in scripts],
        data=Markup(f'{{"overview":{figures},"episodes":[{",".join(episodes)}]}}'),
    )  # fmt: skip


def _library(name: str, file: str) -> str:
    licence = (HERE / "vendor" / f"{name}.LICENSE").read_text(encoding="utf-8")
    code = (HERE / "vendor" / file).read_text(encoding="utf-8")
    return f"/*!\n{name}\n{licence}*/\n{code.partition('//# sourceMappingURL=')[0]}"


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json(value: Any) -> str:
    """JSON that can stand inside a script element: `<`, `>`, `&` and `'` are escaped."""
    return str(
        htmlsafe_json_dumps(_shown(value), dumps=json.dumps, ensure_ascii=False, separators=(",", ":"))
    )


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return visible(without_middle(value, CHARS))
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if value == value and abs(value) != float("inf") else None
    return value
