"""The partitions of one topic in a producer, and the batches there that take records now. Kafka: BuiltInPartitioner."""

from rayka.client.producer.partition_queue import Limits, PartitionQueue
from rayka.client.producer.producer_batch import BATCH_OVERHEAD_BYTES, ProducerBatch


class TopicQueues:
    """`batch_bytes` is what a batch for the topic may grow to.

    `filling` holds, for each partition, the batch that takes single records now, if there is one. It is the last of
    its queue, but a record for one of thousands of partitions finds each object that it touches outside the
    processor's caches, and on this way there are fewest.
    """

    __slots__ = ("_limits", "batch_bytes", "departing", "filling", "is_wanted", "last_sticky", "queues")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.queues: list[PartitionQueue] = []
        self.filling: list[ProducerBatch | None] = []
        # Queues of partitions that are gone, in the order in which they went. Their batches get other partitions when
        # none of them is in flight any more.
        self.departing: list[PartitionQueue] = []
        self.last_sticky = -1  # the partition that records without one went to last
        self.batch_bytes = limits.batch_bytes
        # A thread is about to send: the topic must not be forgotten before that.
        self.is_wanted = True

    def resize(self, partition_count: int, message_bytes_max: int) -> None:
        """The topic has so many partitions now, the first of them those that it had."""
        gone = [each for each in self.queues[partition_count:] if each.batches]
        begin = min(len(self.queues), partition_count)
        new = range(begin, partition_count)
        self.queues[begin:] = [PartitionQueue(index, self._limits) for index in new]
        self.filling[begin:] = [None] * len(new)
        if not 0 <= self.last_sticky < partition_count:
            self.last_sticky = partition_count - 1
        self.batch_bytes = max(min(self._limits.batch_bytes, message_bytes_max), BATCH_OVERHEAD_BYTES)
        self.depart(gone)

    def depart(self, gone: list[PartitionQueue]) -> None:
        """Adds queues of partitions that are gone; nothing of the topic starts before their batches have moved."""
        self.departing += gone
        for queue in (*self.queues, *self.departing):
            queue.is_blocked = bool(self.departing)

    def queue_with(self, batch: ProducerBatch) -> PartitionQueue | None:
        """The queue that the batch stands in."""
        if batch.partition < len(self.queues) and batch in self.queues[batch.partition].batches:
            return self.queues[batch.partition]
        return next((each for each in self.departing if batch in each.batches), None)

    def next_sticky(self) -> int:
        """The partition with the fewest batches; among equals the first after the last one chosen."""
        count, after = len(self.queues), self.last_sticky + 1
        order = (*range(after, count), *range(min(after, count)))
        self.last_sticky = min(order, key=lambda partition: len(self.queues[partition].batches))
        return self.last_sticky

    def record_batch(self, partition: int, size_bytes: int) -> ProducerBatch | None:
        """The batch that takes a record of that size, if there is one."""
        batch = self.filling[partition]
        return batch if batch is not None and batch.size_bytes + size_bytes <= self.batch_bytes else None

    def column_batch(self, partition: int, size_bytes: int) -> ProducerBatch | None:
        """The batch that takes columns of that size, if there is one: a batch gathers either records or columns."""
        batch = self.queues[partition].last
        if batch is None or batch.is_closed or not batch.count:
            return None
        return batch if batch.size_bytes + size_bytes <= self.batch_bytes else None
