"""The bounds of a bounded read, where a cluster changes between two questions (G12)."""

from typing import Any

import pytest

from rayka.client.consumer.reader import Reader
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ErrorCode, OffsetOutOfRange
from rayka.ids import TopicPartition
from rayka.protocol.fetch import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResult,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from rayka.protocol.membership import MetadataRequest
from tests.client.offset_support import AT_A, NEW_ID, Brokers

BEGIN, END = 3, 10
QUICK = ConsumerConfig(auto_offset_reset="none", retry_backoff_ms=1, retry_backoff_max_ms=2)


class Cluster(Brokers):
    """The handle of a cluster, and its network: logs from 3 to 10, and at any time what `by_time` says."""

    name = "scripted"

    def __init__(self, by_time: int = 5) -> None:
        super().__init__()
        self.by_time = by_time
        self.is_recreated_when_asked = False

    def network(self, transport: str = "auto") -> "Cluster":
        return self

    async def call(self, node_id: int, request: Any, timeout_ms: int) -> Any:
        if isinstance(request, MetadataRequest):
            return self._metadata()
        assert isinstance(request, ListOffsetsRequest)
        code = ErrorCode.NONE
        if self.is_recreated_when_asked and self.topic_id != NEW_ID:
            self.topic_id, code = NEW_ID, ErrorCode.UNKNOWN_TOPIC_ID
        known = {EARLIEST_TIMESTAMP: BEGIN, LATEST_TIMESTAMP: END}
        return ListOffsetsResponse(
            tuple(
                ListOffsetsPartitionResult(
                    each.topic_id,
                    each.partition,
                    code if each.topic_id == self.topic_id else ErrorCode.UNKNOWN_TOPIC_ID,
                    offset=known.get(each.timestamp_ms, self.by_time),
                )
                for each in request.partitions
            )
        )


def reader(cluster: Cluster, start: Any = "earliest", end: Any = "latest") -> Reader:
    return Reader(["orders"], cluster, start, end, QUICK)  # type: ignore[arg-type]


@pytest.mark.parametrize(("by_time", "bound"), [(5, 5), (END, END), (END + 2, END), (-1, END)])
def test_a_bound_by_time_never_lies_behind_the_end_of_the_range(by_time: int, bound: int) -> None:
    """A record may have arrived between the question for the end and that for the time."""
    assert set(reader(Cluster(by_time), end=1_234).end_offsets.values()) == {bound}
    assert set(reader(Cluster(by_time), start=1_234).start_offsets.values()) == {bound}


@pytest.mark.parametrize(
    ("offset", "exists"), [(BEGIN - 1, False), (BEGIN, True), (END, True), (END + 1, False)]
)
def test_a_bound_by_offset_lies_in_the_log_or_at_its_end(offset: int, exists: bool) -> None:
    given = {AT_A: offset}
    if exists:
        assert reader(Cluster(), start=given).start_offsets == {
            AT_A: offset,
            TopicPartition("orders", 1): BEGIN,
        }
    else:
        with pytest.raises(OffsetOutOfRange, match=rf"start offset {offset} of .*available: \[3, 10\]"):
            reader(Cluster(), start=given)


def test_a_topic_that_was_created_again_before_the_read_is_read_as_it_is_now() -> None:
    cluster = Cluster()
    cluster.is_recreated_when_asked = True
    assert set(reader(cluster).end_offsets.values()) == {END}
