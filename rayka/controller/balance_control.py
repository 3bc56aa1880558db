"""Balances: begun by an operator or by their trigger, carried out look by look, ended or cancelled (decision 067).

A balance goes on at each look: so many moves at a time, ranked by the plan. No move begins while another caller's
reassignment is under way, while replicas are healed, or while a machine drains. Then the plan is dropped; a new one is
made when that is over and the brokers have reported what they hold since. A plan is dropped likewise if its next move
is not legal any more. Where a machine drains, moves under way are taken back unless they leave that machine: the
machine goes soon, and the other moves would hold the places of those that leave it.

A balance that is asked for while one is under way joins that balance, so a request may be repeated.
"""

from collections.abc import Generator, Iterator

from rayka.config.broker_config import BrokerConfig
from rayka.controller.balance_run import BalanceReason, BalanceRun, away_brokers, last_balance_event
from rayka.controller.cluster_shapes import ClusterShapes
from rayka.controller.decided_events import DecidedEvents, Decision, EventKind
from rayka.controller.move_queue import MoveCause, still_due
from rayka.controller.placeable_directories import all_drains, draining_brokers
from rayka.controller.planning.balance_plan import Plan, Planning, plan_balance
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.errors import BrokerNotAvailable, InvalidRequest
from rayka.ids import NO_OFFSET
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
# The most that a heartbeat with a report is late.
_LATE_MS = 500
# After so many later events the beginning of a balance is recorded again.
_EVENTS_BEFORE_REPEAT = EVENTS_MAX // 2
_Records = Generator[MetadataRecord | list[MetadataRecord] | None, int, None]


# ---- One look --------------------------------------------------------------------------------------------------------


def go_on_balancing(
    context: RequestContext, config: BrokerConfig, events: DecidedEvents, *, is_healing: bool
) -> _Records:
    """Looks at the balance that is under way, or decides whether one begins. Moves that have ended are settled."""
    run = context.balance
    if run.is_idle:
        reason = None if is_healing else context.balance_trigger.look(context, config)
        if reason is None:
            return
        run.begin(reason)
    yield from _record_again(context, events)
    if run.is_cancelled:
        yield from _cancel(context, events)
        return
    # A balance with subjects began by itself.
    if run.reason.subjects and not config.balancer_enable:
        context.balance_trigger.forget(run.reason)
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
    if context.moves.is_idle(MoveCause.BALANCE):
        try:
            shapes = ClusterShapes(context)
        except BrokerNotAvailable as error:
            run.waits_for = str(error)
        else:
            plan = yield from plan_balance(shapes.brokers, shapes.partitions(), run.reason.last_goal)
            yield from _follow(context, plan, events)
    yield from _begin_moves(context, config)


def _obstacle(context: RequestContext, config: BrokerConfig, *, is_healing: bool) -> str:
    """Why no move of the balance begins now; empty if moves may begin."""
    if is_healing:
        return "replicas of what is gone are made anew"
    draining = draining_brokers(context.image)
    if draining:
        return f"brokers {draining} are on machines that Ray drains"
    other = other_reassignment(context)
    if other:
        return f"the reassignment of {other} is under way"
    if not context.moves.is_idle(MoveCause.DRAIN):
        return f"brokers {[each.broker_id for each in all_drains(context.image)]} are drained"
    run, away = context.balance, away_brokers(context)
    if away:
        return f"brokers {away} are away"
    if run.is_over or not context.moves.is_idle(MoveCause.BALANCE):
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


def other_reassignment(context: RequestContext) -> str:
    """The name of a partition whose reassignment is not the balance's; empty if there is none."""
    for key in context.replicas.reassigned:
        if not context.moves.is_under_way(key, MoveCause.BALANCE):
            return f"{context.image.topics_by_id[key.topic_id].name}-{key.partition}"
    return ""


def _give_way(context: RequestContext) -> Iterator[PartitionChangeRecord | None]:
    """Takes back the moves that do not leave a machine that drains: they fill the bound and share the rate."""
    moves, draining = context.moves, draining_brokers(context.image)
    reassigning = Reassigning(context)
    for key, move in moves.under_way(MoveCause.BALANCE).items() if draining else ():
        if any(each in move.before and each not in move.after for each in draining):
            continue
        record = reassigning.move(move.topic_partition, None)
        # Refused where only new replicas are in sync: such a move ends as planned.
        if record is not None:
            moves.take_back(key)
        yield record


def _follow(context: RequestContext, plan: Plan, events: DecidedEvents) -> _Records:
    """The balance follows this plan from now on. The first plan has an event, unless there is nothing to move: then
    there was no balance.
    """
    run = context.balance
    run.on_planned(plan, context.now_ms)
    if plan.moves and not run.is_recorded:
        run.is_recorded = True
        copied = sum(each.copied_bytes for each in plan.moves) / 1e6
        why = f"{run.reason.reason}; {len(plan.moves):,} partitions are to move, copying {copied:,.1f} MB"
        yield events.records(Decision(EventKind.BALANCE_BEGUN, run.reason.subjects, why))
    elif not plan.moves:
        yield from _end(run, events)


def _record_again(context: RequestContext, events: DecidedEvents) -> _Records:
    """Records the beginning of a balance again before later events push it out: a new active controller knows by this
    event that the balance goes on.
    """
    begun = last_balance_event(context.image) if context.balance.is_recorded else None
    if begun is not None and context.image.next_event_number - begun.number > _EVENTS_BEFORE_REPEAT:
        yield events.records(Decision(EventKind(begun.kind), begun.subjects, begun.reason))


def _begin_moves(context: RequestContext, config: BrokerConfig) -> Iterator[PartitionChangeRecord]:
    """Begins as many moves as may be under way at a time."""
    run, moves, reassigning = context.balance, context.moves, Reassigning(context)
    waiting = moves.waiting[MoveCause.BALANCE]
    moves_max = run.reason.moves_max or config.balancer_moves_max
    while waiting and moves.copying_count < moves_max:
        move = waiting.popleft()
        due = still_due(context.image, move)
        record = None if due is None else reassigning.move(move.topic_partition, move.after)
        if due is None or record is None:
            run.replan()
            return
        moves.on_begun(due, MoveCause.BALANCE)
        yield record


# ---- The end ---------------------------------------------------------------------------------------------------------


def _end(run: BalanceRun, events: DecidedEvents) -> _Records:
    moved = f"{run.moved_count:,} partitions have moved, {run.moved_bytes / 1e6:,.1f} MB were copied"
    if run.is_recorded:
        yield events.records(Decision(EventKind.BALANCE_ENDED, run.reason.subjects, moved))
    run.end(BalanceState.ENDED, moved)


def _cancel(context: RequestContext, events: DecidedEvents) -> _Records:
    """Nothing more begins; what is under way goes back where it can. The balance does not begin again by itself."""
    context.balance_trigger.decline(context.balance.reason)
    yield from _break_off(context, events, EventKind.BALANCE_CANCELLED, "an operator cancelled it")


def _break_off(context: RequestContext, events: DecidedEvents, kind: EventKind, why: str) -> _Records:
    run, reassigning = context.balance, Reassigning(context)
    for move in context.moves.under_way(MoveCause.BALANCE).values():
        yield reassigning.move(move.topic_partition, None)
    moved = f"{why} after {run.moved_count:,} of {run.planned_count:,} moves"
    if run.is_recorded:
        yield events.records(Decision(kind, run.reason.subjects, moved))
    run.end(BalanceState.CANCELLED, moved)


# ---- Requests of operators -------------------------------------------------------------------------------------------


def balance(context: RequestContext, request: BalanceRequest) -> Steps[MetadataRecord, BalanceResponse]:
    """Plans a balance and, unless it is asked for no moves, begins it.

    Raises InvalidRequest, naming a reassignment that is under way, where moves are to begin; BrokerNotAvailable.
    """
    run = context.balance
    if request.moves == 0:
        plan = yield from _planned(context)
        return Result((), _response(plan, 0))
    if not run.is_idle:
        plan = run.plan or Plan((), (), (), is_whole=False)
        return Result((), _response(plan, len(plan.moves) - run.waiting_count, is_joined=True))
    other = other_reassignment(context)
    if other:
        raise InvalidRequest(
            f"the reassignment of {other} is under way; wait until no reassignment is left, or cancel it (`rayka "
            "partition cancel`), and balance then"
        )
    plan = yield from _planned(context)
    moves_max = 0 if request.moves == MOVES_AS_CONFIGURED else request.moves
    run.begin(BalanceReason((), "an operator asked for it", moves_max=moves_max))
    yield from _follow(context, plan, DecidedEvents(context))
    # Else the next look says what the balance waits for.
    if not away_brokers(context) and not draining_brokers(context.image):
        yield from _begin_moves(context, broker_config(context.image, context.config))
    next_offset = yield None
    timers = context.timers.look_soon(context.now_ms)
    return Result((), _response(plan, run.under_way_count, metadata_offset=next_offset), timers)


def _planned(context: RequestContext) -> Planning:
    shapes = ClusterShapes(context)
    return (yield from plan_balance(shapes.brokers, shapes.partitions()))


def _response(
    plan: Plan, begun_count: int, *, is_joined: bool = False, metadata_offset: int = NO_OFFSET
) -> BalanceResponse:
    moves = tuple(
        BalanceMove(
            each.topic_partition.topic,
            each.topic_partition.partition,
            each.before,
            each.after,
            each.copied_bytes,
            each.goal.name.lower(),
        )
        for each in plan.moves
    )
    return BalanceResponse(
        moves, plan.before, plan.after, plan.is_whole, begun_count, metadata_offset, is_joined
    )


def describe_balance(
    context: RequestContext, _: DescribeBalanceRequest
) -> Result[MetadataRecord, DescribeBalanceResponse]:
    """The balance that is under way, or the outcome of the last one that this controller knows."""
    run = context.balance
    reason = run.outcome[1] if run.is_idle else run.reason.reason
    counts = run.planned_count, run.moved_count, run.under_way_count, run.moved_bytes
    return Result((), DescribeBalanceResponse(run.state, reason, run.waits_for, *counts))


def cancel_balance(
    context: RequestContext, _: CancelBalanceRequest
) -> Steps[MetadataRecord, CancelBalanceResponse]:
    """Cancels the balance; says whether there was one."""
    if context.balance.is_idle:
        return Result((), CancelBalanceResponse(is_cancelled=False))
    yield from _cancel(context, DecidedEvents(context))
    next_offset = yield None
    return Result((), CancelBalanceResponse(True, next_offset))
