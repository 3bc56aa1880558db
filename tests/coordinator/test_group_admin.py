"""What an operator is told of the groups of a coordinator, and what deleting one leaves in the log."""

from rayka.coordinator.group import EMPTY, PREPARING, STABLE
from rayka.coordinator.group_records import GroupKey
from rayka.errors import ErrorCode
from rayka.protocol.groups import (
    CommittedOffset,
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    GroupResult,
    ListedGroup,
    ListGroupsRequest,
    OffsetCommitRequest,
)
from tests.coordinator.group_support import Coordinator, answer, offers


def described(coordinator: Coordinator, group_id: str = "g") -> DescribedGroup:
    (found,) = answer(coordinator.ask(DescribeGroupsRequest((group_id,)))).groups
    return found


def deleted(coordinator: Coordinator, group_id: str = "g") -> GroupResult:
    (found,) = answer(coordinator.ask(DeleteGroupsRequest((group_id,)))).groups
    return found


def test_a_stable_group_is_described_with_its_protocol_and_what_its_members_have() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    found = described(coordinator)
    assert (found.state, found.generation_id) == (STABLE, 1)
    assert (found.protocol_type, found.protocol_name) == ("consumer", "range")
    members = {each.member_id: each for each in found.members}
    assert {each: members[each].assignment for each in members} == {
        leader: leader.encode(),
        follower: follower.encode(),
    }
    assert {each.metadata for each in found.members} == {offers()[0].metadata}


def test_during_a_rebalance_a_group_is_described_without_protocol_and_assignments() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    coordinator.join(leader)
    found = described(coordinator)
    assert (found.state, found.protocol_type, found.protocol_name) == (PREPARING, "consumer", "")
    assert {each.member_id for each in found.members} == {leader, follower}
    assert {(each.metadata, each.assignment) for each in found.members} == {(b"", b"")}


def test_a_group_that_is_not_known_is_named_in_the_refusal() -> None:
    coordinator = Coordinator()
    for refused in (described(coordinator, "other"), deleted(coordinator, "other")):
        assert refused.error_code is ErrorCode.GROUP_ID_NOT_FOUND
        assert refused.error_message == "group 'other' is not known"


def test_groups_are_listed_by_their_ids_and_by_the_states_that_are_asked_for() -> None:
    coordinator = Coordinator()
    coordinator.stable()
    coordinator.ask(OffsetCommitRequest("a", (CommittedOffset("t", 0, 1),)))
    listed = answer(coordinator.ask(ListGroupsRequest())).groups
    assert listed == (ListedGroup("a", "", EMPTY), ListedGroup("g", "consumer", STABLE))
    assert answer(coordinator.ask(ListGroupsRequest((STABLE,)))).groups == listed[1:]


def test_a_group_without_members_is_deleted_with_all_it_has() -> None:
    coordinator = Coordinator()
    ids = coordinator.stable()
    answer(coordinator.commit({f"t-{number}": 1 for number in range(2_500)}, 1, ids[0]))
    deletion = DeleteGroupsRequest(("g", "nothing"))
    refused = answer(coordinator.ask(deletion)).groups
    assert [each.error_code for each in refused] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    coordinator.leave(*ids)
    gone = answer(coordinator.ask(deletion)).groups
    assert [each.error_code for each in gone] == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    for _ in range(2):
        assert (coordinator.group_ids, coordinator.committed()) == ([], {})
        coordinator.restart()


def test_a_group_that_is_about_to_have_a_member_is_not_deleted() -> None:
    coordinator = Coordinator()
    answer(coordinator.commit({"t-0": 1}))
    coordinator.new_id()
    assert deleted(coordinator).error_code is ErrorCode.NON_EMPTY_GROUP


def test_the_tombstone_of_a_group_comes_behind_those_of_its_offsets() -> None:
    coordinator = Coordinator()
    members = coordinator.stable()
    coordinator.commit({"t-0": 5, "t-1": 6}, 1, members[0])
    coordinator.leave(*members)
    appended = coordinator.log.next_offset
    assert deleted(coordinator).error_code is ErrorCode.NONE
    tombstones = coordinator.log.records()[appended:]
    assert [each.value for each in tombstones] == [None] * 3
    assert [isinstance(each.key, GroupKey) for each in tombstones] == [False, False, True]
    assert coordinator.group_ids == []


def test_a_group_that_only_committed_has_no_tombstone_of_its_own() -> None:
    coordinator = Coordinator()
    coordinator.commit({"t-0": 5})
    appended = coordinator.log.next_offset
    assert deleted(coordinator).error_code is ErrorCode.NONE
    (tombstone,) = coordinator.log.records()[appended:]
    assert (tombstone.value, isinstance(tombstone.key, GroupKey)) == (None, False)
    assert (coordinator.committed(), coordinator.group_ids) == ({}, [])
