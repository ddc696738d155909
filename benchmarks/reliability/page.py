"""The parts of docs/reliability.md that are made of results, each between two comments.

python -m benchmarks.reliability.page
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reliability import faults
from benchmarks.reliability.findings import FOLDER
from benchmarks.reliability.results import RESULTS, Result, by_stage, by_victim, read_results
from schemas.load import PROJECT_ROOT
from storage.files import replace_text

PAGE = PROJECT_ROOT / "docs" / "reliability.md"


def between(text: str, name: str, content: str) -> str:
    """A page with other content between `<!-- NAME: ... -->` and `<!-- end of NAME -->`.

    Raises:
        ValueError: the page does not have both comments, each on a line of its own.
    """
    before, begin, rest = text.partition(f"<!-- {name}: ")
    first, newline, rest = rest.partition("\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->")
    if not (begin and newline and end):
        raise ValueError(f"the page has no comments that begin and end '{name}'")
    return f"{before}{begin}{first}\n\n{content.strip()}\n\n{end}{after}"


def soak_text(results: Sequence[Result]) -> str:
    """The results of the soak as Markdown."""
    kills = [kill for result in results for kill in result.kills]
    if not kills:
        return "The soak was not run yet."
    victims = by_victim(kills)
    kinds = [str(line["victim"]) for line in victims[:-1]]
    stages = by_stage(kills)
    runs = [
        {
            "run": f"{r.run}, seed {r.seed}",
            "kills": len(r.kills),
            "iterations": r.iterations,
            "minutes": r.minutes,
            "s between commits": r.between,
            "tables and adapters": r.tables,
            "differ": len(r.differing),
            "lost rows": r.lost,
            "surplus rows": r.surplus,
            "staging folders": len(r.staging),
            "orphans": len(r.orphans),
            "measured": f"{r.machine['cores']} cores {r.machine['processor']}, {r.date}, commit {r.commit}",
        }
        for r in results
    ]
    return "\n\n".join([
        _table(victims),
        _table([{"killed before the commit of": s, **{k: n[k] for k in kinds}} for s, n in stages.items()]),
        _table(runs),
    ])  # fmt: skip


def damage_text(found: Mapping[str, Any]) -> str:
    """The damaged files as Markdown."""
    rows = [{"damage": kind, **counted} for kind, counted in found["by kind"].items()]
    return f"{_table(rows)}\n\nMissed: {len(found['missed'])}. {_origin(found)}"


def texts_text(fuzzed: Mapping[str, Any], branches: Mapping[str, Any], checked: Mapping[str, Any]) -> str:
    """The hostile completions and the random configurations as Markdown."""
    modules = branches["modules"].values()
    known = sum(of["branches"] for of in modules)
    missing = sum(len(of["missing"]) for of in modules)
    read, refused = (sum(fuzzed[kind].values()) for kind in ("read", "refused"))
    return "\n".join([
        f"- **{fuzzed['completions']:,} completions**, seed {fuzzed['seed']}: {read:,} times one was read or played, "
        f"{refused:,} times refused as documented; ways to fail otherwise: {len(fuzzed['raised'])}. {_origin(fuzzed)}",
        f"- **Branches of the {len(modules)} modules that read what a model wrote**, with {branches['completions']:,} "
        f"completions: {known - missing} of {known} reached. {_origin(branches)}",
        f"- **{checked['number']:,} random configurations**: {checked['can be used']:,} can be used, "
        f"{checked['refused with exit code 2']:,} are refused with exit code 2. Small ones that can be used were run: "
        f"{', '.join(f'{number} {how}' for how, number in checked['run'].items())}. "
        f"Ended otherwise: {len(checked['otherwise'])}. {_origin(checked)}",
    ])  # fmt: skip


def _origin(found: Mapping[str, Any]) -> str:
    return f"({found['machine']}, commit {found['commit']}.)"


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([*map(str, row.values())] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def parts() -> dict[str, str]:
    """Name of a part -> what the committed results say."""
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")}
    return {
        "soak": soak_text(read_results(RESULTS)),
        "faults": faults.table(read["faults"]),
        "damage": damage_text(read["bit_flips"]),
        "texts": texts_text(read["fuzz"], read["fuzz_branches"], read["random_yaml"]),
    }


def write_page(page: Path = PAGE) -> None:
    """Put the results into the page."""
    text = page.read_text(encoding="utf-8")
    for name, content in parts().items():
        text = between(text, name, content)
    replace_text(page, text)


if __name__ == "__main__":
    write_page()
