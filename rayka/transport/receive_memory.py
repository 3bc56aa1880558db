"""Memory to receive into: a scratch buffer for all streams of an event loop, and blocks for large payloads, used again.

Fresh memory costs up to ten times what the copy into it does: the system clears each page, and the C library gives what
is freed back soon. A block is free when nothing refers any more to what was received into it, in whatever thread the
last view ends. Invariants: a block is not used again before the array that was taken and all views of it are gone; what
is kept free is bounded. Kafka: `MemoryPool`.
"""

import math
import weakref
from collections import deque
from typing import Protocol

import numpy as np

# How much memory the streams of one event loop set aside for frames that are not whole yet, and which comes next.
#
# Invariants: what is set aside stays below the bound, but for the frame that reaches it: so one of the
# largest size gets its turn, too; what waits is let in by the order of its arrival. Kafka:
# `SimpleMemoryPool`, `queued.max.request.bytes`.


class FrameReceiver(Protocol):
    """What receives one frame at a time."""

    def on_room(self) -> None:
        """There is room for its frame, which waited."""


class UnfinishedFrames:
    """See the module."""

    def __init__(self, bytes_max: float = math.inf) -> None:
        self._bytes_max = bytes_max
        self._held: dict[FrameReceiver, int] = {}
        self._waiting: dict[FrameReceiver, int] = {}
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<UnfinishedFrames {self.held_bytes} bytes waiting={len(self._waiting)}>"

    @property
    def is_short(self) -> bool:
        """Whether a frame waits for room."""
        return bool(self._waiting)

    def take(self, holder: FrameReceiver, size: int) -> bool:
        """Whether a frame may be received now; else `holder.on_room` is called when it may."""
        if self._waiting or self.held_bytes >= self._bytes_max:
            self._waiting[holder] = size
            return False
        self._let_in(holder, size)
        return True

    def give_back(self, holder: FrameReceiver) -> None:
        """Its frame is whole, or will never be; the next ones get its room."""
        self._waiting.pop(holder, None)
        self.held_bytes -= self._held.pop(holder, 0)
        while self._waiting and self.held_bytes < self._bytes_max:
            first = next(iter(self._waiting))
            self._let_in(first, self._waiting.pop(first))
            first.on_room()

    def _let_in(self, holder: FrameReceiver, size: int) -> None:
        self._held[holder] = size
        self.held_bytes += size


SCRATCH_BYTES = 64 << 10
_BLOCK_BYTES_MIN, _BLOCK_BYTES_MAX = 1 << 20, 16 << 20  # the C library keeps less by itself
FREE_BYTES_MAX = 16 << 20  # of each size; sizes are powers of two


class ReceiveMemory:
    """See the module. Shared by the streams of one event loop."""

    def __init__(self, scratch_bytes: int = SCRATCH_BYTES, *, unfinished_bytes_max: float = math.inf) -> None:
        self.unfinished = UnfinishedFrames(unfinished_bytes_max)
        self.scratch = memoryview(bytearray(scratch_bytes))
        self._free: dict[int, deque[np.ndarray]] = {}

    def __repr__(self) -> str:
        return f"<ReceiveMemory free={self.free_bytes}>"

    @property
    def free_bytes(self) -> int:
        """What is kept for the next payloads."""
        return sum(size * len(blocks) for size, blocks in self._free.items())

    def take(self, size: int) -> np.ndarray:
        """An array of so many bytes, to be written to."""
        block_bytes = 1 << max(0, size - 1).bit_length()
        if not _BLOCK_BYTES_MIN <= block_bytes <= _BLOCK_BYTES_MAX:
            return np.empty(size, dtype=np.uint8)
        free = self._free.get(block_bytes)
        if free is None:
            free = self._free[block_bytes] = deque(maxlen=FREE_BYTES_MAX // block_bytes)
        try:
            block = free.pop()
        except IndexError:
            block = np.empty(block_bytes, dtype=np.uint8)
        # Over a memoryview: views of an array that is a view itself would refer to the block, past this one.
        taken = np.frombuffer(block.data[:size], dtype=np.uint8)
        weakref.finalize(taken, free.append, block).atexit = False
        return taken
