"""Loads as even as `EvenLoads` makes them, and partitions near to their readers, which have a replica in their rack.

A group that holds nothing yet deals out partitions to members near to them first, those with the fewest such members
before the others. At the end members exchange what is far, as long as that brings more partitions near and leaves all
loads as even as they are, so a result that comes back as what members hold stays as it is. Evenness comes first, as in
Kafka; a member without a rack is near to everything, and gets what is left.

A cooperative group (`is_cooperative`) exchanges what members hold only where nothing is free. What it has exchanged is
free in the rebalance that follows, and were something exchanged again there, rebalances might go on for ever: then only
what was free is placed. Kafka: `AbstractStickyAssignor.RackInfo`, KIP-881 (E9).
"""

from collections.abc import Callable, Container, Sequence
from heapq import heapify, heapreplace

from rayka.coordinator.assignors.assignor import RacksByTopic
from rayka.coordinator.assignors.even_loads import EvenLoads, Pool
from rayka.ids import TopicPartition

_Racks = tuple[str, ...]
_Cell = tuple[int, _Racks]  # partitions of one pool with replicas in the same racks


class NearLoads(EvenLoads):
    """See the module; `member_racks` by number, empty for a member that names none."""

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
        self._owned = {each for pool in pools for held in pool.held.values() for each in held}
        are_all_owned = not any(pool.free for pool in pools)
        self._fixed = self._owned if is_cooperative and not are_all_owned else set[TopicPartition]()

    def deal_out(self) -> None:
        """Also gives the partitions of a group that holds nothing to members near to them."""
        if not self._owned:
            for pool in self._pools:
                self._deal_out_near(pool)
        super().deal_out()

    def level(self) -> None:
        """Also exchanges what is far, once the loads are even."""
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
                pool.held[self._least_loaded(heap)].append(partition)
            else:
                left.append(partition)
        pool.free = left

    def _least_loaded(self, heap: list[tuple[int, int]]) -> int:
        """The first member of the heap, with a load that is one more now."""
        while heap[0][0] != self._loads[heap[0][1]]:  # another partition was given to it meanwhile
            heapreplace(heap, (self._loads[heap[0][1]], heap[0][1]))
        load, member = heap[0]
        heapreplace(heap, (load + 1, member))
        self._loads[member] = load + 1
        return member

    # ---- Which partitions: first those that no member has read yet ---------------------------------------------------

    def _give_up(self, member: int, partitions: list[TopicPartition], count: int) -> list[TopicPartition]:
        ranks = [(each in self._owned, self._is_near(member, each)) for each in partitions]
        given, partitions[:] = _split(partitions, count, ranks)
        return given

    def _take(self, member: int, given: list[TopicPartition], count: int) -> list[TopicPartition]:
        taken, given[:] = _split(given, count, [(not self._is_near(member, each),) for each in given])
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
    """So many of them, the lowest ranks first, and the rest; both in order."""
    order = sorted(range(len(partitions)), key=ranks.__getitem__)
    chosen, rest = sorted(order[:count]), sorted(order[count:])
    return [partitions[index] for index in chosen], [partitions[index] for index in rest]


class _Exchange:
    """Brings partitions near to their readers, in moves and swaps that leave the loads as even as they are."""

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
        self._cells: list[dict[_Cell, list[TopicPartition]]] = [{} for _ in loads]
        self._far: list[dict[_Cell, None]] = [{} for _ in loads]  # what each holds that is far from it
        # What each holds, by its racks.
        self._in_rack: list[dict[str, dict[_Cell, None]]] = [{} for _ in loads]
        self._near_members: dict[_Cell, list[int]] = {}

    def run(self, fixed: Container[TopicPartition]) -> None:
        """Ends with nothing that one more move or swap would better; what is fixed stays."""
        for index, pool in enumerate(self._pools):
            for member, partitions in pool.held.items():
                for partition in partitions:
                    if partition not in fixed:
                        self._add(member, (index, self._racks_of(partition)), partition)
                partitions[:] = [each for each in partitions if each in fixed]
        while sum(self._better(member) for member in range(len(self._loads))):
            pass
        for member, cells in enumerate(self._cells):
            for (index, _), partitions in cells.items():
                self._pools[index].held[member] += partitions

    def _better(self, member: int) -> bool:
        """Finds nearer readers for what is far from this one; whether it found any."""
        has_found = False
        for cell in list(self._far[member]):
            while cell in self._far[member] and self._bring_near(member, cell):
                has_found = True
        return has_found

    def _bring_near(self, member: int, cell: _Cell) -> bool:
        """One partition of this cell, which is far from the member, goes to one that is near."""
        near = self._near(cell)
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
        """What the other may give the member: best what is far from it and near to the member, else one of both."""
        rack = self._member_racks[member]
        open_cells = [each for each in self._far[other] if member in self._pools[each[0]].held]
        found = next((each for each in open_cells if rack in each[1]), None)
        if found is None and open_cells:
            found = open_cells[0]
        if found is None:
            in_rack = self._in_rack[other].get(rack, {})
            found = next((each for each in in_rack if member in self._pools[each[0]].held), None)
        return found

    def _near(self, cell: _Cell) -> list[int]:
        if cell not in self._near_members:
            index, racks = cell
            members = self._pools[index].held
            self._near_members[cell] = [each for each in members if self._is_near(each, racks)]
        return self._near_members[cell]

    def _is_near(self, member: int, racks: _Racks) -> bool:
        rack = self._member_racks[member]
        return not rack or rack in racks

    # ---- What each holds ---------------------------------------------------------------------------------------------

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
