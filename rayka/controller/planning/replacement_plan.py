"""Where replicas go whose broker or directory is gone: a synchronous core, on what a balance is planned on.

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
from rayka.ids import TopicPartition

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
            moves.append(Move(topic_partition, before, after, placed.copied_bytes, Goal.HEAL))
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
