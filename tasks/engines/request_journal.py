"""Finished requests of an unfinished stage, so that a stage killed at 90% resumes at 90%.

One journal per stage fingerprint, with one line (`crc32<tab>key<tab>json`) per response; it is removed when the stage
commits. A line is written as soon as the response is known, so a killed process loses only requests in flight. A line
whose checksum is not its own is skipped and counted, so damage costs the requests that it hit. The key covers the item,
the sample, the model version and the whole rendered request: a changed prompt or seed is another request.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from storage.checked_lines import checked_line, read_checked_lines
from tasks.engines.protocol import Completion, Request, ScoreRequest, Scores


class RequestJournal:
    """Completions and scores by request. One process writes a journal at a time.

    Args:
        path: of the journal, created if missing.

    Attributes:
        skipped: how many lines were damaged; their requests are asked again.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._file = path.open("ab+", buffering=0)
        self._file.seek(0)
        records, self.skipped, self._end = read_checked_lines(self._file.read())
        self._file.truncate(self._end)
        self._known = {key.decode(): answer for key, _, answer in (r.partition(b"\t") for r in records)}

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
        """Record a response, whole or not at all.

        Raises:
            OSError: it can't be written, because the disk is full for instance.
        """
        record = f"{key}\t{json.dumps(vars(answer))}".encode()
        line = rest = checked_line(record)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._file.truncate(self._end)
            remedy = f"{error.strerror}; put that right, and run the stage again: it goes on from here"
            raise OSError(error.errno, remedy, str(self._path)) from error
        self._end += len(line)

    def close(self, *, remove: bool = False) -> None:
        """Close; with `remove`, delete the journal (the stage has committed)."""
        self._file.close()
        if remove:
            self._path.unlink(missing_ok=True)


def _frozen(value: Any) -> Any:
    """Lists of JSON as the tuples that they were."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
