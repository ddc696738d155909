"""How well the leak check finds planted leaks: precision and recall over tests/data/planted_leaks.yaml.

python -m benchmarks.learning.leak_check [--verbose]

Prints tables by style, kind and part, and the bars; writes benchmarks/out/leak_check.json. Ends non-zero when a bar is
missed. A part is when its cases were written: `dev` with the detector, `second` after its first version, `held` after
its last, so `held` alone says how it does on what it has not seen. `hidden` cases are hidden chains of thought.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
import yaml

from benchmarks.checks import Check, check, finish, print_figures
from schemas.config import CorrectionSection
from schemas.load import PROJECT_ROOT
from tasks.text.leaks import SOURCE_OF_TARGET, SOURCE_OF_THOUGHT, find_leaks

CASES = PROJECT_ROOT / "tests" / "data" / "planted_leaks.yaml"
SOURCES = {"target": SOURCE_OF_TARGET, "thought": SOURCE_OF_THOUGHT}
PRECISION, RECALL = 0.9, 0.8


@dataclass(frozen=True)
class Case:
    """A thought in its scene; `leak` is the label by meaning."""

    id: str
    part: str
    style: str
    kind: str
    privileged: tuple[str, ...]
    visible: tuple[str, ...]
    thought: str
    leak: bool
    note: str = ""


@dataclass(frozen=True)
class Counts:
    """A confusion matrix; a leak is a positive."""

    true_positives: int
    false_positives: int
    true_negatives: int
    false_negatives: int

    @property
    def precision(self) -> float:
        """Of what was called a leak, the share that is one; 1 where nothing was."""
        found = self.true_positives + self.false_positives
        return self.true_positives / found if found else 1.0

    @property
    def recall(self) -> float:
        """Of the leaks, the share found; 1 where there is none."""
        leaks = self.true_positives + self.false_negatives
        return self.true_positives / leaks if leaks else 1.0


def load_cases(path: Path = CASES) -> list[Case]:
    """The planted-leak set, each case with its scene's texts."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    cases = []
    for entry in data["cases"]:
        scene = data["scenes"][entry.pop("scene")]
        texts = (tuple(scene["privileged"]), tuple(scene["visible"]))
        cases.append(Case(kind=scene["kind"], privileged=texts[0], visible=texts[1], **entry))
    return cases


def called_leak(case: Case, section: CorrectionSection) -> bool:
    """The detector's word on a case, as the stages ask for it."""
    leak = find_leaks(
        case.thought,
        privileged=case.privileged,
        visible=case.visible,
        source=SOURCES[case.kind],
        ngram=section.ngram,
    )
    return leak.share > section.threshold


def count(judged: Iterable[tuple[Case, bool]]) -> Counts:
    """Compare labels with the detector's word on them."""
    pairs = [(case.leak, called) for case, called in judged]
    return Counts(
        *(pairs.count(pair) for pair in ((True, True), (False, True), (False, False), (True, False)))
    )


def by_group(
    judged: list[tuple[Case, bool]], group: Callable[[Case], str]
) -> dict[str, dict[str, float | str | None]]:
    """The figures of each group of cases, and of all."""
    found: dict[str, dict[str, float | str | None]] = {}
    for name in [*sorted({group(case) for case, _ in judged}), "all"]:
        chosen = [pair for pair in judged if name in ("all", group(pair[0]))]
        counts = count(chosen)
        shares = {"precision": f"{counts.precision:.2f}", "recall": f"{counts.recall:.2f}"}
        found[name] = {"cases": len(chosen), **asdict(counts), **shares}
    return found


def checks_of(judged: list[tuple[Case, bool]], suffix: str = "") -> list[Check]:
    """The bars; `suffix` ends the checks' names."""
    counts = count(judged)
    return [
        check(f"leak_precision{suffix}", counts.precision, ">=", PRECISION),
        check(f"leak_recall{suffix}", counts.recall, ">=", RECALL),
    ]


def main(
    verbose: Annotated[bool, typer.Option(help="also list the cases that it gets wrong")] = False,
) -> None:
    """Precision and recall of the leak check; ends non-zero when a bar is missed."""
    section = CorrectionSection()
    judged = [(case, called_leak(case, section)) for case in load_cases()]
    title = f"Planted leaks (ngram {section.ngram}, threshold {section.threshold:g})"
    for name, group in (
        ("style", lambda case: case.style),
        ("kind", lambda case: case.kind),
        ("part", lambda case: case.part),
    ):
        print_figures(f"{title} by {name}", by_group(judged, group))
    if verbose:
        for case, called in judged:
            if called != case.leak:
                fault = "missed" if case.leak else "false alarm"
                print(f"{fault} {case.id}: {case.thought} ({case.note or case.style})")
    held = [pair for pair in judged if pair[0].part == "held"]
    checks = [*checks_of(judged), *checks_of(held, "_held")]
    finish("leak_check", "Planted leaks, all cases and held-out ones", checks)


if __name__ == "__main__":
    typer.run(main)
