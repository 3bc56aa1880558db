"""Distributes partitions so that loads are as even as possible, with few moves.

A pool holds the partitions of all topics with the same subscribers; each subscriber may hold any of them. The move of a
partition to another subscriber of its pool changes two loads. Moves may form a chain through several pools: the load at
the one end falls, the load at the other end, lower by two or more, rises. Without such a chain the loads are the most
even ones possible (an optimal semi-matching): they differ by at most one wherever the subscriptions allow it.

Three steps: free partitions go to the least loaded members, rare partitions first; each pool is levelled as a whole,
repeatedly; chains improve the rest. A member that holds no more than its share of a pool keeps its partitions. The
order of members and partitions decides all ties.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from rayka.ids import TopicPartition

# Sweeps get slower and slower; after so many, chains do the rest.
_SWEEPS_MAX = 64


@dataclass(slots=True)
class Pool:
    """The partitions of all topics with the same subscribers."""

    # By the number of each subscriber.
    held: dict[int, list[TopicPartition]]
    free: list[TopicPartition] = field(default_factory=list)


class EvenLoads:
    """The loads of the members over all pools. The pool with the fewest subscribers comes first."""

    def __init__(self, member_count: int, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._loads = [0] * member_count
        self._pools_of: list[list[Pool]] = [[] for _ in range(member_count)]
        for pool in pools:
            for member, partitions in pool.held.items():
                self._loads[member] += len(partitions)
                self._pools_of[member].append(pool)

    def held(self) -> list[list[TopicPartition]]:
        """The partitions of each member, in order."""
        held: list[list[TopicPartition]] = [[] for _ in self._loads]
        for pool in self._pools:
            for member, partitions in pool.held.items():
                held[member] += partitions
        for partitions in held:
            partitions.sort(key=lambda each: (each.topic, each.partition))
        return held

    def deal_out(self) -> None:
        """Gives each free partition to the subscriber with the least load."""
        for pool in self._pools:
            heap = [(self._loads[member], member) for member in pool.held]
            heapify(heap)
            for partition in pool.free:
                load, member = heap[0]
                pool.held[member].append(partition)
                self._loads[member] = load + 1
                heapreplace(heap, (load + 1, member))
            pool.free = []

    def level(self) -> None:
        """Moves partitions until no chain of moves makes the loads more even."""
        for _ in range(_SWEEPS_MAX):
            if not sum(self._level_pool(pool) for pool in self._pools):
                break
        settled: set[int] = set()
        while (chain := self._next_chain(settled)) is not None:
            for pool, giver, taker in chain:
                pool.held[taker].append(self._hand_on(pool, giver, taker))
            self._loads[chain[0][1]] -= 1
            self._loads[chain[-1][2]] += 1

    # ---- One pool ----------------------------------------------------------------------------------------------------

    def _level_pool(self, pool: Pool) -> int:
        """Levels one pool with the others as they are. Returns the number of moved partitions."""
        shares = self._shares(pool)
        released: list[TopicPartition] = []
        for member, partitions in pool.held.items():
            too_many = len(partitions) - shares[member]
            if too_many > 0:
                released += self._release(member, partitions, too_many)
                self._loads[member] -= too_many
        moved = len(released)
        for member, partitions in pool.held.items():
            missing = shares[member] - len(partitions)
            if missing > 0:
                partitions.extend(self._take(member, released, missing))
                self._loads[member] += missing
        return moved

    def _shares(self, pool: Pool) -> dict[int, int]:
        """The number of partitions of the pool for each member.

        The shares fill the loads like water, up to a level, and some members get one more. Members above the level have
        the first right to the one more.
        """
        elsewhere = {member: self._loads[member] - len(held) for member, held in pool.held.items()}
        total = sum(len(held) for held in pool.held.values())
        level, rest = _water_level(sorted(elsewhere.values()), total)
        shares = {member: max(0, level - load) for member, load in elsewhere.items()}
        at_level = [member for member, load in elsewhere.items() if load <= level]
        at_level.sort(key=lambda member: self._loads[member] <= level)
        for member in at_level[:rest]:
            shares[member] += 1
        return shares

    # ---- Choice of partitions: the partitions of a pool are alike ----------------------------------------------------

    def _release(self, member: int, partitions: list[TopicPartition], count: int) -> list[TopicPartition]:
        """Removes `count` of the member's partitions of a pool and returns them."""
        released = partitions[-count:]
        del partitions[-count:]
        return released

    def _take(self, member: int, released: list[TopicPartition], count: int) -> list[TopicPartition]:
        """Removes `count` of the released partitions for the member and returns them."""
        taken = released[:count]
        del released[:count]
        return taken

    def _hand_on(self, pool: Pool, giver: int, taker: int) -> TopicPartition:
        """Removes one partition of the giver for the taker and returns it."""
        return pool.held[giver].pop()

    # ---- Chains ------------------------------------------------------------------------------------------------------

    def _next_chain(self, settled: set[int]) -> list[tuple[Pool, int, int]] | None:
        """The moves of a chain from a high load to one lower by two or more; None without a chain.

        `settled` collects the members from which no chain begins. Moves of other members never change that, because no
        chain leads to a member that a settled one reaches.
        """
        while True:
            open_members = [each for each in range(len(self._loads)) if each not in settled]
            if not open_members:
                return None
            first = max(open_members, key=lambda member: (self._loads[member], -member))
            came_by: dict[int, tuple[Pool, int, int]] = {}
            for member in self._reached(first, settled, came_by):
                if self._loads[member] <= self._loads[first] - 2:
                    moves = [came_by[member]]
                    while moves[-1][1] != first:
                        moves.append(came_by[moves[-1][1]])
                    return moves[::-1]
            settled.update(came_by, [first])

    def _reached(
        self, first: int, settled: set[int], came_by: dict[int, tuple[Pool, int, int]]
    ) -> Iterator[int]:
        """Yields the members that a chain of moves from the first member reaches, the nearest first.

        `came_by` holds the last move to each member.
        """
        queue, seen_pools = [first], set[int]()
        for giver in queue:
            for pool in self._pools_of[giver]:
                if not pool.held[giver] or id(pool) in seen_pools:
                    continue
                seen_pools.add(id(pool))
                for taker in pool.held:
                    if taker != first and taker not in came_by and taker not in settled:
                        came_by[taker] = (pool, giver, taker)
                        queue.append(taker)
                        yield taker


def _water_level(loads: Sequence[int], total: int) -> tuple[int, int]:
    """The level to which `total` fills the lowest of the ascending loads, and the rest, too small for one more each."""
    level = loads[0]
    for count, load in enumerate(loads[1:], 1):
        room = (load - level) * count
        if room > total:
            return level + total // count, total % count
        level, total = load, total - room
    return level + total // len(loads), total % len(loads)
