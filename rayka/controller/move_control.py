"""The periodic look of the active controller: ended moves, then healing, drains and a balance.

All moves are reassignments as any other (B45) and stand in one queue (`move_queue`), so many at a time. This module
settles the moves that have ended, and gives each cause its turn.
"""

from collections.abc import Iterator

from rayka.controller.balance_control import go_on_balancing
from rayka.controller.controller_timers import LookAfterReplicas
from rayka.controller.decided_events import DecidedEvents
from rayka.controller.drain_control import go_on_draining
from rayka.controller.heal_control import heal
from rayka.controller.move_queue import MoveCause, MoveOutcome
from rayka.controller.partition_change import Election
from rayka.controller.placeable_directories import all_drains, drain_of
from rayka.controller.request_context import RequestContext
from rayka.ids import TopicIdPartition
from rayka.metadata.image import broker_config
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.shard.shard import Result, Steps


def look_after_replicas(context: RequestContext, request: LookAfterReplicas) -> Steps[MetadataRecord, int]:
    """Looks once. The response: how many moves of healing have begun."""
    config, events, moves = (
        broker_config(context.image, context.config),
        DecidedEvents(context),
        context.moves,
    )
    yield from _lead_again(context, _settle(context))
    unavailable, begun_count = yield from heal(context, config, events, due_ms=request.due_ms)
    yield from go_on_draining(context, config, events)
    is_healing = unavailable.is_anything and not moves.is_idle(MoveCause.HEAL)
    yield from go_on_balancing(context, config, events, is_healing=is_healing)
    timers = context.timers.after_look(
        context.now_ms,
        timeout_ms=config.broker_unavailable_timeout_ms,
        is_idle=moves.is_idle(MoveCause.HEAL) and context.balance.is_idle and not all_drains(context.image),
    )
    return Result((), begun_count, timers)


def _settle(context: RequestContext) -> list[TopicIdPartition]:
    """Tells each cause which of its moves have ended. Returns the partitions that a balance has moved."""
    moved: list[TopicIdPartition] = []
    for ended in context.moves.settle(context.image):
        if ended.cause is MoveCause.BALANCE:
            context.balance.on_ended(ended, context.now_ms)
            if ended.outcome is MoveOutcome.MOVED:
                moved.append(ended.key)
        elif ended.outcome is MoveOutcome.CANCELLED:
            # A new controller takes moves that it finds for healing, so their cause does not say what they concern.
            context.healing.decline(ended.key)
            for each in ended.move.before:
                if each not in ended.move.after and drain_of(context.image, each) is not None:
                    context.drains.decline(each, ended.key)
    return moved


def _lead_again(
    context: RequestContext, keys: list[TopicIdPartition]
) -> Iterator[PartitionChangeRecord | None]:
    """Has partitions that have moved be led by their first replicas."""
    elections = context.elections()
    for key in keys:
        partition = elections.partition(key)
        is_led = partition.leader_id == partition.replicas[0]
        yield None if is_led else elections.change(key).election(Election.PREFERRED).build()
