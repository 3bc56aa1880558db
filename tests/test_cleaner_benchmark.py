"""The benchmark of the cleaner: the part that an in-process cluster can play, and what Kafka's cleaner logs."""

import time
from collections import Counter
from pathlib import Path

import rayka
import rayka.testing
from benchmarks.cleaner_beside import COMPACTING, PARTITIONS, RECORD_BYTES, RaykaSide, fill
from benchmarks.kafka import Kafka

SAID = """\
[kafka-log-cleaner-thread-0] INFO org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread - [cleaner]:
\tLog cleaner thread 0 cleaned log {log} (dirty section = [0, 167772])
\t{megabytes} MB of log processed in {seconds} seconds (24.7 MB/sec).
\tIndexed 17.6 MB in 0.5 seconds (38.8 Mb/sec, 62.8% of total time)
"""


def test_a_table_is_filled_with_ten_records_a_key_and_compacted_then(tmp_path: Path) -> None:
    cluster_config = {"log.cleaner.backoff.ms": 5}
    with rayka.testing.cluster(config=cluster_config) as cluster, RaykaSide(cluster, tmp_path) as side:
        side.create("one", 1)
        fill(side, "table", 4_000 * RECORD_BYTES, PARTITIONS)
        records = list(rayka.read("table", cluster=cluster))
        assert len(records) == 4_000 + PARTITIONS
        assert {len(each.key or b"") + len(each.value or b"") for each in records} == {RECORD_BYTES}
        keys = Counter((each.partition, each.key) for each in records)
        assert 300 < len(keys) <= 400
        side.alter("table", COMPACTING)
        side.send_one()
        deadline = time.monotonic() + 60
        while len(list(rayka.read("table", cluster=cluster))) > 400 + PARTITIONS:
            assert time.monotonic() < deadline
        assert side.log_bytes("table") == 0  # it has no disk


def test_how_long_kafkas_cleaner_took_is_read_from_its_log(tmp_path: Path) -> None:
    kafka = Kafka(tmp_path, tmp_path, {1: 9092})
    path = tmp_path / "log-1.txt"
    path.write_text("")
    assert kafka.cleaning_s("table") == 0
    said = [("table-0", "17.6", "0.7"), ("table-1", "1,024.0", "1,000.5"), ("other-table-0", "1.0", "9.0")]
    path.write_text("".join(SAID.format(log=log, megabytes=m, seconds=s) for log, m, s in said))
    assert kafka.cleaning_s("table") == 1001.2
