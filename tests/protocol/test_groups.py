"""Requests of groups that no state could make right."""

from typing import Any

import pytest

from rayka.errors import ApiError, InconsistentGroupProtocol, InvalidGroupId, InvalidRequest
from rayka.ids import TopicPartition
from rayka.ports import Request
from rayka.protocol.groups import (
    GROUP_ID_BYTES_MAX,
    PARTITIONS_PER_COMMIT_MAX,
    CommittedOffset,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    GroupHeartbeatRequest,
    GroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)

RANGE = (GroupProtocol("range", b""),)


def of_group(group_id: str) -> list[Request[Any]]:
    """Every request that names a group."""
    return [
        FindCoordinatorRequest((group_id,)),
        join(group_id=group_id),
        SyncGroupRequest(group_id, 1, "m"),
        GroupHeartbeatRequest(group_id, 1, "m"),
        LeaveGroupRequest(group_id, ()),
        DescribeGroupsRequest((group_id,)),
        DeleteGroupsRequest((group_id,)),
        OffsetCommitRequest(group_id, ()),
        OffsetFetchRequest(group_id),
        OffsetDeleteRequest(group_id, ()),
    ]


def join(
    group_id: str = "g",
    rebalance_timeout_ms: int = 60_000,
    protocols: tuple[GroupProtocol, ...] = RANGE,
    protocol_type: str = "consumer",
    **names: str,
) -> JoinGroupRequest:
    return JoinGroupRequest(group_id, 10_000, rebalance_timeout_ms, "", protocol_type, protocols, **names)


def commit(*partitions: CommittedOffset) -> OffsetCommitRequest:
    return OffsetCommitRequest("g", partitions)


def refusal(request: Request[Any]) -> ApiError:
    with pytest.raises(ApiError) as refused:
        request.check()
    return refused.value


@pytest.mark.parametrize("group_id", ["", "g" * (GROUP_ID_BYTES_MAX + 1), "ü" * GROUP_ID_BYTES_MAX])
@pytest.mark.parametrize("place", range(10))
def test_a_group_id_that_cannot_be_is_refused(place: int, group_id: str) -> None:  # E3
    assert type(refusal(of_group(group_id)[place])) is InvalidGroupId


@pytest.mark.parametrize("group_id", ["g", "g" * GROUP_ID_BYTES_MAX, "größe/\0"])
def test_any_other_group_id_is_accepted(group_id: str) -> None:
    for request in of_group(group_id):
        request.check()


@pytest.mark.parametrize("request_", [join(protocols=()), join(protocol_type="")])
def test_a_member_that_offers_no_protocol_is_refused(request_: JoinGroupRequest) -> None:  # E3
    assert type(refusal(request_)) is InconsistentGroupProtocol


INVALID: list[tuple[Request[Any], str]] = [
    (join(protocols=RANGE * 2), "protocols: expected each once"),
    (join(rebalance_timeout_ms=0), "rebalance_timeout_ms: expected 1 to"),
    (join(rebalance_timeout_ms=2**31), "rebalance_timeout_ms: expected 1 to"),
    (join(group_instance_id="i" * 250), "group_instance_id: expected at most 249 bytes, found 250"),
    (join(client_id="ü" * 125), "client_id: expected at most 249 bytes, found 250"),
    (join(client_host="h" * 250), "client_host: expected at most 249 bytes, found 250"),
    (SyncGroupRequest("g", 1, "m", (MemberAssignment("m", b""),) * 2), "assignments: expected each once"),
    (LeaveGroupRequest("g", (LeavingMember("m"),) * 10_001), "members: expected at most 10,000"),
    (DescribeGroupsRequest(("g", "g")), "group_ids: expected each once"),
    (commit(CommittedOffset("t", 0, -1)), "the offset of t-0: expected 0 or more, found -1"),
    (commit(CommittedOffset("t", 0, 1), CommittedOffset("t", 0, 2)), "partitions: expected each once"),
    (OffsetCommitRequest("g", (), coordinator_epoch=-2), "coordinator_epoch: expected -1 or more, found -2"),
    (commit(CommittedOffset("", 0, 1)), "partitions: expected topics with a name"),
    (commit(CommittedOffset("t", -1, 1)), "partitions: expected topics with a name"),
    (OffsetFetchRequest("g", (TopicPartition("t", 2**31),)), "partitions: expected topics with a name"),
    (OffsetDeleteRequest("g", (TopicPartition("t", 0),) * 2), "partitions: expected each once"),
    (
        commit(*(CommittedOffset("t", each, 1) for each in range(PARTITIONS_PER_COMMIT_MAX + 1))),
        "partitions: expected at most 10,000",
    ),
]


@pytest.mark.parametrize(("request_", "message"), INVALID, ids=[message[:30] for _, message in INVALID])
def test_a_request_that_contradicts_itself_is_refused(request_: Request[Any], message: str) -> None:
    refused = refusal(request_)
    assert type(refused) is InvalidRequest
    assert message in str(refused)
