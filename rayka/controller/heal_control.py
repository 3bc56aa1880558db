"""Healing: what has been gone for `broker.unavailable.timeout.ms` is made anew on other brokers, by itself (decision
065).

From time to time the controller looks for what is gone, plans, and begins as many moves as may be under way at a time.
They are reassignments as any other (B45): a replica that is gone is removed when the one in its place is in sync, and a
broker that comes back later finds in the metadata that it holds the replica no more, and deletes it. A partition that
no broker leads is left alone: nothing is there to copy from. So is one whose reassignment is under way, unless that
waits for a broker that is gone: then another one takes the place of this broker, before it takes any other place. What
comes back before its move has begun stays where it is.
"""

from collections.abc import Generator, Iterator
from itertools import chain

from rayka.config.broker_config import BrokerConfig
from rayka.controller.cluster_shapes import ClusterShapes
from rayka.controller.decided_events import DecidedEvents, Decision
from rayka.controller.healing_state import Gone
from rayka.controller.move_queue import still_due
from rayka.controller.planning.balance_plan import Move
from rayka.controller.planning.replacement_plan import Loss, plan_healing
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.ids import TopicIdPartition, TopicPartition
from rayka.metadata.image import PartitionImage
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord


def heal(
    context: RequestContext, config: BrokerConfig, events: DecidedEvents, *, due_ms: int
) -> Generator[MetadataRecord | list[MetadataRecord] | None, int, tuple[Gone, int]]:
    """Begins the moves that are due. What is gone, and how many have begun."""
    moves, now_ms = context.moves, context.now_ms
    context.gone.look(context.image.brokers, due_ms=due_ms, now_ms=now_ms)
    moves.settle(context.image)
    gone = _gone(context, config)
    yield events.records(
        context.heal_story.on_gone(gone, context.image.brokers, is_enabled=config.self_healing_enable)
    )
    moves.on_gone(gone, now_ms)
    if gone.is_anything and moves.may_plan(now_ms):
        decision = yield from _plan(context, gone, config.broker_unavailable_timeout_ms)
        yield events.records(decision)
    begun_count = 0
    for record in _begin(context, gone, config.balancer_moves_max - context.balance.copying_count):
        begun_count += 1
        yield record
    return gone, begun_count


def _gone(context: RequestContext, config: BrokerConfig) -> Gone:
    """Nothing, where healing is switched off."""
    if not config.self_healing_enable:
        return Gone()
    return context.gone.gone(
        context.image.brokers,
        timeout_ms=config.broker_unavailable_timeout_ms,
        is_alive=lambda broker: context.sessions.is_alive(broker, context.now_ms),
    )


def _plan(context: RequestContext, gone: Gone, timeout_ms: int) -> Generator[None, int, Decision | None]:
    """Plans the moves; what is to be told of it."""
    losses: dict[TopicPartition, Loss] = {}
    left: dict[TopicIdPartition, None] = {}
    broker_ids = dict.fromkeys((*gone.broker_ids, *(broker_id for broker_id, _ in gone.directories)))
    for key in chain.from_iterable(context.replicas.of(each).held for each in broker_ids):
        partition = context.image.partition(key)
        if partition is not None and not context.moves.is_declined(key) and _is_healable(partition, gone):
            name = TopicPartition(context.image.topics_by_id[key.topic_id].name, key.partition)
            awaited = gone.awaited_replicas(partition)
            losses[name] = Loss(gone.lost_replicas(partition), 0 if awaited else len(partition.isr), awaited)
        elif partition is not None and gone.lost_replicas(partition):
            left[key] = None
        yield
    plan: tuple[Move, ...] = ()
    if losses:
        shapes = ClusterShapes(context, may_be_silent=True)
        plan = yield from plan_healing(shapes.brokers, shapes.partitions(), losses)
    context.moves.on_planned(plan, context.now_ms)
    return context.heal_story.on_planned(
        context.image.brokers,
        moves=len(plan),
        healable=len(losses),
        left=len(left),
        is_idle=context.moves.is_idle,
        timeout_ms=timeout_ms,
    )


def _is_healable(partition: PartitionImage, gone: Gone) -> bool:
    """Whether a replica is lost that a move can replace now."""
    may_move = not partition.is_reassigned or bool(gone.awaited_replicas(partition))
    return partition.has_leader and may_move and bool(gone.lost_replicas(partition))


def _begin(context: RequestContext, gone: Gone, moves_max: int) -> Iterator[PartitionChangeRecord]:
    """The records of those that are still due and may begin now; the others wait, or are given up."""
    moves, reassigning = context.moves, Reassigning(context)
    while moves.waiting:
        move = moves.waiting[0]
        due = still_due(context.image, move)
        if due is not None and not _is_healable(due.partition, gone):
            due = None
        # One in the place of a balance's move, which cannot end, is no further one.
        is_in_place = due is not None and due.key in context.balance.under_way
        if due is not None and not is_in_place and not moves.may_begin(due.key, moves_max):
            return
        moves.waiting.popleft()
        if due is None:
            continue
        record = reassigning.move(move.topic_partition, move.after)
        if record is not None:
            moves.on_begun(due.key, move, due.partition)
            yield record
