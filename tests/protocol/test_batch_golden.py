"""Frozen bytes of batches: a change of the format shows as a diff of `golden/`, so it is deliberate.

`python tests/protocol/test_batch_golden.py` writes the files anew.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rayka.protocol.batch_decode import decode
from rayka.protocol.batch_encode import encode_batch
from rayka.protocol.batch_format import ProducerSequence, RecordBatch

GOLDEN = Path(__file__).parent / "golden"
BYTES_PER_LINE = 16
TIME_MS = 1_357_034_400_000

SAMPLES = {
    "one_value": encode_batch([b"hello"], timestamps_ms=TIME_MS),
    "keys": encode_batch([b"one", b"two", b""], keys=[b"UA", b"AA", b""], timestamps_ms=TIME_MS),
    "nulls": encode_batch([b"one", None, b"three"], keys=[None, b"AA", None], timestamps_ms=TIME_MS),
    "headers": encode_batch(
        [b"one", b"two", b"three"],
        headers=[[("source", b"faa"), ("größe", None)], None, [("source", b"")]],
        timestamps_ms=TIME_MS,
    ),
    "timestamps": encode_batch([b"one", b"two"], timestamps_ms=[TIME_MS, TIME_MS - 5]),
    "control": encode_batch([b"\0\0"], keys=[b"\0\1"], timestamps_ms=-1, is_control=True),
    "sequence": encode_batch(
        [b"one", b"two"], timestamps_ms=TIME_MS, sequence=ProducerSequence(4711, 3, 2**31 - 1)
    ),
    "offset_gaps": encode_batch([b"one", b"two"], timestamps_ms=TIME_MS, offset_deltas=[1, 7]),
}
SAMPLES["stamped"] = np.concatenate(
    [
        np.frombuffer(part, np.uint8)
        for part in RecordBatch(SAMPLES["keys"]).stamped(base_offset=1000, leader_epoch=7)
    ]
)
SAMPLES["log_append_time"] = np.concatenate(
    [
        np.frombuffer(part, np.uint8)
        for part in RecordBatch(SAMPLES["timestamps"]).stamped(
            base_offset=1000, leader_epoch=7, log_append_time_ms=TIME_MS + 9
        )
    ]
)


def _lines(batch: np.ndarray) -> str:
    data = batch.tobytes()
    rows = [data[start : start + BYTES_PER_LINE] for start in range(0, len(data), BYTES_PER_LINE)]
    return "".join(f"{row.hex(' ')}\n" for row in rows)


@pytest.mark.parametrize("name", SAMPLES)
def test_encoding_gives_the_frozen_bytes(name: str) -> None:  # F1, F2
    assert _lines(SAMPLES[name]) == (GOLDEN / f"batch_{name}.hex").read_text()


def test_every_frozen_file_has_its_sample() -> None:
    assert {path.name for path in GOLDEN.glob("batch_*.hex")} == {f"batch_{name}.hex" for name in SAMPLES}


def test_frozen_bytes_decode_to_the_records() -> None:
    batch = RecordBatch(bytes.fromhex((GOLDEN / "batch_log_append_time.hex").read_text()))
    records = decode(batch)
    assert records.values_list() == [b"one", b"two"]
    assert records.offsets.tolist() == [1000, 1001]
    assert records.timestamps_ms.tolist() == [TIME_MS + 9, TIME_MS + 9]


def test_an_array_and_a_list_give_the_same_bytes() -> None:
    values, keys = pa.array([b"one", None, b"three"]), pa.array([None, b"AA", None])
    encoded = encode_batch(values, keys=keys, timestamps_ms=np.full(3, TIME_MS))
    assert encoded.tobytes() == SAMPLES["nulls"].tobytes()


if __name__ == "__main__":
    for sample_name, sample in SAMPLES.items():
        (GOLDEN / f"batch_{sample_name}.hex").write_text(_lines(sample))
