"""One topic as a client knows it, and when something newer may take its place.

Invariants: metadata never replace what was made from a later part of the metadata log; nor does a partition go back to
a former leader epoch, as in metadata of a broker that does not know the leader that another one has named.

A client that misses a leader asks again and again. An answer about thousands of partitions costs the broker and the
client tens of milliseconds, and a broker that is behind would have nothing else to do: so behind each answer a topic
rests, in proportion to its partitions, whatever part of the client asks; one with few partitions never does.

Kafka: Metadata.updateLatestMetadata, Metadata.updatePartitionLeadership (KIP-951), Metadata.timeToAllowUpdate.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from rayka.errors import ErrorCode
from rayka.ids import NO_NODE
from rayka.protocol.membership import MetadataPartition, MetadataTopic
from rayka.protocol.produce import ResultWithLeader

_REST_S = 50e-6  # for each partition, ten times what its metadata cost the broker and the client
_NONE: Mapping[int, MetadataPartition] = MappingProxyType({})


class KnownTopic(NamedTuple):
    """A topic, when its metadata came, and which part of the metadata log they were made from. `named`: partitions of
    which a refusal has said more than these metadata.
    """

    topic: MetadataTopic
    fetched_at_s: float
    metadata_offset: int
    named: Mapping[int, MetadataPartition] = _NONE

    def is_news(self, metadata_offset: int) -> bool:
        """Whether metadata as of that offset say at least as much."""
        return self.metadata_offset <= metadata_offset

    def rest_s(self, at_s: float, *, is_asked: bool) -> float:
        """How long it is still to be left alone; while it is asked for, its rest has not begun."""
        rest_s = len(self.topic.partitions) * _REST_S
        return rest_s if is_asked else self.fetched_at_s + rest_s - at_s

    def updated(self, topic: MetadataTopic, at_s: float, metadata_offset: int) -> "KnownTopic":
        """With these newer metadata, and with leaders that were named of later epochs than theirs."""
        if topic.topic_id != self.topic.topic_id:
            return KnownTopic(topic, at_s, metadata_offset)
        later = {
            number: named
            for number, named in self.named.items()
            if number < len(topic.partitions) and topic.partitions[number].leader_epoch < named.leader_epoch
        }
        return KnownTopic(_with(topic, later), at_s, metadata_offset, later or _NONE)

    def later_leaders(self, refusals: Iterable[ResultWithLeader]) -> dict[int, MetadataPartition]:
        """The partitions of which refusals name a leader of a later epoch than is known, as they are then."""
        partitions, later = self.topic.partitions, dict[int, MetadataPartition]()
        for each in refusals:
            if each.leader_id == NO_NODE or not 0 <= each.partition < len(partitions):
                continue
            known = later.get(each.partition, partitions[each.partition])
            if each.leader_epoch > known.leader_epoch:
                later[each.partition] = replace(
                    known,
                    leader_id=each.leader_id,
                    leader_epoch=each.leader_epoch,
                    error_code=ErrorCode.NONE,
                )
        return later

    def led_by(self, later: Mapping[int, MetadataPartition]) -> "KnownTopic":
        """With these leaders, which refusals have named."""
        return self._replace(topic=_with(self.topic, later), named={**self.named, **later})


def _with(topic: MetadataTopic, named: Mapping[int, MetadataPartition]) -> MetadataTopic:
    if not named:
        return topic
    partitions = list(topic.partitions)
    for number, partition in named.items():
        partitions[number] = partition
    return replace(topic, partitions=tuple(partitions))
