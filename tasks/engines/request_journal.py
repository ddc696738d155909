"""Finished requests of an unfinished stage, so that a stage killed at 90% resumes at 90%.

One journal per stage fingerprint, with one line (`key<tab>json`) per response; it is removed when the stage commits. A
line is written as soon as the response is known, so a killed process loses only requests in flight. An incomplete last
line is cut off. The key covers the item, the sample, the model version and the whole rendered request: a changed
prompt or seed is another request.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tasks.engines.protocol import Completion, Request, ScoreRequest, Scores


class RequestJournal:
    """Completions and scores by request. One process writes a journal at a time.

    Args:
        path: of the journal, created if missing.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab+", buffering=0)
        self._file.seek(0)
        whole, _, _torn = self._file.read().rpartition(b"\n")
        self._file.truncate(len(whole) + 1 if whole else 0)
        self._known = dict(line.split("\t", 1) for line in whole.decode().splitlines())

    @staticmethod
    def key(request_key: str, sample: int, request: Request | ScoreRequest) -> str:
        """Digest of all that determines a response."""
        adapter = request.adapter and [request.adapter.version, request.adapter.digest]
        payload = {**vars(request), "adapter": adapter}
        if isinstance(request, Request):
            payload["sampling"] = vars(request.sampling)
        text = json.dumps([request_key, sample, type(request).__name__, payload], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def completion(self, key: str) -> Completion | None:
        """The completion recorded under a key."""
        return Completion(**self._fields(key)) if key in self._known else None

    def scores(self, key: str) -> Scores | None:
        """The scores recorded under a key."""
        return Scores(**self._fields(key)) if key in self._known else None

    def _fields(self, key: str) -> dict[str, Any]:
        return {name: _frozen(value) for name, value in json.loads(self._known[key]).items()}

    def put(self, key: str, answer: Completion | Scores) -> None:
        """Record a response."""
        self._file.write(f"{key}\t{json.dumps(vars(answer))}\n".encode())

    def close(self, *, remove: bool = False) -> None:
        """Close; with `remove`, delete the journal (the stage has committed)."""
        self._file.close()
        if remove:
            self._path.unlink(missing_ok=True)


def _frozen(value: Any) -> Any:
    """Lists of JSON as the tuples that they were."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
