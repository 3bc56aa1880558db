"""The memory that a producer's batches have set aside.

Invariants: what is set aside for new records never exceeds the limit; the sum is that of `granted_bytes` of the batches
that are not done, also after a KeyboardInterrupt between any two steps; while others wait in line, no append sets
memory aside before them. Kafka: BufferPool.
"""

from collections.abc import Callable, Iterable

from rayka.client.producer.memory_line import MemoryLine
from rayka.client.producer.producer_batch import ProducerBatch


class BufferPool:
    """See the module. `batches` returns those that are not done. Guarded by the lock of its accumulator."""

    def __init__(
        self, memory_bytes: int, batches: Callable[[], Iterable[ProducerBatch]], line: MemoryLine
    ) -> None:
        self._memory_bytes = memory_bytes
        self._line = line
        self._batches = batches
        self._used_bytes = 0
        self._is_count_torn = False  # an exception came between the two steps of counting

    def __repr__(self) -> str:
        return f"<BufferPool {self.used_bytes} of {self._memory_bytes}>"

    @property
    def used_bytes(self) -> int:
        """Memory set aside."""
        if self._is_count_torn:
            self._used_bytes = sum(each.granted_bytes for each in self._batches())
            self._is_count_torn = False
        return self._used_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Whether the append that is under way may set that much memory aside."""
        return self.used_bytes + size_bytes <= self._memory_bytes and self._line.may_take

    def reserve(self, batch: ProducerBatch, size_bytes: int) -> None:
        """Memory for a batch, which is in its queue. What an interrupt tears here is counted again."""
        is_torn, self._is_count_torn = self._is_count_torn, True
        batch.granted_bytes += size_bytes
        self._used_bytes += size_bytes
        self._is_count_torn = is_torn

    def release(self, batch: ProducerBatch) -> None:
        """The batch is done."""
        self._used_bytes -= batch.granted_bytes
