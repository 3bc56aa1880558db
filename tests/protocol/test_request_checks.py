"""What is refused without state: how requests check themselves."""

from typing import Any
from uuid import UUID

import pytest

from rayka.errors import InvalidRequest
from rayka.ids import METADATA_TOPIC_ID, TopicIdPartition, TopicPartition
from rayka.ports import Request
from rayka.protocol.configs import (
    AlterConfigOp,
    AlteredResource,
    ConfigChange,
    ConfigResourceName,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ResourceType,
)
from rayka.protocol.events import (
    EVENTS_MAX,
    REASON_LENGTH_MAX,
    SUBJECTS_MAX,
    DescribeEventsRequest,
    RecordEventRequest,
)
from rayka.protocol.fetch import FetchPartition, FetchRequest
from rayka.protocol.membership import (
    AlterPartitionItem,
    AlterPartitionRequest,
    HeartbeatRequest,
    RegisteredDirectory,
    ReportExitRequest,
)
from rayka.protocol.topics import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectionType,
    ElectLeadersRequest,
    NewPartitions,
    NewTopic,
    Reassignment,
)
from tests.node.controller_support import BROKER_DIRECTORY, fetch_request, registration
from tests.node.fetch_support import ORDERS, at, request

METADATA_1 = FetchPartition(METADATA_TOPIC_ID, 1, 0, 1)
TOPIC = ConfigResourceName(ResourceType.TOPIC, "orders")
ORDERS_0 = TopicPartition("orders", 0)
FLUSH = ConfigChange("flush", AlterConfigOp.SET, "batch")


def altered(*changes: ConfigChange) -> AlteredResource:
    return AlteredResource(ResourceType.TOPIC, "orders", changes)


@pytest.mark.parametrize(
    "request_",
    [
        fetch_request(-1),
        fetch_request(0, max_wait_ms=-1),
        fetch_request(0, max_bytes=0),
        fetch_request(0, replica_id=-1),
        fetch_request(5, -1),
        fetch_request(5, 2, current_leader_epoch=1),
        fetch_request(0, partitions=(METADATA_1,)),
        registration(broker_id=0),
        registration(broker_id=3001),
        registration(incarnation_id=UUID(int=0)),
        registration(directories=()),
        registration(directories=(RegisteredDirectory(UUID(int=0), "/data"),)),
        registration(directories=(BROKER_DIRECTORY, BROKER_DIRECTORY)),
        registration(min_metadata_version=2, max_metadata_version=1),
        HeartbeatRequest(-1, 0, 0, False, False),
        HeartbeatRequest(1, -1, 0, False, False),
        HeartbeatRequest(1, 0, 0, False, False, (UUID(int=9), UUID(int=9))),
        CreateTopicsRequest((NewTopic("orders"), NewTopic("orders"))),
        DeleteTopicsRequest(("orders", "orders")),
        ReportExitRequest(1, UUID(int=0)),
        DescribeEventsRequest(since=-2),
        DescribeEventsRequest(count=0),
        DescribeEventsRequest(count=EVENTS_MAX + 1),
        RecordEventRequest(-1, "scale-out", (), "busy"),
        RecordEventRequest(5, "Scale out", (), "busy"),
        RecordEventRequest(5, "scale-out", ("",), "busy"),
        RecordEventRequest(5, "scale-out", ("a",) * (SUBJECTS_MAX + 1), "busy"),
        RecordEventRequest(5, "scale-out", (), ""),
        RecordEventRequest(5, "scale-out", (), "x" * (REASON_LENGTH_MAX + 1)),
        RecordEventRequest(5, "scale-out", (), "two\nlines"),
        AlterPartitionRequest(-1, 0, ()),
        AlterPartitionRequest(1, 0, (AlterPartitionItem(UUID(int=1), 0, 0, 0, ()),) * 2),
    ],
    ids=repr,
)
def test_a_request_that_contradicts_the_protocol_is_refused(request_: Request[Any]) -> None:  # A27, H2
    with pytest.raises(InvalidRequest, match=r"expected .* found"):
        request_.check()


@pytest.mark.parametrize(
    "request_",
    [
        CreatePartitionsRequest((NewPartitions("orders", 2), NewPartitions("orders", 3))),
        AlterPartitionReassignmentsRequest(
            (Reassignment("orders", 0, (1,)), Reassignment("orders", 0, None))
        ),
        ElectLeadersRequest(ElectionType.PREFERRED, (ORDERS_0, ORDERS_0)),
        DescribeConfigsRequest((TOPIC, TOPIC)),
        IncrementalAlterConfigsRequest((altered(), altered())),
        IncrementalAlterConfigsRequest((altered(FLUSH, ConfigChange("flush", AlterConfigOp.DELETE)),)),
        IncrementalAlterConfigsRequest(
            (
                altered(
                    ConfigChange("segment.ms", AlterConfigOp.DELETE),
                    ConfigChange("segment_ms", AlterConfigOp.DELETE),
                ),
            )
        ),
    ],
    ids=repr,
)
def test_a_name_that_occurs_twice_is_refused(request_: Request[Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"expected each once, found"):
        request_.check()


@pytest.mark.parametrize(
    "asked",
    [
        request(at(0), min_bytes=-1),
        request(at(0), max_bytes=-1),
        request(at(0), replica_id=-2),
        request(at(0), replica_epoch=-2),
        request(at(0), session_id=-1),
        request(at(0), session_epoch=-2),
        request(at(0), at(1)),
        request(at(0), forgotten=(TopicIdPartition(ORDERS, 0),)),
        request(session_epoch=1),
        request(at(0, max_bytes=-1)),
        request(at(0, current_leader_epoch=-2)),
        request(at(0, last_fetched_epoch=-2)),
        request(at(0, log_start_offset=-2)),
        request(at(3, log_start_offset=4)),
    ],
    ids=repr,
)
def test_a_fetch_that_contradicts_itself_is_refused(asked: FetchRequest) -> None:
    with pytest.raises(InvalidRequest, match="fetch: "):
        asked.check()


@pytest.mark.parametrize(
    "request_",
    [
        fetch_request(0, -1),
        fetch_request(5, 2, current_leader_epoch=2),
        request(at(3, log_start_offset=3)),
        registration(),
        HeartbeatRequest(1, 0, 0, False, False, (UUID(int=9), UUID(int=8))),
        ElectLeadersRequest(ElectionType.PREFERRED),
        IncrementalAlterConfigsRequest((altered(FLUSH),)),
    ],
    ids=repr,
)
def test_a_request_that_keeps_to_the_protocol_passes(request_: Request[Any]) -> None:
    request_.check()
