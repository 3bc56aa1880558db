"""Distributes partitions as evenly as `EvenLoads`, and near to their readers, with a replica in the reader's rack.

A group that holds nothing yet first gives partitions to members near to them; partitions with the fewest near members
come first. At the end members exchange far partitions, as long as an exchange brings more partitions near and keeps the
loads. So an assignment that the members already hold stays as it is. Evenness comes first, like in Kafka. A member
without a rack is near to everything and gets the rest.

A cooperative group (`is_cooperative`) exchanges held partitions only if no partition is free. The exchanged partitions
are free in the next rebalance. Another exchange there might let rebalances go on for ever, so that rebalance places
free partitions only. Kafka: `AbstractStickyAssignor.RackInfo`, KIP-881 (E9).
"""

from collections.abc import Callable, Container, Sequence
from heapq import heapify, heapreplace

from rayka.coordinator.assignors.even_loads import EvenLoads, Pool
from rayka.coordinator.assignors.subscribers import RacksByTopic
from rayka.ids import TopicPartition

_Racks = tuple[str, ...]
# The partitions of one pool, by its number, with replicas in the same racks.
_Cell = tuple[int, _Racks]


class NearLoads(EvenLoads):
    """The loads of members with racks. `member_racks` is by number of the member, empty for a member without a rack."""

    def __init__(
        self,
        member_racks: Sequence[str],
        pools: Sequence[Pool],
        racks: RacksByTopic,
        *,
        is_cooperative: bool = False,
    ) -> None:
        super().__init__(len(member_racks), pools)
        self._member_racks = member_racks
        self._racks = racks
        # Members read these partitions now.
        self._owned = {each for pool in pools for held in pool.held.values() for each in held}
        are_all_owned = not any(pool.free for pool in pools)
        # Partitions that no exchange may move.
        self._fixed = self._owned if is_cooperative and not are_all_owned else set[TopicPartition]()

    def deal_out(self) -> None:
        """Gives the partitions of a group that holds nothing to near members first."""
        if not self._owned:
            for pool in self._pools:
                self._deal_out_near(pool)
        super().deal_out()

    def level(self) -> None:
        """Evens the loads, then exchanges far partitions."""
        super().level()
        _Exchange(self._member_racks, self._pools, self._loads, self._racks_of).run(self._fixed)

    def _deal_out_near(self, pool: Pool) -> None:
        near: dict[_Racks, list[tuple[int, int]]] = {}
        for racks in dict.fromkeys(map(self._racks_of, pool.free)):
            members = [each for each in pool.held if self._member_racks[each] in racks]
            near[racks] = [(self._loads[each], each) for each in members]
            heapify(near[racks])
        left = []
        for partition in sorted(pool.free, key=lambda each: len(near[self._racks_of(each)])):
            heap = near[self._racks_of(partition)]
            if heap:
                # The load of a member is out of date if it got a partition with other racks.
                while heap[0][0] != self._loads[heap[0][1]]:
                    heapreplace(heap, (self._loads[heap[0][1]], heap[0][1]))
                load, member = heap[0]
                heapreplace(heap, (load + 1, member))
                self._loads[member] = load + 1
                pool.held[member].append(partition)
            else:
                left.append(partition)
        pool.free = left

    # ---- Choice of partitions: first those that no member has read yet -----------------------------------------------

    def _release(self, member: int, partitions: list[TopicPartition], count: int) -> list[TopicPartition]:
        ranks = [(each in self._owned, self._is_near(member, each)) for each in partitions]
        released, partitions[:] = _split(partitions, count, ranks)
        return released

    def _take(self, member: int, released: list[TopicPartition], count: int) -> list[TopicPartition]:
        ranks = [(not self._is_near(member, each),) for each in released]
        taken, released[:] = _split(released, count, ranks)
        return taken

    def _hand_on(self, pool: Pool, giver: int, taker: int) -> TopicPartition:
        def rank(partition: TopicPartition) -> tuple[bool, int]:
            loss = self._is_near(giver, partition) - self._is_near(taker, partition)
            return partition in self._owned, loss

        chosen = min(pool.held[giver], key=rank)
        pool.held[giver].remove(chosen)
        return chosen

    def _is_near(self, member: int, partition: TopicPartition) -> bool:
        rack = self._member_racks[member]
        return not rack or rack in self._racks_of(partition)

    def _racks_of(self, partition: TopicPartition) -> _Racks:
        racks = self._racks.get(partition.topic, ())
        return racks[partition.partition] if partition.partition < len(racks) else ()


def _split(
    partitions: Sequence[TopicPartition], count: int, ranks: Sequence[tuple[bool, ...]]
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The `count` partitions with the lowest ranks, and the rest; both in order."""
    order = sorted(range(len(partitions)), key=ranks.__getitem__)
    chosen, rest = sorted(order[:count]), sorted(order[count:])
    return [partitions[index] for index in chosen], [partitions[index] for index in rest]


class _Exchange:
    """Brings partitions near to their readers, by moves and swaps that keep the loads as even as they are."""

    def __init__(
        self,
        member_racks: Sequence[str],
        pools: Sequence[Pool],
        loads: list[int],
        racks_of: Callable[[TopicPartition], _Racks],
    ) -> None:
        self._member_racks = member_racks
        self._pools = pools
        self._loads = loads
        self._racks_of = racks_of
        # The movable partitions of each member.
        self._cells: list[dict[_Cell, list[TopicPartition]]] = [{} for _ in loads]
        # The cells of each member that are far from it.
        self._far: list[dict[_Cell, None]] = [{} for _ in loads]
        # The cells of each member by rack.
        self._in_rack: list[dict[str, dict[_Cell, None]]] = [{} for _ in loads]
        self._near_members: dict[_Cell, list[int]] = {}

    def run(self, fixed: Container[TopicPartition]) -> None:
        """Exchanges until no move or swap brings another partition near. The `fixed` partitions stay."""
        for index, pool in enumerate(self._pools):
            for member, partitions in pool.held.items():
                for partition in partitions:
                    if partition not in fixed:
                        self._add(member, (index, self._racks_of(partition)), partition)
                partitions[:] = [each for each in partitions if each in fixed]
        while sum(self._improve(member) for member in range(len(self._loads))):
            pass
        for member, cells in enumerate(self._cells):
            for (index, _), partitions in cells.items():
                self._pools[index].held[member] += partitions

    def _improve(self, member: int) -> bool:
        """Finds nearer readers for the member's far partitions; True if it found any."""
        has_found = False
        for cell in list(self._far[member]):
            while cell in self._far[member] and self._bring_near(member, cell):
                has_found = True
        return has_found

    def _bring_near(self, member: int, cell: _Cell) -> bool:
        """Moves one partition of a far cell to a near member, or swaps it with one; False if no member can take it."""
        if cell not in self._near_members:
            index, racks = cell
            members = self._pools[index].held
            self._near_members[cell] = [each for each in members if self._is_near(each, racks)]
        near = self._near_members[cell]
        if not near:
            return False
        least = min(near, key=lambda each: self._loads[each])
        if self._loads[least] < self._loads[member]:
            self._move(cell, member, least)
            self._loads[member] -= 1
            self._loads[least] += 1
            return True
        for other in near:
            if (back := self._in_return(member, other)) is not None:
                self._move(cell, member, other)
                self._move(back, other, member)
                return True
        return False

    def _in_return(self, member: int, other: int) -> _Cell | None:
        """The cell that `other` gives in return: one far from it and near to the member, or else one of the two."""
        rack = self._member_racks[member]
        open_cells = [each for each in self._far[other] if member in self._pools[each[0]].held]
        found = next((each for each in open_cells if rack in each[1]), None)
        if found is None and open_cells:
            found = open_cells[0]
        if found is None:
            in_rack = self._in_rack[other].get(rack, {})
            found = next((each for each in in_rack if member in self._pools[each[0]].held), None)
        return found

    def _is_near(self, member: int, racks: _Racks) -> bool:
        rack = self._member_racks[member]
        return not rack or rack in racks

    # ---- Moves -------------------------------------------------------------------------------------------------------

    def _move(self, cell: _Cell, giver: int, taker: int) -> None:
        partitions = self._cells[giver][cell]
        self._add(taker, cell, partitions.pop())
        if not partitions:
            del self._cells[giver][cell]
            self._far[giver].pop(cell, None)
            for rack in cell[1]:
                del self._in_rack[giver][rack][cell]

    def _add(self, member: int, cell: _Cell, partition: TopicPartition) -> None:
        if cell not in self._cells[member]:
            self._cells[member][cell] = []
            if not self._is_near(member, cell[1]):
                self._far[member][cell] = None
            for rack in cell[1]:
                self._in_rack[member].setdefault(rack, {})[cell] = None
        self._cells[member][cell].append(partition)
