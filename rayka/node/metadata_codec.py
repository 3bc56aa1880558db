"""The records of `__cluster_metadata` as the values of its batches, and back."""

from rayka.metadata.metadata_records import MetadataRecord, decode_record, encode_record
from rayka.shard.shard_records import RecordCodec, value_codec

METADATA_CODEC: RecordCodec[MetadataRecord] = value_codec(encode_record, decode_record)
