"""Memory to receive into: a scratch buffer for all streams of an event loop, and reusable blocks for large payloads.

**Blocks.** Fresh memory costs up to ten times the copy into it: the system clears each page, and the C library soon
gives freed memory back. A block is free when no view of the payload in it is left, in whatever thread the last view
ends. Invariants: a block is not used again before the array that was taken and all its views are gone; the memory of
free blocks is bounded. Kafka: `MemoryPool`.

**Unfinished frames.** Bounds the memory of frames that are not whole yet. Invariants: reserved memory stays below the
bound, but for the frame that reaches the bound, so that a frame of the largest size gets its turn; waiting frames begin
in the order of their arrival. Kafka: `SimpleMemoryPool`, `queued.max.request.bytes`.
"""

import math
import weakref
from collections import deque
from typing import Protocol

import numpy as np

SCRATCH_BYTES = 64 << 10
# Smaller blocks are kept by the C library itself.
_BLOCK_BYTES_MIN, _BLOCK_BYTES_MAX = 1 << 20, 16 << 20
# Free blocks of each size; sizes are powers of two.
FREE_BYTES_MAX = 16 << 20


class FrameReceiver(Protocol):
    """Receives one frame at a time."""

    def on_memory_free(self) -> None:
        """Called when there is memory for the waiting frame."""


class UnfinishedFrames:
    """The memory that the unfinished frames of one event loop hold, and the frames that wait for memory."""

    def __init__(self, bytes_max: float = math.inf) -> None:
        self._bytes_max = bytes_max
        # Bytes of the frame of each receiver.
        self._held: dict[FrameReceiver, int] = {}
        # The first is the next to begin.
        self._waiting: dict[FrameReceiver, int] = {}
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"<UnfinishedFrames {self.held_bytes} bytes waiting={len(self._waiting)}>"

    @property
    def has_waiting(self) -> bool:
        """Whether a frame waits for memory."""
        return bool(self._waiting)

    def reserve(self, holder: FrameReceiver, size: int) -> bool:
        """Reserves memory for a frame. False: the frame waits, and `holder.on_memory_free` will be called."""
        if self._waiting or self.held_bytes >= self._bytes_max:
            self._waiting[holder] = size
            return False
        self._hold(holder, size)
        return True

    def release(self, holder: FrameReceiver) -> None:
        """Releases the memory of a frame that is whole or will never be, and begins waiting frames."""
        self._waiting.pop(holder, None)
        self.held_bytes -= self._held.pop(holder, 0)
        while self._waiting and self.held_bytes < self._bytes_max:
            first = next(iter(self._waiting))
            self._hold(first, self._waiting.pop(first))
            first.on_memory_free()

    def _hold(self, holder: FrameReceiver, size: int) -> None:
        self._held[holder] = size
        self.held_bytes += size


class ReceiveMemory:
    """The memory that the streams of one event loop receive into."""

    def __init__(self, scratch_bytes: int = SCRATCH_BYTES, *, unfinished_bytes_max: float = math.inf) -> None:
        self.unfinished = UnfinishedFrames(unfinished_bytes_max)
        self.scratch = memoryview(bytearray(scratch_bytes))
        self._free: dict[int, deque[np.ndarray]] = {}

    @property
    def free_bytes(self) -> int:
        """The memory of free blocks."""
        return sum(size * len(blocks) for size, blocks in self._free.items())

    def take(self, size: int) -> np.ndarray:
        """An array of `size` bytes to receive into."""
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
        # By a memoryview: views of a sliced array would refer to the block itself and not keep `taken` alive.
        taken = np.frombuffer(block.data[:size], dtype=np.uint8)
        weakref.finalize(taken, free.append, block).atexit = False
        return taken
