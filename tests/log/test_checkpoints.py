"""Checkpoints, `partition.metadata`, `meta.properties`: Kafka's text, and torn files (F4)."""

import asyncio
from random import Random
from uuid import UUID

import pytest

from rayka.ids import TopicPartition
from rayka.log.checkpoint_files import (
    RECOVERY_POINT_FILE,
    decode_offsets,
    encode_offsets,
    read_offsets,
    replace_durably,
)
from rayka.log.meta_properties import MetaProperties, decode_meta_properties, encode_meta_properties
from rayka.log.partition_directories import encode_partition_metadata, read_partition_metadata
from rayka.testing.memory_disk import MemoryDisk
from tests.log.support import GOLDEN

ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
OFFSETS = {
    TopicPartition("payments-eu", 3): 9_000_000_000_000,
    TopicPartition("orders", 10): 7,
    TopicPartition("orders", 0): 42,
}


def test_offset_checkpoints_are_kafkas_text() -> None:
    golden = (GOLDEN / RECOVERY_POINT_FILE).read_bytes()
    assert encode_offsets(OFFSETS) == golden
    assert decode_offsets(golden) == OFFSETS


def test_no_torn_checkpoint_is_taken_for_a_whole_one() -> None:
    data = encode_offsets(OFFSETS)
    torn = [data[:length] for length in range(len(data))]
    assert [decode_offsets(each) for each in torn + [each + b"\0" for each in torn]] == [None] * 2 * len(data)


@pytest.mark.parametrize("data", [b"\xff\xfe\n", b"0\n1\norders \xb2 1\n"])
def test_bytes_that_are_no_text_are_damage(data: bytes) -> None:
    assert decode_offsets(data) is None


def test_a_damaged_checkpoint_counts_as_missing_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    disk.append("/checkpoint", [b"0\n1\norders 0"])
    assert (read_offsets(disk, "/checkpoint"), read_offsets(disk, "/none")) == ({}, {})
    assert [record.getMessage() for record in caplog.records] == [
        "/checkpoint is damaged and counts as missing"
    ]


def test_meta_properties_are_kafkas_text() -> None:
    golden = (GOLDEN / "meta.properties").read_bytes()
    properties = MetaProperties(3, ID, "abcDEF123")
    assert encode_meta_properties(properties) == golden
    assert decode_meta_properties(b"# a comment\n" + golden) == properties


def test_meta_properties_without_a_cluster_yet() -> None:
    properties = MetaProperties(3, ID)
    assert b"cluster.id" not in encode_meta_properties(properties)
    assert decode_meta_properties(encode_meta_properties(properties)) == properties


@pytest.mark.parametrize("data", [b"", b"node.id=x\ndirectory.id=y\n", b"node.id=3\n", b"\xff\xfe"])
def test_damaged_meta_properties_are_known_as_such(data: bytes) -> None:
    assert decode_meta_properties(data) is None


def test_partition_metadata_is_kafkas_text() -> None:
    golden = (GOLDEN / "partition.metadata").read_bytes()
    disk = MemoryDisk()
    disk.append("/partition.metadata", [golden])
    assert encode_partition_metadata(ID) == golden
    assert read_partition_metadata(disk, "/partition.metadata") == ID


@pytest.mark.parametrize(
    "data", [b"", b"version: 0\n", b"version: 1\ntopic_id: x\n", b"version: 0\ntopic_id: 0011\n"]
)
def test_torn_partition_metadata_counts_as_missing(data: bytes) -> None:
    disk = MemoryDisk()
    disk.append("/partition.metadata", [data])
    assert read_partition_metadata(disk, "/partition.metadata") is None


def test_a_durable_replacement_is_whole_at_whatever_moment_power_is_lost() -> None:  # A8
    for seed in range(40):
        disk = MemoryDisk()
        disk.make_directory("/d")
        asyncio.run(replace_durably(disk, {"/d/a": b"old a", "/d/b": b"old b"}))
        disk.sync_now([], ["/"])
        steps = replace_durably(disk, {"/d/a": b"new a", "/d/b": b"new b"})
        for _ in range(seed % 3):
            try:
                steps.send(None)  # runs up to the next sync
            except StopIteration:
                break
        steps.close()
        disk.power_loss(Random(seed))
        assert disk.read_at("/d/a", 0, 9) in (b"old a", b"new a")
        assert disk.read_at("/d/b", 0, 9) in (b"old b", b"new b")
