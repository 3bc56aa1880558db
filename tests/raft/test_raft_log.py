"""Log and snapshots as one sequence: positions in it, what is a snapshot's id, cleaning, and starting anew."""

from typing import Any

import pytest

from rayka.errors import StorageError
from rayka.ids import OffsetAndEpoch
from rayka.raft.raft_log import ValidatedPosition
from rayka.raft.voters import VoterSet
from rayka.testing.memory_disk import MemoryDisk
from tests.raft.support import DIRECTORY, ME, OTHER, Node, write_snapshot

VOTERS = VoterSet((ME,))


def two_epochs(*snapshots: tuple[int, int], seed: int = 0) -> Node:
    """Epoch 1 at 0-5, epoch 2 at 5-8, a batch for each record but the first three; committed. Then the snapshots."""
    node = Node.leading(seed=seed)
    node.commit(b"a")
    node.commit(b"b")
    again = node.restarted()
    again.settle()
    again.commit(b"c", b"d")
    for offset, epoch in snapshots:
        write_snapshot(again.disk, offset, epoch, VOTERS, b"state")
    if not snapshots:
        return again
    last = again.restarted()
    last.settle()
    return last


def validate_position(node: Node, offset: int, epoch: int) -> ValidatedPosition:
    return node.quorum.log.validate_position(offset, epoch)


def diverging(offset: int, epoch: int) -> ValidatedPosition:
    return ValidatedPosition(diverging_epoch=OffsetAndEpoch(offset, epoch))


def snapshot(offset: int, epoch: int) -> ValidatedPosition:
    return ValidatedPosition(snapshot_id=OffsetAndEpoch(offset, epoch))


# ---- Positions -------------------------------------------------------------------------------------------------------


def test_an_empty_replica_gets_the_snapshot_even_if_the_log_goes_back_to_the_beginning() -> None:  # A29
    node = two_epochs((5, 1), (8, 2))
    assert node.log.log_start_offset == 0
    assert validate_position(node, 0, 0) == snapshot(8, 2)


def test_the_checkpoint_of_the_formatting_is_given_to_no_replica() -> None:  # A29, A48
    assert validate_position(two_epochs(), 0, 0) == ValidatedPosition()


@pytest.mark.parametrize(
    ("offset", "epoch", "expected"),
    [
        (5, 1, ValidatedPosition()),  # where the log starts
        (5, 2, snapshot(8, 2)),  # where the log starts, of another epoch
        (4, 1, snapshot(8, 2)),  # before the log
        (6, 0, snapshot(8, 2)),  # of an epoch before the earliest snapshot's
        (6, 1, diverging(5, 1)),
        (6, 2, ValidatedPosition()),
        (8, 2, ValidatedPosition()),
        (9, 2, diverging(8, 2)),
        (9, 3, ValidatedPosition()),
        (9, 7, diverging(9, 3)),
    ],
)
def test_a_position_is_valid_or_diverges_or_is_before_the_snapshot(
    offset: int, epoch: int, expected: ValidatedPosition
) -> None:  # A30
    node = two_epochs((5, 1), (8, 2))
    node.log.increment_log_start_offset(5)
    assert validate_position(node, offset, epoch) == expected


def test_a_log_that_begins_with_a_snapshot_is_valid_from_its_end_on() -> None:  # A30, A49
    node = Node(voters=None)
    write_snapshot(node.disk, 100, 5, VOTERS)
    node = node.restarted()
    assert (node.log.log_start_offset, node.log.log_end_offset) == (100, 100)
    assert node.quorum.log.position == (5, 100)
    assert validate_position(node, 100, 5) == ValidatedPosition()
    assert validate_position(node, 100, 4) == snapshot(100, 5)
    assert validate_position(node, 101, 5) == diverging(100, 5)


# ---- Snapshot ids ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "epoch", "reason"),
    [
        (9, 2, "not committed"),
        (5, 9, "later epoch"),
        (2, 1, "where a batch of that epoch ends"),  # inside the first batch
        (5, 2, "where a batch of that epoch ends"),
        (5, 0, "where a batch of that epoch ends"),
        (0, 0, "where a batch of that epoch ends"),
    ],
)
def test_a_snapshot_ends_where_a_committed_batch_ends(offset: int, epoch: int, reason: str) -> None:  # A46
    with pytest.raises(ValueError, match=reason):
        two_epochs().quorum.create_snapshot_allowed(OffsetAndEpoch(offset, epoch))


def test_a_snapshot_before_the_start_of_the_log_is_refused() -> None:  # A46
    node = two_epochs((5, 1))
    node.log.increment_log_start_offset(5)
    with pytest.raises(ValueError, match="before the log's start"):
        node.quorum.create_snapshot_allowed(OffsetAndEpoch(4, 1))


@pytest.mark.parametrize(("offset", "epoch"), [(3, 1), (4, 1), (5, 1), (6, 2), (8, 2)])
def test_what_is_committed_and_ends_a_batch_may_be_a_snapshot(offset: int, epoch: int) -> None:  # A46
    assert two_epochs().quorum.create_snapshot_allowed(OffsetAndEpoch(offset, epoch))


def test_a_snapshot_that_exists_is_not_made_again() -> None:  # A46
    node = two_epochs((5, 1))
    assert not node.quorum.create_snapshot_allowed(OffsetAndEpoch(5, 1))
    assert node.quorum.log.snapshots.latest == OffsetAndEpoch(5, 1)


def test_the_voters_of_a_snapshot_are_those_at_its_end() -> None:  # A45
    assert two_epochs().quorum.log.history.voters_at(3) == VOTERS


# ---- Cleaning --------------------------------------------------------------------------------------------------------


def clean(node: Node, **limits: Any) -> bool:
    given = {"retention_bytes": -1, "retention_ms": -1, "timestamp_ms": 0, **limits}
    return node.quorum.clean_snapshots(**given)


def test_what_is_too_much_goes_with_the_log_before_it_but_one_snapshot_stays() -> None:  # A51
    node = two_epochs((4, 1), (5, 1), (8, 2))
    assert not clean(node)
    assert clean(node, retention_bytes=1)
    assert node.snapshots.ids == (OffsetAndEpoch(8, 2),)
    assert node.quorum.log.log_start_offset == 8
    assert not clean(node, retention_bytes=1)
    node.commit(b"e")
    assert node.committed() == [b"e"]


def test_the_log_never_starts_after_the_earliest_snapshot() -> None:  # A51
    node = two_epochs((5, 1), (8, 2))
    clean(node, retention_bytes=node.log.segments.size_bytes + node.snapshots.size(OffsetAndEpoch(8, 2)))
    assert node.snapshots.earliest is not None
    assert node.quorum.log.log_start_offset <= node.snapshots.earliest.offset


def test_a_crash_that_brings_a_deleted_snapshot_back_changes_nothing() -> None:  # A51
    node = Node(voters=None)
    write_snapshot(node.disk, 100, 5, VOTERS)
    node = node.restarted()
    node.settle()
    write_snapshot(node.disk, 50, 4, VOTERS)
    again = node.restarted()
    assert again.snapshots.ids == (OffsetAndEpoch(100, 5),)
    assert again.quorum.log.log_start_offset == 100


# ---- Starting anew ---------------------------------------------------------------------------------------------------


def test_a_snapshot_that_reaches_further_than_the_log_takes_its_place() -> None:  # A49
    node = two_epochs()
    write_snapshot(node.disk, 50, 3, VoterSet((ME, OTHER)))
    again = node.restarted()
    assert (again.quorum.log.log_start_offset, again.quorum.log.log_end_offset) == (50, 50)
    assert again.quorum.voters == VoterSet((ME, OTHER))
    assert again.epoch == 3


def test_a_snapshot_within_the_log_leaves_it() -> None:  # A49
    node = two_epochs((5, 1))
    assert (node.quorum.log.log_start_offset, node.quorum.log.log_end_offset) == (0, 9)


def test_a_log_that_begins_with_a_snapshot_is_opened_as_it_was() -> None:  # A45, A49
    node = Node(voters=None)
    write_snapshot(node.disk, 100, 5, VOTERS)
    first = node.restarted()
    first.settle()
    first.commit(b"a")
    again = first.restarted()
    again.settle()
    assert again.committed() == [b"a"]
    assert again.epoch == first.epoch + 1 == 7


def test_voters_come_from_the_snapshot_and_the_log_after_it() -> None:  # A24, A45
    node = two_epochs((5, 1))
    assert node.quorum.voters == VOTERS
    assert not node.quorum.log.history.is_bootstrap


@pytest.mark.parametrize("position", [10, 25, 70, 100])
def test_a_damaged_snapshot_is_reported_with_its_path(position: int) -> None:  # A45
    disk = MemoryDisk()
    write_snapshot(disk, 100, 5, VOTERS)
    disk.flip_bit(f"{DIRECTORY}/00000000000000000100-0000000005.checkpoint", position)
    with pytest.raises(StorageError, match=r"00000000000000000100-0000000005\.checkpoint"):
        Node(disk=disk)
