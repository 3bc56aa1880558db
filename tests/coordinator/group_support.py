"""A coordinator of groups on its runtime, with a log in memory and a clock that the test moves."""

from collections.abc import Sequence
from random import Random
from typing import Any

from rayka.config.broker_config import BrokerConfig
from rayka.coordinator.group import Group
from rayka.coordinator.group_records import GROUP_CODEC, GroupRecord
from rayka.coordinator.group_shard import GroupShard
from rayka.errors import ApiError, ErrorCode, NotCoordinator
from rayka.ids import TopicPartition
from rayka.protocol.groups import (
    CommittedOffset,
    ConsumerSubscription,
    GroupHeartbeatRequest,
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
    SyncGroupResponse,
    encode_member_data,
)
from rayka.shard.runtime import Pending, ShardRuntime
from rayka.shard.shard_records import KeyValue

WALL_CLOCK_MS = 1_700_000_000_000
SESSION_MS, REBALANCE_MS, DELAY_MS = 10_000, 60_000, 3_000


class MemoryLog:
    """Keys and values; all that is appended is committed at once, unless the test holds it back."""

    def __init__(self) -> None:
        self.pairs: list[KeyValue] = []
        self.batches: list[int] = []
        self.refusal: ApiError | None = None
        self.held_back: int | None = None

    @property
    def next_offset(self) -> int:
        return len(self.pairs)

    @property
    def high_watermark(self) -> int:
        return len(self.pairs) if self.held_back is None else self.held_back

    def append(self, records: Sequence[GroupRecord]) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.pairs += [GROUP_CODEC.encode(each) for each in records]
        self.batches.append(len(records))
        return len(self.pairs) - len(records)

    def records(self) -> list[GroupRecord]:
        return [GROUP_CODEC.decode(each) for each in self.pairs]


class Coordinator:
    """One shard at a time; `restart` is a failover."""

    def __init__(self, log: MemoryLog | None = None, **config: Any) -> None:
        self.config = BrokerConfig(**config)
        self.log = log or MemoryLog()
        self.now_ms = 0
        self._random = Random(7)
        self.start()

    def start(self) -> None:
        self.runtime: ShardRuntime[GroupShard, GroupRecord] = ShardRuntime(
            lambda: GroupShard(self.config, self._random, lambda: WALL_CLOCK_MS + self.now_ms), self.log
        )
        self.runtime.replay_committed(enumerate(self.log.records()), self.log.next_offset)
        self.runtime.activate(self.now_ms)

    def restart(self) -> None:
        self.runtime.deactivate(NotCoordinator("it died"))
        self.start()

    def ask(self, request: Any) -> Pending:
        pending = self.begin(request)
        self.settle()
        return pending

    def begin(self, request: Any) -> Pending:
        """Runs the first turn of a request; none while another request is under way."""
        return self.runtime.handle(request, now_ms=self.now_ms, deadline_ms=self.now_ms + 30_000)

    def settle(self) -> None:
        """Runs all requests to their end."""
        self.runtime.fire(self.now_ms)
        while self.runtime.is_busy or self.runtime.can_release:
            self.runtime.on_high_watermark()
            self.runtime.advance(self.now_ms)
            self.runtime.fire(self.now_ms)

    def wait(self, duration_ms: int) -> None:
        """Timers fire at their times."""
        end_ms = self.now_ms + duration_ms
        while (next_ms := self.runtime.next_timer_ms) is not None and next_ms <= end_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.settle()
        self.now_ms = end_ms

    def group(self, group_id: str = "g") -> Group:
        return self.runtime.shard.store.groups[group_id]

    @property
    def group_ids(self) -> list[str]:
        return sorted(self.runtime.shard.store.groups)

    # ---- Members -----------------------------------------------------------------------------------------------------

    def join(self, member_id: str = "", **fields: Any) -> Pending:
        return self.ask(join_request(member_id, **fields))

    def new_id(self, **fields: Any) -> str:
        """The id that a dynamic member is given."""
        response: JoinGroupResponse = answer(self.join(**fields))
        assert response.error_code is ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id

    def stable(self, count: int = 2, *, instances: Sequence[str] = (), **fields: Any) -> list[str]:
        """A group of so many members that have synced, the leader first, in generation 1."""
        ids = [each or self.new_id(**fields) for each in [""] * (count - len(instances))]
        joins = [self.join(each, **fields) for each in ids]
        joins += [self.join(group_instance_id=each, **fields) for each in instances]
        self.wait(DELAY_MS * 2)
        ids = [answer(each).member_id for each in joins]
        leader_id = answer(joins[0]).leader_id
        ids.sort(key=lambda each: each != leader_id)
        self.sync_all(ids, self.group().generation_id)
        return ids

    def stable_again(self, member_id: str) -> list[str]:
        """The member and a new one, the leader first, in the next generation."""
        new = self.new_id()
        self.join(new)
        response = answer(self.join(member_id))
        ids = sorted([member_id, new], key=lambda each: each != response.leader_id)
        self.sync_all(ids, response.generation_id)
        return ids

    def sync(self, member_id: str, generation_id: int, *, instance: str = "", **assigned: bytes) -> Pending:
        assignments = tuple(MemberAssignment(*each) for each in assigned.items())
        return self.ask(
            SyncGroupRequest("g", generation_id, member_id, assignments, group_instance_id=instance)
        )

    def sync_all(self, ids: Sequence[str], generation_id: int) -> list[SyncGroupResponse]:
        """The first is the leader, whose assignments are the ids."""
        statics = {member_id: each for each, member_id in self.group().static_members.items()}
        syncs = [self.sync(each, generation_id, instance=statics.get(each, "")) for each in ids[1:]]
        first = self.sync(
            ids[0],
            generation_id,
            instance=statics.get(ids[0], ""),
            **{each: each.encode() for each in ids},
        )
        return [answer(each) for each in (first, *syncs)]

    def heartbeat(self, member_id: str, generation_id: int, instance: str = "") -> ErrorCode:
        pending = self.ask(GroupHeartbeatRequest("g", generation_id, member_id, instance))
        return pending.response.error_code if pending.error is None else pending.error.code

    def leave(self, *member_ids: str, instance: str = "") -> list[ErrorCode]:
        members = tuple(LeavingMember(each, instance) for each in member_ids)
        return [each.error_code for each in answer(self.ask(LeaveGroupRequest("g", members))).members]

    # ---- Offsets -----------------------------------------------------------------------------------------------------

    def commit(
        self, offsets: dict[str, int], generation_id: int = -1, member_id: str = "", **fields: Any
    ) -> Pending:
        """Offsets by partition, as `t-0`."""
        partitions = tuple(
            CommittedOffset(*split(each), offset, **fields) for each, offset in offsets.items()
        )
        return self.ask(OffsetCommitRequest("g", partitions, generation_id, member_id))

    def committed(self, group_id: str = "g") -> dict[str, int]:
        response = answer(self.ask(OffsetFetchRequest(group_id)))
        return {f"{each.topic}-{each.partition}": each.offset for each in response.partitions}


def split(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def partition(name: str) -> TopicPartition:
    return TopicPartition(*split(name))


def answer(pending: Pending) -> Any:
    """The response. A refusal is raised; a request that waits is an error of the test."""
    assert pending.is_done, pending
    if pending.error is not None:
        raise pending.error
    return pending.response


def code(pending: Pending) -> ErrorCode:
    assert pending.is_done, pending
    return ErrorCode.NONE if pending.error is None else pending.error.code


def offers(*names: str, topics: Sequence[str] = ("t",), rack: str = "") -> tuple[GroupProtocol, ...]:
    metadata = encode_member_data(ConsumerSubscription(tuple(topics), rack=rack))
    return tuple(GroupProtocol(each, metadata) for each in names or ("range",))


def join_request(member_id: str = "", **fields: Any) -> JoinGroupRequest:
    known = {
        "group_id": "g",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": offers(),
        "client_id": "c",
    }
    return JoinGroupRequest(**{**known, **fields})
