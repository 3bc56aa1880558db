"""The hashes of keys, and the map of their newest offsets (F21)."""

from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayka.cleaner.key_hashes import EXACT_BYTES_MAX, SHORT_BYTES_MAX, KeyHasher
from rayka.cleaner.offset_map import SLOT_BYTES, MapMemory, OffsetMap
from rayka.errors import InvariantBroken

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


EXACT_KEYS = st.binary(max_size=EXACT_BYTES_MAX)


@settings(max_examples=100, deadline=None)
@given(st.sets(EXACT_KEYS, min_size=1), st.lists(st.binary(max_size=SHORT_BYTES_MAX + 10)), st.randoms())
def test_keys_of_up_to_eight_bytes_are_told_exactly_alone_and_among_longer_ones(
    exact: set[bytes], others: list[bytes], random: Random
) -> None:
    known = {bytes(hashes([key])[0]): key for key in exact}
    assert set(known.values()) == exact
    mixed = [*exact, *others]
    random.shuffle(mixed)
    for key, each in zip(mixed, hashes(mixed), strict=True):
        assert (key in exact) == (known.get(bytes(each)) == key)


def test_the_lengths_of_short_keys_are_told_also_where_their_bytes_fill_whole_words() -> None:
    """Four bytes and twelve fill as many as two times eight."""
    columns = [[b"abcd", b"12345678"[:4], b"efghijkl"], [b"", b"a" * 9, b"abcdefgh"], [b"abcdefgh", b"a"]]
    for keys in columns:
        assert [bytes(each) for each in hashes(keys)] == [bytes(hashes([key])[0]) for key in keys]


def test_numbers_in_a_row_are_spread_over_the_map() -> None:
    """Written as 8 bytes in either order the numbers lie at equal distances, which linear probing handles badly."""
    for order in ("<i8", ">i8"):
        keys = pa.Array.from_buffers(
            pa.binary(), 5000,
            [None, pa.py_buffer(np.arange(0, 40_008, 8, np.int32)), pa.py_buffer(np.arange(5000).astype(order))],
        )  # fmt: skip
        slots = OffsetMap(10_000 * SLOT_BYTES, 1 << 40)._first(HASHER.hashes(keys))
        in_use = len(np.unique(slots))
        assert 3700 < in_use < 4200  # of 5,000 at random in 10,000 slots: 3,935


def test_another_secret_gives_other_hashes() -> None:
    other = KeyHasher(b"another secret..")
    assert other.hashes(pa.array([b"a"]))[0, 0] != hashes([b"a"])[0, 0]  # the second half is the length
    assert (other.hashes(pa.array([b"a" * 9])) != hashes([b"a" * 9])).all()


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
    assert offsets.has(hashes([*known, b"never put" * 20])).tolist() == [True] * len(known) + [False]
    offsets.seal()
    assert offsets.newest_in(0, first).tolist() == sorted(newest.values())
    for begin, end in ((0, first // 2), (first // 2, first), (1, 3), (first, first)):
        wanted = sorted(each for each in newest.values() if begin <= each < end)
        assert offsets.newest_in(begin, end).tolist() == wanted


def test_keys_whose_hashes_are_half_the_same_are_different_keys() -> None:
    """They want the same slot, and differ in one bit: a collision would drop a record that is live."""
    offsets = OffsetMap(40 * SLOT_BYTES, 1 << 40)
    alike = np.array([[7, 1], [7, 3], [8, 1], [7, 1]], np.uint64)
    assert offsets.put(alike, np.arange(4)) == 4
    assert offsets.key_count == 3
    assert offsets.has(np.array([[7, 1], [7, 3], [8, 1], [8, 3]], np.uint64)).tolist() == [True] * 3 + [False]
    offsets.seal()
    assert offsets.newest_in(0, 4).tolist() == [1, 2, 3]


def test_no_key_has_the_hash_of_an_empty_slot() -> None:
    keys = [b"", b"\0", b"\0" * 64, b"a" * 65, b"\0" * 65]
    assert (hashes(keys)[:, 1] & np.uint64(1)).tolist() == [1] * len(keys)


def test_a_sealed_map_takes_nothing_more() -> None:
    offsets = OffsetMap(40 * SLOT_BYTES, 1 << 40)
    offsets.seal()
    with pytest.raises(InvariantBroken, match="takes no more"):
        offsets.put(hashes([b"a"]), np.arange(1))
    assert repr(offsets) == "<OffsetMap keys=0/36 sealed>"


def test_a_map_that_is_not_sealed_answers_nothing() -> None:
    offsets = OffsetMap(40 * SLOT_BYTES, 1 << 40)
    offsets.put(hashes([b"a"]), np.arange(1))
    with pytest.raises(InvariantBroken, match="is not sealed"):
        offsets.newest_in(0, 1)


def test_a_large_map_is_sealed_in_its_own_memory() -> None:
    """Piece by piece: the offsets of later slots move to the front, over those that were read."""
    count = 300_000
    offsets = OffsetMap(1 << 30, count)
    random = np.random.default_rng(3)
    for first in range(0, count, 50_000):
        some = random.integers(0, 1 << 64, (50_000, 2), np.uint64) | np.uint64(1)
        assert offsets.put(some, np.arange(first, first + 50_000)) == 50_000
    offsets.seal()
    assert (offsets.newest_in(0, count) == np.arange(count)).all()


def test_a_map_in_the_memory_of_another_has_none_of_its_keys() -> None:
    """The first one is full, so that the second has all of its slots for its own."""
    keys = [b"%d" % number for number in range(900)]
    first = OffsetMap(1000 * SLOT_BYTES, 1 << 40)
    assert first.put(hashes(keys), np.arange(900)) == 900
    first.seal()
    first.release()
    second = OffsetMap(1000 * SLOT_BYTES, 1 << 40)
    assert np.shares_memory(first._hashes, second._hashes)
    assert second.put(hashes(keys[:10]), np.arange(10)) == 10
    second.seal()
    assert second.has(hashes(keys)).tolist() == [True] * 10 + [False] * 890
    assert second.newest_in(0, 1000).tolist() == list(range(10))


def test_memory_is_one_map_s_at_a_time_and_no_larger_than_a_map_may_be() -> None:
    memory = MapMemory()
    large, other = memory.take(100, 100), memory.take(100, 100)
    assert not np.shares_memory(large.hashes, other.hashes)
    memory.give_back(large)
    small = memory.take(10, 100)
    assert np.shares_memory(small.hashes, large.hashes)
    memory.give_back(small)
    assert len(memory.take(10, 99)) == 10  # a smaller buffer was configured meanwhile
    assert len(memory.take(50, 100)) == 50  # and what was kept is gone
