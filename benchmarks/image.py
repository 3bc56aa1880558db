"""10,000 partitions loaded from a snapshot of the metadata: how long it takes, and how much memory the image keeps.

Each run is a process of its own, which has imported what a broker imports: `python -m benchmarks.image SNAPSHOT`.
"""

import gc
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID

import psutil

from benchmarks.harness import Row
from rayka.ids import OffsetAndEpoch, random_uuid
from rayka.metadata.image import MetadataImage
from rayka.metadata.image_snapshot import image_of
from rayka.metadata.metadata_records import (
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from rayka.protocol.batch_encode import encode_batch
from rayka.raft.snapshot import decode_snapshot, encode_snapshot

TOPICS, PARTITIONS = 100, 100
RECORDS_PER_BATCH = 1_000
LOAD_MAX_S, MEMORY_MAX_BYTES = 3.0, 60e6


def rows(directory: Path, rounds: int) -> list[Row]:
    """Both figures, medians of some processes."""
    path = directory / "image.checkpoint"
    path.write_bytes(_snapshot())
    runs = [_run(path) for _ in range(rounds)]
    settings = f"{TOPICS * PARTITIONS:,} partitions of {TOPICS} topics, {path.stat().st_size / 1e6:.1f} MB"
    return [
        _row("load the metadata from a snapshot", settings, "s", LOAD_MAX_S, [each[0] for each in runs]),
        _row("memory of that image", settings, "B", MEMORY_MAX_BYTES, [each[1] for each in runs]),
    ]


def _row(what: str, settings: str, unit: str, allowed: float, values: list[float]) -> Row:
    return Row.allowed(what, statistics.median(values), unit, allowed, settings=settings)


def _snapshot() -> bytes:
    chance = random.Random(1)
    values = [encode_record(each) for each in _records(chance)]
    data = (
        encode_batch(values[start : start + RECORDS_PER_BATCH], timestamps_ms=1)
        for start in range(0, len(values), RECORDS_PER_BATCH)
    )
    parts = encode_snapshot(OffsetAndEpoch(len(values), 1), None, data, timestamp_ms=1)
    return b"".join(bytes(each) for each in parts)


def _records(chance: random.Random) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    directory_id = random_uuid(chance)
    for number in range(TOPICS):
        topic_id = random_uuid(chance)
        records.append(TopicRecord(name=f"topic-{number}", topic_id=topic_id))
        records += [_partition(topic_id, partition, directory_id) for partition in range(PARTITIONS)]
    return records


def _partition(topic_id: UUID, partition: int, directory_id: UUID) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic_id,
        partition=partition,
        replicas=(1, 2, 3),
        directories=(directory_id,) * 3,
        isr=(1, 2, 3),
        leader_id=1,
    )


def _run(path: Path) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.image", str(path)], capture_output=True, text=True, check=True
    )
    seconds, size_bytes = json.loads(done.stdout)
    return seconds, size_bytes


def _load(path: Path) -> MetadataImage:
    snapshot = decode_snapshot(path.read_bytes(), str(path))
    return image_of((decode_record(each) for each in snapshot.values()), TOPICS * (PARTITIONS + 1))


def _main(path: Path) -> None:
    gc.collect()
    before_bytes = psutil.Process().memory_info().rss
    began = time.perf_counter()
    image = _load(path)
    taken_s = time.perf_counter() - began
    gc.collect()
    grown_bytes = psutil.Process().memory_info().rss - before_bytes
    assert sum(len(each.partitions) for each in image.topics.values()) == TOPICS * PARTITIONS
    print(json.dumps([taken_s, grown_bytes]))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
