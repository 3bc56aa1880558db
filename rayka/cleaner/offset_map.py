"""The newest offset of each key, in memory of a fixed size (F21).

A slot holds the hash of a key, 16 bytes, and an offset, 8 bytes: open addressing, linear probing, at most nine slots of
ten in use. Offsets are put in rising order, so the last one put of a key is its newest. Whole columns are put and
looked up at once. Invariant: a key that was put is found; when there is no room left, `put` says how far it got.
Kafka: `SkimpyOffsetMap`.
"""

import numpy as np

SLOT_BYTES = 24
_SLOT = np.dtype("V24")
NOT_FOUND = -1
_LOAD_MAX = 0.9
_HALF = np.uint64(32)
_OFFSET = (
    2  # the column of a slot behind the two of the hash: the offset plus one, so that 0 is an empty slot
)


class OffsetMap:
    """Offsets by hash. `keys_max`: no more keys will come, so that a small log takes little memory."""

    def __init__(self, size_bytes: int, keys_max: int) -> None:
        slot_count = min(size_bytes // SLOT_BYTES, int(keys_max / _LOAD_MAX) + 2)
        self._slots = np.zeros((slot_count, 3), np.uint64)
        self._whole = self._slots.view(_SLOT).ravel()  # a slot at once
        self._offsets = self._slots[:, _OFFSET]
        self.capacity = int(slot_count * _LOAD_MAX)
        self.key_count = 0

    def __repr__(self) -> str:
        return f"<OffsetMap keys={self.key_count}/{self.capacity}>"

    @property
    def size_bytes(self) -> int:
        return int(self._slots.nbytes)

    def put(self, hashes: np.ndarray, offsets: np.ndarray) -> int:
        """How many of these records were put, the first ones, in their order: all, unless the map is full then."""
        put = 0
        while put < len(offsets) and self.key_count < self.capacity:
            stop = put + self.capacity - self.key_count  # all of them may be new keys
            self._put(hashes[put:stop], offsets[put:stop])
            put = min(stop, len(offsets))
        return put

    def _put(self, hashes: np.ndarray, offsets: np.ndarray) -> None:
        rows = np.empty((len(offsets), 3), np.uint64)
        rows[:, :_OFFSET], rows[:, _OFFSET] = hashes, (offsets + 1).astype(np.uint64)
        positions = self._first(hashes)
        while len(rows):
            found = self._slots.take(positions, axis=0)
            # Of several rows that want one empty slot the last gets it, and with it those of its key, which are older.
            is_empty = found[:, _OFFSET] == 0
            if is_empty.any():
                claimed, wanted = positions[is_empty], rows[is_empty]
                self._whole[claimed] = wanted.view(_SLOT).ravel()
                found[is_empty] = winners = self._slots.take(claimed, axis=0)
                self.key_count += int((winners[:, _OFFSET] == wanted[:, _OFFSET]).sum())
            is_own = _same(found, rows)
            newer = is_own & ~is_empty
            self._offsets[positions[newer]] = rows[newer, _OFFSET]
            others = np.flatnonzero(~is_own)
            rows, positions = rows.take(others, axis=0), (positions[others] + 1) % len(self._slots)

    def latest(self, hashes: np.ndarray) -> np.ndarray:
        """The newest offset of each, int64; NOT_FOUND where the key was not put."""
        latest = np.full(len(hashes), NOT_FOUND, np.int64)
        wanted, positions = np.arange(len(hashes)), self._first(hashes)
        while len(wanted):
            found = self._slots.take(positions, axis=0)
            is_own = _same(found, hashes[wanted])
            latest[wanted[is_own]] = found[is_own, _OFFSET].astype(np.int64) - 1
            goes_on = ~is_own & (found[:, _OFFSET] != 0)
            wanted, positions = wanted[goes_on], (positions[goes_on] + 1) % len(self._slots)
        return latest

    def _first(self, hashes: np.ndarray) -> np.ndarray:
        """Where the search for each begins: the upper half of the hash, scaled to the number of slots."""
        return (((hashes[:, 0] >> _HALF) * np.uint64(len(self._slots))) >> _HALF).astype(np.int64)


def _same(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Whether each slot is of that hash; one that is empty is of none."""
    is_hash = (found[:, 0] == wanted[:, 0]) & (found[:, 1] == wanted[:, 1])
    same: np.ndarray = is_hash & (found[:, _OFFSET] != 0)
    return same
