"""Draws docs/images/chain_of_texts.svg: a state of the proof of learning, and the texts that changed its action.

The rows are docs/results/frozen_lake_lineage.json, answers of the query in docs/learning.md; the first is drawn.
`--check` fails if the picture is stale.

python docs/chain_of_texts.py [--check]
"""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent
ROWS, PICTURE = DOCS / "results" / "frozen_lake_lineage.json", DOCS / "images" / "chain_of_texts.svg"
CELL, SIDE = 36, 4
BOX, GAP, TOP, HEIGHT = 148, 24, 40, 150
MOVES = {"left": (-1, 0), "down": (0, 1), "right": (1, 0), "up": (0, -1)}
REPLACED, DISTILLED = "#b3261e", "#1b6e3c"


def picture(row: dict[str, object]) -> str:
    """The SVG of one changed action.

    Args:
        row: observation, judged_action, futures, critique and refined_action of the view `lineage`.
    """
    futures = Counter(str(text) for text in row["futures"])  # type: ignore[attr-defined]
    boxes = (
        ("policy", "acts: a", str(row["judged_action"]), "critiques", REPLACED),
        ("successor", "foresees: d1 .. dk", *_said(futures), "futures", "#333"),
        ("evaluator", "criticises: q", str(row["critique"]), "critiques", "#333"),
        ("refiner", "improves: a_r", str(row["refined_action"]), "refinements", DISTILLED),
        ("policy", "is trained on it", "-log p(a_r | s)", "training_rows", "#333"),
    )
    left = SIDE * CELL + 2 * GAP
    width = left + len(boxes) * (BOX + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 52}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{TOP + HEIGHT + 52}" fill="#fff"/>',
        *_map(row),
        _text(GAP, TOP + HEIGHT + 38, f"observation: {row['observation']}", "#333", "monospace"),
    ]
    for number, box in enumerate(boxes):
        parts += _box(left + number * (BOX + GAP), *box)
    return "\n".join([*parts, "</svg>", ""])


def _said(futures: Counter[str]) -> tuple[str]:
    return ("; ".join(f"{count} x {text}" for text, count in futures.items()),)


def _map(row: dict[str, object]) -> list[str]:
    """The lake, its cells named by row and column, with the action replaced and the one distilled."""
    named = [(int(c), int(r)) for r, c in re.findall(r"r(\d)c(\d)", str(row["observation"]))]
    agent, goal, *holes = named
    holes += [
        (agent[0] + dx, agent[1] + dy)
        for (dx, dy), seen in zip(MOVES.values(), str(row["observation"]).split()[4:8], strict=True)
        if seen == "H"
    ]
    parts = [_text(GAP, TOP - 14, "state s", "#333")]
    for x in range(SIDE):
        for y in range(SIDE):
            colour = "#cfe8d5" if (x, y) == goal else "#30445c" if (x, y) in holes else "#eaf3fb"
            at = f'x="{GAP + x * CELL}" y="{TOP + y * CELL}"'
            parts.append(f'<rect {at} width="{CELL}" height="{CELL}" fill="{colour}" stroke="#9ab"/>')
    parts.append(_text(*_middle(goal), "goal", DISTILLED, anchor="middle", size=11))
    centre = _middle(agent)
    parts.append(f'<circle cx="{centre[0]}" cy="{centre[1] - 4}" r="8" fill="#333"/>')
    for action, colour in ((row["judged_action"], REPLACED), (row["refined_action"], DISTILLED)):
        dx, dy = MOVES[str(action)]
        line = f"M{centre[0] + 9 * dx},{centre[1] - 4 + 9 * dy} l{20 * dx},{20 * dy}"
        back, aside = (6 * dx, 6 * dy), (5 * dy, 5 * dx)
        tip = (
            f"m{-back[0] - aside[0]},{-back[1] - aside[1]} l{back[0] + aside[0]},{back[1] + aside[1]} "
            f"l{aside[0] - back[0]},{aside[1] - back[1]}"
        )
        parts.append(f'<path d="{line} {tip}" stroke="{colour}" stroke-width="3" fill="none"/>')
    return parts


def _middle(cell: tuple[int, int]) -> tuple[float, float]:
    return GAP + (cell[0] + 0.5) * CELL, TOP + (cell[1] + 0.5) * CELL + 4


def _box(x: float, role: str, does: str, said: str, table: str, colour: str) -> list[str]:
    middle = x + BOX / 2
    arrow = f"M{x - GAP + 4},{TOP + HEIGHT / 2} h{GAP - 10} m-5,-5 l5,5 l-5,5"
    return [
        f'<path d="{arrow}" stroke="#667" stroke-width="2" fill="none"/>',
        f'<rect x="{x}" y="{TOP}" width="{BOX}" height="{HEIGHT}" rx="8" fill="#f7f7f9" stroke="#99a"/>',
        _text(middle, TOP + 26, role, "#333", anchor="middle", size=15),
        _text(middle, TOP + 46, does, "#667", anchor="middle"),
        _text(middle, TOP + 92, said, colour, "monospace", anchor="middle", size=15),
        _text(middle, TOP + HEIGHT - 14, f"table {table}", "#667", anchor="middle", size=11),
    ]


def _text(
    x: float,
    y: float,
    text: str,
    colour: str,
    family: str = "sans-serif",
    anchor: str = "start",
    size: int = 13,
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-family="{family}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def main() -> None:
    """Write the picture, or compare it."""
    drawn = picture(json.loads(ROWS.read_text(encoding="utf-8"))[0])
    if sys.argv[1:] == ["--check"]:
        fresh = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == drawn
        sys.exit(0 if fresh else f"out of date: {PICTURE.name}; run: python docs/chain_of_texts.py")
    PICTURE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
