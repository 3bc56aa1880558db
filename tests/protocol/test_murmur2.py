"""murmur2 gives Kafka's hashes, for one key and for a column of them."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rayka.protocol.murmur2 import murmur2, murmur2_column, partition_for_key, partitions_for_keys

PUBLISHED = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("key", PUBLISHED)
def test_published_hashes(key: bytes) -> None:  # Kafka's UtilsTest
    assert murmur2(key) == PUBLISHED[key]


def test_keys_of_every_length_are_hashed_alike() -> None:
    assert [murmur2(bytes(range(256))), murmur2(b"x" * 257), murmur2(b"a long key " * 40)] == [
        -1948347274,
        -939133454,
        1849645486,
    ]


def test_a_column_has_the_published_hashes() -> None:
    assert murmur2_column(pa.array(list(PUBLISHED))).tolist() == list(PUBLISHED.values())


@given(st.lists(st.binary(max_size=24) | st.integers(0, 600).map(bytes)), st.integers(0, 3))
@example([], 0)
@example([b""], 0)
@example([b"x" * 256, b"y" * 257, b"ab"], 1)
def test_a_column_hashes_as_its_keys_do(keys: list[bytes], skipped: int) -> None:
    column = pa.array(keys, pa.binary()).slice(skipped)
    assert murmur2_column(column).tolist() == [murmur2(key) for key in keys[skipped:]]


@given(st.lists(st.binary(), min_size=1), st.integers(1, 1000))
def test_partitions_are_those_of_the_positive_hash(keys: list[bytes], partition_count: int) -> None:
    partitions = partitions_for_keys(pa.array(keys, pa.binary()), partition_count).tolist()
    assert partitions == [partition_for_key(key, partition_count) for key in keys]
    assert partitions == [(murmur2(key) & 0x7FFFFFFF) % partition_count for key in keys]


def test_null_keys_do_not_disturb_their_neighbours() -> None:
    hashes = murmur2_column(pa.array([None, b"abc", None, b"21"]))
    assert (hashes[1], hashes[3]) == (PUBLISHED[b"abc"], PUBLISHED[b"21"])
