"""The hashes of keys, and the map of their newest offsets (F21)."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.cleaner.key_hashes import SHORT_BYTES_MAX, KeyHasher
from rayka.cleaner.offset_map import NOT_FOUND, SLOT_BYTES, OffsetMap

HASHER = KeyHasher(b"0123456789abcdef")
KEYS = st.lists(st.binary(max_size=SHORT_BYTES_MAX + 10), min_size=1, max_size=60)


def hashes(keys: list[bytes]) -> np.ndarray:
    return HASHER.hashes(pa.array(keys, pa.binary()))


@settings(max_examples=100, deadline=None)
@given(KEYS, st.binary(max_size=9))
def test_equal_keys_have_equal_hashes_wherever_they_stand_and_others_have_not(
    keys: list[bytes], more: bytes
) -> None:
    alone = [bytes(hashes([key])[0]) for key in keys]
    assert [bytes(each) for each in hashes(keys)] == alone
    assert [bytes(each) for each in HASHER.hashes(pa.array([more, *keys], pa.binary()).slice(1))] == alone
    assert len(set(alone)) == len(set(keys))
    padded = [bytes(hashes([key + b"\0"])[0]) for key in keys]
    assert all(one != other for one, other in zip(alone, padded, strict=True))


def test_another_secret_gives_other_hashes() -> None:
    assert (KeyHasher(b"another secret..").hashes(pa.array([b"a"])) != hashes([b"a"])).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(KEYS, max_size=5), st.sampled_from([4, 30, 1000]))
def test_the_map_has_the_newest_offset_of_each_key_that_was_put(
    columns: list[list[bytes]], slots: int
) -> None:
    offsets = OffsetMap(slots * SLOT_BYTES, 1 << 40)
    newest: dict[bytes, int] = {}
    first = 0
    for keys in columns:
        put = offsets.put(hashes(keys), np.arange(first, first + len(keys)))
        newest |= {key: first + number for number, key in enumerate(keys[:put])}
        first += put
        assert offsets.key_count == len(newest) <= offsets.capacity
        if put < len(keys):
            assert offsets.key_count == offsets.capacity
            break
    known = list(newest)
    assert offsets.latest(hashes([*known, b"never put" * 20])).tolist() == [*newest.values(), NOT_FOUND]
