"""Metadata records out of the batches of `__cluster_metadata`.

Control batches belong to the quorum and are skipped; their offsets stay, so those of records are not
contiguous.
"""

from collections.abc import Iterator

from rayka.errors import CorruptRecord
from rayka.metadata.metadata_records import MetadataRecord, decode_record
from rayka.ports import Buffer
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_header import split_batches


def decode_metadata_batches(buffer: Buffer) -> Iterator[tuple[int, int, MetadataRecord]]:
    """(offset, leader epoch, record) for every metadata record in the batches, in order.

    Raises CorruptRecord for a damaged batch, UnsupportedVersion for a record that this node does not know.
    """
    for batch in split_batches(buffer):
        batch.check_crc("metadata")
        if batch.is_control:
            continue
        for offset, value in enumerate(decode(batch, check_crc=False).values_list(), batch.base_offset):
            if value is None:
                raise CorruptRecord(f"metadata record at offset {offset} is null")
            yield offset, batch.leader_epoch, decode_record(value)
