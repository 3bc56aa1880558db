"""The 0-0 checkpoint: the snapshot before the first record, which says who the first voters are (A45, A48).

Formatting writes it; nobody fetches it. Kafka: `RecordsSnapshotWriter`, `Formatter`. Left out: snapshots of
state.
"""

import numpy as np

from rayka.errors import ApiError, StorageError
from rayka.ids import OffsetAndEpoch
from rayka.ports import Buffer
from rayka.protocol.batch_header import split_batches
from rayka.raft.control_records import (
    ControlRecord,
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
    decode_control_batch,
    encode_control_batch,
)
from rayka.raft.voters import VoterSet

BOOTSTRAP_SNAPSHOT_ID = OffsetAndEpoch(0, 0)


def checkpoint_name(snapshot_id: OffsetAndEpoch) -> str:
    """The file that holds the snapshot of everything below an offset (A45)."""
    return f"{snapshot_id.offset:020d}-{snapshot_id.epoch:010d}.checkpoint"


def encode_bootstrap_checkpoint(voters: VoterSet, *, timestamp_ms: int) -> bytes:
    """The content of the 0-0 checkpoint."""
    parts: list[list[ControlRecord]] = [
        [SnapshotHeaderRecord()],
        [KRaftVersionRecord(), VotersRecord(voters)],
        [SnapshotFooterRecord()],
    ]
    return np.concatenate([encode_control_batch(part, timestamp_ms=timestamp_ms) for part in parts]).tobytes()


def decode_bootstrap_checkpoint(content: Buffer, path: str) -> VoterSet:
    """The voters. Raises StorageError naming the path when the checkpoint is damaged or not whole."""
    try:
        records = [record for batch in split_batches(content) for record in decode_control_batch(batch)]
    except ApiError as error:
        raise StorageError(f"{path} is damaged: {error}; restore it, or format the directory anew") from error
    voters = [record.voters for record in records if isinstance(record, VotersRecord)]
    if len(voters) != 1 or not isinstance(records[-1], SnapshotFooterRecord):
        raise StorageError(
            f"{path} is not whole: it holds {records!r}; restore it, or format the directory anew"
        )
    return voters[0]
