"""The newest offset of each key, in memory of a fixed size (F21).

A slot holds the hash of a key, 16 bytes, and an offset, 8 bytes: open addressing, linear probing, at most nine slots of
ten in use. Hashes and offsets are separate columns, because a key that is known already, the usual case, costs one look
at its hash and one write of its offset. Whole columns are put and looked up at once.

A map is filled first, then sealed and asked, then released. The sealed map has the newest offsets in their order. So a
record that was put is the newest of its key if its own offset is among them, and the copy needs neither its hash nor
its key. Only records before the first dirty offset are looked up by their hashes.

Offsets are put in rising order, so the last one put of a key is its newest. Invariants: a key that was put is found;
`put` says how far it got when there is no room left; a sealed map has as many offsets as keys. Kafka:
`SkimpyOffsetMap`, one for each thread, cleared for each use.
"""

from typing import NamedTuple

import numpy as np

from rayka.errors import InvariantBroken


class Slots(NamedTuple):
    """The columns of a map's slots. A slot without a key has the hash 0 and any offset. The last offset belongs to no
    slot.
    """

    hashes: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)


class MapMemory:
    """Keeps the slots of one map from one cleaning of the process to the next.

    The kernel gives memory page by page, and a virtual machine has to ask for it: 128 MiB took 14 to 160 ms, during
    which nothing else had the processor. To clear as much again takes 6 ms.
    """

    def __init__(self) -> None:
        self._kept: list[Slots] = []

    def take(self, slot_count: int, slots_max: int) -> Slots:
        """At least `slot_count` slots, of which the first `slot_count` have no key; never more than `slots_max`."""
        if self._kept and slot_count <= len(self._kept[0]) <= slots_max:
            slots = self._kept.pop()
            slots.hashes[:slot_count] = 0
            return slots
        # Before more memory is taken.
        self._kept.clear()
        return Slots(np.zeros((slot_count, 2), np.uint64), np.zeros(slot_count + 1, np.int64))

    def give_back(self, slots: Slots) -> None:
        """Keeps the slots for the next map, instead of those given back before."""
        self._kept = [slots]


MEMORY = MapMemory()


SLOT_BYTES = 24
_LOAD_MAX = 0.9
# If there is memory for it.
_LOAD_WANTED = 0.6
_HALF = np.uint64(32)
# Odd, its bits in no order.
_MIXER = np.uint64(0x9E37_79B9_7F4A_7C15)
# 16 bytes that numpy moves at once; never computed with.
_ONE_MOVE = np.complex128
# Two bools that are true.
_BOTH = np.uint16(0x0101)
# Slots.
_SEALED_AT_ONCE = 1 << 16


class OffsetMap:
    """Offsets by hash. `keys_max` bounds the keys to come, so that a small log takes little memory. There is room for
    at least one key: otherwise a cleaning would get no further, and begin again for ever.

    Hashes are rows of two uint64, of which the second is never 0; an empty slot has 0.
    """

    def __init__(self, size_bytes: int, keys_max: int) -> None:
        slots_max = max(2, size_bytes // SLOT_BYTES)
        slot_count = min(slots_max, int(keys_max / _LOAD_WANTED) + 2)
        self._slots = MEMORY.take(slot_count, slots_max)
        self._hashes = self._slots.hashes[:slot_count]
        self._whole_hashes = self._hashes.view(_ONE_MOVE).ravel()
        self._slot_count = slot_count
        # The last one belongs to no slot.
        self._offsets = self._slots.offsets[: slot_count + 1]
        # The offsets in use, rising; None until the map is sealed.
        self._newest: np.ndarray | None = None
        self.capacity = int(slot_count * _LOAD_MAX)
        self.key_count = 0

    def __repr__(self) -> str:
        return f"<OffsetMap keys={self.key_count}/{self.capacity}{' sealed' * (self._newest is not None)}>"

    def release(self) -> None:
        """Leaves the memory to the next map of this process. The map is not used any more."""
        MEMORY.give_back(self._slots)
        self._newest = None

    # ---- Filling it ----------------------------------------------------------------------------------------

    def put(self, hashes: np.ndarray, offsets: np.ndarray) -> int:
        """Puts records in their order; returns how many: all of them, unless the map is full then."""
        if self._newest is not None:
            raise InvariantBroken(f"{self!r} takes no more")
        put = 0
        while put < len(offsets) and self.key_count < self.capacity:
            # All of them may have new keys.
            stop = put + self.capacity - self.key_count
            self._put(hashes[put:stop], offsets[put:stop])
            put = min(stop, len(offsets))
        return put

    def _put(self, hashes: np.ndarray, offsets: np.ndarray) -> None:
        """Puts records while there is room for all. Most keys are found where their search begins; the search for the
        others goes on until each has a slot.
        """
        positions = self._first(hashes)
        found = self._at(positions)
        others = np.flatnonzero(~_same(found, hashes))
        own = positions.copy()
        # Written to the offset of no slot, which is cheaper than to pick the rest.
        own[others] = self._slot_count
        self._offsets[own] = offsets
        while len(others):
            positions, offsets = positions.take(others), offsets.take(others)
            hashes, found = _rows(hashes, others), _rows(found, others)
            is_used = found[:, 1] != 0
            empty = np.flatnonzero(~is_used)
            if len(empty):
                # Of several records that want one empty slot the last gets it, for its key.
                slots, put = positions.take(empty), offsets.take(empty)
                self._whole_hashes[slots] = _rows(hashes, empty).view(_ONE_MOVE).ravel()
                self._offsets[slots] = put
                self.key_count += int((self._offsets[slots] == put).sum())
            # A key that claimed a slot looks at it again.
            positions = positions + is_used
            positions[positions == self._slot_count] = 0
            found = self._at(positions)
            is_own = _same(found, hashes)
            own = np.flatnonzero(is_own)
            self._offsets[positions.take(own)] = offsets.take(own)
            others = np.flatnonzero(~is_own)

    # ---- Asking it -----------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Ends the filling. Takes no more memory. For a large map it takes some 10 ns a key, and releases the
        interpreter's lock.
        """
        count, slots = 0, self._offsets[:-1]
        for begin in range(0, self._slot_count, _SEALED_AT_ONCE):
            piece = slots[begin : begin + _SEALED_AT_ONCE]
            used = piece[self._hashes[begin : begin + _SEALED_AT_ONCE, 1] != 0]
            self._offsets[count : count + len(used)] = used
            count += len(used)
        if count != self.key_count:
            raise InvariantBroken(f"{self!r} has {count} slots in use")
        self._newest = self._offsets[:count]
        self._newest.sort()

    def newest_in(self, begin_offset: int, end_offset: int) -> np.ndarray:
        """The offsets in [begin_offset, end_offset) at which a key has its newest record, rising."""
        if self._newest is None:
            raise InvariantBroken(f"{self!r} is not sealed")
        first, stop = self._newest.searchsorted((begin_offset, end_offset))
        newest: np.ndarray = self._newest[first:stop]
        return newest

    def has(self, hashes: np.ndarray) -> np.ndarray:
        """True for each key that was put."""
        has = np.zeros(len(hashes), bool)
        wanted, positions = np.arange(len(hashes)), self._first(hashes)
        while len(wanted):
            found = self._at(positions)
            is_own = _same(found, hashes[wanted])
            has[wanted[is_own]] = True
            goes_on = ~is_own & (found[:, 1] != 0)
            wanted, positions = wanted[goes_on], (positions[goes_on] + 1) % self._slot_count
        return has

    # ---- Slots ---------------------------------------------------------------------------------------------

    def _first(self, hashes: np.ndarray) -> np.ndarray:
        """The slot where the search for each hash begins: the first half of the hash, mixed and scaled to the number of
        slots.

        Mixed, because hashes of consecutive keys lie at equal distances, and many of them could fall into the same few
        slots.
        """
        mixed = hashes[:, 0] * _MIXER
        mixed >>= _HALF
        mixed *= np.uint64(self._slot_count)
        mixed >>= _HALF
        first: np.ndarray = mixed.view(np.int64)
        return first

    def _at(self, positions: np.ndarray) -> np.ndarray:
        rows: np.ndarray = self._whole_hashes.take(positions).view(np.uint64).reshape(-1, 2)
        return rows


def _same(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether each slot has that hash; an empty slot has none."""
    same: np.ndarray = (found == wanted).view(np.uint16).ravel() == _BOTH
    return same


def _rows(hashes: np.ndarray, places: np.ndarray) -> np.ndarray:
    rows: np.ndarray = hashes.view(_ONE_MOVE).ravel().take(places).view(np.uint64).reshape(-1, 2)
    return rows
