"""Plans new places of replicas whose broker or directory is gone: a synchronous core, with the input of a balance.

Each replica that is lost is replaced in its place of the order, so a partition has as many as before. Of the brokers
that stay below 80 % of their disks with it, the one is taken that puts the partition on the most racks, then on the
most machines, then the one that is least full; for an internal topic's partition first one of the role of the lost
one. A replica that finds no broker stays as it is; one that a reassignment waits for is replaced before others of its
partition, so that the reassignment can end. Partitions whose reassignment waits for what is gone come first,
then those with the fewest replicas in sync. At most 1,000 partitions a plan.

A generator, as `plan_balance`. Rayka's own.
"""

from collections.abc import Generator, Iterable, Mapping
from typing import NamedTuple

from rayka.controller.planning.balance_plan import MOVES_MAX, Goal, Move
from rayka.controller.planning.shapes import (
    BrokerShape,
    Holder,
    Holders,
    PartitionShape,
    Placed,
    sorted_in_steps,
)
from rayka.ids import TopicPartition, is_internal

_BROKERS_PER_STEP = 4


class Loss(NamedTuple):
    """The replicas that a partition has lost; those of a smaller `urgency` come first. `awaited`: of these, the ones
    without which the partition's reassignment never ends.
    """

    replicas: tuple[int, ...]
    urgency: int
    awaited: tuple[int, ...] = ()


def plan_healing(
    brokers: Iterable[BrokerShape],
    partitions: Iterable[PartitionShape],
    losses: Mapping[TopicPartition, Loss],
) -> Generator[None, int, tuple[Move, ...]]:
    """Makes a plan, step by step."""
    holders = Holders(brokers)
    hurt: list[tuple[int, TopicPartition, int]] = []  # no `Placed`: these are let go of step by step
    for each in partitions:
        holders.add(each)
        loss = losses.get(each.topic_partition)
        if loss is not None:
            hurt.append((loss.urgency, each.topic_partition, len(holders.placed) - 1))
        yield
    yield from holders.settle()
    moves: list[Move] = []
    for _, topic_partition, number in (yield from sorted_in_steps(hurt)):
        if len(moves) == MOVES_MAX:
            break
        placed = holders.placed[number]
        yield from _heal(holders, placed, losses[topic_partition])
        before, after = placed.shape.replicas, tuple(placed.replicas)
        if after != before:
            moves.append(Move(topic_partition, before, after, placed.copied_bytes, Goal.REPLACEMENT))
    yield from holders.dismantle()
    return tuple(moves)


def _heal(holders: Holders, placed: Placed, loss: Loss) -> Generator[None, int, None]:
    # Awaited replicas first: if the only free broker replaced another one, the reassignment would wait for ever. Among
    # the others the last replica comes first, so that the preferred leader is the last to change.
    order = sorted(loss.replicas, key=lambda each: (each not in loss.awaited, -placed.replicas.index(each)))
    for broker_id in order:
        for _ in range(0, len(holders.by_id), _BROKERS_PER_STEP):
            yield
        source = holders.by_id[broker_id]
        targets = [
            each
            for each in holders.by_id.values()
            if _may_take(each, placed) and holders.has_room(placed, each)
        ]
        if targets:
            _, target = min((_cost(holders, placed, source, each), each) for each in targets)
            holders.replace(placed, source, target)


def _may_take(target: Holder, placed: Placed) -> bool:
    shape = target.shape
    takes = shape.takes_replicas if placed.shape.is_movable else shape.takes_internal
    return takes and shape.broker_id not in placed.replicas


def _cost(
    holders: Holders, placed: Placed, source: Holder, target: Holder
) -> tuple[bool, int, int, float, int]:
    """The least is the best, and no two brokers have the same."""
    others = [each for each in placed.replicas if each != source.shape.broker_id]
    racks, machines = holders.spread((*others, target.shape.broker_id))
    is_other_role = not placed.shape.is_movable and target.shape.is_coordinator != source.shape.is_coordinator
    return is_other_role, -racks, -machines, target.fill, target.shape.broker_id


# ---- Drains ----------------------------------------------------------------------------------------------------------


class ReplicaDeparture(NamedTuple):
    """A replica that leaves a broker which is emptied."""

    broker_id: int
    # Departures of a lower rank come first.
    rank: int
    # How many others have the partition; the fewer, the earlier.
    other_count: int = 0
    # Whether small replicas come first, so that many leave in time; else large ones, which find room hardest.
    is_smallest_first: bool = False
    # Whether disks may be filled above 80 %, where no disk stays below.
    may_fill: bool = False


class Homeless(NamedTuple):
    """A replica that finds no other broker."""

    topic_partition: TopicPartition
    # How many replicas the partition has.
    replica_count: int
    size_bytes: int
    # The brokers that may hold such replicas.
    able: tuple[int, ...]
    # Whether some of them have none of the partition, and no room.
    is_crowded: bool


class BrokerDrainPlan(NamedTuple):
    """The plan that empties one broker: moves in the order in which they begin, and the replicas that stay."""

    moves: list[Move]
    homeless: list[Homeless]
    # How many bytes the moves copy, counted once a replica.
    moved_bytes: int = 0
    # How many replicas cannot be copied in time.
    late_count: int = 0


class DrainPlans(NamedTuple):
    """The plan of each broker that has departures, and what room they leave."""

    by_broker: Mapping[int, BrokerDrainPlan]
    # How many bytes more each broker may be given once the plans are carried out.
    left_bytes: Mapping[int, float]


def plan_drains(
    brokers: Iterable[BrokerShape],
    partitions: Iterable[PartitionShape],
    departures: Mapping[TopicPartition, ReplicaDeparture],
    copyable_bytes: Mapping[int, float],
) -> Generator[None, int, DrainPlans]:
    """Plans the new places of leaving replicas. `copyable_bytes`: the bytes that can be copied off a broker in time.

    A replica goes to a broker that takes replicas, has none of the partition, and whose disks stay below 80 % with the
    replica; in a rack that has none if there is one; with the fewest replicas by then. Replicas of users' partitions go
    to brokers only, internal ones to coordinators before brokers, and the coordinators among them come first.
    """
    holders = Holders(brokers)
    leaving: list[tuple[int, int, int, int]] = []
    for each in partitions:
        holders.add(each)
        departure = departures.get(each.topic_partition)
        if departure is not None:
            size_bytes = each.size_bytes if departure.is_smallest_first else -each.size_bytes
            number = len(holders.placed) - 1
            leaving.append((departure.rank, departure.other_count, size_bytes, number))
        yield
    yield from holders.settle()
    plans: dict[int, BrokerDrainPlan] = {}
    for *_, number in (yield from sorted_in_steps(leaving)):
        for _ in range(0, len(holders.by_id), _BROKERS_PER_STEP):
            yield
        placed = holders.placed[number]
        shape, departure = placed.shape, departures[placed.shape.topic_partition]
        broker_id = departure.broker_id
        plan = plans.get(broker_id, BrokerDrainPlan([], []))
        moved_bytes = plan.moved_bytes + shape.size_bytes
        if moved_bytes > copyable_bytes.get(broker_id, float("inf")):
            plans[broker_id] = plan._replace(late_count=plan.late_count + 1)
            continue
        found = _leave(holders, placed, departure)
        if isinstance(found, Homeless):
            plan.homeless.append(found)
            plans[broker_id] = plan
            continue
        goal = Goal.REPLACEMENT
        plan.moves.append(Move(shape.topic_partition, shape.replicas, found, placed.copied_bytes, goal))
        plans[broker_id] = plan._replace(moved_bytes=moved_bytes)
    left_bytes = {broker_id: holders.left_bytes(each) for broker_id, each in holders.by_id.items()}
    yield from holders.dismantle()
    return DrainPlans(plans, left_bytes)


def _leave(holders: Holders, placed: Placed, departure: ReplicaDeparture) -> tuple[int, ...] | Homeless:
    """The replicas that the partition gets."""
    shape, is_internal_topic = placed.shape, is_internal(placed.shape.topic_partition.topic)
    source = holders.by_id[departure.broker_id]
    able = [
        each
        for each in holders.by_id.values()
        if each is not source
        and (each.shape.takes_internal if is_internal_topic else each.shape.takes_replicas)
    ]
    free = [each for each in able if each.shape.broker_id not in placed.replicas]
    fitting = [each for each in free if shape.size_bytes < holders.left_bytes(each)]
    if not fitting and departure.may_fill:
        fitting = [each for each in free if shape.size_bytes < holders.free_bytes(each)]
    if not fitting:
        ids = tuple(each.shape.broker_id for each in able)
        count = len(placed.replicas)
        return Homeless(shape.topic_partition, count, shape.size_bytes, ids, is_crowded=bool(free))
    others = [holders.by_id[each].shape for each in placed.replicas if each != departure.broker_id]
    racks = [each.rack for each in others]

    def cost(target: Holder) -> tuple[bool, bool, int, int]:
        is_other_role = is_internal_topic and not target.shape.is_coordinator
        return is_other_role, target.shape.rack in racks, target.replica_count, target.shape.broker_id

    holders.replace(placed, source, min(fitting, key=cost))
    replicas = list(placed.replicas)
    if is_internal_topic:
        replicas.sort(key=lambda each: holders.by_id[each].shape.is_coordinator, reverse=True)
    return tuple(replicas)
