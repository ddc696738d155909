"""Finished requests of an unfinished stage: kept as they were, whatever a kill leaves of the last line."""

from pathlib import Path

from tasks.chat.messages import Message
from tasks.engines.protocol import Completion, Request, Sampling, Scores
from tasks.engines.request_journal import RequestJournal

DONE = Completion('ten\tor "nine"\n', "stop", 7, 2, (4, 5), (-0.5, -1.25))
SCORED = Scores(((-0.5,), (-1.0, -2.0)), (((1,),), ((2,), (3,))), (((-0.1,),), ((-0.2,), (-0.3,))))


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    journal = tmp_path / "below" / "stage.journal"
    cache = RequestJournal(journal)
    cache.put("a", DONE)
    cache.put("b", SCORED)
    cache.close()
    again = RequestJournal(journal)
    assert again.completion("a") == DONE
    assert again.scores("b") == SCORED
    assert again.completion("c") is None and again.scores("c") is None
    again.close(remove=True)
    assert not journal.exists()


def test_a_line_cut_short_is_ignored_and_what_follows_is_kept(tmp_path: Path) -> None:
    journal = tmp_path / "stage.journal"
    cache = RequestJournal(journal)
    cache.put("a", DONE)
    cache.put("b", DONE)
    cache.close()
    journal.write_bytes(journal.read_bytes()[:-20])
    again = RequestJournal(journal)
    assert again.completion("a") == DONE and again.completion("b") is None
    again.put("b", DONE)
    again.close()
    third = RequestJournal(journal)
    assert third.completion("a") == DONE and third.completion("b") == DONE
    third.close()
    journal.write_bytes(b"torn at the first line")
    assert RequestJournal(journal).completion("torn at the first line") is None


def test_a_request_is_known_by_all_that_determines_its_answer() -> None:
    def key(
        content: str = "hello",
        seed: int = 0,
        regex: str | None = None,
        request_key: str = "i",
        sample: int = 0,
    ) -> str:
        message = Message(role="user", content=content)
        return RequestJournal.key(request_key, sample, Request((message,), Sampling(seed=seed), None, regex))

    others = [key(content="bye"), key(seed=1), key(regex="x"), key(request_key="j"), key(sample=1)]
    assert key() == key() and len({key(), *others}) == 6
