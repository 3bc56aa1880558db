"""Groups of simple members, any history: what every member sees agrees, and in the end a group settles."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rayka.coordinator.group import COMPLETING, EMPTY, STABLE
from rayka.errors import ErrorCode, NotEnoughReplicas
from rayka.protocol.groups import (
    ConsumerSubscription,
    GroupProtocol,
    JoinGroupResponse,
    SyncGroupResponse,
    encode_member_data,
)
from rayka.shard.runtime import Pending
from tests.coordinator.group_support import REBALANCE_MS, SESSION_MS, Coordinator, code

INSTANCES = ("", "", "", "i", "i", "j")  # two processes of one instance among them
FATAL = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class SimpleMember:
    """Does what a consumer does: joins, syncs, sends heartbeats, joins again when it is told to."""

    def __init__(self, number: int, coordinator: Coordinator) -> None:
        self.instance = INSTANCES[number]
        self.topic = "t"
        self.member_id = ""
        self.generation_id = -1
        self.is_alive = False
        self.assignment: bytes | None = None
        self.fenced = False
        self._number = number
        self._coordinator = coordinator
        self._joining: Pending | None = None
        self._syncing: Pending | None = None

    @property
    def waits(self) -> bool:
        return any(each is not None and not each.is_done for each in (self._joining, self._syncing))

    def start(self) -> None:
        self.is_alive, self.fenced, self.member_id = True, False, ""
        self.join()

    def join(self) -> None:
        self.assignment, self._syncing = None, None
        subscription = encode_member_data(ConsumerSubscription((self.topic,)))
        self._joining = self._coordinator.join(
            self.member_id,
            group_instance_id=self.instance,
            protocols=(GroupProtocol("range", subscription),),
        )

    def end(self) -> None:
        self.is_alive, self._joining, self._syncing, self.assignment = False, None, None, None

    def go_on(self) -> None:
        """What comes next: the answer that it waited for, or a heartbeat."""
        if self._joining is not None:
            if self._joining.is_done:
                self._on_joined(self._joining)
        elif self._syncing is not None:
            if self._syncing.is_done:
                self._on_synced(self._syncing)
        else:
            error_code = self._coordinator.heartbeat(self.member_id, self.generation_id, self.instance)
            if error_code is not ErrorCode.NONE:
                self._on_error(error_code)

    def _on_joined(self, joined: Pending) -> None:
        self._joining = None
        if joined.error is not None:
            self._on_error(joined.error.code)
            return
        response: JoinGroupResponse = joined.response
        self.member_id = response.member_id
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.join()
            return
        self.generation_id = response.generation_id
        assigned = {}
        if response.leader_id == self.member_id and not response.skip_assignment:
            assigned = {
                each.member_id: f"{each.member_id}@{self.generation_id}".encode() for each in response.members
            }
        self._syncing = self._coordinator.sync(
            self.member_id, self.generation_id, instance=self.instance, **assigned
        )

    def _on_synced(self, synced: Pending) -> None:
        self._syncing = None
        if synced.error is not None:
            self._on_error(synced.error.code)
        else:
            response: SyncGroupResponse = synced.response
            self.assignment = response.assignment

    def _on_error(self, error: ErrorCode) -> None:
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
            self.end()
            return
        if error in FATAL:
            self.member_id = self.member_id if error is ErrorCode.ILLEGAL_GENERATION else ""
        self.join()


class AnyHistory(RuleBasedStateMachine):
    """One group. `offsets` is the model of what is committed, `generations` of what was assigned in each."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.members = [SimpleMember(number, self.coordinator) for number in range(len(INSTANCES))]
        self.offsets: dict[str, int] = {}
        self.generations: dict[tuple[int, str], bytes] = {}
        self.newest_recorded = 0

    # ---- Rules -------------------------------------------------------------------------------------------------------

    @rule(number=st.sampled_from(range(len(INSTANCES))))
    def start_or_end(self, number: int) -> None:
        member = self.members[number]
        if member.is_alive:
            member.end()
        else:
            member.start()

    @rule(number=st.sampled_from(range(len(INSTANCES))))
    def leave(self, number: int) -> None:
        member = self.members[number]
        if member.is_alive and member.member_id:
            self.coordinator.leave(member.member_id, instance=member.instance)
            member.end()

    @rule(number=st.sampled_from(range(len(INSTANCES))), topic=st.sampled_from(("t", "u")))
    def subscribe(self, number: int, topic: str) -> None:
        member = self.members[number]
        member.topic = topic
        if member.is_alive and not member.waits:
            member.join()

    @rule(number=st.sampled_from(range(len(INSTANCES))))
    def step(self, number: int) -> None:
        if self.members[number].is_alive:
            self.members[number].go_on()

    @rule()
    def step_all(self) -> None:
        for number in range(len(INSTANCES)):
            self.step(number)

    @rule(duration_ms=st.sampled_from((1, 1_000, 3_000, SESSION_MS - 1, SESSION_MS, REBALANCE_MS)))
    def wait(self, duration_ms: int) -> None:
        self.coordinator.wait(duration_ms)

    @rule(
        number=st.sampled_from(range(len(INSTANCES))),
        offset=st.integers(0, 99),
        name=st.sampled_from(("t-0", "t-1")),
    )
    def commit(self, number: int, offset: int, name: str) -> None:
        member, group = self.members[number], self.coordinator.runtime.shard.store.groups.get("g")
        may = (
            group is not None
            and member.member_id in group.members
            and group.generation_id == member.generation_id
            and group.state is not COMPLETING
            and not group.members[member.member_id].group_instance_id
        )
        if member.generation_id < 0 and (group is None or not member.member_id):
            may = group is None or group.state is EMPTY
        pending = self.coordinator.commit({name: offset}, member.generation_id, member.member_id)
        if may and self.coordinator.log.refusal is None:
            assert code(pending) is ErrorCode.NONE
            self.offsets[name] = offset
        else:
            assert code(pending) is not ErrorCode.NONE

    @rule()
    def fail_over(self) -> None:
        self.coordinator.restart()

    @rule(refuses=st.booleans())
    def refuse_appends(self, refuses: bool) -> None:
        self.coordinator.log.refusal = NotEnoughReplicas("too few") if refuses else None

    # ---- What holds --------------------------------------------------------------------------------------------------

    @invariant()
    def committed_offsets_are_those_of_the_model(self) -> None:
        assert self.coordinator.committed() == self.offsets

    @invariant()
    def of_one_generation_there_is_one_assignment(self) -> None:
        for each in self.members:
            if each.assignment is not None and not each.waits:
                key = each.generation_id, each.member_id
                assert self.generations.setdefault(key, each.assignment) == each.assignment

    @precondition(lambda self: "g" in self.coordinator.group_ids)
    @invariant()
    def a_group_at_rest_is_what_the_log_says(self) -> None:
        group = self.coordinator.group()
        assert len(set(group.static_members.values())) == len(group.static_members)
        assert all(
            group.members[each].group_instance_id == name for name, each in group.static_members.items()
        )
        if group.is_recorded and group.state in (STABLE, EMPTY):
            found = Coordinator(self.coordinator.log).group()
            assert (found.state, found.generation_id) == (group.state, group.generation_id)
            assert described(found) == described(group)
            assert group.generation_id >= self.newest_recorded
            self.newest_recorded = group.generation_id

    def teardown(self) -> None:
        """When nothing fails any more, the members that live are the group, and no request waits for ever."""
        self.coordinator.log.refusal = None
        for _ in range(2 * (REBALANCE_MS // 3_000) + 20):
            self.step_all()
            self.coordinator.wait(3_000)
        self.step_all()
        alive = [each for each in self.members if each.is_alive]
        assert [each for each in alive if each.waits or each.assignment is None] == []
        if alive:
            group = self.coordinator.group()
            assert group.state is STABLE
            assert sorted(group.members) == sorted(each.member_id for each in alive)
            assert {each.generation_id for each in alive} == {group.generation_id}
        elif "g" in self.coordinator.group_ids:
            assert self.coordinator.group().state is EMPTY


def described(group: Any) -> list[tuple[str, bytes]]:
    return [(each.member_id, each.assignment) for each in group.members.values()]


test_any_history = AnyHistory.TestCase
test_any_history.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
