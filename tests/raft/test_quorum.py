"""The quorum core with one voter: election, appending, committing."""

from uuid import UUID

import pytest

from rayka.ids import NO_OFFSET, ReplicaKey
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_header import split_batches
from rayka.raft.control_records import (
    KRaftVersionRecord,
    LeaderChangeRecord,
    VotersRecord,
    decode_control_batch,
)
from rayka.raft.election_state import ElectionState, PersistElection
from rayka.raft.roles import Candidate, Resigned, Unattached, role_after_restart
from rayka.raft.voters import VoterSet
from rayka.testing.memory_disk import MemoryDisk
from tests.raft.support import ME, Voter


def test_the_only_voter_leads_at_once_and_persists_its_vote_and_then_its_lead() -> None:  # A5, A8
    voter = Voter()
    assert voter.quorum.start() == [
        PersistElection(ElectionState(1, -1, ME)),
        PersistElection(ElectionState(1, 3001, ME)),
    ]
    assert repr(voter.quorum) == "<Quorum 3001 Leader epoch=1 hw=-1 leo=0>"


def test_nothing_is_written_before_the_election_is_durable() -> None:  # A8
    voter = Voter()
    vote, _ = voter.quorum.start()
    voter.quorum.on_persisted(vote)
    with pytest.raises(AssertionError, match="not durable"):
        voter.drain()
    assert voter.log.log_end_offset == 0


def test_an_epoch_begins_with_its_leader_change_and_the_first_one_with_the_voters_too() -> None:  # A24
    voter = Voter.leading()
    (batch,) = split_batches(voter.quorum.read_committed(0, max_bytes=1 << 20).records)
    assert batch.is_control
    assert list(decode_control_batch(batch)) == [
        LeaderChangeRecord(3001, (ME,), (ME,)),
        KRaftVersionRecord(1),
        VotersRecord(VoterSet((ME,))),
    ]
    again = Voter.leading(voter.disk, voter.quorum.election)
    (batch,) = split_batches(again.quorum.read_committed(3, max_bytes=1 << 20).records)
    assert (batch.leader_epoch, list(decode_control_batch(batch))) == (
        2,
        [LeaderChangeRecord(3001, (ME,), (ME,))],
    )


def test_the_high_watermark_is_unknown_until_a_record_of_the_epoch_is_durable() -> None:  # A26, A40
    voter = Voter()
    voter.elect()
    assert voter.drain()
    assert voter.log.log_end_offset == 3
    assert voter.quorum.high_watermark == NO_OFFSET
    assert voter.sync()
    assert voter.quorum.high_watermark == 3


def test_the_high_watermark_moves_only_by_a_flush() -> None:  # A26
    voter = Voter.leading()
    assert voter.quorum.append([b"a", b"b"]) == 3
    assert voter.drain()
    assert voter.quorum.high_watermark == 3
    assert voter.sync()
    assert voter.quorum.high_watermark == 5


def test_what_arrives_during_a_flush_is_the_next_batch() -> None:  # A25
    voter = Voter.leading()
    voter.quorum.append([b"a"])
    voter.drain()
    assert voter.quorum.append([b"b"]) == 4
    assert voter.quorum.append([b"c", b"d"]) == 5
    assert voter.log.log_end_offset == 4
    assert voter.sync()
    assert voter.quorum.high_watermark == 4
    voter.flush()
    batches = list(split_batches(voter.log.read(3, max_bytes=1 << 20, end_offset=7).records))
    assert [decode(batch).values_list() for batch in batches] == [[b"a"], [b"b", b"c", b"d"]]


def test_there_is_nothing_to_sync_when_nothing_was_appended() -> None:
    assert not Voter.leading().drain()


def test_one_append_is_never_divided_and_batches_are_bounded() -> None:  # A25
    voter = Voter.leading()
    big = b"x" * (5 << 20)
    for values in ([big], [big], [b"a", b"b"]):
        voter.quorum.append(values)
    voter.flush()
    batches = split_batches(voter.log.read(3, max_bytes=1 << 25, end_offset=7).records)
    assert [batch.record_count for batch in batches] == [1, 3]


def test_records_that_a_crash_left_unflushed_are_committed_by_the_next_leader() -> None:
    voter = Voter.leading()
    voter.quorum.append([b"a"])
    voter.drain()
    again = Voter.leading(voter.disk, voter.quorum.election)
    assert again.quorum.high_watermark == 5
    unflushed = next(split_batches(again.quorum.read_committed(3, max_bytes=1 << 20).records))
    assert decode(unflushed).values_list() == [b"a"]


# ---- Restart ---------------------------------------------------------------------------------------------------------


def test_a_restarted_leader_has_resigned_and_leads_only_in_a_higher_epoch() -> None:  # A9 (ii)
    stored = ElectionState(4, 3001, ME)
    assert role_after_restart(stored, ME, last_epoch=4) == (Resigned(), stored)
    assert Voter.leading(stored=stored).quorum.election == ElectionState(5, 3001, ME)


def test_a_restarted_candidate_goes_on_in_its_epoch() -> None:  # A9 (iii)
    stored = ElectionState(4, -1, ME)
    assert role_after_restart(stored, ME, last_epoch=3) == (Candidate(), stored)
    assert Voter.leading(stored=stored).quorum.election == ElectionState(4, 3001, ME)


@pytest.mark.parametrize("stored", [None, ElectionState(2, 3001, ME)])
def test_a_lost_or_old_state_counts_for_less_than_the_log(stored: ElectionState | None) -> None:  # A9 (i)
    assert role_after_restart(stored, ME, last_epoch=3) == (Unattached(), ElectionState(3))


def test_a_vote_for_another_is_kept() -> None:  # A9 (v)
    other = ReplicaKey(3002, ME.directory_id)
    assert role_after_restart(ElectionState(4, 3002, other), ME, 4) == (
        Unattached(),
        ElectionState(4, -1, other),
    )


def test_a_node_on_an_empty_disk_is_not_the_candidate_it_was() -> None:  # A55
    former = ReplicaKey(3001, UUID(int=9))
    role, _ = role_after_restart(ElectionState(4, -1, former), ME, 0)
    assert role == Unattached()


def test_every_leader_of_one_disk_has_a_higher_epoch() -> None:
    disk, epochs, stored = MemoryDisk(), [], None
    for _ in range(4):
        voter = Voter.leading(disk, stored)
        stored = voter.quorum.election
        epochs.append(stored.leader_epoch)
    assert epochs == [1, 2, 3, 4]
