"""The content of a snapshot: what is written comes back, what is damaged is refused by its path."""

from uuid import UUID

import pytest

from rayka.errors import StorageError
from rayka.ids import NO_TIMESTAMP, OffsetAndEpoch, ReplicaKey
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import split_batches
from rayka.raft.snapshot import (
    BOOTSTRAP_SNAPSHOT_ID,
    decode_snapshot,
    encode_snapshot,
    last_contained_timestamp_ms,
    parse_snapshot_name,
    snapshot_name,
)
from rayka.raft.voters import VoterSet

VOTERS = VoterSet((ReplicaKey(3001, UUID(int=7)), ReplicaKey(3002, UUID(int=8))))
ID = OffsetAndEpoch(120, 4)


def content(voters: VoterSet | None = VOTERS, *values: list[bytes]) -> bytes:
    data = (encode_batch(each, timestamps_ms=1) for each in values)
    parts = encode_snapshot(ID, voters, data, timestamp_ms=1, last_contained_log_timestamp_ms=77)
    return b"".join(map(bytes, parts))


def test_a_snapshot_is_named_by_its_end_offset_and_epoch() -> None:  # A45
    assert snapshot_name(ID) == "00000000000000000120-0000000004.checkpoint"
    assert snapshot_name(BOOTSTRAP_SNAPSHOT_ID) == "00000000000000000000-0000000000.checkpoint"
    assert parse_snapshot_name(snapshot_name(ID)) == ID


@pytest.mark.parametrize(
    "name", ["quorum-state", "leader-epoch-checkpoint", snapshot_name(ID) + ".part", "1-2.checkpoint"]
)
def test_other_files_are_no_snapshots(name: str) -> None:
    assert parse_snapshot_name(name) is None


@pytest.mark.parametrize("voters", [None, VOTERS])
def test_what_is_written_comes_back(voters: VoterSet | None) -> None:  # A45
    snapshot = decode_snapshot(content(voters, [b"a", b"b"], [b"c"]), "p")
    assert list(snapshot.values()) == [b"a", b"b", b"c"]
    assert (snapshot.voters, snapshot.last_contained_log_timestamp_ms) == (voters, 77)


def test_batches_count_offsets_from_0_and_carry_the_snapshots_epoch() -> None:  # A45
    batches = list(split_batches(content(VOTERS, [b"a", b"b"], [b"c"])))
    assert [(each.base_offset, each.is_control) for each in batches] == [
        (0, True),
        (1, True),
        (3, False),
        (5, False),
        (6, True),
    ]
    assert {each.leader_epoch for each in batches} == {4}


def test_the_first_snapshot_holds_the_voters_alone() -> None:  # A48
    parts = encode_snapshot(BOOTSTRAP_SNAPSHOT_ID, VOTERS, (), timestamp_ms=1)
    snapshot = decode_snapshot(b"".join(map(bytes, parts)), "p")
    assert snapshot == (NO_TIMESTAMP, VOTERS, ())


def test_a_snapshot_cut_anywhere_is_refused_by_its_path() -> None:  # A45
    whole = content(VOTERS, [b"a" * 100])
    for size in range(0, len(whole), 7):
        with pytest.raises(StorageError, match="/data/s is damaged"):
            decode_snapshot(whole[:size], "/data/s")


def test_a_snapshot_without_its_footer_is_not_whole() -> None:  # A45
    batches = list(split_batches(content(VOTERS, [b"a"])))
    without = b"".join(bytes(each.view) for each in batches[:-1])
    with pytest.raises(StorageError, match="not whole"):
        decode_snapshot(without, "/data/s")


def test_nothing_follows_the_footer() -> None:
    with pytest.raises(StorageError, match="follows the footer"):
        decode_snapshot(content() + content(), "/data/s")


def test_a_snapshot_begins_with_its_header() -> None:
    batches = list(split_batches(content(VOTERS, [b"a"])))
    with pytest.raises(StorageError, match="expected a header"):
        decode_snapshot(b"".join(bytes(each.view) for each in batches[1:]), "/data/s")


def test_a_rotten_bit_anywhere_is_noticed() -> None:
    whole = content(VOTERS, [b"abc"])
    for batch in split_batches(whole):
        position = bytes(whole).index(bytes(batch.view))
        rotten = bytearray(whole)
        rotten[position + batch.size_bytes - 9] ^= 0x10
        with pytest.raises(StorageError, match="CRC"):
            decode_snapshot(rotten, "/data/s")


def test_the_age_of_a_snapshot_is_in_its_header() -> None:  # A51
    assert last_contained_timestamp_ms(content(), "p") == 77
    for damaged in (b"", content()[:20], bytes(list(split_batches(content()))[-1].view)):
        with pytest.raises(StorageError, match="/data/s is damaged"):
            last_contained_timestamp_ms(damaged, "/data/s")
