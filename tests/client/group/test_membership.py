"""The membership of a consumer, against a real coordinator (E3 to E9)."""

import pytest

from rayka.client.consumer.group_membership import LookUpTopics, MemberState
from rayka.errors import (
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    NetworkException,
    UnavailableError,
    UnknownMemberId,
)
from rayka.protocol.groups import GroupHeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from tests.client.group.member_support import BACKOFF_MS, BEAT_MS, CoreMember, pass_time
from tests.coordinator.group_support import DELAY_MS, REBALANCE_MS, SESSION_MS, Coordinator

COOPERATIVE = ("cooperative-sticky",)


class Groups:
    """A coordinator, its topics, and members that poll."""

    def __init__(self) -> None:
        self.coordinator = Coordinator()
        self.counts = {"t": 4}
        self.members: list[CoreMember] = []

    def member(self, **fields: object) -> CoreMember:
        self.members.append(CoreMember(self.coordinator, self.counts, **fields))
        return self.members[-1]

    def settled(self, count: int, **fields: object) -> list[CoreMember]:
        made = [self.member(**fields) for _ in range(count)]
        self.wait(3 * DELAY_MS)
        assert {each.core.state for each in made} == {MemberState.STABLE}
        for each in self.members:
            each.told.clear()
            each.sent.clear()
        return made

    def wait(self, duration_ms: int, *idle: CoreMember) -> None:
        pass_time(self.coordinator, self.members, duration_ms, idle=idle)

    def by_lead(self) -> list[CoreMember]:
        """The leader first."""
        leader_id = self.coordinator.group().leader_id
        return sorted(self.members, key=lambda each: each.core.metadata.member_id != leader_id)


@pytest.fixture
def groups() -> Groups:
    return Groups()


# ---- Joining ---------------------------------------------------------------------------------------------------------


def test_a_member_joins_when_the_application_polls_and_twice_to_get_an_id(groups: Groups) -> None:  # E3
    member = groups.member()
    member.go_on()
    assert member.sent == []
    groups.wait(3 * DELAY_MS)
    joins = [each.member_id for each in member.sent if isinstance(each, JoinGroupRequest)]
    assert joins == ["", member.core.metadata.member_id]
    assert member.told == ["assigned t-0 t-1 t-2 t-3"]


def test_a_static_member_joins_once(groups: Groups) -> None:  # E3 E7
    member = groups.member(group_instance_id="one")
    groups.wait(3 * DELAY_MS)
    assert [type(each) for each in member.sent[:2]] == [JoinGroupRequest, SyncGroupRequest]
    assert member.core.metadata.group_instance_id == "one"


def test_the_leader_assigns_with_the_assignor_that_the_group_has_chosen(groups: Groups) -> None:  # E5 E9
    first = groups.member(assignors=("range", "roundrobin"))
    second = groups.member(assignors=("roundrobin",))
    groups.wait(3 * DELAY_MS)
    assert sorted([first.owned, second.owned]) == ["t-0 t-2", "t-1 t-3"]


def test_the_leader_assigns_by_the_racks_of_members_and_replicas(groups: Groups) -> None:  # E9
    far, near = groups.member(rack="rack-3"), groups.member(rack="rack-0")
    groups.wait(3 * DELAY_MS)
    assert "t-3" in far.owned
    assert "t-0" in near.owned


def test_a_leader_joins_again_when_replicas_are_in_other_racks(groups: Groups) -> None:  # E8 E9
    groups.settled(2, rack="rack-1")
    leader, _ = groups.by_lead()
    leader.core.on_topics(dict(leader.core.leader_topics or {}))
    groups.wait(2 * BEAT_MS)
    assert leader.core.metadata.generation_id == 1
    leader.core.on_topics({"t": (("rack-9",),) * 4})
    groups.wait(2 * BEAT_MS)
    assert leader.core.metadata.generation_id == 2


def test_a_join_that_is_not_answered_is_sent_again(groups: Groups) -> None:
    member = groups.member()
    member.core.on_handed_over(member.core.handover)  # type: ignore[arg-type]
    join = member.core.next_step(0)
    assert join is not None
    assert member.core.next_step(0) is None
    member.core.on_error(join, NetworkException("broken"), 10)
    assert member.core.next_due_ms() == 10 + BACKOFF_MS
    assert member.core.next_step(10 + BACKOFF_MS - 1) is None
    assert isinstance(member.core.next_step(10 + BACKOFF_MS), JoinGroupRequest)


def test_a_coordinator_that_cannot_be_reached_is_an_error_for_the_application_and_the_member_tries_on(
    groups: Groups,
) -> None:
    member = groups.member()
    member.core.on_handed_over(member.core.handover)  # type: ignore[arg-type]
    join = member.core.next_step(0)
    assert join is not None
    member.core.on_error(join, UnavailableError("no node"), 0)
    assert isinstance(member.core.take_failure(), UnavailableError)
    assert member.core.take_failure() is None
    groups.wait(3 * DELAY_MS)
    assert member.owned == "t-0 t-1 t-2 t-3"


def test_members_that_have_no_assignor_in_common_are_told(groups: Groups) -> None:  # E3
    groups.settled(1, assignors=("range",))
    other = groups.member(assignors=("roundrobin",))
    groups.wait(BEAT_MS)
    assert isinstance(other.core.take_failure(), InconsistentGroupProtocol)
    assert other.owned == ""


# ---- Rebalances ------------------------------------------------------------------------------------------------------


def test_eager_members_give_up_all_before_they_join(groups: Groups) -> None:  # E9
    (first,) = groups.settled(1)
    second = groups.member()
    groups.wait(BEAT_MS * 2)
    assert first.told == ["revoked t-0 t-1 t-2 t-3", f"assigned {first.owned}"]
    assert second.told == [f"assigned {second.owned}"]
    assert len({*first.core.owned, *second.core.owned}) == 4


def test_cooperative_members_keep_what_they_have_and_give_up_what_moves(groups: Groups) -> None:  # E9
    (first,) = groups.settled(1, assignors=COOPERATIVE)
    second = groups.member(assignors=COOPERATIVE)
    groups.wait(BEAT_MS * 4)
    moved = second.owned
    assert {*first.told} == {f"revoked {moved}", "assigned"}
    assert second.told[-1] == f"assigned {moved}"
    assert len(second.core.owned) == len(first.core.owned) == 2


def test_a_member_that_leaves_hands_its_partitions_on_at_once(groups: Groups) -> None:  # E6
    first, second = groups.settled(2)
    second.core.begin_leaving()
    groups.wait(2 * BEAT_MS)
    assert isinstance(second.sent[-1], LeaveGroupRequest)
    assert second.told[0].startswith("revoked t-")
    assert first.owned == "t-0 t-1 t-2 t-3"
    assert second.core.state is MemberState.UNJOINED


def test_a_static_member_leaves_without_a_word_and_comes_back_to_the_same_partitions(
    groups: Groups,
) -> None:  # E6 E7
    first = groups.member(group_instance_id="one")
    second = groups.member(group_instance_id="two")
    groups.wait(3 * DELAY_MS)
    owned, generation_id = second.owned, first.core.metadata.generation_id
    second.core.begin_leaving()
    groups.wait(BEAT_MS)
    assert not any(isinstance(each, LeaveGroupRequest) for each in second.sent)
    again = groups.member(group_instance_id="two")
    groups.wait(BEAT_MS)
    assert (again.owned, first.core.metadata.generation_id) == (owned, generation_id)


def test_a_leader_that_came_back_leaves_the_assignment_as_it_was(groups: Groups) -> None:  # E7
    for name in ("one", "two"):
        groups.member(group_instance_id=name, assignors=("roundrobin",))
    groups.wait(3 * DELAY_MS)
    leader, _ = groups.by_lead()
    owned, instance_id = leader.owned, leader.core.metadata.group_instance_id
    leader.core.begin_leaving()
    groups.wait(BEAT_MS)
    again = groups.member(group_instance_id=instance_id, assignors=("roundrobin",))
    groups.wait(BEAT_MS)
    assert (again.owned, again.core.metadata.generation_id) == (owned, 1)
    syncs = [each for each in again.sent if isinstance(each, SyncGroupRequest)]
    assert [each.assignments for each in syncs] == [()]
    assert again.core.leader_topics == {"t": ((),) * 4}


def test_a_leader_that_came_back_shares_out_what_its_topic_got_meanwhile(groups: Groups) -> None:  # E7 E8
    for name in ("one", "two"):
        groups.member(group_instance_id=name, assignors=("roundrobin",))
    groups.wait(3 * DELAY_MS)
    leader, _ = groups.by_lead()
    leader.core.begin_leaving()
    groups.wait(BEAT_MS)
    groups.counts["t"] = 6
    again = groups.member(group_instance_id=leader.core.metadata.group_instance_id, assignors=("roundrobin",))
    groups.wait(3 * BEAT_MS)
    owned = [tp for each in groups.members if each is not leader for tp in each.owned.split()]
    assert sorted(owned) == [f"t-{number}" for number in range(6)]
    assert again.core.metadata.generation_id == 2


def test_a_member_that_subscribes_to_something_else_joins_again(groups: Groups) -> None:  # E8
    groups.counts["u"] = 2
    first, second = groups.settled(2)
    second.core.subscribe(("u",))
    groups.wait(2 * BEAT_MS)
    assert (first.owned, second.owned) == ("t-0 t-1 t-2 t-3", "u-0 u-1")


def test_a_cooperative_member_gives_up_topics_that_it_does_not_subscribe_to_before_it_joins(
    groups: Groups,
) -> None:  # E8 E9
    groups.counts["u"] = 2
    (member,) = groups.settled(1, topics=("t", "u"), assignors=COOPERATIVE)
    member.core.subscribe(("u",))
    member.poll()
    assert member.told[0] == "revoked t-0 t-1 t-2 t-3"
    groups.wait(2 * BEAT_MS)
    assert member.owned == "u-0 u-1"


def test_partitions_that_are_added_make_the_leader_join_again(groups: Groups) -> None:  # E8
    groups.settled(2)
    groups.counts["t"] = 6
    for each in groups.members:
        each.look_at_topics()
    groups.wait(2 * BEAT_MS)
    assert sorted(len(each.core.owned) for each in groups.members) == [3, 3]


def test_a_topic_that_is_deleted_is_not_assigned_any_more(groups: Groups) -> None:  # E8
    groups.counts["u"] = 2
    groups.settled(1, topics=("t", "u"))
    del groups.counts["u"]
    for each in groups.members:
        each.look_at_topics()
    groups.wait(2 * BEAT_MS)
    assert groups.members[0].owned == "t-0 t-1 t-2 t-3"


# ---- Heartbeats, and what they are told ------------------------------------------------------------------------------


def test_heartbeats_keep_a_member_whose_application_is_busy(groups: Groups) -> None:  # E6
    (member,) = groups.settled(1)
    groups.wait(3 * SESSION_MS, member)
    assert member.core.metadata.member_id in groups.coordinator.group().members


def test_a_member_that_is_told_to_join_beats_on_until_the_application_polls(groups: Groups) -> None:  # E6
    first, _ = groups.settled(2)
    groups.member()
    groups.wait(2 * SESSION_MS, first)
    assert first.told == []
    assert first.core.metadata.member_id in groups.coordinator.group().members
    groups.wait(2 * BEAT_MS)
    assert sorted(len(each.core.owned) for each in groups.members) == [1, 1, 2]


def test_a_member_whose_session_has_ended_has_lost_its_partitions_and_joins_with_an_empty_id(
    groups: Groups,
) -> None:  # E6
    first, second = groups.settled(2)
    former_id, owned = second.core.metadata.member_id, second.owned
    second.is_cut_off = True
    groups.wait(2 * SESSION_MS)
    assert first.owned == "t-0 t-1 t-2 t-3"
    second.is_cut_off = False
    second.sent.clear()
    groups.wait(5 * BEAT_MS)
    assert second.told[0] == f"lost {owned}"
    joins = [each.member_id for each in second.sent if isinstance(each, JoinGroupRequest)]
    assert joins == ["", second.core.metadata.member_id]
    assert former_id not in joins
    assert sorted(len(each.core.owned) for each in groups.members) == [2, 2]


def test_a_generation_that_the_coordinator_does_not_know_is_lost_and_the_id_is_kept(
    groups: Groups,
) -> None:  # E6
    (member,) = groups.settled(1)
    member_id = member.core.metadata.member_id
    groups.coordinator.wait(BEAT_MS)
    heartbeat = member.core.next_step(groups.coordinator.now_ms)
    assert heartbeat is not None
    member.core.on_error(heartbeat, IllegalGeneration("another one"), groups.coordinator.now_ms)
    groups.wait(BEAT_MS)
    assert member.told[0] == "lost t-0 t-1 t-2 t-3"
    assert member.sent[0].member_id == member_id  # type: ignore[union-attr]
    assert member.owned == "t-0 t-1 t-2 t-3"


def test_an_answer_to_a_heartbeat_of_a_former_generation_changes_nothing(groups: Groups) -> None:  # E6
    first, _ = groups.settled(2)
    groups.coordinator.wait(BEAT_MS)
    heartbeat = first.core.next_step(groups.coordinator.now_ms)
    assert isinstance(heartbeat, GroupHeartbeatRequest)
    first.core.expire("it does not poll")
    groups.wait(5 * BEAT_MS)
    first.told.clear()
    first.core.on_error(heartbeat, UnknownMemberId("of before"), groups.coordinator.now_ms)
    groups.wait(BEAT_MS)
    assert (first.told, first.core.state) == ([], MemberState.STABLE)


def test_of_two_members_of_one_instance_the_first_is_fenced_for_good(groups: Groups) -> None:  # E7
    first = groups.member(group_instance_id="one")
    groups.wait(3 * DELAY_MS)
    second = groups.member(group_instance_id="one")
    groups.wait(2 * BEAT_MS)
    for _ in range(2):
        assert isinstance(first.core.take_failure(), FencedInstanceId)
    assert first.told[-1] == "lost t-0 t-1 t-2 t-3"
    assert second.owned == "t-0 t-1 t-2 t-3"
    first.sent.clear()
    groups.wait(5 * BEAT_MS)
    assert first.sent == []


def test_an_application_that_does_not_poll_costs_the_member_its_place_until_it_polls(
    groups: Groups,
) -> None:  # E4 E6
    first, second = groups.settled(2)
    second.core.expire("it does not poll")
    groups.wait(2 * BEAT_MS, second)
    assert isinstance(second.sent[-1], LeaveGroupRequest)
    assert first.owned == "t-0 t-1 t-2 t-3"
    assert second.told == []
    groups.wait(5 * BEAT_MS)
    assert second.told[0].startswith("lost t-")
    assert sorted(len(each.core.owned) for each in groups.members) == [2, 2]


def test_a_leader_that_leaves_sends_the_assignments_that_the_others_wait_for(
    groups: Groups,
) -> None:  # E5 E10
    member = groups.member()
    member.poll()
    groups.coordinator.wait(3 * DELAY_MS)
    while member._take_answers() and member.core.state is not MemberState.SYNCING:
        member._send()
    member.core.begin_leaving()
    assert isinstance(member.core.next_step(groups.coordinator.now_ms), LookUpTopics)


def test_a_member_that_leaves_while_it_joins_joins_again_when_the_application_polls(
    groups: Groups,
) -> None:  # E4 E6
    member = groups.member()
    member.poll()
    member.core.expire("it does not poll")
    member.sent.clear()
    groups.wait(5 * BEAT_MS, member)
    assert [type(each) for each in member.sent] == [LeaveGroupRequest]
    groups.wait(3 * DELAY_MS)
    assert member.owned == "t-0 t-1 t-2 t-3"


def test_a_coordinator_that_comes_back_changes_nothing(groups: Groups) -> None:  # E1
    first, second = groups.settled(2)
    groups.coordinator.restart()
    groups.wait(2 * SESSION_MS)
    assert (first.told, second.told) == ([], [])
    assert first.core.metadata.generation_id == 1


def test_a_rebalance_during_which_the_coordinator_restarts_ends(groups: Groups) -> None:  # E1
    groups.settled(2)
    groups.member()
    groups.wait(BEAT_MS // 2)
    groups.coordinator.restart()
    groups.wait(REBALANCE_MS)
    owned = [tp for each in groups.members for tp in each.core.owned]
    assert len(owned) == len({*owned}) == 4
