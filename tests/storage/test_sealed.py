"""Records with their own checksum: whatever is damaged, it is found."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.manifest import Current, CurrentEntry
from storage.sealed import seal, unseal

RECORD = Current(stages={"rollout": CurrentEntry(fingerprint="0123456789ab", folder="0123456789ab-2")})
SEALED = seal(RECORD).encode()


def read(content: bytes) -> Current:
    return Current.model_validate_json(unseal(content))


def test_a_record_is_read_as_it_was_written_with_or_without_a_checksum() -> None:
    assert read(SEALED) == RECORD
    assert read(RECORD.model_dump_json(indent=2).encode()) == RECORD


@given(st.integers(0, 8 * len(SEALED) - 1))
def test_every_flipped_bit_is_found(bit: int) -> None:
    damaged = bytearray(SEALED)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError):
        read(bytes(damaged))


@given(st.integers(0, len(SEALED) - 1))
def test_every_lost_end_is_found(length: int) -> None:
    with pytest.raises(ValueError):
        read(SEALED[:length])
