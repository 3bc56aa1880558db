"""Leaders that are unknown, fail or are silent: the producer asks for metadata until a new leader is known.

After a failure a partition waits until its metadata name a leader of a later epoch, or until its old leader answers.
While a partition waits, the client asks for the topic's metadata again and again: soon at first, because mostly the
partition has a leader that the asked broker has not learned; less often for a topic with many partitions
(`metadata.KnownTopic.rest_s`). A new leader ends the back-off of the failed batch. An unanswered call is given up as
soon as the metadata show that the node leads none of the call's partitions (`call_watch`).

Runs on the IO thread only. Kafka: Metadata.requestUpdate; KIP-951 shortens the same delay.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rayka.client.call_watch import CallWatch, SilenceLimits
from rayka.client.metadata import ClusterMetadata
from rayka.client.producer.accumulator import Accumulator
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.ids import NO_EPOCH, NO_NODE
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.produce import ProducePartitionResult

# Pause after the first request for metadata; each later pause is twice as long, up to retry_backoff_ms.
_FIRST_PAUSE_S = 0.01
# A leader that is silent for so long may have been replaced: ask for metadata.
_SILENCE_LIMITS = SilenceLimits(least_s=0.1, most_s=1.0)


class LeaderWatch:
    """The partitions that wait for another leader, because the known leader failed in their last try."""

    def __init__(self) -> None:
        # By topic and partition: the known leader epoch at the failure.
        self._failed_epochs: dict[str, dict[int, int]] = {}

    def __repr__(self) -> str:
        return f"<LeaderWatch {self._failed_epochs}>"

    def on_failed(self, topic: str, partition: MetadataPartition) -> None:
        """Makes the partition wait for a leader of a later epoch than the known one."""
        self._failed_epochs.setdefault(topic, {})[partition.partition] = partition.leader_epoch

    def on_settled(self, topic: str, partition: int) -> None:
        """Ends the wait of the partition: its leader took the batch, or the batch was given up."""
        if self._failed_epochs:
            waiting = self._failed_epochs.get(topic, {})
            waiting.pop(partition, None)
            if not waiting:
                self._failed_epochs.pop(topic, None)

    def is_watched(self, topic: str) -> bool:
        """Whether a partition of the topic waits for another leader."""
        return topic in self._failed_epochs

    def on_metadata(self, topic: MetadataTopic) -> list[int]:
        """Ends the wait of the partitions that have a new leader, or were deleted; returns these partitions."""
        led = [
            partition
            for partition, failed_epoch in self._failed_epochs.get(topic.name, {}).items()
            if partition >= len(topic.partitions) or _is_led(topic.partitions[partition], failed_epoch)
        ]
        for partition in led:
            self.on_settled(topic.name, partition)
        return led


def _is_led(partition: MetadataPartition, failed_epoch: int) -> bool:
    return partition.leader_id != NO_NODE and partition.leader_epoch > failed_epoch


class PartitionLeaders:
    """The partitions that wait for a leader, and the unanswered calls of a producer.

    `run` starts a coroutine as a task of the sender. `on_gone` fails the batches of a deleted topic.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        accumulator: Accumulator,
        pause_ms: float,
        run: Callable[[Coroutine[Any, Any, None]], object],
        on_gone: Callable[[str], None],
    ) -> None:
        self.calls = CallWatch[Sequence[ProducerBatch]](_SILENCE_LIMITS, self._on_silent)
        self._metadata = metadata
        self._accumulator = accumulator
        self._pause_s = pause_ms / 1000
        self._run = run
        self._on_gone = on_gone
        self._watch = LeaderWatch()
        self._refreshing: dict[str, None] = {}
        self._next_refreshes: dict[str, asyncio.TimerHandle] = {}
        # By topic with a waiting partition: the next pause between requests for metadata.
        self._pauses_s: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<PartitionLeaders {self._watch!r} refreshing={list(self._refreshing)}>"

    def leader_of(self, batch: ProducerBatch) -> int:
        """The id of the leader of the batch's partition, or NO_NODE."""
        known = self._metadata.partition(batch.topic, batch.partition)
        return NO_NODE if known is None else known.leader_id

    def on_failed(self, batch: ProducerBatch) -> None:
        """Makes the batch's partition wait for another leader, and asks for metadata."""
        known = self._metadata.partition(batch.topic, batch.partition)
        if known is not None:
            self._watch.on_failed(batch.topic, known)
        self.refresh(batch.topic)

    def on_refused(self, results: Sequence[ProducePartitionResult]) -> None:
        """Takes later leaders that the refusals name, and ends the wait of their partitions."""
        for topic in self._metadata.on_refused(results):
            if led := self._watch.on_metadata(topic):
                self._accumulator.on_new_leaders(topic.name, led)

    def is_behind(self, batch: ProducerBatch, node_id: int, leader_epoch: int) -> bool:
        """Whether the node refused the batch only because the node has not learned yet that it leads the partition.

        `leader_epoch` is the last epoch that the node knows; the metadata here name the node as leader of that epoch
        or a later one.
        """
        known = self._metadata.partition(batch.topic, batch.partition)
        if known is None or known.leader_id != node_id:
            return False
        return NO_EPOCH < leader_epoch <= known.leader_epoch

    def on_settled(self, batch: ProducerBatch) -> None:
        """Ends the wait of the batch's partition: the leader took the batch, or the batch was given up."""
        self._watch.on_settled(batch.topic, batch.partition)

    def refresh(self, topic: str) -> None:
        """Asks for the topic's metadata once: now, or after the rest that follows the last answer."""
        if topic not in self._refreshing:
            self._cancel(topic)
            self._refreshing[topic] = None
            self._run(self._refresh(topic))

    def _cancel(self, topic: str) -> None:
        timer = self._next_refreshes.pop(topic, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Cancels all planned requests for metadata."""
        for timer in self._next_refreshes.values():
            timer.cancel()

    async def _refresh(self, topic: str) -> None:
        before = _leader_ids(self._metadata.cached(topic))
        try:
            await self._metadata.refresh_leaders((topic,))
        finally:
            del self._refreshing[topic]
        known = self._metadata.cached(topic)
        if self._metadata.missing(topic) is not None:
            self._on_gone(topic)
        elif known is not None:
            led = self._watch.on_metadata(known)
            if led or _leader_ids(known) != before:
                self._accumulator.on_new_leaders(topic, led)
        self.calls.give_up(self._is_in_vain)
        if self._watch.is_watched(topic):
            pause_s = min(self._pauses_s.get(topic, _FIRST_PAUSE_S), self._pause_s)
            self._pauses_s[topic] = 2 * pause_s
            self._cancel(topic)
            loop = asyncio.get_running_loop()
            self._next_refreshes[topic] = loop.call_later(pause_s, self.refresh, topic)
        else:
            self._pauses_s.pop(topic, None)

    def _on_silent(self, node_id: int, requests: list[Sequence[ProducerBatch]]) -> None:
        """Gives up the calls that ask the wrong leader, and asks for metadata about the other open calls."""
        self._metadata.nodes.on_unanswered(node_id)
        self.calls.give_up(self._is_in_vain)
        open_requests = [each for each in requests if not self._is_in_vain(node_id, each)]
        for topic in dict.fromkeys(each.topic for request in open_requests for each in request):
            self.refresh(topic)

    def _is_in_vain(self, node_id: int, request: Sequence[ProducerBatch]) -> bool:
        return not any(self.leader_of(each) == node_id for each in request)


def _leader_ids(topic: MetadataTopic | None) -> list[int]:
    return [] if topic is None else [each.leader_id for each in topic.partitions]
