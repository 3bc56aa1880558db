"""`pa.array` imports pandas where it is installed, in up to a second: no client or node waits for that."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("values", ["[b'value'] * 1000", "[b'value', None] * 500"])
@pytest.mark.parametrize(
    "code",
    [
        "encode_batch({0}, timestamps_ms=1)",
        "encode_batch({0}, keys={0}, headers=[[('k', b'v')]] * 1000, timestamps_ms=1)",
        "binary_array({0})",
    ],
)
def test_a_thousand_records_are_encoded_without_pandas(code: str, values: str) -> None:
    program = (
        "import sys\nfrom rayka.protocol.batch_columns import binary_array\n"
        f"from rayka.protocol.batch_encode import encode_batch\n{code.format(values)}\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_list_sent_as_one_batch_needs_no_pandas() -> None:
    program = """
import sys
from rayka.client.producer.arrow_input import inputs_of, pieces_of
from rayka.client.consumer.record import Record
for data in ([b"value"] * 1000, [Record("t", 0, 0, 1, b"k", b"v", [("h", b"x")])] * 1000):
    for given in inputs_of(data, 1, (None, None)):
        assert sum(1 for _ in pieces_of(given, 1 << 20, 1 << 20)) == 1
sys.exit("pandas" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    "values", [[b"value"] * 1000, [b"value", None] * 500, [b"", None, b"longer"] * 100, [None] * 200]
)
def test_with_pandas_there_the_bytes_are_the_same(values: list[bytes | None]) -> None:
    program = f"""
import sys
{{}}
from rayka.protocol.batch_encode import encode_batch
sys.stdout.write(encode_batch({values!r}, keys={values!r}, timestamps_ms=1).tobytes().hex())
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", program.format(first)], check=True, capture_output=True, text=True
        ).stdout
        for first in ("", "import pandas")
    ]
    assert found[0] == found[1]
