"""What goes into and out of one replica: counted by the requests that carry it, taken by the broker's load meter.

Kafka: `BrokerTopicMetrics`, by topic there. A batch that its producer sent twice counts twice, as there. What a reader
is given counts by its offsets, so what compaction has taken out counts as records, too.
"""

from typing import NamedTuple


class Counts(NamedTuple):
    """Bytes and records since the last time that they were taken. What followers fetch is apart: it follows from what
    producers send.
    """

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0
    replication_bytes_in: int = 0
    replication_bytes_out: int = 0


NO_TRAFFIC = Counts()


class Traffic:
    """The counters of one replica. They are attributes and no more, for each request adds to some of them."""

    __slots__ = Counts._fields

    def __init__(self) -> None:
        self.take()

    def __repr__(self) -> str:
        return f"<Traffic in={self.bytes_in} out={self.bytes_out}>"

    def take(self) -> Counts:
        """What was counted; the counters begin anew."""
        counts = Counts(*(getattr(self, name, 0) for name in Counts._fields))
        self.bytes_in = self.records_in = self.bytes_out = self.records_out = 0
        self.replication_bytes_in = self.replication_bytes_out = 0
        return counts
