"""A balance asked for: the plan, and its first moves begun as reassignments (B45), unless one is under way already.

The controller keeps nothing of it: the caller has the plan and goes on with it when these moves have ended. So a
controller that dies in between leaves reassignments and no half-known plan.
"""

from rayka.controller.balancer.balance_plan import Move, plan_balance
from rayka.controller.balancer.cluster_shapes import ClusterShapes
from rayka.controller.balancer.holders import BrokerShare
from rayka.controller.reassignment import Reassigning
from rayka.controller.request_context import RequestContext
from rayka.errors import ErrorCode, InvalidRequest
from rayka.metadata.metadata_records import MetadataRecord
from rayka.protocol.balance import BalanceMove, BalanceRequest, BalanceResponse, BalanceShare
from rayka.protocol.partition_admin import Reassignment
from rayka.shard.shard import Result, Steps


def balance(context: RequestContext, request: BalanceRequest) -> Steps[MetadataRecord, BalanceResponse]:
    """Raises InvalidRequest, naming a reassignment that is under way, where moves are to begin; BrokerNotAvailable."""
    if request.moves:
        yield from _check_quiet(context)
    shapes = ClusterShapes(context)
    plan = yield from plan_balance(shapes.brokers, shapes.partitions())
    reassigning = Reassigning(context)
    begun_count = 0
    for move in plan.moves[: request.moves]:
        tp = move.topic_partition
        record, result = reassigning.try_alter(Reassignment(tp.topic, tp.partition, move.after))
        if result.error_code is not ErrorCode.NONE:
            break
        begun_count += 1
        yield record
    next_offset = yield None
    response = BalanceResponse(
        tuple(map(_move, plan.moves)),
        tuple(map(_share, plan.before)),
        tuple(map(_share, plan.after)),
        plan.is_whole,
        begun_count,
        next_offset,
    )
    return Result((), response)


def _check_quiet(context: RequestContext) -> Steps[MetadataRecord, None]:
    """What a caller has begun goes first: no plan is made on replicas that are on their way."""
    for topic in context.image.topics.values():
        for number, partition in enumerate(topic.partitions):
            if partition.is_reassigned:
                raise InvalidRequest(
                    f"the reassignment of {topic.name}-{number} to {list(partition.target_replicas)} is under way; wait"
                    " until no reassignment is left, or cancel it (`rayka partition cancel`), and balance then"
                )
            yield None
    return Result((), None)


def _move(move: Move) -> BalanceMove:
    tp = move.topic_partition
    return BalanceMove(
        tp.topic, tp.partition, move.before, move.after, move.copied_bytes, move.goal.name.lower()
    )


def _share(share: BrokerShare) -> BalanceShare:
    return BalanceShare(*share)
