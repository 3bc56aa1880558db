"""Offset and time index: entries, look-ups, truncation, sanity, bytes (F5, F6)."""

import pytest

from rayka.log.segment_indexes import OffsetIndex, TimeIndex
from tests.log.support import GOLDEN


def _offset_index() -> OffsetIndex:
    index = OffsetIndex(100)
    for offset, position in ((110, 4100), (120, 8200), (150, 12300)):
        index.append(offset, position)
    return index


def _time_index() -> TimeIndex:
    index = TimeIndex(100)
    for timestamp_ms, offset in ((1_000, 110), (1_500, 120), (9_000_000_000_000, 150)):
        index.maybe_append(timestamp_ms, offset)
    return index


def test_offset_index_bytes_are_kafkas() -> None:  # F5
    assert _offset_index().data == (GOLDEN / "00000000000000000100.index").read_bytes()


def test_time_index_bytes_are_kafkas() -> None:  # F5
    assert _time_index().data == (GOLDEN / "00000000000000000100.timeindex").read_bytes()


@pytest.mark.parametrize(
    ("offset", "position"), [(100, 0), (109, 0), (110, 4100), (119, 4100), (149, 8200), (999, 12300)]
)
def test_offset_lookup_gives_the_greatest_entry_at_or_below(offset: int, position: int) -> None:
    assert _offset_index().lookup(offset) == position


@pytest.mark.parametrize(
    ("limit", "position"), [(0, 0), (4099, 0), (4100, 4100), (12299, 8200), (1 << 40, 12300)]
)
def test_position_lookup_gives_the_greatest_indexed_position_at_or_below(limit: int, position: int) -> None:
    assert _offset_index().lookup_position(limit) == position


@pytest.mark.parametrize(
    ("timestamp_ms", "entry"),
    [(999, (-1, 100)), (1_000, (1_000, 110)), (1_499, (1_000, 110)), (1_500, (1_500, 120))],
)
def test_time_lookup_gives_the_last_entry_at_or_before(timestamp_ms: int, entry: tuple[int, int]) -> None:
    assert _time_index().lookup(timestamp_ms) == entry


def test_the_time_index_takes_only_rising_timestamps() -> None:
    index = _time_index()
    index.maybe_append(1_400, 160)
    assert (len(index), index.last) == (3, (9_000_000_000_000, 150))


@pytest.mark.parametrize(("offset", "left"), [(100, 0), (110, 0), (111, 1), (150, 2), (151, 3)])
def test_truncation_drops_entries_at_and_above_the_offset(offset: int, left: int) -> None:
    offsets, times = _offset_index(), _time_index()
    offsets.truncate_to(offset)
    times.truncate_to(offset)
    assert (len(offsets), len(times)) == (left, left)


def test_entries_that_do_not_rise_are_refused() -> None:
    with pytest.raises(AssertionError):
        _offset_index().append(150, 20_000)
    with pytest.raises(AssertionError):
        _offset_index().append(160, 12_300)


def test_an_index_comes_back_from_its_bytes_and_goes_on() -> None:
    index = OffsetIndex.load(100, _offset_index().data)
    assert index is not None
    index.append(160, 20_000)
    assert (index.lookup(165), index.last_position) == (20_000, 20_000)


@pytest.mark.parametrize("entries", [[], [(0, 1)], [(0, 1), (1, 2)], [(7, 1), (8, 100)]])
def test_the_closest_entries_that_an_offset_index_can_hold_make_sense(entries: list[tuple[int, int]]) -> None:
    loaded = OffsetIndex.load(100, b"".join(OffsetIndex.ENTRY.pack(*each) for each in entries))
    assert loaded is not None
    assert len(loaded) == len(entries)


@pytest.mark.parametrize("entries", [[], [(0, 5)], [(0, 5), (1, 6)], [(0, 0), (1, 1)]])
def test_the_closest_entries_that_a_time_index_can_hold_make_sense(entries: list[tuple[int, int]]) -> None:
    """Given as offset and timestamp."""
    data = b"".join(TimeIndex.ENTRY.pack(timestamp_ms, offset) for offset, timestamp_ms in entries)
    loaded = TimeIndex.load(100, data)
    assert loaded is not None
    assert len(loaded) == len(entries)


def test_a_last_entry_that_lies_too_early_for_its_number_makes_no_sense() -> None:
    pack, pack_time = OffsetIndex.ENTRY.pack, TimeIndex.ENTRY.pack
    assert OffsetIndex.load(100, pack(0, 9) + pack(0, 9)) is None
    assert OffsetIndex.load(100, pack(0, 1) + pack(9, 1)) is None
    assert TimeIndex.load(100, pack_time(0, 0) + pack_time(0, 9)) is None
    assert TimeIndex.load(100, pack_time(0, 3) + pack_time(9, -1)) is None


@pytest.mark.parametrize("data", [b"1234567", b"\xff" * 8, b"\0" * 80])
def test_an_offset_index_that_makes_no_sense_is_refused(data: bytes) -> None:
    assert OffsetIndex.load(100, data) is None


@pytest.mark.parametrize("data", [b"1234567", b"\xff" * 12, b"\0" * 120])
def test_a_time_index_that_makes_no_sense_is_refused(data: bytes) -> None:
    assert TimeIndex.load(100, data) is None
