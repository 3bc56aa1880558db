"""Brokers and partitions as a plan sees them, while it is made: what each holds, and which replica may go where.

Invariants: the sums of a broker are those of the replicas that it holds; a partition has as many replicas as before, on
as many racks and machines as before or more. Sizes are in bytes, rates a second. Rayka's own.
"""

from bisect import bisect_left, insort
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import NamedTuple, TypeVar

from rayka.ids import TopicPartition
from rayka.protocol.load import DISK_USE_MAX, UNKNOWN_BYTES, BalanceShare, DiskRoom, Disks

# Sorts a long list step by step: in one go, tens of thousands of entries hold others up for tens of milliseconds.


EntryT = TypeVar(
    "EntryT", bound=tuple[int, int] | tuple[int, TopicPartition, int] | tuple[int, int, int, int]
)
RUN = 256
_MERGED_PER_STEP = 8


def sorted_in_steps(entries: list[EntryT]) -> Generator[None, int, list[EntryT]]:
    """Sorts like `sorted`, in steps; a short list is sorted at once."""
    if len(entries) <= RUN:
        return sorted(entries)
    runs = []
    for begin in range(0, len(entries), RUN):
        runs.append(sorted(entries[begin : begin + RUN]))
        yield
    merged, whole = merge(*runs), list[EntryT]()
    while part := list(islice(merged, _MERGED_PER_STEP)):
        whole += part
        yield
    return whole


REPLICA_BYTES_MIN = 4_096  # what an empty replica counts, so that empty ones spread, too


class BrokerShape(NamedTuple):
    """A broker. `takes_replicas`: it runs, and is to have its share; `takes_internal`: it may hold replicas of internal
    topics. `capacity_bytes` of its disks, 0 if not known; what these hold and have free, as reported.
    """

    broker_id: int
    rack: str = ""
    machine: str = ""
    takes_replicas: bool = True
    capacity_bytes: int = 0
    takes_internal: bool = False
    is_coordinator: bool = False
    reported_bytes: int = 0
    free_bytes: float = UNKNOWN_BYTES


class PartitionShape(NamedTuple):
    """A partition, the preferred leader first; one that is not movable only takes room."""

    topic_partition: TopicPartition
    replicas: tuple[int, ...]
    size_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    is_movable: bool = True


class Placed:
    """A partition with its planned replicas, and the goal of their first move, None without a move."""

    __slots__ = ("gain", "number", "replicas", "shape", "size_bytes")

    def __init__(self, number: int, shape: PartitionShape) -> None:
        self.number = number
        self.shape = shape
        self.size_bytes = max(shape.size_bytes, REPLICA_BYTES_MIN)
        self.replicas = list(shape.replicas)
        self.gain: tuple[int, float] | None = None  # the number of the goal, and the gain per byte

    def __repr__(self) -> str:
        return f"<Placed {self.shape.topic_partition} {self.replicas}>"

    @property
    def copied_bytes(self) -> int:
        """The bytes that the new replicas copy."""
        return self.shape.size_bytes * sum(each not in self.shape.replicas for each in self.replicas)


@dataclass(slots=True, eq=False)
class Holder:
    """A broker. `target_bytes`: its even share; `led`: the movable partitions that it is the preferred leader of.
    `size_bytes` counts an empty replica as `REPLICA_BYTES_MIN`, `log_bytes` as nothing.
    """

    shape: BrokerShape
    disks: Disks
    size_bytes: int = 0
    log_bytes: int = 0
    replica_count: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    target_bytes: float = 1.0
    # Of movable partitions: size and number, ascending once sorted.
    by_size: list[tuple[int, int]] = field(default_factory=list)
    led: dict[int, None] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Holder {self.shape.broker_id} bytes={self.size_bytes} target={self.target_bytes:.0f}>"

    @property
    def fill(self) -> float:
        """The broker's bytes as a share of its target."""
        return self.size_bytes / self.target_bytes

    def count(self, placed: Placed, by: int) -> None:
        """One replica more, or less."""
        self.replica_count += by
        self.size_bytes += by * placed.size_bytes
        self.disks.planned_bytes = self.size_bytes
        self.log_bytes += by * placed.shape.size_bytes
        self.bytes_in += by * placed.shape.bytes_in

    def lead(self, placed: Placed, *, is_first: bool) -> None:
        """Adds or removes a preferred lead of the broker."""
        self.bytes_out += placed.shape.bytes_out if is_first else -placed.shape.bytes_out
        if not is_first:
            self.led.pop(placed.number, None)
        elif placed.shape.is_movable:
            self.led[placed.number] = None

    def share(self) -> BalanceShare:
        return BalanceShare(
            self.shape.broker_id,
            self.log_bytes,
            self.replica_count,
            len(self.led),
            self.bytes_in,
            self.bytes_out,
        )


class Holders:
    """All of them. Made in steps: `add` for each partition, then `settle` for each broker."""

    def __init__(self, brokers: Iterable[BrokerShape]) -> None:
        self.by_id = {each.broker_id: _holder(each) for each in sorted(brokers)}
        self.usable = [each for each in self.by_id.values() if each.shape.takes_replicas]
        self.placed: list[Placed] = []

    def __repr__(self) -> str:
        return f"<Holders brokers={len(self.by_id)} partitions={len(self.placed)}>"

    def add(self, shape: PartitionShape) -> None:
        placed = Placed(len(self.placed), shape)
        self.placed.append(placed)
        for each in shape.replicas:
            holder = self.by_id.get(each)
            if holder is None:  # of a broker that is not registered any more
                holder = self.by_id[each] = _holder(
                    BrokerShape(each, f"?{each}", f"?{each}", takes_replicas=False)
                )
            holder.count(placed, 1)
            if shape.is_movable:
                holder.by_size.append((placed.size_bytes, placed.number))
        self.by_id[shape.replicas[0]].lead(placed, is_first=True)

    def settle(self) -> Generator[None, int, None]:
        """Sorts what each broker holds, and gives each its target; one step for every few replicas."""
        for holder in self.by_id.values():
            holder.by_size = yield from sorted_in_steps(holder.by_size)
            for _ in range(0, len(holder.by_size), 32):
                yield
        for holder in self.by_id.values():
            # Else the replicas that a broker without a report holds already would count as on their way to it.
            if holder.shape.free_bytes == UNKNOWN_BYTES:
                holder.disks.reported_bytes = holder.size_bytes
        self._room = DiskRoom({broker_id: each.disks for broker_id, each in self.by_id.items()})
        self.share_out()

    def share_out(self) -> None:
        """Gives each broker its target, as replicas lie now."""
        total_bytes = sum(each.size_bytes for each in self.usable)
        for holder, weight in zip(self.usable, _weights(self.usable), strict=True):
            holder.target_bytes = max(1.0, total_bytes * weight)

    def dismantle(self) -> Iterator[None]:
        """Lets go of everything step by step: a hundred thousand objects at once would hold others up."""
        while self.placed:
            del self.placed[-16:]
            yield
        for holder in self.by_id.values():
            while holder.by_size:
                del holder.by_size[-64:]
                yield

    # ---- What may be ---------------------------------------------------------------------------------------------

    def left_bytes(self, target: Holder, use_max: float = DISK_USE_MAX) -> float:
        """The bytes that the broker's disks may still take; a replica must be smaller."""
        return self._room.left_bytes(target.shape.broker_id, use_max)

    def free_bytes(self, target: Holder) -> float:
        """The free bytes of the broker's disks after the plan."""
        return self._room.free_bytes(target.shape.broker_id)

    def has_room(self, placed: Placed, target: Holder) -> bool:
        """Whether the broker's disks may take the replica."""
        return placed.size_bytes < self.left_bytes(target)

    def spread(self, replicas: Iterable[int]) -> tuple[int, int]:
        """On how many racks and machines these are."""
        shapes = [self.by_id[each].shape for each in replicas]
        return len({each.rack for each in shapes}), len({(each.rack, each.machine) for each in shapes})

    def may_replace(self, placed: Placed, source: Holder, target: Holder) -> bool:
        """Whether the replica on the first broker may be on the second instead."""
        before, after = source.shape, target.shape
        if after.broker_id in placed.replicas or not placed.shape.is_movable:
            return False
        if before.rack == after.rack and before.machine == after.machine:
            return True
        others = [each for each in placed.replicas if each != before.broker_id]
        wanted, found = self.spread(placed.replicas), self.spread((*others, after.broker_id))
        return found[0] >= wanted[0] and found[1] >= wanted[1]

    # ---- Changing ------------------------------------------------------------------------------------------------

    def replace(self, placed: Placed, source: Holder, target: Holder) -> None:
        """The replica is on the second broker instead of the first, and takes its place in the order."""
        place = placed.replicas.index(source.shape.broker_id)
        placed.replicas[place] = target.shape.broker_id
        source.count(placed, -1)
        target.count(placed, 1)
        if placed.shape.is_movable:
            entry = (placed.size_bytes, placed.number)
            del source.by_size[bisect_left(source.by_size, entry)]
            insort(target.by_size, entry)
        if place == 0:
            source.lead(placed, is_first=False)
            target.lead(placed, is_first=True)

    def prefer(self, placed: Placed, target: Holder) -> None:
        """This replica is the preferred leader; it changes places with the one before."""
        place = placed.replicas.index(target.shape.broker_id)
        first = self.by_id[placed.replicas[0]]
        placed.replicas[0], placed.replicas[place] = placed.replicas[place], placed.replicas[0]
        first.lead(placed, is_first=False)
        target.lead(placed, is_first=True)


def _holder(shape: BrokerShape) -> Holder:
    return Holder(shape, Disks(shape.machine, shape.capacity_bytes, shape.reported_bytes, shape.free_bytes))


_LIKE_CAPACITIES = 1.5  # disks that differ by no more than this factor count as equal


def _weights(usable: list[Holder]) -> list[float]:
    """The share of each broker: equal ones, or where disks are of very different sizes in proportion to these."""
    capacities = [each.shape.capacity_bytes for each in usable]
    if not capacities or min(capacities) <= 0 or max(capacities) <= _LIKE_CAPACITIES * min(capacities):
        return [1 / len(usable)] * len(usable) if usable else []
    return [each / sum(capacities) for each in capacities]
