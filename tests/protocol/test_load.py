"""A broker's report of its load: what makes it one, and that older and newer nodes read each other's heartbeats."""

from uuid import UUID

import msgspec
import pytest

from rayka.protocol.load import (
    AMOUNT_MAX,
    REPORTED_PARTITIONS_MAX,
    LoadReport,
    PartitionLoad,
    is_plausible,
)
from rayka.protocol.membership import HeartbeatRequest

REPORT = LoadReport(5_000, size_bytes=10, partitions=(PartitionLoad(UUID(int=1), 0, True, 10),))


def one(**changes: int) -> LoadReport:
    return LoadReport(5_000, partitions=(msgspec.structs.replace(REPORT.partitions[0], **changes),))


@pytest.mark.parametrize(
    "report",
    [
        LoadReport(0),
        LoadReport(-1),
        LoadReport(5_000, size_bytes=-1),
        LoadReport(5_000, processor_permille=AMOUNT_MAX + 1),
        LoadReport(5_000, bytes_in=2**64 - 1),
        one(size_bytes=-5),
        one(records_out=AMOUNT_MAX * 2),
        LoadReport(5_000, partitions=REPORT.partitions * 2),
        LoadReport(
            5_000,
            partitions=tuple(
                PartitionLoad(UUID(int=1), each, True, 1) for each in range(REPORTED_PARTITIONS_MAX + 1)
            ),
        ),
    ],
    ids=repr,
)
def test_an_impossible_report_is_not_plausible(report: LoadReport) -> None:
    assert is_plausible(REPORT)
    assert not is_plausible(report)


def test_heartbeats_with_and_without_a_load_are_read_by_newer_and_older_nodes() -> None:
    newer = HeartbeatRequest(1, 2, 3, False, False, load=REPORT)
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(newer))
    older = msgspec.msgpack.encode(fields[: HeartbeatRequest.__struct_fields__.index("load")])
    assert msgspec.msgpack.decode(older, type=HeartbeatRequest) == HeartbeatRequest(1, 2, 3, False, False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(newer), type=HeartbeatRequest) == newer
