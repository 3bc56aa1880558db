"""The input of plans: the replicas of the image, with the sizes and traffic that brokers have reported.

A broker names its largest and busiest partitions; each of its others counts as their average, by the sums and counts of
the same report. A replica that has just moved counts right when its broker has reported again. Internal topics stay
where they are, and count; so do partitions that no broker leads, from which nothing can be copied.
"""

from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from rayka.controller.placeable_directories import placeable_directories
from rayka.controller.planning.shapes import BrokerShape, PartitionShape
from rayka.controller.request_context import RequestContext
from rayka.errors import BrokerNotAvailable
from rayka.ids import TopicPartition, is_internal
from rayka.metadata.image import BrokerImage
from rayka.protocol.load import DiskRoom, LoadReport, PartitionLoad


class _Rest(NamedTuple):
    """The assumed load of each partition that a broker's report does not name."""

    size_bytes: int
    bytes_in: int
    bytes_out: int


_NOTHING = _Rest(0, 0, 0)


class ClusterShapes:
    """The brokers and partitions of one request. Raises BrokerNotAvailable while a broker has not reported its load,
    unless brokers `may_be_silent`: then of such a one no sizes are known.
    """

    def __init__(self, context: RequestContext, *, may_be_silent: bool = False) -> None:
        self._image = context.image
        self._reports = {
            each.broker_id: report
            for each in context.image.brokers.values()
            if (report := context.loads.newest(each)) is not None
        }
        self._rest = {broker_id: _rest(report) for broker_id, report in self._reports.items()}
        self._named: dict[tuple[UUID, int], PartitionLoad] = {}
        for report in self._reports.values():
            for each in report.partitions:
                key = (each.topic_id, each.partition)
                if each.is_leader or key not in self._named:
                    self._named[key] = each
        self.brokers = self._brokers(context)
        silent = [
            each.broker_id
            for each in self.brokers
            if each.takes_replicas and each.broker_id not in self._reports
        ]
        if silent and not may_be_silent:
            raise BrokerNotAvailable(
                f"brokers {silent} have not reported their load to this controller yet; try again in a few seconds"
            )

    def __repr__(self) -> str:
        return f"<ClusterShapes brokers={len(self.brokers)} named={len(self._named)}>"

    def _brokers(self, context: RequestContext) -> list[BrokerShape]:
        nodes = self._image.brokers.values()
        hosts = {each.broker_id: each.registration.host for each in nodes}
        disks = DiskRoom.reported(self._reports, hosts).disks
        return [
            BrokerShape(
                each.broker_id,
                each.registration.rack,
                each.registration.host,
                takes_replicas=each.takes_user_partitions and _takes_replicas(context, each),
                takes_internal=_takes_replicas(context, each),
                is_coordinator=each.is_coordinator,
                capacity_bytes=disks[each.broker_id].capacity_bytes,
                reported_bytes=disks[each.broker_id].reported_bytes,
                free_bytes=disks[each.broker_id].free_bytes,
            )
            for each in nodes
        ]

    def partitions(self) -> Iterator[PartitionShape]:
        """The partitions of all topics, each with its replicas, or its target replicas if it is reassigned."""
        for topic in self._image.topics.values():
            is_users = not is_internal(topic.name)
            for number, partition in enumerate(topic.partitions):
                named = self._named.get((topic.topic_id, number))
                load = self._rest.get(partition.leader_id, _NOTHING) if named is None else named
                yield PartitionShape(
                    TopicPartition(topic.name, number),
                    partition.target_replicas,
                    load.size_bytes,
                    load.bytes_in,
                    load.bytes_out,
                    is_users and partition.has_leader,
                )


def _takes_replicas(context: RequestContext, broker: BrokerImage) -> bool:
    """Whether it runs, and has a directory that takes new replicas."""
    return broker.is_active and bool(placeable_directories(context.image, context.config, broker))


def _rest(report: LoadReport) -> _Rest:
    named = report.partitions
    count = max(1, report.partition_count - len(named))
    led_count = max(1, report.leader_count - sum(each.is_leader for each in named))
    return _Rest(
        max(0, report.size_bytes - sum(each.size_bytes for each in named)) // count,
        max(0, report.bytes_in - sum(each.bytes_in for each in named)) // led_count,
        max(0, report.bytes_out - sum(each.bytes_out for each in named)) // led_count,
    )
