"""Healing: replaces replicas whose broker or directory is missing for `broker.unavailable.timeout.ms` (decision
065).

At each look the controller finds unavailable brokers and directories, plans, and begins moves up to the bound of
moves under way. An unavailable replica is removed when its successor is in sync. A broker that returns later finds in
the metadata that it does not hold the replica any more, and deletes its log. A replica that is back before its move
has begun stays where it is.

A partition without a leader is left alone: there is nothing to copy from. So is a partition whose reassignment is under
way, unless the reassignment waits for an unavailable broker: then another broker takes the place of this one, before
other lost replicas are replaced.
"""

from collections.abc import Generator, Iterator
from itertools import chain

from rayka.config.broker_config import BrokerConfig
from rayka.controller.cluster_shapes import ClusterShapes
from rayka.controller.decided_events import DecidedEvents, Decision
from rayka.controller.healing_state import Unavailable
from rayka.controller.move_queue import MoveCause, still_due
from rayka.controller.planning.balance_plan import Move
from rayka.controller.planning.replacement_plan import Loss, plan_healing
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.ids import TopicIdPartition, TopicPartition
from rayka.metadata.image import PartitionImage
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord


def heal(
    context: RequestContext, config: BrokerConfig, events: DecidedEvents, *, due_ms: int
) -> Generator[MetadataRecord | list[MetadataRecord] | None, int, tuple[Unavailable, int]]:
    """Begins the moves that are due. Returns the unavailable brokers and directories, and the number of moves begun."""
    brokers, now_ms, healing = context.image.brokers, context.now_ms, context.healing
    waiting = context.moves.waiting[MoveCause.HEAL]
    context.absences.look(brokers, due_ms=due_ms, now_ms=now_ms)
    unavailable = Unavailable()
    if config.self_healing_enable:
        unavailable = context.absences.unavailable(
            brokers,
            timeout_ms=config.broker_unavailable_timeout_ms,
            is_alive=lambda broker: context.sessions.is_alive(broker, now_ms),
        )
    if healing.is_news(unavailable):
        waiting.clear()
        is_enabled = config.self_healing_enable
        yield events.records(healing.on_unavailable(unavailable, brokers, now_ms, is_enabled=is_enabled))
    if unavailable.is_anything and not waiting and healing.is_plan_due(now_ms):
        decision = yield from _plan(context, unavailable, config.broker_unavailable_timeout_ms)
        yield events.records(decision)
    begun_count = 0
    for record in _begin(context, unavailable, config.balancer_moves_max):
        begun_count += 1
        yield record
    return unavailable, begun_count


def _plan(
    context: RequestContext, unavailable: Unavailable, timeout_ms: int
) -> Generator[None, int, Decision | None]:
    """Plans the moves; returns the event, if there is one."""
    losses: dict[TopicPartition, Loss] = {}
    left: dict[TopicIdPartition, None] = {}
    broker_ids = dict.fromkeys(
        (*unavailable.broker_ids, *(broker_id for broker_id, _ in unavailable.directories))
    )
    for key in chain.from_iterable(context.replicas.of(each).held for each in broker_ids):
        partition = context.image.partition(key)
        is_declined = context.healing.is_declined(key)
        if partition is not None and not is_declined and _is_healable(partition, unavailable):
            name = TopicPartition(context.image.topics_by_id[key.topic_id].name, key.partition)
            awaited = unavailable.awaited_replicas(partition)
            urgency = 0 if awaited else len(partition.isr)
            losses[name] = Loss(unavailable.lost_replicas(partition), urgency, awaited)
        elif partition is not None and unavailable.lost_replicas(partition):
            left[key] = None
        yield
    plan: tuple[Move, ...] = ()
    if losses:
        shapes = ClusterShapes(context, may_be_silent=True)
        plan = yield from plan_healing(shapes.brokers, shapes.partitions(), losses)
    context.moves.waiting[MoveCause.HEAL].extend(plan)
    return context.healing.on_planned(
        context.image.brokers,
        now_ms=context.now_ms,
        moves=len(plan),
        healable=len(losses),
        left=len(left),
        is_idle=context.moves.is_idle(MoveCause.HEAL),
        timeout_ms=timeout_ms,
    )


def _is_healable(partition: PartitionImage, unavailable: Unavailable) -> bool:
    """Whether the partition has lost a replica that a move can replace now."""
    may_move = not partition.is_reassigned or bool(unavailable.awaited_replicas(partition))
    return partition.has_leader and may_move and bool(unavailable.lost_replicas(partition))


def _begin(
    context: RequestContext, unavailable: Unavailable, moves_max: int
) -> Iterator[PartitionChangeRecord]:
    """The records of the moves that are still due and may begin now; the others wait, or are given up."""
    moves, reassigning = context.moves, Reassigning(context)
    waiting = moves.waiting[MoveCause.HEAL]
    while waiting:
        move = waiting[0]
        due = still_due(context.image, move)
        if due is not None and not _is_healable(due.partition, unavailable):
            due = None
        if due is not None and not moves.may_begin(due.key, moves_max):
            return
        waiting.popleft()
        if due is None:
            continue
        record = reassigning.move(move.topic_partition, move.after)
        if record is not None:
            moves.on_begun(due, MoveCause.HEAL)
            yield record
