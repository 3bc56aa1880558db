"""Offsets of groups: which members may commit, what is read, what expires, and what operators delete."""

from itertools import pairwise
from uuid import UUID

import pytest

from rayka.coordinator.committed_offsets import CommitTogether, ForgetTopics
from rayka.coordinator.group import EMPTY, PREPARING
from rayka.errors import (
    CoordinatorLoadInProgress,
    ErrorCode,
    IllegalGeneration,
    NotCoordinator,
    UnknownMemberId,
)
from rayka.ids import NO_EPOCH, ZERO_ID
from rayka.protocol.groups import (
    CommittedOffset,
    FetchedOffset,
    GroupProtocol,
    ListedGroup,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from rayka.shard.runtime import STEPS_PER_TURN
from tests.coordinator.group_support import (
    SESSION_MS,
    Coordinator,
    answer,
    code,
    partition,
    split,
)

DAY_MS = 24 * 3_600_000
WEEK_MS = 7 * DAY_MS
CHECK_MS = 600_000
T_ID = UUID(int=1)


def error_codes(response: object) -> list[ErrorCode]:
    return [each.error_code for each in response.partitions]  # type: ignore[attr-defined]


# ---- Topics that are gone --------------------------------------------------------------------------------------------


def test_the_offsets_of_a_deleted_topic_are_forgotten_and_those_of_its_successor_stay() -> None:  # E17
    coordinator = Coordinator()
    for topic_id, number in ((T_ID, 0), (ZERO_ID, 1), (UUID(int=2), 2)):
        answer(coordinator.commit({f"t-{number}": 5, f"u-{number}": 6}, topic_id=topic_id))
    answer(coordinator.ask(ForgetTopics({"t": T_ID})))
    for _ in range(2):
        assert coordinator.committed() == {"t-2": 5, "u-0": 6, "u-1": 6, "u-2": 6}
        coordinator.restart()


def test_a_group_that_had_nothing_but_offsets_of_a_deleted_topic_is_forgotten() -> None:  # E17
    coordinator = Coordinator()
    answer(coordinator.commit({"t-0": 5}))
    answer(coordinator.ask(ForgetTopics({"t": T_ID})))
    assert coordinator.group_ids == []


@pytest.mark.parametrize(
    "count", [STEPS_PER_TURN - 2, STEPS_PER_TURN - 1, STEPS_PER_TURN, 3 * STEPS_PER_TURN]
)
def test_a_group_that_is_forgotten_between_two_steps_leaves_others_to_be_looked_at(count: int) -> None:  # E17
    coordinator = Coordinator()
    gone = {f"t-{number}": 1 for number in range(count)}
    for group_id, offsets in (("a", gone), ("b", {"t-0": 2, "u-0": 3}), ("c", {"t-1": 4}), ("d", {"u-1": 5})):
        answer(coordinator.ask(OffsetCommitRequest(group_id, committed_of(offsets, T_ID))))
    steps = coordinator.begin(ForgetTopics({"t": T_ID}))
    seen = [coordinator.group_ids]
    late = coordinator.begin(OffsetCommitRequest("a", committed_of({"t-0": 7}, UUID(int=2))))
    while coordinator.runtime.is_busy:
        coordinator.runtime.advance(coordinator.now_ms)
        seen.append(coordinator.group_ids)
    coordinator.settle()
    answer(steps)
    answer(late)
    assert ["b", "c", "d"] in seen or ["b", "d"] in seen, "the first is forgotten before the request is over"
    for _ in range(2):
        assert [coordinator.committed(each) for each in "abcd"] == [{"t-0": 7}, {"u-0": 3}, {}, {"u-1": 5}]
        assert coordinator.group_ids == ["a", "b", "d"]
        coordinator.restart()


def committed_of(offsets: dict[str, int], topic_id: UUID) -> tuple[CommittedOffset, ...]:
    return tuple(CommittedOffset(*split(each), at, topic_id=topic_id) for each, at in offsets.items())


# ---- Commit and fetch ------------------------------------------------------------------------------------------------


def test_what_is_committed_is_read_also_by_another_coordinator() -> None:  # E10
    coordinator = Coordinator()
    assert coordinator.committed() == {}
    committed = CommittedOffset("t", 1, 7, leader_epoch=3, metadata="why", topic_id=T_ID)
    answer(coordinator.ask(OffsetCommitRequest("g", (committed,))))
    for _ in range(2):
        request = OffsetFetchRequest("g", (partition("t-0"), partition("t-1")))
        assert answer(coordinator.ask(request)).partitions == (
            FetchedOffset("t", 0),
            FetchedOffset("t", 1, 7, 3, "why", topic_id=T_ID),
        )
        coordinator.restart()


def test_a_commit_of_many_partitions_is_one_batch() -> None:  # E10
    coordinator = Coordinator()
    offsets = {f"t-{number}": number for number in range(1_000)}
    answer(coordinator.commit(offsets))
    assert coordinator.log.batches == [1_000]
    assert coordinator.committed() == offsets


def test_commits_that_are_written_together_are_one_batch_and_each_has_its_own_answer() -> None:  # E10
    coordinator = Coordinator()
    leader, _ = coordinator.stable(2)
    at_7, too_long = CommittedOffset("t", 0, 7), CommittedOffset("t", 1, 8, metadata="x" * 5_000)
    batches = len(coordinator.log.batches)
    found = answer(
        coordinator.ask(
            CommitTogether(
                (
                    OffsetCommitRequest("h", (at_7,)),
                    OffsetCommitRequest("g", (at_7,), 3, leader),
                    OffsetCommitRequest("g", (at_7, too_long), 1, leader),
                    OffsetCommitRequest("g", (at_7,)),
                    OffsetCommitRequest("h", (CommittedOffset("t", 0, 9),)),
                ),
                leader_epoch=5,
            )
        )
    )
    assert coordinator.log.batches[batches:] == [3]
    assert [type(each) for each in found[1::2]] == [IllegalGeneration, UnknownMemberId]
    metadata_too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    codes = [error_codes(each) for each in found[::2]]
    assert codes == [[ErrorCode.NONE], [ErrorCode.NONE, metadata_too_large], [ErrorCode.NONE]]
    assert coordinator.committed() == {"t-0": 7}
    assert coordinator.committed("h") == {"t-0": 9}


def test_a_commit_for_another_epoch_of_the_coordinator_is_refused_alone() -> None:  # E10
    coordinator = Coordinator()
    requests = [
        OffsetCommitRequest("g", (CommittedOffset("t", 0, offset),), coordinator_epoch=epoch)
        for offset, epoch in ((1, 5), (2, 4), (3, 6), (4, NO_EPOCH), (5, 0))
    ]
    found = answer(coordinator.ask(CommitTogether(tuple(requests), leader_epoch=5)))
    assert [type(each) for each in found] == [
        OffsetCommitResponse,
        NotCoordinator,
        CoordinatorLoadInProgress,
        OffsetCommitResponse,
        NotCoordinator,
    ]
    assert coordinator.log.batches[-1] == 2
    assert coordinator.committed() == {"t-0": 4}


def test_a_commit_without_a_generation_makes_a_group() -> None:  # E10
    coordinator = Coordinator()
    answer(coordinator.commit({"t-0": 1}))
    assert answer(coordinator.ask(ListGroupsRequest())).groups == (ListedGroup("g", "", EMPTY),)


def test_a_generation_of_a_group_that_is_not_known_is_refused() -> None:  # E10
    coordinator = Coordinator()
    assert code(coordinator.commit({"t-0": 1}, 3, "me")) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.group_ids == []


def test_of_a_group_with_members_only_these_commit() -> None:  # E10
    coordinator = Coordinator()
    leader, _ = coordinator.stable()
    assert code(coordinator.commit({"t-0": 1})) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(coordinator.commit({"t-0": 1}, 1, "me")) is ErrorCode.UNKNOWN_MEMBER_ID
    assert code(coordinator.commit({"t-0": 1}, 0, leader)) is ErrorCode.ILLEGAL_GENERATION
    assert code(coordinator.commit({"t-0": 1}, -1, leader)) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.committed() == {}
    answer(coordinator.commit({"t-0": 1}, 1, leader))
    assert coordinator.committed() == {"t-0": 1}


def test_a_process_whose_instance_was_taken_over_commits_nothing() -> None:  # E7 E10
    coordinator = Coordinator()
    coordinator.stable(instances=["a", "b"])
    old = coordinator.group().static_members["a"]
    coordinator.join(group_instance_id="a")
    offsets = (CommittedOffset("t", 0, 1),)
    refused = coordinator.ask(OffsetCommitRequest("g", offsets, 1, old, "a"))
    assert code(refused) is ErrorCode.FENCED_INSTANCE_ID


def test_during_a_rebalance_members_commit_until_the_next_generation_waits_for_assignments() -> None:  # E10
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    coordinator.join(leader)
    assert coordinator.group().state is PREPARING
    answer(coordinator.commit({"t-0": 1}, 1, follower))
    coordinator.join(follower)
    assert code(coordinator.commit({"t-0": 2}, 2, follower)) is ErrorCode.REBALANCE_IN_PROGRESS
    assert code(coordinator.commit({"t-0": 2}, 1, follower)) is ErrorCode.ILLEGAL_GENERATION
    coordinator.sync_all([leader, follower], 2)
    answer(coordinator.commit({"t-0": 3}, 2, follower))
    assert coordinator.committed() == {"t-0": 3}


def test_a_member_that_commits_is_alive() -> None:  # E10
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    coordinator.wait(SESSION_MS - 1)
    answer(coordinator.commit({"t-0": 1}, 1, leader))
    coordinator.wait(1)
    assert list(coordinator.group().members) == [leader]
    assert follower not in coordinator.group().members


def test_metadata_that_is_too_large_refuses_its_partition_alone() -> None:  # E10
    coordinator = Coordinator()
    offsets = (
        CommittedOffset("t", 0, 1, metadata="x" * 4_097),
        CommittedOffset("t", 1, 1, metadata="x" * 4_096),
    )
    response = answer(coordinator.ask(OffsetCommitRequest("g", offsets)))
    assert error_codes(response) == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
    assert response.partitions[0].error_message == "metadata: expected at most 4096 characters, found 4097"
    assert coordinator.committed() == {"t-1": 1}


# ---- Deletion --------------------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_members_read_are_not_deleted() -> None:
    coordinator = Coordinator()
    leader, _ = coordinator.stable()
    answer(coordinator.commit({"t-0": 1, "old-0": 2}, 1, leader))
    deletion = OffsetDeleteRequest("g", (partition("t-0"), partition("old-0"), partition("old-1")))
    response = answer(coordinator.ask(deletion))
    assert error_codes(response) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE]
    assert coordinator.committed() == {"t-0": 1}
    coordinator.restart()
    assert coordinator.committed() == {"t-0": 1}


def test_of_members_that_are_no_consumers_it_is_not_known_what_they_read() -> None:
    coordinator = Coordinator()
    coordinator.stable(protocol_type="connect", protocols=(GroupProtocol("own", b""),))
    deletion = OffsetDeleteRequest("g", (partition("t-0"),))
    assert code(coordinator.ask(deletion)) is ErrorCode.NON_EMPTY_GROUP


def test_offsets_of_a_group_that_is_not_known_are_not_deleted() -> None:
    coordinator = Coordinator()
    assert code(coordinator.ask(OffsetDeleteRequest("g", ()))) is ErrorCode.GROUP_ID_NOT_FOUND


# ---- Expiry ----------------------------------------------------------------------------------------------------------


def alive(coordinator: Coordinator, ids: list[str], duration_ms: int, generation_id: int = 1) -> None:
    """The members send heartbeats."""
    end_ms = coordinator.now_ms + duration_ms
    while coordinator.now_ms < end_ms:
        coordinator.wait(min(session_ms(coordinator) // 2, end_ms - coordinator.now_ms))
        assert [coordinator.heartbeat(each, generation_id) for each in ids] == [ErrorCode.NONE] * len(ids)


def session_ms(coordinator: Coordinator) -> int:
    return min(each.session_timeout_ms for each in coordinator.group().members.values())


def test_offsets_of_a_group_that_had_members_expire_so_long_after_the_last_one() -> None:  # E17
    coordinator = Coordinator()
    ids = coordinator.stable(session_timeout_ms=1_800_000)
    answer(coordinator.commit({"t-0": 1}, 1, ids[0]))
    alive(coordinator, ids, WEEK_MS)
    coordinator.leave(*ids)
    coordinator.wait(WEEK_MS - CHECK_MS)
    assert coordinator.committed() == {"t-0": 1}
    coordinator.wait(2 * CHECK_MS)
    assert (coordinator.committed(), coordinator.group_ids) == ({}, [])
    coordinator.restart()
    assert coordinator.group_ids == []


def test_offsets_of_a_group_that_never_had_members_expire_so_long_after_their_commit() -> None:  # E17
    coordinator = Coordinator(offsets_retention_minutes=60)
    answer(coordinator.commit({"t-0": 1, "t-1": 1}))
    coordinator.wait(30 * 60_000)
    answer(coordinator.commit({"t-1": 2}))
    coordinator.wait(30 * 60_000 + CHECK_MS)
    assert coordinator.committed() == {"t-1": 2}
    coordinator.wait(30 * 60_000)
    assert coordinator.group_ids == []


def test_while_there_are_members_only_offsets_of_topics_that_they_do_not_read_expire() -> None:  # E17
    coordinator = Coordinator(offsets_retention_minutes=60)
    ids = coordinator.stable(session_timeout_ms=1_800_000)
    answer(coordinator.commit({"t-0": 1, "old-0": 2}, 1, ids[0]))
    alive(coordinator, ids, 2 * 3_600_000)
    assert coordinator.committed() == {"t-0": 1}


def test_of_members_that_are_no_consumers_no_offsets_expire() -> None:  # E17
    coordinator = Coordinator(offsets_retention_minutes=60)
    fields = {"protocol_type": "connect", "protocols": (GroupProtocol("own", b""),)}
    ids = coordinator.stable(session_timeout_ms=1_800_000, **fields)
    answer(coordinator.commit({"t-0": 1}, 1, ids[0]))
    alive(coordinator, ids, 2 * 3_600_000)
    assert coordinator.committed() == {"t-0": 1}


def test_a_group_without_members_and_offsets_is_forgotten() -> None:  # E17
    coordinator = Coordinator()
    coordinator.leave(*coordinator.stable())
    assert coordinator.group_ids == ["g"]
    coordinator.wait(CHECK_MS)
    assert coordinator.group_ids == []
    assert coordinator.log.records()[-1].value is None


def test_another_coordinator_expires_what_its_predecessor_would_have() -> None:  # E17
    coordinator = Coordinator(offsets_retention_minutes=60)
    answer(coordinator.commit({"t-0": 1}))
    for _ in range(12):
        coordinator.wait(CHECK_MS - 1)
        coordinator.restart()
    coordinator.wait(CHECK_MS)
    assert coordinator.group_ids == []


@pytest.mark.parametrize("count", [1, 999, 1_000, 1_001, 12_345])
def test_however_many_offsets_expire_no_batch_is_large(count: int) -> None:  # E17
    coordinator = Coordinator(offsets_retention_minutes=1)
    for begin, end in pairwise([*range(0, count, 10_000), count]):
        answer(coordinator.commit({f"t-{number}": 1 for number in range(begin, end)}))
    coordinator.log.batches.clear()
    coordinator.wait(CHECK_MS)
    assert sum(coordinator.log.batches) == count
    assert max(coordinator.log.batches) <= 250
    assert coordinator.group_ids == []
