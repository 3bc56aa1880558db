"""The quorum core with one voter: election, appending, committing."""

from uuid import UUID

import pytest

from rayka.errors import NotLeaderOrFollower, RecordBatchTooLarge, TooManyRequests
from rayka.ids import NO_OFFSET, ReplicaKey
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_format import split_batches
from rayka.raft.control_records import KRaftVersionRecord, LeaderChangeRecord, VotersRecord
from rayka.raft.election_state import ElectionState
from rayka.raft.leader import ACCUMULATED_BYTES_MAX, BATCH_BYTES_MAX
from rayka.raft.voters import VoterSet
from rayka.testing.memory_disk import MemoryDisk
from tests.raft.support import ME, Node, key


def test_the_only_voter_leads_at_once() -> None:  # A5
    node = Node()
    assert (node.role, node.quorum.next_poll_ms(0)) == ("Unattached", 0)
    node.quorum.poll(0)
    assert node.quorum.election == ElectionState(1, 3001, ME)
    assert repr(node) == "<Quorum 3001 Leader epoch=1 hw=-1 leo=0>"


def test_the_only_voter_never_loses_its_lead_to_a_timer() -> None:  # A5, A12
    node = Node.leading()
    assert node.quorum.next_poll_ms(0) > 1 << 60
    node.quorum.poll(1 << 50)
    assert node.quorum.is_leader


def test_nothing_is_written_before_the_election_is_durable() -> None:  # A8
    node = Node()
    node.quorum.poll(0)
    node.drain()
    assert node.log.log_end_offset == 0
    node.persist()
    node.drain()
    assert node.log.log_end_offset == 3


def test_an_epoch_begins_with_its_leader_change_and_the_first_one_with_the_voters_too() -> None:  # A24
    node = Node.leading()
    begun = [LeaderChangeRecord(3001, (ME,), (ME,)), KRaftVersionRecord(1), VotersRecord(VoterSet((ME,)))]
    assert node.records() == begun
    again = node.restarted()
    again.settle()
    assert again.records() == [*begun, LeaderChangeRecord(3001, (ME,), (ME,))]
    assert (again.epoch, again.log.epochs.epoch_of(3)) == (2, 2)


def test_the_high_watermark_is_unknown_until_a_record_of_the_epoch_is_durable() -> None:  # A26, A40
    node = Node()
    node.quorum.poll(0)
    node.persist()
    assert node.drain()
    assert (node.log.log_end_offset, node.quorum.high_watermark) == (3, NO_OFFSET)
    assert node.sync()
    assert node.quorum.high_watermark == 3


def test_the_high_watermark_moves_only_by_a_flush() -> None:  # A26
    node = Node.leading()
    assert node.quorum.leader_log.append([b"a", b"b"]) == 3
    assert node.drain()
    assert node.quorum.high_watermark == 3
    assert node.sync()
    assert node.quorum.high_watermark == 5


def test_what_arrives_during_a_flush_is_the_next_batch() -> None:  # A25
    node = Node.leading()
    node.quorum.leader_log.append([b"a"])
    node.drain()
    assert node.quorum.leader_log.append([b"b"]) == 4
    assert node.quorum.leader_log.append([b"c", b"d"]) == 5
    assert (node.log.log_end_offset, node.quorum.next_offset) == (4, 7)
    assert node.sync()
    assert node.quorum.high_watermark == 4
    node.flush()
    batches = list(split_batches(node.log.read(3, max_bytes=1 << 20, end_offset=7).records))
    assert [decode(batch).values_list() for batch in batches] == [[b"a"], [b"b", b"c", b"d"]]


def test_there_is_nothing_to_sync_when_nothing_was_appended() -> None:
    assert not Node.leading().drain()


def test_one_append_is_never_divided_and_batches_are_bounded() -> None:  # A25
    node = Node.leading()
    big = b"x" * (5 << 20)
    for values in ([big], [big], [b"a", b"b"]):
        node.quorum.leader_log.append(values)
    node.flush()
    batches = split_batches(node.log.read(3, max_bytes=1 << 25, end_offset=7).records)
    assert [batch.record_count for batch in batches] == [1, 3]


def test_an_append_that_does_not_fit_a_batch_is_refused() -> None:  # A25
    with pytest.raises(RecordBatchTooLarge, match="more than"):
        Node.leading().quorum.leader_log.append([b"x" * (BATCH_BYTES_MAX + 1)])


def test_what_waits_for_the_disk_is_bounded() -> None:  # A25
    node = Node.leading()
    for _ in range(ACCUMULATED_BYTES_MAX // BATCH_BYTES_MAX):
        node.quorum.leader_log.append([b"x" * BATCH_BYTES_MAX])
    with pytest.raises(TooManyRequests, match="wait for the disk"):
        node.quorum.leader_log.append([b"x"])
    node.flush()
    node.quorum.leader_log.append([b"x"])


def test_only_the_leader_appends() -> None:  # A25
    with pytest.raises(NotLeaderOrFollower, match="does not lead"):
        Node(voters=(ME, key(2))).quorum.leader_log.append([b"a"])


def test_records_that_a_crash_left_unflushed_are_committed_by_the_next_leader() -> None:
    node = Node.leading()
    node.quorum.leader_log.append([b"a"])
    node.drain()
    again = node.restarted()
    again.settle()
    assert (again.quorum.high_watermark, again.committed()) == (5, [b"a"])


def test_every_leader_of_one_disk_has_a_higher_epoch() -> None:
    epochs, node = [], Node()
    for _ in range(4):
        node.settle()
        epochs.append(node.epoch)
        node = node.restarted()
    assert epochs == [1, 2, 3, 4]


def test_a_node_on_an_empty_disk_is_not_the_voter_it_was() -> None:  # A55
    former = ReplicaKey(3001, UUID(int=9))
    node = Node(voters=(former,))
    node.settle(100_000)
    assert (node.role, node.quorum.is_voter, node.epoch) == ("Unattached", False, 0)


def test_a_disk_formatted_without_voters_waits_for_them() -> None:  # A1
    node = Node(voters=None, disk=MemoryDisk())
    node.settle(100_000)
    assert (node.role, node.quorum.voters) == ("Unattached", None)
