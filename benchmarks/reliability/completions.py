"""What a small model really wrote: the texts that `benchmarks.reliability.fuzz` mutates, out of data roots.

python -m benchmarks.reliability.completions DATA [DATA ...]

Takes up to EACH texts out of every generated column of every stage committed below the data roots, adds them to those
kept in `completions.json` beside this file, sorted, each text once.
"""

import json
import sys
from pathlib import Path

from storage.store import Store

FILE = Path(__file__).with_name("completions.json")
LONGEST = 600  # characters; what follows is of the same kind
EACH = 25
COLUMNS = frozenset(
    {
        "raw_action", "next_action_text", "next_future", "thought", "description", "thought_before", "action_text",
        "critique", "reasoning", "label_reasoning",
    }
)  # fmt: skip
"""Columns of what a model wrote."""


def collect(store: Store) -> set[str]:
    """Texts of all stages that are current."""
    found: set[str] = set()
    for committed in store.all_current():
        for table in committed.manifest.tables:
            frame = committed.scan(table).collect()
            for column in COLUMNS & set(frame.columns):
                texts = {text[:LONGEST] for text in frame[column].drop_nulls() if text.strip()}
                found |= set(sorted(texts)[:: max(1, len(texts) // EACH)][:EACH])
    return found


def main() -> None:
    """Collect, and write the file."""
    texts = set(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else set()
    for root in sys.argv[1:]:
        texts |= collect(Store(Path(root)))
    FILE.write_text(json.dumps(sorted(texts), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(texts)} texts in {FILE}")


if __name__ == "__main__":
    main()
