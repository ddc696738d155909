"""Seeds of random streams."""

import hashlib
import json

import pytest

from tasks.seeding import derive_seed


@pytest.mark.parametrize(
    "purpose", [(), ("rollout", 3, "train/7", -1), ('quote " \\ line\n', "ü \U0001f600", 0)]
)
def test_a_seed_is_the_digest_of_its_purpose_as_json(purpose: tuple[str | int, ...]) -> None:
    """So the seeds of a run stay what they are, however the text is put together."""
    text = json.dumps([7, *purpose], separators=(",", ":"))
    assert derive_seed(7, *purpose) == int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
