"""Tables, picture and checks of the comparison, from the results that are committed."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf, isfinite, nan
from statistics import median
from typing import Any

from benchmarks.checks import Check, check
from benchmarks.learning.compared import SEEDS, WORLDS, Compared, ComparedFigures, grid_of
from benchmarks.learning.curves import plot_bands
from benchmarks.learning.measured_run import at_steps, final
from schemas.load import PROJECT_ROOT
from storage.files import replace_text
from tasks.algorithms import ALGORITHMS

PAGE, README = PROJECT_ROOT / "docs" / "comparison.md", PROJECT_ROOT / "README.md"
PICTURE = PROJECT_ROOT / "docs" / "images" / "comparison.png"
MARKS = (
    "<!-- comparison: written by python -m benchmarks.learning.comparison report -->",
    "<!-- end of comparison -->",
)
OURS = "nlac"
LEVELS = {"half": 0.5, "nine tenths": 0.9}
"""Shares of the optimum."""
COSTS = {
    "environment_steps": "environment steps", "generated_tokens": "generated tokens",
    "trained_tokens": "trained tokens", "seconds": "seconds",
}  # fmt: skip
CAPTION = "Success on held-out tasks against environment steps, tokens and seconds"
NOT_RUN = "not run"


def mean_success(figures: Sequence[ComparedFigures], steps: int) -> float:
    """Mean success over so many environment steps: between two iterations that of the policy which plays then, and 0
    before the first. A grid chooses by it."""
    ends = [*(min(found.environment_steps, steps) for found in figures), steps]
    parts = (
        (after - before) * found.sampled_success
        for found, (before, after) in zip(figures, pairwise(ends), strict=True)
    )
    return sum(parts) / steps


def steps_to(result: Compared, share: float) -> float:
    """Environment steps after which success first reaches a share of the optimum; infinite where it does not within
    the steps compared at."""
    most, level = WORLDS[result.world].steps, share * result.optimum
    reached = (f.environment_steps for f in result.figures if f.sampled_success >= level)
    return next((steps for steps in reached if steps <= most), inf)


def of(results: Sequence[Compared], world: str, algorithm: str) -> list[Compared]:
    """The reported runs of an algorithm in a world."""
    return [
        r
        for r in results
        if (r.world, r.algorithm) == (world, algorithm) and r.number is None and r.seed in SEEDS
    ]


def middle_steps(results: Sequence[Compared], world: str, algorithm: str, share: float) -> float:
    """The median of the seeds' steps to a share of the optimum; nan where none has been run."""
    runs = of(results, world, algorithm)
    return median(steps_to(r, share) for r in runs) if runs else nan


def _told(values: Sequence[float], form: str) -> str:
    """The median, and the lowest and the highest where they differ."""

    def one(value: float) -> str:
        return format(value, form) if isfinite(value) else "not reached"

    low, high = one(min(values)), one(max(values))
    return one(median(values)) + (f" ({low} to {high})" if low != high else "")


def _row(runs: Sequence[Compared], steps: int) -> list[str]:
    """An algorithm's cells: success, steps to each level, costs."""
    if not runs:
        return ["", NOT_RUN, *[""] * (len(LEVELS) + len(COSTS) - 1)]
    reached = [at_steps(r.figures, steps) for r in runs]
    last = [figures[-1] for figures in reached]
    return [
        " ".join(str(r.seed) for r in runs),
        _told([final(figures, "sampled_success") for figures in reached], ".3f"),
        *(_told([steps_to(r, share) for r in runs], ",.0f") for share in LEVELS.values()),
        _told([f.generated_tokens for f in last], ",.0f"),
        _told([f.trained_tokens for f in last], ",.0f"),
        _told([f.seconds / 60 for f in last], ".1f"),
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def findings(results: Sequence[Compared], world: str) -> Iterator[str]:
    """Whether NLAC needs the fewest environment steps to each level, in the median of the seeds; a sentence each."""
    for name, share in LEVELS.items():
        steps = {a: middle_steps(results, world, a, share) for a in ALGORITHMS if of(results, world, a)}
        ours = steps.pop(OURS, nan)
        best = min(steps, key=lambda algorithm: steps[algorithm], default=None)
        other = steps[best] if best else inf
        reached = {a: [isfinite(steps_to(run, share)) for run in of(results, world, a)] for a in steps}
        some = (f"; {a} does on {sum(runs)} of {len(runs)} seeds" for a, runs in reached.items() if any(runs))
        none = "no other that has been run reaches it in the median of its seeds" + "".join(some)
        theirs = f"{best} needs {other:,.0f}" if isfinite(other) else none
        if ours != ours:
            yield f"- To {name} of the optimum: NLAC has not been run; {theirs}."
        elif not isfinite(ours):
            yield f"- To {name} of the optimum: **NLAC does not reach it**; {theirs}."
        elif ours <= other:
            yield f"- To {name} of the optimum: NLAC needs the fewest steps, {ours:,.0f}; {theirs}."
        else:
            yield f"- To {name} of the optimum: **NLAC does not need the fewest steps**, but {ours:,.0f}; {theirs}."


def _world(results: Sequence[Compared], world: str) -> list[str]:
    place = WORLDS[world]
    head = ["algorithm", "seeds", "success", *(f"steps to {name}" for name in LEVELS), "generated tokens",
            "trained tokens", "minutes"]  # fmt: skip
    rows = [[f"`{a}`", *_row(of(results, world, a), place.steps)] for a in ALGORITHMS]
    optima = sorted({f"{r.optimum:.3f}" for r in results if r.world == world})
    missing = [f"`{a}`" for a in ALGORITHMS if not of(results, world, a)]
    return [
        f"### {place.title[0].upper()}{place.title[1:]}, {place.steps:,} environment steps",
        "",
        *_table(head, rows),
        "",
        *([f"Optimal play succeeds in {' to '.join(optima)}.", ""] if optima else []),
        *findings(results, world),
        *([f"- Not run yet, and so not in these sentences: {', '.join(missing)}."] if missing else []),
        "",
    ]


def _setting(setting: Mapping[str, Any]) -> str:
    """A setting in words: field value. What critic and policy have in common is told once."""
    policy = setting.get("policy", {})
    parts = [
        f"{field} {value:g}"
        for section, fields in setting.items()
        for field, value in fields.items()
        if not (section == "critic" and policy.get(field) == value) and field != "micro_batch_rows"
    ]
    return ", ".join(parts)


def _choices(choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The grids; what each chose is bold."""
    by_name = {(c["world"], c["algorithm"]): c for c in choices}
    rows = []
    for world in WORLDS:
        for algorithm in ALGORITHMS:
            choice, settings = by_name.get((world, algorithm)), grid_of(algorithm)
            if len(settings) == 1:
                continue
            if choice is None:
                told = f"{NOT_RUN}; the first of {len(settings)} settings is taken: {_setting(settings[0])}"
            else:
                tried = [f"{_setting(s['setting'])}: {s['mean_success']:.3f}" for s in choice["settings"]]
                tried[choice["winner"]] = f"**{tried[choice['winner']]}**"
                told = "; ".join(tried)
            rows.append([WORLDS[world].title, f"`{algorithm}`", told])
    return _table(["world", "algorithm", "mean success of each setting; the best is chosen"], rows)


def _made_with(results: Sequence[Compared]) -> list[str]:
    rows = [
        [
            r.name, f"diverged after {len(r.figures)}" if r.diverged else f"{len(r.figures)}", r.configuration,
            f"`{r.commit}`", r.date,
            f"{r.machine['processor']}, {r.machine['threads']} of {r.machine['cores']} cores",
        ]
        for r in results
    ]  # fmt: skip
    return _table(["run", "iterations", "configuration", "commit", "date", "machine"], rows)


def page(results: Sequence[Compared], choices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The generated lines of docs/comparison.md."""
    return [
        *(line for world in WORLDS for line in _world(results, world)),
        *(
            ["![success against environment steps, tokens and seconds](images/comparison.png)", ""]
            if results
            else []
        ),
        "### Grids",
        "",
        *_choices(choices),
        "",
        "### Runs",
        "",
        *(_made_with(results) if results else ["None yet."]),
    ]


def readme(results: Sequence[Compared]) -> list[str]:
    """The generated lines of README.md, a row for each world; none before there is a result."""
    if not results:
        return []
    head = ["[compared](docs/comparison.md): success; steps to nine tenths", *(f"`{a}`" for a in ALGORITHMS)]
    rows = []
    for world, place in WORLDS.items():
        cells = [place.title]
        for algorithm in ALGORITHMS:
            _, success, _, nine_tenths, *_ = _row(of(results, world, algorithm), place.steps)
            cells.append(f"{success}; {nine_tenths}" if nine_tenths else success)
        rows.append(cells)
    return [*_table(head, rows), "", f"![{CAPTION}](docs/images/{PICTURE.name})"]


def between(text: str, lines: Sequence[str]) -> str:
    """A page with other lines between its marks.

    Raises:
        ValueError: the page lacks the marks.
    """
    before, first, rest = text.partition(MARKS[0])
    _, last, after = rest.partition(MARKS[1])
    if not (first and last):
        raise ValueError(f"the page has no lines '{MARKS[0]}' and '{MARKS[1]}'; put them back")
    return "\n".join([f"{before}{MARKS[0]}", *lines, f"{MARKS[1]}{after}"])


def write_pages(results: Sequence[Compared], choices: Sequence[Mapping[str, Any]]) -> None:
    """Write docs/comparison.md and README.md."""
    for file, lines in ((PAGE, page(results, choices)), (README, readme(results))):
        replace_text(file, between(file.read_text(encoding="utf-8"), lines))


def draw(results: Sequence[Compared]) -> None:
    """The picture: a row for each world, a column for each cost."""
    panels = {
        WORLDS[world].title: {
            algorithm: [at_steps(r.figures, WORLDS[world].steps) for r in runs]
            for algorithm in ALGORITHMS
            if ALGORITHMS[algorithm].trains and (runs := of(results, world, algorithm))
        }
        for world in WORLDS
    }
    if any(panels.values()):
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        plot_bands({title: runs for title, runs in panels.items() if runs}, COSTS, PICTURE)


def checks(results: Sequence[Compared]) -> list[Check]:
    """Whether all has been run, and whether NLAC needs the fewest environment steps; where it does not reach a level,
    or was not run, the check is missed."""
    made = []
    for world in WORLDS:
        runs = [r for a in ALGORITHMS for r in of(results, world, a)]
        made.append(check(f"{world}_runs", len(runs), "==", len(ALGORITHMS) * len(SEEDS)))
        for name, share in LEVELS.items():
            ours = middle_steps(results, world, OURS, share)
            others = [middle_steps(results, world, a, share) for a in ALGORITHMS if a != OURS]
            bar = min((steps for steps in others if steps == steps), default=nan)
            value = ours if isfinite(ours) else nan
            made.append(check(f"{world}_nlac_steps_to_{name.replace(' ', '_')}", value, "<=", bar))
    return made
