"""Fetching a snapshot of the metadata into memory, part after part (A49): what a broker does that keeps no log of it.

A download belongs to one leader and one epoch. Whatever goes wrong on the way ends it, and the replica that follows the
log asks with Fetch again what to do: there may be a newer snapshot by then, or another leader. Kafka:
`KafkaRaftClient`, as an observer.
"""

import logging

import msgspec

from rayka.errors import CorruptRecord, ErrorCode, StorageError
from rayka.node.controller_link import ControllerLink
from rayka.protocol.batch_format import bytes_view
from rayka.protocol.quorum_messages import FetchSnapshotRequest, FetchSnapshotResponse
from rayka.raft.snapshot import Snapshot, decode_snapshot, snapshot_name

PART_BYTES = 1 << 20
_ANSWER_TIMEOUT_MS = 5_000
_logger = logging.getLogger(__name__)


async def download_snapshot(link: ControllerLink, request: FetchSnapshotRequest) -> Snapshot | None:
    """The snapshot that the request names, from its beginning; None when it is to be given up.

    Raises the retriable ApiError of a call that failed, CorruptRecord when it is damaged.
    """
    content, size_bytes = bytearray(), 1
    while len(content) < size_bytes:
        part = msgspec.structs.replace(request, position=len(content), max_bytes=PART_BYTES)
        response = await link.call(part, _ANSWER_TIMEOUT_MS)
        if not _continues(part, response):
            _logger.info("gave up %s at byte %d: %s", _name(request), len(content), response.error_code.name)
            link.learn(response.leader_id, response.leader_epoch)
            return None
        content += bytes_view(response.data)
        size_bytes = response.size_bytes
    try:
        return decode_snapshot(content, _name(request))
    except StorageError as error:
        raise CorruptRecord(str(error)) from error


def _continues(part: FetchSnapshotRequest, response: FetchSnapshotResponse) -> bool:
    """Whether it is the next part of the same snapshot, from the same leader in the same epoch."""
    return (
        response.error_code is ErrorCode.NONE
        and response.leader_epoch == part.current_leader_epoch
        and response.snapshot_id == part.snapshot_id
        and response.position == part.position
        and 0 < len(response.data) <= response.size_bytes - part.position
    )


def _name(request: FetchSnapshotRequest) -> str:
    return f"the leader's {snapshot_name(request.snapshot_id)}"
