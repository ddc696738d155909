"""Finished requests of an unfinished stage: kept as they were, whatever a kill leaves of the last line."""

import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def journal_of(path: Path, keys: str) -> bytes:
    """A journal with an answer under each of the keys."""
    cache = RequestJournal(path)
    for key in keys:
        cache.put(key, DONE)
    cache.close()
    return path.read_bytes()


def kept(path: Path, keys: str) -> tuple[str, int]:
    """The keys whose answers a journal holds unchanged, and how many lines it skipped."""
    cache = RequestJournal(path)
    cache.close()
    answers = {key: cache.completion(key) for key in keys}
    assert set(answers.values()) <= {DONE, None}
    return "".join(key for key, answer in answers.items() if answer), cache.skipped


def test_a_line_cut_short_is_skipped_and_what_follows_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "stage.journal"
    path.write_bytes(journal_of(path, "ab")[:-20])
    assert kept(path, "ab") == ("a", 1)
    journal_of(path, "b")
    assert kept(path, "ab") == ("ab", 0)
    path.write_bytes(b"torn at the first line")
    assert kept(path, "ab") == ("", 1)


@given(st.data())
def test_damage_costs_the_lines_that_it_hits_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "stage.journal"
    whole = bytearray(journal_of(path, "abcd"))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    found, skipped = kept(path, "abcd")
    line = len(whole) // 4
    ends = at % line == line - 1
    expected = set("abcd") - {"abcd"[at // line], *("abcd"[at // line + 1 :][:1] if ends else "")}
    assert set(found) == expected and skipped >= 1


def test_torn_lines_between_others_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "stage.journal"
    first, second, third = journal_of(path, "abc").splitlines(keepends=True)
    path.write_bytes(first + b"\xff\xfe not text\n" + second[:30] + b"\n\n" + third)
    assert kept(path, "abc") == ("ac", 3)


def test_a_response_that_can_not_be_written_whole_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stage.journal"
    size = len(journal_of(path, "a"))
    cache, limits = RequestJournal(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (size + 40, limits[1])
    )  # the kernel writes 40 bytes and no more
    try:
        with pytest.raises(OSError, match=r"run the stage again.*stage\.journal"):
            cache.put("b", DONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.stat().st_size == size
    cache.put("c", DONE)
    cache.close()
    assert kept(path, "abc") == ("ac", 0)


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
