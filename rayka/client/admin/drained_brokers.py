"""What is done with nodes on machines that Ray drains, beside moving their replicas, which the active controller does
(decisions 073 and 093). The supervisor and the simulator share this module.

Level-triggered: the marks of brokers in the metadata (`machine.drain.deadline.ms`) are all there is to remember, so the
next supervisor goes on. `next_step` is a core: no clock, no IO. In this order, and a step only where those before it
are done:

1. a broker whose machine does not go any more loses its mark, and takes its leads back;
2. a broker whose machine goes gets its mark: others lead, it gets no new replicas, and the controller moves those that
   it holds;
3. the quorum's leader resigns in favour of voters whose machines stay;
4. shortly before the machine goes, or once it holds nothing, a broker is stopped under control, so that it leaves the
   ISRs by itself and no producer waits for it.

Starting and stopping nodes is left to the caller.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rayka.client.admin.admin_quorum import ask_quorum
from rayka.client.admin.broker_asks import NO_TOPIC, Ask, mark_brokers, record_event
from rayka.errors import ErrorCode
from rayka.ids import NO_NODE, node_name
from rayka.ports import Network
from rayka.protocol.configs import DRAIN_DEADLINE
from rayka.protocol.drains import DescribeDrainsRequest, DrainCause
from rayka.protocol.membership import MetadataRequest
from rayka.protocol.quorum_messages import ResignRequest

NO_DEADLINE = 0
# As the controller counts on: it begins no move that would not end by then.
STOP_BEFORE_MS = 5_000
_CALL_TIMEOUT_MS = 2_000


@dataclass(frozen=True, slots=True)
class QuorumLeadership:
    """The leader of the metadata, its epoch, and all voters."""

    leader_id: int = NO_NODE
    leader_epoch: int = -1
    voters: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SeenDrains:
    """What there is. Deadlines and `now_ms` are of the wall clock; a deadline is 0 where Ray names none."""

    now_ms: int
    # The nodes whose machines go, and when.
    drains: Mapping[int, int]
    # The brokers that are marked in the metadata, with their deadlines.
    marks: Mapping[int, int]
    # How many replicas each marked broker holds.
    replica_counts: Mapping[int, int] = field(default_factory=dict)
    # All brokers and coordinators that the controller knows.
    registered: Collection[int] = ()
    quorum: QuorumLeadership = QuorumLeadership()
    # The nodes that have an actor.
    actors: Collection[int] = ()
    # Whether another process starts, restarts or changes the cluster.
    is_changing: bool = False


# ---- Steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStep:
    """Something to do with these nodes, and why; an event of this `kind`."""

    node_ids: tuple[int, ...]
    reason: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmark(DrainStep):
    """The brokers lead and take replicas as any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark(DrainStep):
    """Others lead what these brokers lead, and take over what they hold; until when, for each."""

    deadlines_ms: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resign(DrainStep):
    """The leader of the quorum gives up this epoch in favour of these voters."""

    leader_epoch: int
    successors: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopDrained(DrainStep):
    """The brokers are stopped under control, and their actors ended."""


def next_step(seen: SeenDrains) -> DrainStep | None:
    """The next step; None where there is nothing to do but wait."""
    for decide in (_unmark, _mark, _resign, _stop):
        step = decide(seen)
        if step is not None:
            return step
    return None


def _unmark(seen: SeenDrains) -> DrainStep | None:
    over = tuple(each for each in sorted(seen.marks) if each not in seen.drains)
    if not over:
        return None
    return Unmark(node_ids=over, reason="Ray drains no machine that it is on", kind="drain-ended")


def _mark(seen: SeenDrains) -> DrainStep | None:
    """Marks all new ones at once, so that no lead goes from one broker whose machine goes to the next."""
    wanted = {each: seen.drains[each] for each in sorted(seen.drains) if each in seen.registered}
    new = {each: ms for each, ms in wanted.items() if seen.marks.get(each) != ms}
    if not new:
        return None
    reason = f"Ray drains its machine{_until(new)}: others lead, and it gets no new replicas"
    return Mark(node_ids=tuple(new), reason=reason, kind="drain-begun", deadlines_ms=new)


def _resign(seen: SeenDrains) -> DrainStep | None:
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


def _stop(seen: SeenDrains) -> DrainStep | None:
    if seen.is_changing:
        return None
    here = [each for each in seen.registered if each in seen.drains and each in seen.actors]
    late = tuple(each for each in here if _left_ms(each, seen) <= 0)
    if late:
        count = sum(seen.replica_counts.get(each, 0) for each in late)
        reason = f"its machine goes within seconds; {count:,} replicas are there still"
        return StopDrained(node_ids=late, reason=reason, kind="drain-stopped")
    empty = tuple(
        each for each in here if seen.replica_counts.get(each) == 0 and each not in seen.quorum.voters
    )
    if not empty:
        return None
    return StopDrained(node_ids=empty, reason="it holds nothing any more", kind="drain-stopped")


def _left_ms(node_id: int, seen: SeenDrains) -> float:
    """How long until the node is stopped."""
    deadline_ms = seen.drains[node_id]
    return float("inf") if deadline_ms == NO_DEADLINE else deadline_ms - STOP_BEFORE_MS - seen.now_ms


def _until(deadlines_ms: Mapping[int, int]) -> str:
    """` until 18:40:05 UTC`, the first of several; empty where Ray names none."""
    known = [each for each in deadlines_ms.values() if each != NO_DEADLINE]
    return f" until {datetime.fromtimestamp(min(known) / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if known else ""


# ---- The cluster -----------------------------------------------------------------------------------------------------


class DrainedBrokers:
    """The brokers and coordinators of one cluster: what a step has to know of them, and what it changes there, over the
    network alone. What Ray knows, which machines drain and which nodes run, is an argument.
    """

    def __init__(self, network: Network, ask: Ask, wall_clock_ms: Callable[[], int]) -> None:
        self._network = network
        self._ask = ask
        self._wall_clock_ms = wall_clock_ms

    def __repr__(self) -> str:
        return f"<DrainedBrokers over {self._network!r}>"

    async def registered(self) -> list[int]:
        """All that the controller knows."""
        return [each.node_id for each in (await self._ask(MetadataRequest(NO_TOPIC))).brokers]

    async def see(
        self, drains: Mapping[int, int], actors: Collection[int], *, is_changing: bool = False
    ) -> SeenDrains:
        """What there is now."""
        described = (await self._ask(DescribeDrainsRequest())).drains
        marked = [each for each in described if each.cause is DrainCause.MACHINE]
        found, _ = await ask_quorum(self._network, actors, _CALL_TIMEOUT_MS)
        quorum = QuorumLeadership()
        if found is not None:
            voters = tuple(each.replica.node_id for each in found.voters)
            quorum = QuorumLeadership(found.leader_id, found.leader_epoch, voters)
        return SeenDrains(
            now_ms=self._wall_clock_ms(),
            drains=drains,
            marks={each.broker_id: each.deadline_ms for each in marked},
            replica_counts={each.broker_id: each.replica_count for each in marked},
            registered=await self.registered(),
            quorum=quorum,
            actors=actors,
            is_changing=is_changing,
        )

    async def take(self, step: DrainStep) -> str:
        """Why the step was not taken, or not all of it; empty where it was. It may be repeated."""
        match step:
            case Mark():
                marks = {each: str(ms) for each, ms in step.deadlines_ms.items()}
                await mark_brokers(self._ask, DRAIN_DEADLINE, marks)
            case Unmark():
                await mark_brokers(self._ask, DRAIN_DEADLINE, dict.fromkeys(step.node_ids))
            case Resign(node_ids=(node_id,)):
                request = ResignRequest(step.leader_epoch, step.successors)
                answer = await self._network.call(node_id, request, _CALL_TIMEOUT_MS)
                return "" if answer.error_code is ErrorCode.NONE else answer.error_code.name
        return ""

    async def record(self, kind: str, node_ids: tuple[int, ...], reason: str) -> None:
        """Has it among the events of the cluster."""
        await record_event(self._ask, self._wall_clock_ms(), kind, node_ids, reason)
