"""The record batch: encoding and decoding in one process, beside what Arrow takes in.

The limit of both directions is `pyarrow.array(values)`: the plainest way of making the columns that a batch holds.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.harness import Bar, Row, compare, median_of
from benchmarks.limits import arrow_encode, payloads, seconds
from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import Codec, RecordBatch
from rayka.protocol.murmur2 import partitions_for_keys

RECORDS = 10_000
VALUE_BYTES = 100
LIMIT = "pyarrow.array(values)"
ENCODE_BAR, DECODE_BAR = Bar(0.6), Bar(5.0)
PARTITIONS = 6


def run(*, quick: bool = False) -> list[Row]:
    rounds, repeats = (2, 5) if quick else (9, 50)
    values = payloads(RECORDS, VALUE_BYTES)
    batch = RecordBatch(encode_batch(values, timestamps_ms=0))
    column, keys = pa.array(values), pa.array(f"customer-{n:07d}".encode() for n in range(RECORDS))
    keyed = RecordBatch(
        encode_batch(values, keys=keys, headers=[[("source", b"faa")]] * RECORDS, timestamps_ms=0)
    )
    in_process: list[tuple[str, Callable[[], Any], Bar | None]] = [
        ("encode a batch from a list", partial(encode_batch, values, timestamps_ms=0), ENCODE_BAR),
        ("encode a batch from an Arrow array", partial(encode_batch, column, timestamps_ms=0), None),
        ("decode to Arrow, no CRC", lambda: decode(RecordBatch(batch.view), check_crc=False), DECODE_BAR),
        ("decode to Arrow, with CRC", lambda: decode(RecordBatch(batch.view)), None),
        ("decode to a list of bytes, with CRC", lambda: decode(RecordBatch(batch.view)).values_list(), None),
        ("decode keys and headers to Arrow, with CRC", lambda: decode(RecordBatch(keyed.view)), None),
        ("partitions of 16-byte keys", partial(partitions_for_keys, keys, PARTITIONS), None),
    ]
    rows = [_beside_arrow(what, work, values, bar, (rounds, repeats)) for what, work, bar in in_process]
    return rows + _codecs(rounds, max(1, repeats // 10)) + _one_record(rounds, repeats * 20)


def _beside_arrow(
    what: str, work: Callable[[], Any], values: Sequence[bytes], bar: Bar | None, effort: tuple[int, int]
) -> Row:
    rounds, repeats = effort
    measured = compare(
        partial(_rate, work, RECORDS, repeats),
        lambda: arrow_encode(values, repeats),
        rounds=rounds,
    )
    return Row(
        what=what,
        settings=f"{RECORDS:,} x {VALUE_BYTES} B, no compression",
        value=measured.value,
        unit="records/s",
        limit=measured.limit,
        limit_what=LIMIT if bar else "",
        share=measured.share,
        bar=bar,
    )


def _codecs(rounds: int, repeats: int) -> list[Row]:
    values = [
        b'{"carrier": "UA", "flight": %d, "dep_delay": %d}' % (n * 7919 % 6000, n % 97)
        for n in range(RECORDS)
    ]
    size_bytes = sum(map(len, values))
    rows = []
    for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP):
        encoded = encode_batch(values, timestamps_ms=0, codec=codec)
        works: list[tuple[str, Callable[[], Any]]] = [
            ("encode", partial(encode_batch, values, timestamps_ms=0, codec=codec)),
            ("decode", partial(_decode, encoded)),
        ]
        for verb, work in works:
            rate = median_of(partial(_rate, work, size_bytes, repeats), rounds=rounds)
            settings = f"JSON, {size_bytes / len(encoded):.1f} : 1, with CRC"
            rows.append(Row(what=f"{verb}, {codec.name.lower()}", settings=settings, value=rate, unit="B/s"))
    return rows


def _one_record(rounds: int, repeats: int) -> list[Row]:
    encoded = encode_batch([bytes(VALUE_BYTES)], timestamps_ms=0)
    works: list[tuple[str, Callable[[], Any]]] = [
        ("encode a batch of one record", partial(encode_batch, [bytes(VALUE_BYTES)], timestamps_ms=0)),
        ("decode a batch of one record", partial(_decode, encoded)),
        ("parse a header", partial(RecordBatch, encoded)),
    ]
    return [
        Row(
            what=what,
            settings=f"{VALUE_BYTES} B",
            value=median_of(partial(_each, work, repeats), rounds=rounds),
            unit="s",
        )
        for what, work in works
    ]


def _decode(encoded: Any) -> Any:
    return decode(RecordBatch(encoded))


def _rate(work: Callable[[], Any], amount: int, repeats: int) -> float:
    return amount / _each(work, repeats)


def _each(work: Callable[[], Any], repeats: int) -> float:
    """Seconds that one call takes, over some in a row; each result is dropped at once, as a pipeline does."""

    def loop() -> None:
        for _ in range(repeats):
            work()

    return seconds(loop) / repeats
