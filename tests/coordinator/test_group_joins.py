"""Joining a group, phase by phase."""

import pytest

from rayka.coordinator.group import COMPLETING, EMPTY, PREPARING, STABLE
from rayka.coordinator.group_members import PENDING_MAX
from rayka.errors import ErrorCode, InvariantBroken
from rayka.protocol.groups import (
    ConsumerAssignment,
    ConsumerSubscription,
    GroupProtocol,
    encode_member_data,
)
from tests.coordinator.group_support import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Coordinator,
    answer,
    code,
    offers,
    partition,
)


def joined(coordinator: Coordinator, **fields: object) -> str:
    """A dynamic member whose join waits."""
    member_id = coordinator.new_id(**fields)
    coordinator.join(member_id, **fields)
    return member_id


# ---- Which members may join ------------------------------------------------------------------------------------------


def test_a_dynamic_member_joins_with_the_id_that_it_is_given() -> None:  # E3
    coordinator = Coordinator()
    first = answer(coordinator.join())
    assert first.error_code is ErrorCode.MEMBER_ID_REQUIRED
    assert first.member_id.startswith("c-")
    assert coordinator.group().members == {}
    again = coordinator.join(first.member_id)
    coordinator.wait(DELAY_MS)
    assert answer(again).generation_id == 1


def test_an_id_that_is_not_used_is_forgotten_and_the_group_with_it() -> None:  # E3
    coordinator = Coordinator()
    member_id = coordinator.new_id()
    coordinator.wait(SESSION_MS - 1)
    assert coordinator.group_ids == ["g"]
    coordinator.wait(1)
    assert coordinator.group_ids == []
    assert code(coordinator.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_that_had_a_generation_is_kept_when_an_id_is_given_back() -> None:  # E3
    coordinator = Coordinator()
    coordinator.leave(*coordinator.stable())
    coordinator.leave(coordinator.new_id())
    assert (coordinator.group().state, coordinator.group().generation_id) == (EMPTY, 2)


def test_a_static_member_gets_its_id_at_once() -> None:  # E3
    coordinator = Coordinator()
    pending = coordinator.join(group_instance_id="i")
    coordinator.wait(DELAY_MS)
    assert answer(pending).member_id.startswith("i-")


def test_a_member_id_that_the_group_has_not_given_is_refused() -> None:  # E3
    coordinator = Coordinator()
    assert code(coordinator.join("me")) is ErrorCode.UNKNOWN_MEMBER_ID
    coordinator.stable()
    assert code(coordinator.join("me")) is ErrorCode.UNKNOWN_MEMBER_ID


def test_no_more_ids_are_given_out_than_a_group_may_have_unused() -> None:  # E3
    coordinator = Coordinator()
    for _ in range(PENDING_MAX):
        last = coordinator.new_id()
    refused = coordinator.join()
    assert code(refused) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert "10,000 member ids" in str(refused.error)
    coordinator.join(last)
    coordinator.new_id()


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001])
def test_a_session_timeout_out_of_bounds_is_refused(session_ms: int) -> None:  # E3
    coordinator = Coordinator()
    refused = coordinator.join(session_timeout_ms=session_ms)
    assert code(refused) is ErrorCode.INVALID_SESSION_TIMEOUT
    assert "expected 6000 to 1800000" in str(refused.error)


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_a_session_timeout_within_the_bounds_is_accepted(session_ms: int) -> None:  # E3
    coordinator = Coordinator()
    assert coordinator.new_id(session_timeout_ms=session_ms)


def test_members_have_the_type_and_one_protocol_in_common() -> None:  # E3
    coordinator = Coordinator()
    joined(coordinator, protocols=offers("range", "sticky"))
    other_type = coordinator.join(protocol_type="connect", protocols=offers("range"))
    assert code(other_type) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(coordinator.join(protocols=offers("own"))) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    joined(coordinator, protocols=offers("sticky"))
    nothing_in_common = coordinator.join(protocols=offers("range"))
    assert code(nothing_in_common) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_group_takes_no_more_members_than_its_size() -> None:  # E3
    coordinator = Coordinator(group_max_size=2)
    leader, follower = coordinator.stable()
    third = coordinator.join(group_instance_id="i")
    assert code(third) is ErrorCode.GROUP_MAX_SIZE_REACHED
    again = coordinator.join(leader)
    assert coordinator.group().state is PREPARING
    coordinator.join(follower)
    assert answer(again).generation_id == 2
    assert len(coordinator.group().members) == 2


def test_a_static_member_that_comes_back_has_its_place_in_a_full_group() -> None:  # E3 E7
    coordinator = Coordinator(group_max_size=2)
    coordinator.stable(instances=["a", "b"])
    assert answer(coordinator.join(group_instance_id="b")).generation_id == 1
    assert code(coordinator.join(group_instance_id="c")) is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_a_static_member_that_comes_back_may_offer_what_only_its_former_process_did_not() -> None:  # E3 E7
    coordinator = Coordinator()
    both = offers("range", "sticky")
    coordinator.stable(1, instances=["a"])
    again = coordinator.join(group_instance_id="a", protocols=offers("sticky"))
    assert answer(again).protocol_name == "sticky"
    assert code(coordinator.join(group_instance_id="b")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert not coordinator.join(group_instance_id="b", protocols=both).is_done


def test_during_a_rebalance_the_first_ones_to_join_are_the_members() -> None:  # E3
    coordinator = Coordinator(group_max_size=2)
    leader, follower = coordinator.stable()
    coordinator.join(leader)
    coordinator.join(group_instance_id="i")
    assert code(coordinator.join(follower)) is ErrorCode.GROUP_MAX_SIZE_REACHED


# ---- The first generation --------------------------------------------------------------------------------------------


def test_a_group_that_was_empty_waits_for_more_members_while_some_arrive() -> None:  # E4
    coordinator = Coordinator()
    joins = [coordinator.join(group_instance_id="0")]
    coordinator.wait(DELAY_MS - 1)
    joins.append(coordinator.join(group_instance_id="1"))
    coordinator.wait(DELAY_MS)
    assert not joins[0].is_done
    coordinator.wait(1)
    assert [answer(each).generation_id for each in joins] == [1, 1]
    assert coordinator.now_ms == 2 * DELAY_MS


def test_it_waits_no_longer_than_the_rebalance_timeout() -> None:  # E4
    coordinator = Coordinator()
    first = coordinator.join(group_instance_id="0", rebalance_timeout_ms=7_000)
    for number in range(1, 7):
        coordinator.wait(1_000)
        coordinator.join(group_instance_id=f"{number}", rebalance_timeout_ms=7_000)
    assert not first.is_done
    coordinator.wait(1_000)
    assert len(answer(first).members) == 7


def test_the_leader_is_told_all_members_and_the_others_are_told_the_leader() -> None:  # E4
    coordinator = Coordinator()
    joins = [coordinator.join(group_instance_id=each) for each in "ab"]
    coordinator.wait(2 * DELAY_MS)
    first, second = (answer(each) for each in joins)
    assert first.leader_id == second.leader_id == first.member_id
    assert [each.group_instance_id for each in first.members] == ["a", "b"]
    assert first.members[0].metadata == offers()[0].metadata
    assert (first.skip_assignment, second.skip_assignment) == (False, False)
    assert second.members == ()
    assert coordinator.group().state is COMPLETING


def test_the_protocol_is_the_one_that_most_members_prefer_of_those_that_all_have() -> None:  # E4
    coordinator = Coordinator()
    preferences = [("own", "range", "sticky"), ("sticky", "range"), ("sticky", "range")]
    joins = [
        coordinator.join(group_instance_id=f"{number}", protocols=offers(*names))
        for number, names in enumerate(preferences)
    ]
    coordinator.wait(2 * DELAY_MS)
    assert {answer(each).protocol_name for each in joins} == {"sticky"}


# ---- Later generations -----------------------------------------------------------------------------------------------


def test_a_new_member_makes_the_others_join_again() -> None:  # E4 E8
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    new = joined(coordinator)
    assert coordinator.group().state is PREPARING
    assert coordinator.heartbeat(leader, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    first = coordinator.join(leader)
    assert not first.is_done
    coordinator.join(follower)
    response = answer(first)
    assert (response.generation_id, response.leader_id) == (2, leader)
    assert {each.member_id for each in response.members} == {leader, follower, new}


def test_a_member_that_has_not_joined_in_time_is_removed() -> None:  # E4
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    again = coordinator.join(leader)
    for _ in range(REBALANCE_MS // 1_000 - 1):
        coordinator.wait(1_000)
        assert coordinator.heartbeat(follower, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.wait(1_000)
    assert [each.member_id for each in answer(again).members] == [leader]
    assert coordinator.heartbeat(follower, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_has_not_joined_in_time_stays() -> None:  # E4 E7
    coordinator = Coordinator()
    leader, _ = coordinator.stable(instances=["a", "b"], session_timeout_ms=REBALANCE_MS * 2)
    again = coordinator.join(leader, group_instance_id="a", session_timeout_ms=REBALANCE_MS * 2)
    coordinator.wait(REBALANCE_MS)
    assert len(answer(again).members) == 2


def test_the_leader_leads_on_where_an_earlier_member_has_joined_again_too() -> None:  # E4
    coordinator = Coordinator()
    long = {"session_timeout_ms": REBALANCE_MS * 3}
    leader, follower = coordinator.stable(instances=["a", "b"], **long)
    names = {member_id: each for each, member_id in coordinator.group().static_members.items()}
    alone = coordinator.join(
        follower, group_instance_id=names[follower], protocols=offers(topics=["u"]), **long
    )
    coordinator.wait(REBALANCE_MS)
    assert answer(alone).leader_id == follower
    joins = [
        coordinator.join(each, group_instance_id=names[each], protocols=offers(topics=["v"]), **long)
        for each in (leader, follower)
    ]
    assert [answer(each).leader_id for each in joins] == [follower, follower]


def test_while_no_static_member_has_come_back_the_group_goes_on_waiting() -> None:  # E4
    coordinator = Coordinator()
    long = {"session_timeout_ms": REBALANCE_MS * 3}
    coordinator.stable(3, instances=["a", "b"], **long)
    dynamic = next(each for each in coordinator.group().members if each.startswith("c-"))
    coordinator.leave(dynamic)
    coordinator.wait(REBALANCE_MS)
    assert coordinator.group().state is PREPARING
    coordinator.join(coordinator.group().static_members["b"], group_instance_id="b", **long)
    coordinator.wait(REBALANCE_MS)
    assert coordinator.group().leader_id == coordinator.group().static_members["b"]
    assert coordinator.group().state is COMPLETING


def test_an_id_that_was_given_out_is_waited_for() -> None:  # E4
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    coordinator.new_id()
    joins = [coordinator.join(each) for each in (leader, follower)]
    assert not joins[0].is_done
    coordinator.wait(SESSION_MS)
    assert [answer(each).generation_id for each in joins] == [2, 2]


@pytest.mark.parametrize("is_leader", [True, False])
def test_a_member_that_joins_again_without_news_begins_a_rebalance_only_if_it_leads(
    is_leader: bool,
) -> None:  # E8
    coordinator = Coordinator()
    member_id = coordinator.stable()[0 if is_leader else 1]
    pending = coordinator.join(member_id)
    assert pending.is_done is not is_leader
    assert coordinator.group().state is (PREPARING if is_leader else STABLE)
    if not is_leader:
        assert (answer(pending).generation_id, answer(pending).members) == (1, ())


def test_a_member_that_subscribes_to_something_else_begins_a_rebalance() -> None:  # E8
    coordinator = Coordinator()
    _, follower = coordinator.stable()
    coordinator.join(follower, protocols=offers(topics=["other"]))
    assert coordinator.group().state is PREPARING


def test_a_member_that_lost_its_answer_gets_it_again_before_the_assignments_are_there() -> None:  # E8
    coordinator = Coordinator()
    joins = [coordinator.join(group_instance_id=each) for each in "ab"]
    coordinator.wait(2 * DELAY_MS)
    for pending, instance in zip(joins, "ab", strict=True):
        first = answer(pending)
        assert answer(coordinator.join(first.member_id, group_instance_id=instance)) == first
    coordinator.join(first.member_id, group_instance_id="b", protocols=offers(topics=["other"]))
    assert coordinator.group().state is PREPARING


def test_a_later_join_of_one_member_ends_the_wait_of_the_earlier_one() -> None:
    coordinator = Coordinator()
    leader, follower = coordinator.stable()
    earlier, later = coordinator.join(leader), coordinator.join(leader)
    assert code(earlier) is ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.join(follower)
    assert answer(later).generation_id == 2


def test_a_member_that_is_alone_may_offer_something_else_altogether() -> None:
    coordinator = Coordinator()
    (leader,) = coordinator.stable(1)
    pending = coordinator.join(leader, protocol_type="connect", protocols=(GroupProtocol("own", b""),))
    assert (answer(pending).protocol_type, answer(pending).protocol_name) == ("connect", "own")


# ---- Static members --------------------------------------------------------------------------------------------------


def test_a_static_member_that_comes_back_takes_its_place_without_a_rebalance() -> None:  # E7
    coordinator = Coordinator()
    leader, follower = coordinator.stable(instances=["a", "b"])
    instance = next(each for each in "ab" if coordinator.group().static_members[each] == follower)
    response = answer(coordinator.join(group_instance_id=instance))
    assert (response.generation_id, response.leader_id, response.skip_assignment) == (1, leader, False)
    assert response.member_id != follower
    assert coordinator.group().state is STABLE
    assert answer(coordinator.sync(response.member_id, 1, instance=instance)).assignment == follower.encode()
    assert coordinator.heartbeat(follower, 1, instance) is ErrorCode.FENCED_INSTANCE_ID
    assert code(coordinator.sync(follower, 1, instance=instance)) is ErrorCode.FENCED_INSTANCE_ID
    assert code(coordinator.join(follower, group_instance_id=instance)) is ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.leave(follower, instance=instance) == [ErrorCode.FENCED_INSTANCE_ID]


def test_what_a_static_member_had_claimed_does_not_count_when_it_comes_back() -> None:  # E7
    coordinator = Coordinator()
    coordinator.stable(instances=["a", "b"])
    claims = encode_member_data(ConsumerSubscription(("t",), (partition("t-0"),), 1))
    protocols = (GroupProtocol("range", claims),)
    response = answer(coordinator.join(group_instance_id="a", protocols=protocols))
    assert (response.generation_id, coordinator.group().state) == (1, STABLE)


def test_a_leader_that_comes_back_is_told_that_it_need_not_assign() -> None:  # E7
    coordinator = Coordinator()
    leader, follower = coordinator.stable(instances=["a", "b"])
    instance = next(each for each in "ab" if coordinator.group().static_members[each] == leader)
    response = answer(coordinator.join(group_instance_id=instance))
    assert (response.leader_id, response.skip_assignment) == (response.member_id, True)
    assert {each.member_id: each.assignment for each in response.members} == {
        response.member_id: leader.encode(),
        follower: follower.encode(),
    }


def test_a_place_that_was_taken_is_taken_for_the_next_coordinator_too() -> None:  # E7
    coordinator = Coordinator()
    coordinator.stable(instances=["a", "b"])
    response = answer(coordinator.join(group_instance_id="b"))
    coordinator.restart()
    assert coordinator.heartbeat(response.member_id, 1, "b") is ErrorCode.NONE


@pytest.mark.parametrize("other", [offers(topics=["other"]), offers(rack="elsewhere")])
def test_a_static_member_that_comes_back_with_another_subscription_begins_a_rebalance(
    other: tuple[GroupProtocol, ...],
) -> None:  # E7 E8
    coordinator = Coordinator()
    coordinator.stable(instances=["a", "b"])
    pending = coordinator.join(group_instance_id="b", protocols=other)
    assert not pending.is_done
    assert coordinator.group().state is PREPARING
    coordinator.join(coordinator.group().static_members["a"], group_instance_id="a")
    assert answer(pending).generation_id == 2


@pytest.mark.parametrize("is_given_to_another", [False, True])
def test_what_a_static_member_was_to_give_up_gets_an_owner_when_its_process_is_another(
    is_given_to_another: bool,
) -> None:  # E7 E8
    """A generation of cooperative members leaves out what one of them still reads. That one gives it up and joins
    again, which the process that takes its place has no reason to do.
    """
    coordinator = Coordinator()
    claims = encode_member_data(ConsumerSubscription(("t",), (partition("t-0"), partition("t-1")), 1))
    of_b = (GroupProtocol("cooperative-sticky", claims),)
    of_a = (GroupProtocol("cooperative-sticky", encode_member_data(ConsumerSubscription(("t",)))),)
    joins = [coordinator.join(group_instance_id="a", protocols=of_a)]
    joins.append(coordinator.join(group_instance_id="b", protocols=of_b))
    coordinator.wait(2 * DELAY_MS)
    a, b = (answer(each).member_id for each in joins)
    given = {
        a: encode_member_data(ConsumerAssignment((partition("t-1"),) if is_given_to_another else ())),
        b: encode_member_data(ConsumerAssignment((partition("t-0"),))),
    }
    coordinator.sync(b, 1, instance="b")
    coordinator.sync(a, 1, instance="a", **given)
    assert coordinator.group().state is STABLE
    coordinator.restart()
    again = coordinator.join(group_instance_id="b", protocols=of_a)
    assert coordinator.group().state is (STABLE if is_given_to_another else PREPARING)
    assert again.is_done == is_given_to_another


def test_two_processes_of_one_instance_that_both_wait_leave_the_first_one_fenced() -> None:  # E7
    coordinator = Coordinator()
    first = coordinator.join(group_instance_id="a")
    second = coordinator.join(group_instance_id="a")
    assert code(first) is ErrorCode.FENCED_INSTANCE_ID
    coordinator.wait(2 * DELAY_MS)
    assert [each.member_id for each in answer(second).members] == [answer(second).member_id]


def test_a_process_that_waits_for_its_assignment_is_fenced_by_the_next_one() -> None:  # E7
    coordinator = Coordinator()
    joins = [coordinator.join(group_instance_id=each) for each in "ab"]
    coordinator.wait(2 * DELAY_MS)
    waiting = coordinator.sync(answer(joins[1]).member_id, 1, instance="b")
    coordinator.join(group_instance_id="b")
    assert code(waiting) is ErrorCode.FENCED_INSTANCE_ID
    assert coordinator.group().state is PREPARING


# ---- States ----------------------------------------------------------------------------------------------------------


def test_states_follow_each_other_as_they_may_and_no_other_way() -> None:  # E2
    coordinator = Coordinator()
    seen = []
    leader, follower = coordinator.stable()
    seen.append(coordinator.group().state)
    joins = [coordinator.join(leader)]
    seen.append(coordinator.group().state)
    joins.append(coordinator.join(follower))
    seen.append(coordinator.group().state)
    coordinator.leave(leader, follower)
    seen.append(coordinator.group().state)
    assert seen == [STABLE, PREPARING, COMPLETING, EMPTY]
    for state in (COMPLETING, STABLE, EMPTY):
        with pytest.raises(InvariantBroken, match="cannot become"):
            coordinator.group().become(state)
