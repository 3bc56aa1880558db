"""The memory of maps, kept from one cleaning to the next of a process.

The kernel gives memory page by page, and a virtual machine has to ask for it: 128 MiB took 14 to 160 ms, during which
nothing else had the processor. To clear as much again takes 6. Kafka: a thread's `SkimpyOffsetMap`, cleared each time.
"""

from typing import NamedTuple

import numpy as np


class Slots(NamedTuple):
    """The columns of a map's slots. One without a key has the hash 0, and any offset; the last offset is no slot's."""

    hashes: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)


class MapMemory:
    """Keeps the slots of one map at most."""

    def __init__(self) -> None:
        self._kept: list[Slots] = []

    def __repr__(self) -> str:
        return f"<MapMemory kept={[len(each) for each in self._kept]}>"

    def take(self, slot_count: int, slots_max: int) -> Slots:
        """So many slots or more, of which the first so many have no key; never more than `slots_max`."""
        if self._kept and slot_count <= len(self._kept[0]) <= slots_max:
            slots = self._kept.pop()
            slots.hashes[:slot_count] = 0
            return slots
        self._kept.clear()  # before there is more
        return Slots(np.zeros((slot_count, 2), np.uint64), np.zeros(slot_count + 1, np.int64))

    def give_back(self, slots: Slots) -> None:
        """Of several the next map has the last."""
        self._kept = [slots]


MEMORY = MapMemory()
