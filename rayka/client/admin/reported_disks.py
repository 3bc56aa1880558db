"""What brokers have reported of their disks, for a plan of where replicas go. Rayka's own."""

from collections.abc import Mapping

from rayka.ids import TopicPartition
from rayka.protocol.load import DescribeLoadResponse, LoadReport


class ReportedDisks:
    """The newest report of each broker that has sent one to the active controller. Of the others nothing is known, and
    they count as having room.
    """

    def __init__(self, load: DescribeLoadResponse) -> None:
        self.reports: Mapping[int, LoadReport] = {
            each.broker_id: each.report for each in load.brokers if each.age_ms >= 0
        }
        self._named: dict[int, dict[TopicPartition, int]] = {}
        for each in load.partitions:
            tp = TopicPartition(each.topic, each.partition)
            self._named.setdefault(each.broker_id, {})[tp] = each.size_bytes

    def __repr__(self) -> str:
        return f"<ReportedDisks of {list(self.reports)}>"

    def replica_bytes(self, broker_id: int, topic_partition: TopicPartition) -> int:
        """What a replica on the broker takes: as the broker has named it, or the average of those that it has not."""
        named = self._named.get(broker_id, {})
        report = self.reports.get(broker_id, LoadReport(0))
        unnamed_count = max(1, report.partition_count - len(named))
        return named.get(topic_partition, max(0, report.size_bytes - sum(named.values())) // unnamed_count)


NO_REPORTS = ReportedDisks(DescribeLoadResponse((), ()))
