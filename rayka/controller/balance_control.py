"""What the active controller looks after from time to time: what is gone is made anew first, then a balance goes on.

A balance goes on at each look: moves that have ended, the next ones, the end (decision 067).

Moves are reassignments as any other (B45), so many at a time, ranked by the plan. None begins while another caller's
reassignment is under way, replicas are made anew or a machine drains: the plan is dropped, and made again when that is
over and the brokers have reported what they hold since. So is a plan whose next move is not legal any more. Moves under
way are taken back where a machine drains, but those off it: the machine goes soon, and they would hold its place.
"""

from collections.abc import Generator, Iterator

from rayka.config.broker_config import BrokerConfig
from rayka.controller.balance_run import BalanceRun, Cause, away_brokers, last_balance_event
from rayka.controller.cluster_shapes import ClusterShapes
from rayka.controller.controller_timers import LookAfterReplicas
from rayka.controller.decided_events import DecidedEvents, Decision, EventKind
from rayka.controller.heal_control import heal
from rayka.controller.move_queue import still_due
from rayka.controller.partition_change import Election
from rayka.controller.placeable_directories import draining_brokers
from rayka.controller.planning.balance_plan import Move, Plan, Planning, plan_balance
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.errors import BrokerNotAvailable, InvalidRequest
from rayka.ids import NO_OFFSET, TopicIdPartition
from rayka.metadata.image import broker_config
from rayka.metadata.metadata_records import MetadataRecord, PartitionChangeRecord
from rayka.protocol.events import EVENTS_MAX
from rayka.protocol.load import (
    MOVES_AS_CONFIGURED,
    BalanceMove,
    BalanceRequest,
    BalanceResponse,
    BalanceState,
    CancelBalanceRequest,
    CancelBalanceResponse,
    DescribeBalanceRequest,
    DescribeBalanceResponse,
)
from rayka.shard.shard import Result, Steps

REPLAN_MS = 10_000
_LATE_MS = 500  # of a heartbeat that brings a report
# After so many later events the beginning of a balance is recorded again.
_EVENTS_BEFORE_REPEAT = EVENTS_MAX // 2
_Records = Generator[MetadataRecord | list[MetadataRecord] | None, int, None]


def look_after_replicas(context: RequestContext, request: LookAfterReplicas) -> Steps[MetadataRecord, int]:
    """One look. The response: how many moves of healing have begun."""
    config, events = broker_config(context.image, context.config), DecidedEvents(context)
    yield from lead_again(context, context.balance.settle(context.image, context.now_ms))
    gone, begun_count = yield from heal(context, config, events, due_ms=request.due_ms)
    is_healing = gone.is_anything and not context.moves.is_idle
    yield from go_on_balancing(context, config, events, is_healing=is_healing)
    timers = context.timers.after_look(
        context.now_ms,
        timeout_ms=config.broker_unavailable_timeout_ms,
        is_idle=context.moves.is_idle and context.balance.is_idle,
    )
    return Result((), begun_count, timers)


def go_on_balancing(
    context: RequestContext, config: BrokerConfig, events: DecidedEvents, *, is_healing: bool
) -> _Records:
    """One look at the balance that is under way, or at whether one is to begin. What has ended is settled."""
    run = context.balance
    if run.is_idle:
        cause = None if is_healing else context.badly_off.look(context, config)
        if cause is None:
            return
        run.begin(cause)
    yield from _tell_again(context, events)
    if run.is_cancelled:
        yield from cancel(context, events)
        return
    if run.cause.subjects and not config.balancer_enable:  # no operator asked for it
        context.badly_off.forget(run.cause)  # it may begin again when it is switched on again
        yield from _break_off(context, events, EventKind.BALANCE_ENDED, "balancer.enable is false,")
        return
    run.waits_for = _obstacle(context, config, is_healing=is_healing)
    if run.waits_for:
        run.replan()
        yield from _give_way(context)
        return
    if run.is_over:
        yield from _end(run, events)
        return
    if not run.waiting and not run.under_way:
        yield from _plan(context, config, events)
    yield from begin_moves(context, config)


def lead_again(
    context: RequestContext, keys: list[TopicIdPartition]
) -> Iterator[PartitionChangeRecord | None]:
    """The first replicas of partitions that have moved lead them."""
    elections = context.elections()
    for key in keys:
        partition = elections.partition(key)
        is_led = partition.leader_id == partition.replicas[0]
        yield None if is_led else elections.change(key).election(Election.PREFERRED).build()


def _obstacle(context: RequestContext, config: BrokerConfig, *, is_healing: bool) -> str:
    if is_healing:
        return "replicas of what is gone are made anew"
    other = other_reassignment(context)
    if other:
        return f"the reassignment of {other} is under way"
    draining = draining_brokers(context.image)
    if draining:
        return f"brokers {draining} are on machines that Ray drains"
    run, away = context.balance, away_brokers(context)
    if away:
        return f"brokers {away} are away"
    if run.under_way or run.waiting or run.is_over:
        return ""
    now_ms, heartbeat_ms = context.now_ms, config.broker_heartbeat_interval_ms
    if run.planned_ms is not None and now_ms - run.planned_ms < REPLAN_MS:
        return "the next plan is made soon"
    active = [
        each for each in context.image.brokers.values() if each.is_active and each.takes_user_partitions
    ]
    wanted_ms = run.settled_ms + heartbeat_ms + _LATE_MS
    late = [each.broker_id for each in active if run.moved_count and context.loads.last_ms(each) < wanted_ms]
    return f"brokers {late} have not reported what they hold since the last move" if late else ""


def _give_way(context: RequestContext) -> Iterator[PartitionChangeRecord | None]:
    """Takes back the moves that are not off a machine that drains: they fill the bound, and share the rate."""
    run, draining = context.balance, draining_brokers(context.image)
    reassigning = Reassigning(context)
    for key, (move, _) in list(run.under_way.items()) if draining else ():
        if any(each in move.before and each not in move.after for each in draining):
            continue
        record = reassigning.move(move.topic_partition, None)
        if record is not None:  # else it ends as planned, for only its new replicas are whole
            del run.under_way[key]
        yield record


def other_reassignment(context: RequestContext) -> str:
    """The name of a partition that is reassigned, and not for the balance; or nothing."""
    for key in context.replicas.reassigned:
        if key not in context.balance.under_way:
            return f"{context.image.topics_by_id[key.topic_id].name}-{key.partition}"
    return ""


def _plan(context: RequestContext, config: BrokerConfig, events: DecidedEvents) -> _Records:
    run = context.balance
    try:
        shapes = ClusterShapes(context)
    except BrokerNotAvailable as error:
        run.waits_for = str(error)
        return
    plan = yield from plan_balance(shapes.brokers, shapes.partitions(), run.cause.last_goal)
    yield from start(context, plan, events)


def start(context: RequestContext, plan: Plan, events: DecidedEvents) -> _Records:
    """The plan is the one that goes on from now on; the first one of a balance has an event, unless there is nothing to
    move at all: then there was no balance.
    """
    run = context.balance
    run.on_planned(plan, context.now_ms)
    if plan.moves and not run.is_told:
        run.is_told = True
        yield events.records(Decision(EventKind.BALANCE_BEGUN, run.cause.subjects, _told(run.cause, plan)))
    elif not plan.moves:
        yield from _end(run, events)


def _tell_again(context: RequestContext, events: DecidedEvents) -> _Records:
    """Records the beginning of a balance again before later events push it out: a new active controller knows by it
    that the balance goes on.
    """
    begun = last_balance_event(context.image) if context.balance.is_told else None
    if begun is not None and context.image.next_event_number - begun.number > _EVENTS_BEFORE_REPEAT:
        yield events.records(Decision(EventKind(begun.kind), begun.subjects, begun.reason))


def _told(cause: Cause, plan: Plan) -> str:
    copied = sum(each.copied_bytes for each in plan.moves) / 1e6
    return f"{cause.reason}; {len(plan.moves):,} partitions are to move, copying {copied:,.1f} MB"


def _end(run: BalanceRun, events: DecidedEvents) -> _Records:
    moved = f"{run.moved_count:,} partitions have moved, {run.moved_bytes / 1e6:,.1f} MB were copied"
    if run.is_told:
        yield events.records(Decision(EventKind.BALANCE_ENDED, run.cause.subjects, moved))
    run.end(BalanceState.ENDED, moved)


def cancel(context: RequestContext, events: DecidedEvents) -> _Records:
    """Nothing more begins, and what is under way goes back, where it can; nor does it begin again by itself."""
    context.badly_off.decline(context.balance.cause)
    yield from _break_off(context, events, EventKind.BALANCE_CANCELLED, "an operator cancelled it")


def _break_off(context: RequestContext, events: DecidedEvents, kind: EventKind, why: str) -> _Records:
    run, reassigning = context.balance, Reassigning(context)
    for move, _ in run.under_way.values():
        yield reassigning.move(move.topic_partition, None)
    moved = f"{why} after {run.moved_count:,} of {run.planned_count:,} moves"
    if run.is_told:
        yield events.records(Decision(kind, run.cause.subjects, moved))
    run.end(BalanceState.CANCELLED, moved)


def begin_moves(context: RequestContext, config: BrokerConfig) -> Iterator[PartitionChangeRecord]:
    """As many as may be under way at a time."""
    run, reassigning = context.balance, Reassigning(context)
    moves_max = run.cause.moves_max or config.balancer_moves_max
    while run.waiting and run.copying_count + context.moves.copying_count < moves_max:
        move = run.waiting.popleft()
        due = still_due(context.image, move)
        record = None if due is None else reassigning.move(move.topic_partition, move.after)
        if due is None or record is None:
            run.replan()
            return
        run.on_begun(due.key, move, due.partition.partition_epoch)
        yield record


# What operators ask of a balance: its plan, that it begins, how far it is, and that it ends.
#
# Asked for while one is under way, a balance is that one: so a request may be repeated.


def balance(context: RequestContext, request: BalanceRequest) -> Steps[MetadataRecord, BalanceResponse]:
    """Raises InvalidRequest, naming a reassignment that is under way, where moves are to begin; BrokerNotAvailable."""
    run = context.balance
    if request.moves == 0:
        plan = yield from _planned(context)
        return Result((), _response(plan, 0))
    if not run.is_idle:
        plan = run.plan or Plan((), (), (), is_whole=False)
        return Result((), _response(plan, len(plan.moves) - len(run.waiting), is_joined=True))
    other = other_reassignment(context)
    if other:
        raise InvalidRequest(
            f"the reassignment of {other} is under way; wait until no reassignment is left, or cancel it (`rayka "
            "partition cancel`), and balance then"
        )
    plan = yield from _planned(context)
    moves_max = 0 if request.moves == MOVES_AS_CONFIGURED else request.moves
    run.begin(Cause((), "an operator asked for it", moves_max=moves_max))
    yield from start(context, plan, DecidedEvents(context))
    # Else the next look says what it waits for.
    if not away_brokers(context) and not draining_brokers(context.image):
        yield from begin_moves(context, broker_config(context.image, context.config))
    next_offset = yield None
    timers = context.timers.look_soon(context.now_ms)
    return Result((), _response(plan, len(run.under_way), metadata_offset=next_offset), timers)


def _planned(context: RequestContext) -> Planning:
    shapes = ClusterShapes(context)
    return (yield from plan_balance(shapes.brokers, shapes.partitions()))


def describe_balance(
    context: RequestContext, _: DescribeBalanceRequest
) -> Result[MetadataRecord, DescribeBalanceResponse]:
    """The one that is under way, or what came of the last one that this controller knows."""
    run = context.balance
    reason = run.outcome[1] if run.is_idle else run.cause.reason
    response = DescribeBalanceResponse(
        run.state,
        reason,
        run.waits_for,
        run.planned_count,
        run.moved_count,
        len(run.under_way),
        run.moved_bytes,
    )
    return Result((), response)


def cancel_balance(
    context: RequestContext, _: CancelBalanceRequest
) -> Steps[MetadataRecord, CancelBalanceResponse]:
    """Whether there was one to cancel."""
    if context.balance.is_idle:
        return Result((), CancelBalanceResponse(is_cancelled=False))
    yield from cancel(context, DecidedEvents(context))
    next_offset = yield None
    return Result((), CancelBalanceResponse(True, next_offset))


def _response(
    plan: Plan, begun_count: int, *, is_joined: bool = False, metadata_offset: int = NO_OFFSET
) -> BalanceResponse:
    return BalanceResponse(
        tuple(map(_move, plan.moves)),
        plan.before,
        plan.after,
        plan.is_whole,
        begun_count,
        metadata_offset,
        is_joined,
    )


def _move(move: Move) -> BalanceMove:
    tp = move.topic_partition
    return BalanceMove(
        tp.topic, tp.partition, move.before, move.after, move.copied_bytes, move.goal.name.lower()
    )
