"""Partitions dealt out so that loads are as even as they can be, with few moves.

A pool is the partitions of all topics with the same subscribers: each may be held by any of them. Moving one partition
from a member to another of its pool changes two loads; moves may form a chain through several pools, at whose end a
load that is higher by two or more has fallen and the lower one has risen. When there is no such chain left the loads
are the most even ones there are (an optimal semi-matching), so they differ by at most one wherever that is possible.

Three steps: what is free goes to the least loaded, rare partitions first; each pool is levelled as a whole, again and
again; what only chains can improve is moved along chains. A member that holds no more than its share of a pool keeps
what it holds there. The order of members and partitions decides all ties.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from rayka.ids import TopicPartition

_SWEEPS_MAX = 64  # beyond that, chains end what sweeps would do ever more slowly


@dataclass(slots=True)
class Pool:
    """What each subscriber holds of it, by the subscriber's number, and what is free."""

    held: dict[int, list[TopicPartition]]
    free: list[TopicPartition] = field(default_factory=list)


class EvenLoads:
    """The members' loads over all pools; the pool with the fewest subscribers comes first."""

    def __init__(self, member_count: int, pools: Sequence[Pool]) -> None:
        self._pools = pools
        self._loads = [0] * member_count
        self._pools_of: list[list[Pool]] = [[] for _ in range(member_count)]
        for pool in pools:
            for member, partitions in pool.held.items():
                self._loads[member] += len(partitions)
                self._pools_of[member].append(pool)

    def __repr__(self) -> str:
        return f"<EvenLoads {self._loads}>"

    def held(self) -> list[list[TopicPartition]]:
        """What each member holds, in order."""
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
        """Levels one pool, the others left as they are; how many partitions that moved."""
        shares = self._shares(pool)
        given: list[TopicPartition] = []
        for member, partitions in pool.held.items():
            too_many = len(partitions) - shares[member]
            if too_many > 0:
                given += self._give_up(member, partitions, too_many)
                self._loads[member] -= too_many
        moved = len(given)
        for member, partitions in pool.held.items():
            missing = shares[member] - len(partitions)
            if missing > 0:
                partitions.extend(self._take(member, given, missing))
                self._loads[member] += missing
        return moved

    def _shares(self, pool: Pool) -> dict[int, int]:
        """How many of the pool each is to hold: filled like water, up to a level and for some one more. Those that
        hold more than the level have the first right to that one.
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

    # ---- Which partitions: those of a pool are alike -----------------------------------------------------------------

    def _give_up(self, member: int, partitions: list[TopicPartition], count: int) -> list[TopicPartition]:
        """Takes so many away from what the member holds of a pool."""
        given = partitions[-count:]
        del partitions[-count:]
        return given

    def _take(self, member: int, given: list[TopicPartition], count: int) -> list[TopicPartition]:
        """Takes so many for the member of what others have given up."""
        taken = given[:count]
        del given[:count]
        return taken

    def _hand_on(self, pool: Pool, giver: int, taker: int) -> TopicPartition:
        """Takes one of what the giver holds for the taker."""
        return pool.held[giver].pop()

    # ---- Chains ------------------------------------------------------------------------------------------------------

    def _next_chain(self, settled: set[int]) -> list[tuple[Pool, int, int]] | None:
        """Moves that end at a load lower by two or more. `settled` collects the members from which no chain begins:
        nothing that others move can change that, since no chain leads to what such a member reaches.
        """
        while True:
            open_members = [each for each in range(len(self._loads)) if each not in settled]
            if not open_members:
                return None
            first = max(open_members, key=lambda member: (self._loads[member], -member))
            came_by: dict[int, tuple[Pool, int, int]] = {}
            for member in self._reached(first, settled, came_by):
                if self._loads[member] <= self._loads[first] - 2:
                    return _moves_to(member, first, came_by)
            settled.update(came_by, [first])

    def _reached(
        self, first: int, settled: set[int], came_by: dict[int, tuple[Pool, int, int]]
    ) -> Iterator[int]:
        """The members that can get a partition of the first one's, through others, the nearest first; `came_by` says
        how each was reached.
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
    """The level up to which so much fills the lowest of these ascending loads, and what is left, too little for all
    of them.
    """
    level = loads[0]
    for count, load in enumerate(loads[1:], 1):
        room = (load - level) * count
        if room > total:
            return level + total // count, total % count
        level, total = load, total - room
    return level + total // len(loads), total % len(loads)


def _moves_to(
    last: int, first: int, came_by: dict[int, tuple[Pool, int, int]]
) -> list[tuple[Pool, int, int]]:
    moves: list[tuple[Pool, int, int]] = []
    member = last
    while member != first:
        moves.append(came_by[member])
        member = came_by[member][1]
    return moves[::-1]
