"""The demo as a subprocess, and the example programs, on the Ray that the Spark tests share."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rayka_demo.flights import flight_records, load_flights, table_checksum

pytestmark = pytest.mark.ray

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 300
INTERRUPTED = 130


@pytest.fixture
def demo(cluster):
    """Starts `rayka demo` with options, as a process of its own that is ended with the test."""
    started = []

    def start(*options):
        command = [sys.executable, "-c", "from rayka.cli.main import main; main()", "demo", *options]
        environment = {**os.environ, "RAY_ADDRESS": cluster.ray_address}
        process = subprocess.Popen(
            command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()
        process.stderr.close()


def test_the_demo_gets_out_what_it_put_in(demo):
    process = demo("--no-spark", "--json")
    out, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    outcome = json.loads(out)
    assert outcome["records_in"] == outcome["records_out"] == 336_776
    expected = f"{table_checksum(flight_records(load_flights())):016x}"
    assert outcome["checksum_in"] == outcome["checksum_out"] == expected
    assert "/broker-" in outcome["killed"], "half way, a leader's process"
    assert outcome["write_pause_seconds"] > 0
    assert outcome["lost_member"].startswith("member-")
    moved = outcome["moved"]
    assert sum(len(partitions) for partitions in moved.values()) == 2, "the lost member's share of six"
    assert outcome["lost_member"] not in moved
    assert outcome["others_kept"], "nothing moves but what has to"
    assert outcome["take_over_seconds"] >= 2, (
        "a session of 6 s since its last heartbeat, which a busy machine delays"
    )
    assert outcome["records_given_twice"] <= 5_000, "one read of the lost member's, not committed"


def test_ctrl_c_ends_the_demo_with_one_line_and_takes_its_directory_away(demo):
    process = demo("--no-spark", "--transport", "ray")
    for line in process.stdout:
        if line.startswith("Starting a cluster"):
            directory = Path(line.split()[-3])
            break
    assert directory.is_dir()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == INTERRUPTED
    assert errors.strip().splitlines()[-1] == "interrupted"
    assert not directory.exists()


@pytest.mark.parametrize(
    ("program", "last_line"),
    [
        ("produce_consume.py", "polled: 5 records"),
        ("consumer_group.py", "3,000 of 3,000 orders are handled; 0 wait"),
        ("async_pipeline.py", "1,000 squares add up to 332,833,500; expected 332,833,500"),
        ("pydantic_records.py", "3 departures, 5 minutes late in all"),
        ("arrow_batches.py", "their values add up to 4,999,950,000; expected 4,999,950,000"),
        ("many_tasks.py", "read: 20 keys, each with its 1,000 records in their order"),
    ],
)
def test_an_example_does_what_it_says(cluster, capsys, program, last_line):
    assert lines_of(program, capsys)[-1] == last_line


def lines_of(program, capsys):
    runpy.run_path(str(EXAMPLES / program))["main"]()
    return capsys.readouterr().out.strip().splitlines()


def test_the_workers_of_the_example_become_more_while_records_wait(cluster, capsys):
    last_line = lines_of("ray_workers.py", capsys)[-1]
    found = re.fullmatch(r"600 of 600 jobs are done by up to (\d) workers, none is lost", last_line)
    assert found is not None, last_line
    assert 1 < int(found[1]) <= 3


def test_the_example_of_a_queue_says_how_the_rates_compare(cluster, capsys):
    *_, queue_line, topic_line, ratio_line, last_line = lines_of("queue_of_work.py", capsys)
    queue, topic = (
        int(line.split()[-1].replace(",", ""))
        for line in (queue_line.partition(" items/s")[0], topic_line.partition(" items/s")[0])
    )
    ratio = float(ratio_line.removeprefix("ratio: "))
    assert ratio == pytest.approx(topic / queue, rel=0.02, abs=0.06)
    assert last_line == "all 2,000 items came through both"
