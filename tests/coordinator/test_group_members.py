"""Members of a generation: assignments, heartbeats, sessions, leaving."""

import pytest

from rayka.coordinator.group import COMPLETING, EMPTY, PREPARING, STABLE
from rayka.errors import ErrorCode, NotEnoughReplicas
from rayka.protocol.groups import (
    GroupHeartbeatRequest,
    LeaveGroupRequest,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
)
from tests.coordinator.group_support import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Coordinator,
    answer,
    code,
    offers,
)


def completing(coordinator: Coordinator, count: int = 2) -> list[str]:
    """Members of generation 1 without their assignments, the leader first."""
    ids = [coordinator.new_id() for _ in range(count)]
    joins = [coordinator.join(each) for each in ids]
    coordinator.wait(DELAY_MS * 2)
    leader_id = answer(joins[0]).leader_id
    return sorted(ids, key=lambda each: each != leader_id)


# ---- Assignments -----------------------------------------------------------------------------------------------------


def test_assignments_are_in_the_log_before_any_member_has_its_own() -> None:  # E5
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    waiting = coordinator.sync(follower, 1)
    coordinator.log.held_back = coordinator.log.next_offset
    first = coordinator.sync(leader, 1, **{leader: b"L", follower: b"F"})
    assert coordinator.log.batches == [1]
    assert (waiting.is_done, first.is_done) == (False, False)
    coordinator.log.held_back = None
    coordinator.settle()
    assert (answer(first).assignment, answer(waiting).assignment) == (b"L", b"F")
    assert (answer(first).protocol_type, answer(first).protocol_name) == ("consumer", "range")


def test_a_member_that_asks_later_gets_its_assignment_at_once_and_again() -> None:  # E5
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    coordinator.sync(leader, 1, **{follower: b"F"})
    assert coordinator.group().state is STABLE
    assert answer(coordinator.sync(follower, 1)).assignment == b"F"
    assert answer(coordinator.sync(follower, 1)).assignment == b"F"
    assert answer(coordinator.sync(leader, 1)).assignment == b""


def test_assignments_that_the_log_refuses_can_be_brought_again() -> None:  # E5
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    waiting = coordinator.sync(follower, 1)
    coordinator.log.refusal = NotEnoughReplicas("too few")
    assert code(coordinator.sync(leader, 1, **{follower: b"F"})) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert (coordinator.group().state, waiting.is_done) == (COMPLETING, False)
    coordinator.log.refusal = None
    coordinator.sync(leader, 1, **{follower: b"F"})
    assert answer(waiting).assignment == b"F"


def test_a_member_that_does_not_ask_in_time_is_removed() -> None:  # E5
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    waiting = coordinator.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5_000 - 1):
        coordinator.wait(5_000)
        assert coordinator.heartbeat(leader, 1) is ErrorCode.NONE
    coordinator.wait(5_000)
    assert code(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(coordinator.group().members) == [follower]


def test_after_the_leader_has_assigned_a_member_that_does_not_ask_is_removed_too() -> None:  # E5
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    coordinator.sync(leader, 1)
    for _ in range(REBALANCE_MS // 5_000):
        coordinator.heartbeat(leader, 1)
        coordinator.heartbeat(follower, 1)
        coordinator.wait(5_000)
    assert list(coordinator.group().members) == [leader]
    assert coordinator.group().state is PREPARING


def test_once_all_have_asked_there_is_no_time_limit_any_more() -> None:  # E5
    coordinator = Coordinator()
    ids = coordinator.stable()
    for _ in range(2 * REBALANCE_MS // 5_000):
        coordinator.wait(5_000)
        assert [coordinator.heartbeat(each, 1) for each in ids] == [ErrorCode.NONE] * 2


@pytest.mark.parametrize(
    ("generation_id", "fields", "expected"),
    [
        (0, {}, ErrorCode.ILLEGAL_GENERATION),
        (2, {}, ErrorCode.ILLEGAL_GENERATION),
        (1, {"protocol_name": "own"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (1, {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (1, {"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.NONE),
    ],
)
def test_a_sync_names_the_generation_and_its_protocol(
    generation_id: int, fields: dict[str, str], expected: ErrorCode
) -> None:  # E5
    coordinator = Coordinator()
    leader, _ = coordinator.stable()
    assert code(coordinator.ask(SyncGroupRequest("g", generation_id, leader, **fields))) is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"protocol_name": "own"}, "expected protocol 'range', found 'own'"),
        ({"protocol_type": "connect"}, "expected protocol type 'consumer', found 'connect'"),
    ],
)
def test_a_sync_with_another_protocol_is_told_which_one_the_group_has(
    fields: dict[str, str], expected: str
) -> None:  # E5
    coordinator = Coordinator()
    leader, _ = coordinator.stable()
    error = coordinator.ask(SyncGroupRequest("g", 1, leader, **fields)).error
    assert str(error) == (
        f"member {leader!r} of group 'g' in generation 1: {expected}; join the group again and sync with the protocol"
        " that the response names"
    )


def test_a_sync_during_the_next_rebalance_is_told_to_join() -> None:  # E5
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    waiting = coordinator.sync(follower, 1)
    coordinator.leave(leader)
    assert code(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert code(coordinator.sync(follower, 1)) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_later_sync_of_one_member_ends_the_wait_of_the_earlier_one() -> None:
    coordinator = Coordinator()
    leader, follower = completing(coordinator)
    earlier, later = coordinator.sync(follower, 1), coordinator.sync(follower, 1)
    assert code(earlier) is ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.sync(leader, 1, **{follower: b"F"})
    assert answer(later).assignment == b"F"


# ---- Heartbeats and sessions -----------------------------------------------------------------------------------------


def test_a_heartbeat_is_told_what_is_wrong() -> None:  # E6
    coordinator = Coordinator()
    assert coordinator.heartbeat("me", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    leader, follower = coordinator.stable()
    assert coordinator.heartbeat("me", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(leader, 2) is ErrorCode.ILLEGAL_GENERATION
    assert coordinator.heartbeat(leader, 1, "i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(leader, 1) is ErrorCode.NONE
    coordinator.leave(follower)
    assert coordinator.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_while_assignments_are_awaited_a_heartbeat_is_fine() -> None:  # E6
    coordinator = Coordinator()
    leader, _ = completing(coordinator)
    assert coordinator.heartbeat(leader, 1) is ErrorCode.NONE


def test_a_heartbeat_begins_the_session_anew_also_during_a_rebalance() -> None:  # E6
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    for _ in range(4):
        coordinator.wait(SESSION_MS - 1)
        assert coordinator.heartbeat(leader, 1) in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
    assert list(coordinator.group().members) == [leader]
    assert follower not in coordinator.group().members


def test_a_member_that_is_silent_for_its_session_is_removed_and_the_others_rebalance() -> None:  # E6 E8
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    coordinator.wait(SESSION_MS - 1)
    coordinator.heartbeat(leader, 1)
    assert coordinator.group().state is STABLE
    coordinator.wait(1)
    assert coordinator.group().state is PREPARING
    assert coordinator.heartbeat(follower, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert answer(coordinator.join(leader)).generation_id == 2


def test_a_member_that_waits_for_the_others_needs_no_heartbeats() -> None:  # E6
    coordinator = Coordinator()
    leader, follower = coordinator.stable(session_timeout_ms=SESSION_MS)
    waiting = coordinator.join(leader)
    assert coordinator.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    for _ in range(5):
        coordinator.wait(SESSION_MS - 1)
        coordinator.heartbeat(follower, 1)
    coordinator.join(follower)
    assert answer(waiting).generation_id == 2


def test_a_process_that_took_a_static_members_place_is_removed_when_it_is_silent() -> None:  # E6 E7
    coordinator = Coordinator()
    leader, follower = coordinator.stable(instances=["a", "b"])
    instances = {member_id: each for each, member_id in coordinator.group().static_members.items()}
    new = answer(coordinator.join(group_instance_id=instances[follower])).member_id
    for expected in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
        assert coordinator.group().members.keys() == {leader, new}
        coordinator.wait(SESSION_MS // 2)
        assert coordinator.heartbeat(leader, 1, instances[leader]) is expected
    assert coordinator.group().members.keys() == {leader}


def test_a_member_that_is_gone_leaves_no_timer_behind() -> None:  # E3 E7
    coordinator = Coordinator()
    of_no_member_ms = coordinator.runtime.next_timer_ms
    coordinator.leave(coordinator.new_id())
    assert coordinator.runtime.next_timer_ms == of_no_member_ms
    old = coordinator.stable(1, instances=["a"])[0]
    coordinator.wait(1)
    new = coordinator.join(group_instance_id="a", protocols=offers(topics=["other"]))
    assert (answer(new).generation_id, answer(new).member_id == old) == (2, False)
    assert coordinator.runtime.next_timer_ms == coordinator.now_ms + SESSION_MS


def test_when_all_members_are_gone_the_group_is_empty_and_a_record_says_so() -> None:  # E5 E6
    coordinator = Coordinator()
    coordinator.stable()
    coordinator.wait(SESSION_MS)
    group = coordinator.group()
    assert (group.state, group.generation_id, group.protocol_name) == (EMPTY, 2, "")
    coordinator.restart()
    assert (coordinator.group().state, coordinator.group().generation_id) == (EMPTY, 2)
    assert coordinator.stable(1)
    assert coordinator.group().generation_id == 3


def test_a_group_becomes_empty_once_the_log_takes_the_record() -> None:  # E5
    coordinator = Coordinator()
    ids = coordinator.stable()
    coordinator.log.refusal = NotEnoughReplicas("too few")
    assert coordinator.leave(*ids) == [ErrorCode.NONE] * 2
    coordinator.wait(2_000)
    assert coordinator.group().state is PREPARING
    coordinator.log.refusal = None
    coordinator.wait(500)
    assert coordinator.group().state is EMPTY


def test_a_group_in_which_no_member_synced_becomes_empty_too() -> None:  # E5
    coordinator = Coordinator()
    coordinator.join(coordinator.new_id())
    coordinator.wait(DELAY_MS + SESSION_MS)
    assert coordinator.group().state is EMPTY


def test_a_member_that_asks_for_its_assignment_or_to_join_is_alive() -> None:  # E6
    coordinator = Coordinator()
    _, follower = coordinator.stable()
    coordinator.wait(SESSION_MS - 1)
    answer(coordinator.sync(follower, 1))
    coordinator.wait(SESSION_MS - 1)
    assert coordinator.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    (leader, other) = coordinator.stable_again(follower)
    coordinator.wait(SESSION_MS - 1)
    coordinator.heartbeat(leader, coordinator.group().generation_id)
    answer(coordinator.join(other))
    coordinator.wait(SESSION_MS - 1)
    assert other in coordinator.group().members


def test_a_static_member_that_comes_back_before_it_has_synced_counts_as_synced() -> None:  # E5 E7
    coordinator = Coordinator()
    joins = [coordinator.join(group_instance_id=each) for each in "ab"]
    coordinator.wait(2 * DELAY_MS)
    leader = answer(joins[0]).member_id
    coordinator.sync(leader, 1, instance="a")
    other = answer(coordinator.join(group_instance_id="b")).member_id
    for _ in range(REBALANCE_MS // 5_000 + 1):
        coordinator.wait(5_000)
        assert coordinator.heartbeat(leader, 1, "a") is ErrorCode.NONE
        assert coordinator.heartbeat(other, 1, "b") is ErrorCode.NONE


# ---- Leaving ---------------------------------------------------------------------------------------------------------


def test_a_member_leaves_at_once() -> None:  # E6
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    assert coordinator.leave(follower) == [ErrorCode.NONE]
    assert coordinator.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert coordinator.leave(follower) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert answer(coordinator.join(leader)).generation_id == 2


def test_a_member_that_leaves_while_others_wait_for_it_lets_them_go_on() -> None:  # E6
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    waiting = coordinator.join(leader)
    coordinator.leave(follower)
    assert answer(waiting).generation_id == 2


def test_what_became_of_a_member_that_leaves_is_told_under_its_names() -> None:  # E6
    coordinator = Coordinator()
    member_id = coordinator.stable(1, instances=["a"])[0]
    request = LeaveGroupRequest("g", (LeavingMember(member_id, "a"),))
    assert answer(coordinator.ask(request)).members == (LeftMember(member_id, "a"),)


def test_several_members_leave_each_on_its_own() -> None:  # E6
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    pending = coordinator.new_id()
    left = coordinator.leave(pending, "me", follower, leader)
    assert left == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE, ErrorCode.NONE]
    assert coordinator.group().state is EMPTY


def test_a_static_member_is_taken_out_by_its_instance() -> None:  # E6 E7
    coordinator = Coordinator()
    coordinator.stable(instances=["a", "b"])
    assert coordinator.leave("", instance="c") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert coordinator.leave("", instance="a") == [ErrorCode.NONE]
    assert list(coordinator.group().static_members) == ["b"]


def test_a_member_that_waits_and_is_removed_gets_an_error() -> None:  # E6
    coordinator = Coordinator()
    leader, _ = coordinator.stable()
    waiting = coordinator.join(leader)
    coordinator.leave(leader)
    assert code(waiting) is ErrorCode.UNKNOWN_MEMBER_ID


def test_no_one_leaves_a_group_that_is_not_known() -> None:  # E6
    coordinator = Coordinator()
    request = LeaveGroupRequest("nothing", (LeavingMember("me"), LeavingMember("", "i")))
    assert [each.error_code for each in answer(coordinator.ask(request)).members] == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ] * 2
    assert coordinator.group_ids == []


# ---- Another coordinator ---------------------------------------------------------------------------------------------


def test_another_coordinator_goes_on_with_the_generation_and_gives_everyone_a_session() -> None:  # E1 E6
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    coordinator.wait(SESSION_MS - 1)
    coordinator.restart()
    coordinator.wait(SESSION_MS - 1)
    assert coordinator.heartbeat(leader, 1) is ErrorCode.NONE
    assert answer(coordinator.sync(leader, 1)).assignment == leader.encode()
    coordinator.wait(1)
    assert list(coordinator.group().members) == [leader]
    assert follower not in coordinator.group().members


def test_a_rebalance_that_was_under_way_is_begun_again() -> None:  # E1
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    waiting = coordinator.join(leader)
    coordinator.restart()
    assert code(waiting) is ErrorCode.NOT_COORDINATOR
    assert coordinator.heartbeat(leader, 1) is ErrorCode.NONE
    again = coordinator.join(leader)
    coordinator.join(follower)
    assert answer(again).generation_id == 2


def test_members_of_a_generation_without_assignments_join_again_at_another_coordinator() -> None:  # E1
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    for each in (leader, follower):
        coordinator.join(each)
    assert coordinator.group().generation_id == 2
    coordinator.restart()
    request = GroupHeartbeatRequest("g", 2, leader)
    assert code(coordinator.ask(request)) is ErrorCode.ILLEGAL_GENERATION
