"""Any order of events in a group of members' cores and a coordinator: what holds throughout, and that it settles.

Members come, go, stay silent, are idle and come back; coordinators restart; topics grow (E3 to E9).
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rayka.client.consumer.group_membership import MemberState
from rayka.ids import TopicPartition
from tests.client.group.member_support import BEAT_MS, CoreMember, pass_time
from tests.coordinator.group_support import DELAY_MS, REBALANCE_MS, SESSION_MS, Coordinator

_MEMBERS_MAX = 5
TOPICS = st.sampled_from([("t",), ("u",), ("t", "u")])


class GroupModel(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        assignor=st.sampled_from(["range", "roundrobin", "sticky", "cooperative-sticky"]),
        are_static=st.booleans(),
    )
    def begin(self, assignor: str, are_static: bool) -> None:
        self.coordinator = Coordinator()
        self.counts = {"t": 3, "u": 2}
        self.members: list[CoreMember] = []
        self.assignor, self.are_static, self.made_count = assignor, are_static, 0

    # ---- What happens ------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.members) < _MEMBERS_MAX)
    @rule(topics=TOPICS)
    def come(self, topics: tuple[str, ...]) -> None:
        self.made_count += 1
        instance_id = f"i{self.made_count}" if self.are_static else ""
        fields = {"assignors": (self.assignor,), "group_instance_id": instance_id}
        self.members.append(CoreMember(self.coordinator, self.counts, topics=topics, **fields))

    @precondition(lambda self: self.members)
    @rule(data=st.data(), is_told=st.booleans())
    def go(self, data: st.DataObject, is_told: bool) -> None:
        """Told, it leaves; else its process ends."""
        member = self.members.pop(data.draw(st.integers(0, len(self.members) - 1)))
        if is_told and not member.is_cut_off:
            member.core.begin_leaving()
            member.poll()
            assert member.core.state is MemberState.UNJOINED

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def change_line(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        member.is_cut_off = not member.is_cut_off

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topics=TOPICS)
    def subscribe(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        data.draw(st.sampled_from(self.members)).core.subscribe(topics)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(self.members))
        if member.core.state is not MemberState.UNJOINED:
            member.core.expire("it does not poll")

    # A static leader that comes back is not told by which counts the group was assigned, in Kafka either (KIP-814).
    @precondition(lambda self: not self.are_static)
    @rule(name=st.sampled_from(["t", "u"]))
    def add_partition(self, name: str) -> None:
        if self.counts[name] < 6:
            self.counts[name] += 1

    @rule()
    def restart_coordinator(self) -> None:
        self.coordinator.restart()

    @rule(data=st.data(), duration_ms=st.sampled_from([100, BEAT_MS, DELAY_MS, SESSION_MS]))
    def go_on(self, data: st.DataObject, duration_ms: int) -> None:
        idle = data.draw(st.lists(st.sampled_from(self.members))) if self.members else []
        pass_time(self.coordinator, self.members, duration_ms, idle=idle)

    @rule()
    def settle(self) -> None:
        """Once nothing happens any more, each partition that a member subscribes to has one reader."""
        for member in self.members:
            member.is_cut_off = False
        for duration_ms in (REBALANCE_MS + 2 * SESSION_MS, 10 * BEAT_MS, 10 * BEAT_MS):
            pass_time(self.coordinator, self.members, duration_ms)
            for member in self.members:
                member.look_at_topics()
        topics = {topic for member in self.members for topic in member.core.topics}
        expected = sorted(
            TopicPartition(topic, number) for topic in topics for number in range(self.counts[topic])
        )
        assert sorted(tp for member in self.members for tp in member.core.owned) == expected
        assert all(tp.topic in member.core.topics for member in self.members for tp in member.core.owned)
        assert [member.core.failure for member in self.members] == [None] * len(self.members)

    # ---- What always holds -------------------------------------------------------------------------------------------

    @invariant()
    def no_partition_has_two_readers_in_one_generation(self) -> None:
        owners: dict[tuple[int, object], str] = {}
        for member in self.members:
            core = member.core
            if core.state is MemberState.STABLE:
                for tp in core.owned:
                    key = (core.metadata.generation_id, tp)
                    assert owners.setdefault(key, core.metadata.member_id) == core.metadata.member_id, key

    @invariant()
    def what_was_told_adds_up(self) -> None:
        """Nothing is revoked or lost that was not assigned, and nothing is assigned twice."""
        for member in self.members:
            has: set[str] = set()
            for line in member.told:
                what, *partitions = line.split()
                assert has.isdisjoint(partitions) if what == "assigned" else has.issuperset(partitions), line
                has = has | {*partitions} if what == "assigned" else has - {*partitions}
            assert " ".join(sorted(has)) == member.owned

    def teardown(self) -> None:
        if hasattr(self, "members"):
            self.settle()


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
