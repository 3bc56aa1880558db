"""`pa.array` imports pandas where it is installed, in up to a second: no client or node waits for that."""

import subprocess
import sys

LISTS = ([b"value"] * 1000, [b"value", None] * 500)


def test_nothing_that_a_client_or_a_node_does_with_a_thousand_records_imports_pandas() -> None:
    """One process does it all, and says what had imported it."""
    program = f"""
import sys
from rayka.client.consumer.record import Record
from rayka.client.producer.arrow_input import inputs_of, pieces_of
from rayka.protocol.batch_columns import binary_array
from rayka.protocol.batch_encode import encode_batch

def look(what):
    if sys.modules.pop("pandas", None):
        print(what)

for values in {LISTS!r}:
    what = f"{{len(values)}} records, the second of them {{values[1]}}"
    encode_batch(values, timestamps_ms=1)
    look(f"a batch of {{what}}")
    encode_batch(values, keys=values, headers=[[("k", b"v")]] * 1000, timestamps_ms=1)
    look(f"a batch with keys and headers of {{what}}")
    binary_array(values)
    look(f"a column of {{what}}")
for data in ([b"value"] * 1000, [Record("t", 0, 0, 1, b"k", b"v", [("h", b"x")])] * 1000):
    for given in inputs_of(data, 1, (None, None)):
        assert sum(1 for _ in pieces_of("t", given, 1 << 20, 1 << 20)) == 1
    look(f"a list of {{type(data[0])}} that is sent")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_with_pandas_there_the_bytes_are_the_same() -> None:
    lists = [*LISTS, [b"", None, b"longer"] * 100, [None] * 200]
    program = f"""
{{}}
from rayka.protocol.batch_encode import encode_batch
for values in {lists!r}:
    print(encode_batch(values, keys=values, timestamps_ms=1).tobytes().hex())
"""
    without, beside = (
        subprocess.run(
            [sys.executable, "-c", program.format(first)], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        for first in ("", "import pandas")
    )
    assert len(without) == len(lists)
    assert without == beside
