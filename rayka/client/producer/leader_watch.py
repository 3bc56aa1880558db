"""Which partitions of a producer wait for another leader: their last try says that the one known leads no more.

Synchronous. A partition waits from a failure until its metadata name a leader of a later epoch, or until the leader it
had answers after all. While one waits, the sender asks for metadata at once and then again and again, and a pause that
the failed batch takes ends with the news. Kafka: Metadata.requestUpdate, and what KIP-951 shortens.
"""

from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataPartition, MetadataTopic


class LeaderWatch:
    """See the module. Epochs by topic and partition: of the leader that failed, or when there was none."""

    def __init__(self) -> None:
        self._failed_epochs: dict[str, dict[int, int]] = {}

    def __repr__(self) -> str:
        return f"<LeaderWatch {self._failed_epochs}>"

    def on_failed(self, topic: str, partition: MetadataPartition) -> None:
        """The leader that is known, if any, did not do it."""
        self._failed_epochs.setdefault(topic, {})[partition.partition] = partition.leader_epoch

    def on_settled(self, topic: str, partition: int) -> None:
        """The leader did it, or no caller waits for it any more."""
        if self._failed_epochs:
            waiting = self._failed_epochs.get(topic, {})
            waiting.pop(partition, None)
            if not waiting:
                self._failed_epochs.pop(topic, None)

    def is_watched(self, topic: str) -> bool:
        """Whether a partition of the topic waits."""
        return topic in self._failed_epochs

    def on_metadata(self, topic: MetadataTopic) -> list[int]:
        """The partitions that have a new leader now; they wait no more."""
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
