"""Whole runs: the same from the same seed, everywhere; every kind of fault; what a run reports."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayka.cli.main import run
from rayka.sim.command import shrink
from rayka.sim.results import read_results
from rayka.sim.run_options import NO_LANES, GroupPlan, SimOptions, TopicPlan, swarm, with_faults
from rayka.sim.simulation import LIVENESS_SECONDS, LIVENESS_SECONDS_MAX, LivenessDeadline, Simulation, Verdict
from rayka.sim.world.faults import DAMAGING, FaultKind, draw_faults
from tests.sim.planted_bugs import PLANTED_BUGS
from tests.sim.planting import SHORT

SEEDS = Path(__file__).parent / "seeds.txt"
pytestmark = pytest.mark.apart


def test_one_seed_gives_one_trace_whatever_the_hash_seed() -> None:
    hashes = []
    for hash_seed in ("1", "4711"):
        command = [sys.executable, "-m", "rayka.sim", "--seed", "5", "--seconds", "8"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        hashes.append(done.stdout.splitlines()[-1])
    assert hashes[0].startswith("trace hash ")
    assert hashes[0] == hashes[1]


def test_another_seed_gives_another_trace() -> None:
    traces = {Simulation(swarm(seed, seconds=2.0)).run().trace_hash for seed in (1, 2, 1)}
    assert len(traces) == 2


KEPT = [line for line in SEEDS.read_text().splitlines() if line and line[0] != "#"]


@pytest.mark.sim
@pytest.mark.parametrize("line", [line for line in KEPT if line.startswith("--")])
def test_a_command_that_failed_once_is_well(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line that begins with "--" has the options of a whole command, up to a colon."""
    options = line.partition(": ")[0].split()
    assert run(["sim", *options, "--no-shrink"]) == Verdict.OK, capsys.readouterr().err


@pytest.mark.parametrize("line", [line for line in KEPT if not line.startswith("--")])
def test_a_seed_that_failed_once_is_well(line: str) -> None:
    """One that begins with "data" failed with records, with "combined" on combined nodes, with "lanes" with direct
    lanes, with "group" with three members and a coordinator, with "grouped" with the group that its seed draws, with
    "members" with three members and what else its seed draws of a group, with "compacted-offsets" with compaction of
    what the group commits, with "elastic" with two brokers that come and "elastic3" with three; the others are the runs
    that they were when no run had any.
    """
    words = line.split()
    seed, seconds = [word for word in words if word[0].isdigit()][:2]
    chosen: dict[str, Any] = {
        "combined": "combined" in words,
        "compacts": "compacted" in words,
        "expires": "expiring" in words,
        "compacts_offsets": "compacted-offsets" in words,
        "comers": 2 * ("elastic" in words) + 3 * ("elastic3" in words),
    } | ({} if words[0] == "data" else {"topics": ()})
    if not {"lanes", "group", "grouped"} & set(words):
        chosen["lanes"] = NO_LANES
    if "members" in words:
        chosen |= {"members": 3}
    elif "grouped" not in words:
        chosen |= {"members": 0, "group": GroupPlan()}
    if "group" in words:
        chosen |= {"members": 3, "coordinators": 1}
    outcome = Simulation(swarm(int(seed), seconds=float(seconds), **chosen)).run()
    assert outcome.verdict is Verdict.OK, outcome


def test_the_end_of_a_run_waits_a_minute_for_replicas_that_do_not_move() -> None:
    patience = LivenessDeadline(0)
    for second in range(1, LIVENESS_SECONDS):
        patience.look(second * 1_000_000, {"one": 10, "other": 20})
        assert not patience.is_over(second * 1_000_000)
    assert patience.is_over(LIVENESS_SECONDS * 1_000_000)


def test_the_end_of_a_run_waits_for_a_replica_that_copies_but_not_for_ever() -> None:
    patience = LivenessDeadline(0)
    for second in range(1, LIVENESS_SECONDS_MAX):
        patience.look(second * 1_000_000, {"slow": second})
        assert not patience.is_over(second * 1_000_000)
    assert patience.is_over(LIVENESS_SECONDS_MAX * 1_000_000)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_a_quorum_survives_each_kind_of_fault(kind: FaultKind) -> None:
    options = SimOptions(
        seed=7, seconds=8.0, brokers=1, fault_kinds=(kind,), faults_per_minute=75.0,
        config={"controller_quorum_auto_join_enable": True},
    )  # fmt: skip
    outcome = Simulation(options).run()
    assert outcome.verdict is Verdict.OK, outcome
    assert outcome.fault_count > 0
    assert outcome.operations["acknowledged"] > 0


@pytest.mark.parametrize("kind", list(FaultKind))
def test_replicas_survive_each_kind_of_fault(kind: FaultKind) -> None:
    topic = TopicPlan("data0", 2, 3, {"min.insync.replicas": "2"})
    options = SimOptions(
        seed=11, seconds=8.0, voters=1, topics=(topic,), fault_kinds=(kind,), faults_per_minute=60.0,
        operations_per_minute=10.0, config={"broker_session_timeout_ms": 2_000, "broker_heartbeat_interval_ms": 500},
    )  # fmt: skip
    outcome = Simulation(options).run()
    assert outcome.verdict is Verdict.OK, outcome
    assert outcome.fault_count > 0
    assert outcome.sends["acknowledged"] > 0
    assert outcome.polled_count > 0


def test_one_run_in_four_is_of_combined_nodes() -> None:
    drawn = [swarm(seed) for seed in range(400)]
    combined = [each for each in drawn if each.combined]
    assert 80 <= len(combined) <= 120
    assert all(set(each.controller_ids) <= set(each.broker_ids) for each in combined)


def test_no_session_of_many_brokers_ends_between_two_heartbeats() -> None:  # H4, H6
    """Or there would always be one that is fenced where nothing is broken, and they would never all be in sync."""

    def is_restless(options: SimOptions) -> bool:
        return (
            2 * options.config["broker_heartbeat_interval_ms"] > options.config["broker_session_timeout_ms"]
        )

    assert not any(is_restless(swarm(seed, voters=5, combined=True)) for seed in range(100))
    assert any(is_restless(swarm(seed, combined=False)) for seed in range(100))


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_combined_nodes_survive_a_mixture_of_faults(seed: int) -> None:  # decision 032
    topic = TopicPlan("data0", 2, 3, {"min.insync.replicas": "2"})
    options = swarm(seed, seconds=8.0, combined=True, voters=3, topics=(topic,), faults_per_minute=75.0)
    outcome = Simulation(options).run()
    assert outcome.verdict is Verdict.OK, outcome
    assert outcome.sends["acknowledged"] > 0
    assert outcome.polled_count > 0


def test_of_combined_nodes_one_loses_what_it_had_synced() -> None:
    """A minority of the voters may, and of the brokers one."""
    options = SimOptions(
        seed=3,
        seconds=600.0,
        voters=5,
        brokers=5,
        combined=True,
        fault_kinds=DAMAGING,
        faults_per_minute=60.0,
    )
    assert len(draw_faults(options)) == 1


def test_only_a_minority_of_the_voters_loses_what_it_had_synced() -> None:
    options = SimOptions(seed=3, seconds=600.0, voters=5, fault_kinds=DAMAGING, faults_per_minute=60.0)
    hit = [each.node_id for each in draw_faults(options) if each.node_id in options.controller_ids]
    assert len(hit) == len(set(hit)) == 2


def test_a_part_of_the_faults_can_be_replayed() -> None:
    options = swarm(4, seconds=20.0, faults_per_minute=60.0, topics=(), members=0, registers=0)
    outcome = Simulation(with_faults(options, (0, 2))).run()
    assert outcome.fault_count == 2


def test_a_failing_run_is_shrunk_to_the_faults_that_it_needs() -> None:
    bug = next(each for each in PLANTED_BUGS if each.name == "votes for a shorter log")
    options = replace(bug, seconds=SHORT).options(7)
    with bug.plant():
        failed = Simulation(options).run()
        shrunk = shrink(options, failed)
    assert 1 <= len(shrunk.faults) < len(draw_faults(options))
    assert shrunk.outcome.violation is not None
    assert shrunk.outcome.violation.checker == bug.checker


# ---- The command ---------------------------------------------------------------------------------------------------


def test_the_command_prints_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", "--seed", "2", "--seconds", "2", "--trace"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    assert all(re.match(r" *\d+\.\d{3}  +(\d+|-)  \w[\w-]* ", f"{line} ") for line in lines[:-1])
    assert re.fullmatch(r"trace hash [0-9a-f]{32}", lines[-1])


def test_the_command_reports_a_violation_and_how_to_replay_it(capsys: pytest.CaptureFixture[str]) -> None:
    bug = next(each for each in PLANTED_BUGS if each.checker == "fetch-durable")
    with bug.plant():
        assert run(["sim", "--seed", "1", "--seconds", "5", "--voters", "3"]) == Verdict.SAFETY
    error = capsys.readouterr().err
    assert "FAILED  fetch-durable at" in error
    assert "rayka sim --seed 1 --voters 3 --seconds 5 --only-faults ," in error


def test_many_seeds_go_on_where_they_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    arguments = ["--seconds", "1", "--results", str(results)]
    assert run(["sim", "--seeds", "1-2", *arguments]) == 0
    with results.open("a") as file:
        file.write('{"seed": 3, "verd')  # the machine went down in the middle of a line
    assert run(["sim", "--seeds", "1-4", "--jobs", "2", *arguments]) == 0
    assert "seeds       4, 0 failed" in capsys.readouterr().out
    assert set(read_results(results)) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "arguments",
    [[], ["--seed", "1", "--seeds", "1-2"], ["--seeds", "9-3"], ["--seed", "1", "--only-faults", "x"]],
)
def test_wrong_usage_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sim", *arguments]) == 2
    assert "expected" in capsys.readouterr().err
