"""What is done next with the nodes on machines that Ray drains. A core: no clock, no IO.

Level-triggered: the mark of a broker in the metadata (`machine.drain.deadline.ms`) and the reassignments under way are
all there is to remember, so the next planner goes on. In this order, and a step only where those before it are done:

1. a broker whose machine does not go any more loses its mark, and takes its leads back;
2. a broker whose machine goes gets its mark: others lead, and it gets no new replicas;
3. the quorum's leader resigns in favour of voters whose machines stay;
4. shortly before the machine goes, or once it holds nothing, a broker is stopped under control, so that it leaves the
   ISRs by itself and no producer waits for it;
5. replicas get other brokers: those first that fewest others hold, then the smallest; only what can be copied before
   the machine goes, at the throttle's rate.

Decision 073.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rayka.client.admin.admin_results import BrokerDescription, TopicDescription
from rayka.client.admin.drain_plan import Plan, plan_moves
from rayka.ids import NO_NODE, TopicPartition, node_name
from rayka.protocol.membership import MetadataPartition, MetadataResponse

NO_DEADLINE = 0
STOP_BEFORE_MS = 5_000
BYTES_PER_S_MAX = 100_000_000  # what is counted on where the throttle allows more


@dataclass(frozen=True, slots=True)
class Quorum:
    """The leader of the metadata, its epoch, and all voters."""

    leader_id: int = NO_NODE
    leader_epoch: int = -1
    voters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What there is. `now_ms` and deadlines are of the wall clock, in ms; a deadline is 0 where Ray names none.

    `drains`: the nodes whose machines go, and when; `marks`: the brokers that are marked in the metadata; `closed`:
    those that take no new replicas, marked or cordoned; `sizes`: of what each broker in `drains` that answers holds, in
    bytes; `actors`: the nodes that have one; `is_changing`: another process starts, restarts or changes the cluster.
    """

    now_ms: int
    drains: Mapping[int, int]
    marks: Mapping[int, int]
    cluster: MetadataResponse
    quorum: Quorum = Quorum()
    closed: Collection[int] = ()
    sizes: Mapping[int, Mapping[TopicPartition, int]] = field(default_factory=dict)
    actors: Collection[int] = ()
    moves_max: int = 10
    bytes_per_s: int = BYTES_PER_S_MAX
    is_changing: bool = False


# ---- Steps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something to do with these nodes, and why; an event of this `kind`, none where that is empty."""

    node_ids: tuple[int, ...]
    reason: str
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmark(Step):
    """The brokers lead and take replicas as any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(Step):
    """Others lead what these brokers lead, which get no new replicas; until when, for each."""

    deadlines_ms: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign(Step):
    """The leader of the quorum gives up this epoch in favour of these voters."""

    leader_epoch: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Step):
    """The brokers are stopped under control, and their actors ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Step):
    """Partitions get these replicas."""

    plan: Plan


class DrainPlanner:
    """Plans for one cluster. It remembers which moves it has begun, so that one which an operator cancels stays
    cancelled, and of which brokers it has said what is moved.
    """

    def __init__(self) -> None:
        self._begun: set[tuple[int, TopicPartition]] = set()
        self._told: set[tuple[int, int]] = set()

    def __repr__(self) -> str:
        return f"<DrainPlanner begun={len(self._begun)}>"

    def next(self, seen: Seen) -> Step | None:
        """The next step; None where there is nothing to do but wait."""
        self._begun = {each for each in self._begun if each[0] in seen.drains}
        self._told = {each for each in self._told if seen.drains.get(each[0]) == each[1]}
        for plan in (_unmark, _mark, _resign, _stop, self._move):
            step = plan(seen)
            if step is not None:
                return step
        return None

    def failed(self, step: Step) -> None:
        """The step was not taken: it may be tried again."""
        if isinstance(step, Move):
            self._begun = {each for each in self._begun if each[1] not in step.plan}
            self._told = {each for each in self._told if each[0] not in step.node_ids}

    # ---- Moving ------------------------------------------------------------------------------------------------------

    def _move(self, seen: Seen) -> Step | None:
        moving_count = sum(_is_moving(each) for _, each in _partitions(seen))
        for broker_id, deadline_ms in sorted(
            seen.drains.items(), key=lambda each: (each[1] or 1 << 62, each[0])
        ):
            if broker_id not in seen.sizes:
                continue
            chosen, reason = self._choose(broker_id, seen)
            is_told = (broker_id, deadline_ms) in self._told
            if is_told and moving_count >= seen.moves_max:
                return None
            batch = dict(list(chosen.items())[: max(0, seen.moves_max - moving_count)])
            if batch or (reason and not is_told):
                self._told.add((broker_id, deadline_ms))
                self._begun.update((broker_id, each) for each in batch)
                kind = "" if is_told else "drain-moves"
                return Move(node_ids=(broker_id,), reason=reason, kind=kind, plan=batch)
        return None

    def _choose(self, broker_id: int, seen: Seen) -> tuple[Plan, str]:
        """All moves that can end before the machine goes, the most urgent first, and what is to be told of it."""
        left_bytes = _bytes_left(broker_id, seen)
        waiting: dict[TopicPartition, tuple[int, int]] = {}  # others that hold it, bytes
        for tp, each in _partitions(seen):
            if broker_id not in each.replicas:
                continue
            size_bytes = seen.sizes[broker_id].get(tp, 0)
            if broker_id in each.removing_replicas:
                left_bytes -= size_bytes
            elif not _is_moving(each) and each.leader_id != NO_NODE and (broker_id, tp) not in self._begun:
                waiting[tp] = (len(_others_in_sync(each, broker_id, seen)), size_bytes)
        plan, homeless = _plan(broker_id, waiting, seen)
        chosen: Plan = {}
        chosen_bytes = late_count = 0
        for tp in sorted(plan, key=lambda each: (waiting[each], each)):
            if chosen_bytes + waiting[tp][1] > left_bytes:
                late_count += 1
            else:
                chosen[tp] = plan[tp]
                chosen_bytes += waiting[tp][1]
        said = (
            [f"{len(chosen):,} replicas with {chosen_bytes:,} bytes are moved to other brokers"]
            if waiting
            else []
        )
        said += [f"{late_count:,} stay, as copying them takes longer than is left"] if late_count else []
        said += [f"{homeless:,} stay, as no other broker can take them"] if homeless else []
        return chosen, "; ".join(said)


def _unmark(seen: Seen) -> Step | None:
    over = tuple(each for each in sorted(seen.marks) if each not in seen.drains)
    if not over:
        return None
    return Unmark(node_ids=over, reason="Ray drains no machine that it is on", kind="drain-ended")


def _mark(seen: Seen) -> Step | None:
    """Also once more, while one leads what another broker could: a controller may have died on the way."""
    brokers = {each.node_id: each for each in seen.cluster.brokers}
    wanted = {each: seen.drains[each] for each in sorted(seen.drains) if each in brokers}
    new = {each: ms for each, ms in wanted.items() if seen.marks.get(each) != ms}
    leading = {each.leader_id for _, each in _partitions(seen) if _others_in_sync(each, each.leader_id, seen)}
    again = {each: ms for each, ms in wanted.items() if each in leading}
    marked = {**new, **again}
    if not marked:
        return None
    if not new:
        return Mark(node_ids=tuple(marked), reason="it leads again", deadlines_ms=marked)
    reason = f"Ray drains its machine{_until(new)}: others lead, and it gets no new replicas"
    return Mark(node_ids=tuple(new), reason=reason, kind="drain-begun", deadlines_ms=marked)


def _resign(seen: Seen) -> Step | None:
    quorum = seen.quorum
    successors = tuple(each for each in quorum.voters if each not in seen.drains and each in seen.actors)
    if quorum.leader_id not in seen.drains or not successors:
        return None
    deadline = {quorum.leader_id: seen.drains[quorum.leader_id]}
    named = ", ".join(map(node_name, successors))
    return Resign(
        node_ids=(quorum.leader_id,),
        reason=f"Ray drains its machine{_until(deadline)}: it leads the metadata no more, {named} may follow",
        kind="drain-resigned",
        leader_epoch=quorum.leader_epoch,
        successors=successors,
    )


def _stop(seen: Seen) -> Step | None:
    if seen.is_changing:
        return None
    holding = {broker_id for _, each in _partitions(seen) for broker_id in each.replicas}
    here = [
        each.node_id
        for each in seen.cluster.brokers
        if each.node_id in seen.drains and each.node_id in seen.actors
    ]
    late = tuple(each for each in here if _left_ms(each, seen) <= 0)
    if late:
        count = sum(not set(late).isdisjoint(each.replicas) for _, each in _partitions(seen))
        reason = f"its machine goes within seconds; {count:,} partitions have a replica there still"
        return Stop(node_ids=late, reason=reason, kind="drain-stopped")
    empty = tuple(each for each in here if each not in holding and each not in seen.quorum.voters)
    return Stop(node_ids=empty, reason="it holds nothing any more", kind="drain-stopped") if empty else None


def _plan(broker_id: int, waiting: Collection[TopicPartition], seen: Seen) -> tuple[Plan, int]:
    """Where these of the broker's replicas can go, and how many find no place."""
    brokers = [BrokerDescription.of(each, seen.cluster.topics) for each in seen.cluster.brokers]
    names = {each.topic for each in waiting}
    topics = [TopicDescription.of(each) for each in seen.cluster.topics if each.name in names]
    closed = {*seen.closed, *seen.drains}
    plan, homeless = plan_moves(broker_id, brokers, topics, closed)
    return (
        {each: replicas for each, replicas in plan.items() if each in waiting},
        sum(each in waiting for each in homeless),
    )


def _partitions(seen: Seen) -> Iterator[tuple[TopicPartition, MetadataPartition]]:
    for topic in seen.cluster.topics:
        for each in topic.partitions:
            yield TopicPartition(topic.name, each.partition), each


def _is_moving(partition: MetadataPartition) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def _others_in_sync(partition: MetadataPartition, broker_id: int, seen: Seen) -> list[int]:
    """The replicas in sync beside that broker whose machines stay."""
    serving = {
        each.node_id
        for each in seen.cluster.brokers
        if not each.is_fenced and not each.is_in_controlled_shutdown
    }
    return [
        each for each in partition.isr if each != broker_id and each in serving and each not in seen.drains
    ]


def _left_ms(node_id: int, seen: Seen) -> float:
    """How long until it is to be stopped."""
    deadline_ms = seen.drains[node_id]
    return float("inf") if deadline_ms == NO_DEADLINE else deadline_ms - STOP_BEFORE_MS - seen.now_ms


def _bytes_left(broker_id: int, seen: Seen) -> float:
    """What can be copied until then: as if all of it went through one broker."""
    return max(0, _left_ms(broker_id, seen)) * min(seen.bytes_per_s, BYTES_PER_S_MAX) / 1000


def _until(deadlines_ms: Mapping[int, int]) -> str:
    """` until 18:40:05 UTC`, the first of several; empty where Ray names none."""
    known = [each for each in deadlines_ms.values() if each != NO_DEADLINE]
    return f" until {datetime.fromtimestamp(min(known) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if known else ""
