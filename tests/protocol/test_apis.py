"""The table of APIs: which calls take the direct lane, and which stay on Ray."""

from uuid import UUID

import pytest

from rayka.ids import METADATA_TOPIC_ID
from rayka.protocol.apis import APIS, ServedBy, is_hot
from rayka.protocol.fetch import FetchPartition, FetchRequest
from rayka.protocol.membership import HeartbeatRequest

HOT = {
    "produce",
    "fetch",
    "list_offsets",
    "init_producer_id",
    "find_coordinator",
    "join_group",
    "sync_group",
    "group_heartbeat",
    "leave_group",
    "offset_commit",
    "offset_fetch",
    "metadata",
    "heartbeat",
}


def test_the_hot_calls_are_those_of_clients_followers_and_heartbeats() -> None:
    assert {each.name for each in APIS if each.is_hot} == HOT


def test_among_apis_that_no_broker_serves_only_heartbeats_are_hot() -> None:
    unserved = [each for each in APIS if ServedBy.BROKER not in each.served_by]
    assert [each.request_type for each in unserved if each.is_hot] == [HeartbeatRequest]
    assert not any(each.is_hot for each in APIS if each.served_by is ServedBy.QUORUM)


@pytest.mark.parametrize(("topic_id", "is_expected"), [(METADATA_TOPIC_ID, False), (UUID(int=7), True)])
def test_a_fetch_of_the_metadata_log_is_not_hot(topic_id: UUID, is_expected: bool) -> None:
    partition = FetchPartition(topic_id, 0, 0, 1 << 20)
    assert is_hot(FetchRequest(0, 1, 1 << 20, (partition,), replica_id=1)) is is_expected
