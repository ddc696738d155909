"""Finished requests of an unfinished stage, so that one killed at 90% resumes at 90%.

One SQLite file a stage fingerprint, removed when the stage commits. The key covers the item, the sample,
the model version and the whole rendered request: a changed prompt or seed is another request.
"""

import hashlib
import json
import sqlite3
from dataclasses import asdict
from pathlib import Path

from tasks.engines.base import Completion, Request, ScoreRequest, Scores


class RequestCache:
    """Completions and scores by request.

    Args:
        path: the SQLite file; made when first written to.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("pragma journal_mode=wal")
        self._db.execute("pragma synchronous=normal")
        self._db.execute("create table if not exists requests (key text primary key, answer text not null)")

    @staticmethod
    def key(item: str, sample: int, request: Request | ScoreRequest) -> str:
        """Digest of all that determines an answer."""
        payload = asdict(request)
        payload["adapter"] = request.adapter and [request.adapter.version, request.adapter.digest]
        text = json.dumps([item, sample, type(request).__name__, payload], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def completion(self, key: str) -> Completion | None:
        answer = self._get(key)
        if answer is None:
            return None
        fields = json.loads(answer)
        return Completion(
            **{**fields, "token_ids": tuple(fields["token_ids"]), "logprobs": tuple(fields["logprobs"])}
        )

    def scores(self, key: str) -> Scores | None:
        answer = self._get(key)
        return None if answer is None else Scores(tuple(tuple(s) for s in json.loads(answer)["segments"]))

    def put(self, key: str, answer: Completion | Scores) -> None:
        self._db.execute("insert or replace into requests values (?, ?)", (key, json.dumps(asdict(answer))))

    def _get(self, key: str) -> str | None:
        row = self._db.execute("select answer from requests where key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def close(self, *, remove: bool = False) -> None:
        """Close; with `remove`, delete the file (the stage has committed)."""
        self._db.close()
        if remove:
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
