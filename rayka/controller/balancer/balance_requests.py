"""What operators ask of a balance: its plan, that it begins, how far it is, and that it ends.

Asked for while one is under way, a balance is that one: so a request may be repeated.
"""

from rayka.controller.balancer.badly_off import away_brokers
from rayka.controller.balancer.balance_looks import begin_moves, cancel, other_reassignment, start
from rayka.controller.balancer.balance_plan import Move, Plan, Planning, plan_balance
from rayka.controller.balancer.balance_run import Cause
from rayka.controller.balancer.cluster_shapes import ClusterShapes
from rayka.controller.decided_events import DecidedEvents
from rayka.controller.draining_brokers import draining_brokers
from rayka.controller.request_context import RequestContext
from rayka.errors import InvalidRequest
from rayka.ids import NO_OFFSET
from rayka.metadata.image import broker_config
from rayka.metadata.metadata_records import MetadataRecord
from rayka.protocol.load import (
    MOVES_AS_CONFIGURED,
    BalanceMove,
    BalanceRequest,
    BalanceResponse,
    CancelBalanceRequest,
    CancelBalanceResponse,
    DescribeBalanceRequest,
    DescribeBalanceResponse,
)
from rayka.shard.shard import Result, Steps


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
