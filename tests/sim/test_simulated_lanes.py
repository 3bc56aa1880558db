"""The direct lanes of the simulated network: which calls take them, in which order they arrive, how they end."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest

from rayka.sim.loop import START_US, VirtualLoop
from rayka.sim.run_options import NO_LANES, LanePlan, SimOptions, swarm
from rayka.sim.simulation import Simulation, Verdict
from rayka.sim.world.exchange import Links
from rayka.sim.world.simulated_lanes import STALLED_US, LaneAvailability, Pair, Pipe
from tests.sim.planted_lane_bugs import CHANGING_LANES

BROKER, CONTROLLER = 1, 3001
SURE = LanePlan(share=1.0, latency_ms=1.0, jitter_ms=0.0)


class Piped:
    """A pipe from node 1 to node 2, and what came out of it."""

    def __init__(self, seed: int = 1, jitter_ms: float = 20.0) -> None:
        plan = LanePlan(share=1.0, latency_ms=5.0, jitter_ms=jitter_ms)
        self.loop, self.links = VirtualLoop(), Links()
        self.arrived: list[int] = []
        self.stalled_us = 0
        self.pipe = Pipe(
            self.loop,
            self.links,
            Pair(SimOptions(seed=seed, lanes=plan), 1, 2),
            is_back=False,
            on_stalled=self._on_stalled,
        )

    def _on_stalled(self) -> None:
        self.stalled_us = self.loop.now_us

    def put(self, count: int) -> None:
        for number in range(count):
            self.pipe.put(self.arrived.append, number)

    def go_on(self, seconds: float) -> None:
        self.loop.run_until(self.loop.now_us + int(seconds * 1e6))


def test_a_pipe_keeps_the_order() -> None:
    piped = Piped()
    piped.put(100)
    piped.go_on(5.0)
    assert piped.arrived == list(range(100))


def test_what_meets_a_cut_link_arrives_when_it_is_mended() -> None:
    piped = Piped()
    piped.links.cut([(1, 2)])
    piped.put(3)
    piped.go_on(3.0)
    assert piped.arrived == []
    piped.links.mend([(1, 2)])
    piped.go_on(5.0)
    assert piped.arrived == [0, 1, 2]
    assert piped.stalled_us == 0


def test_a_link_that_stays_cut_is_given_up() -> None:
    piped = Piped()
    piped.links.cut([(1, 2)])
    piped.put(3)
    piped.go_on(60.0)
    assert 0 < piped.stalled_us <= START_US + 2 * STALLED_US
    assert piped.arrived == []


def test_of_what_is_on_its_way_a_part_from_the_beginning_arrives() -> None:
    counts = set[int]()
    for seed in range(20):
        piped = Piped(seed)
        piped.put(3)
        piped.pipe.cut_short()
        piped.go_on(5.0)
        assert piped.arrived == list(range(len(piped.arrived)))
        counts.add(len(piped.arrived))
    assert counts == {0, 1, 2, 3}


def test_what_was_stopped_does_not_hasten_what_is_sent_later() -> None:
    piped = Piped(jitter_ms=0.0)
    piped.put(1)
    piped.pipe.stop()
    piped.go_on(0.001)
    piped.put(1)
    sent_us = piped.loop.now_us
    piped.pipe.put(lambda: piped.arrived.append(piped.loop.now_us))
    piped.go_on(1.0)
    assert piped.arrived[0] == 0
    assert piped.arrived[1] - sent_us >= 2_500  # half of the latency is the least


# ---- In a cluster --------------------------------------------------------------------------------------------------


@contextmanager
def cluster(lanes: LanePlan, *, latency_ms: float = 1.0) -> Iterator[tuple[Simulation, list[str]]]:
    """One controller and one broker without faults, and the lines of the trace."""
    lines: list[str] = []
    options = SimOptions(
        seed=3, voters=1, brokers=1, clients=1, ops_per_second=0.0, faults_per_minute=0.0,
        latency_ms=latency_ms, jitter_ms=0.0, lanes=lanes,
        config={"broker_heartbeat_interval_ms": 500},
    )  # fmt: skip
    sim = Simulation(options, lines.append)
    sim.begin()
    yield sim, lines
    assert sim.checkers.violation is None
    sim.close()


def grep(pattern: str, lines: list[str]) -> list[str]:
    return [each for each in lines if re.search(pattern, each)]


def time_ms(line: str) -> float:
    return float(line.split(maxsplit=1)[0])


def test_hot_calls_go_by_ray_until_the_lane_is_open_and_then_by_it() -> None:
    with cluster(SURE) as (sim, lines):
        sim.run_until_ms(20_000)
    opened = lines.index(grep(f"lane +{BROKER}->{CONTROLLER} is open", lines)[0])
    heartbeats = f"send +heartbeat {BROKER}->{CONTROLLER}"
    assert not grep(f"{heartbeats} .*by lane", lines[:opened])
    assert grep(f"{heartbeats} .*by lane", lines[opened:]) == grep(heartbeats, lines[opened:])
    assert sim.network.lanes.counts["calls"] > 10


def test_what_is_not_hot_goes_by_ray() -> None:
    """The fetches of the metadata log too, though fetches of partitions are hot."""
    with cluster(SURE) as (sim, lines):
        sim.run_until_ms(20_000)
    assert grep("send +register_broker", lines)
    assert grep(f"send +fetch {BROKER}->{CONTROLLER}", lines)
    assert not grep("send +(register_broker|fetch) .*by lane", lines)


def test_a_lane_that_cannot_be_opened_is_asked_for_again_and_the_calls_go_by_ray() -> None:
    with cluster(SURE) as (sim, lines):
        pair = sim.network.lanes._pair(BROKER, CONTROLLER)
        pair.kind = LaneAvailability.UNREACHABLE
        sim.run_until_ms(20_000)
    assert len(grep(f"{BROKER}->{CONTROLLER} cannot be opened", lines)) > 1
    assert len(grep(f"answered +heartbeat {BROKER}->{CONTROLLER}", lines)) > 10
    assert not grep(f"{BROKER}->{CONTROLLER} .*by lane", lines)


def test_a_lane_tells_of_the_end_of_a_process_before_ray_does() -> None:
    """The calls on their way by the lane fail at once, those by Ray when Ray knows."""
    plan = LanePlan(share=1.0, latency_ms=1.0, jitter_ms=0.0, death_news_ms=1_000.0)
    with cluster(plan, latency_ms=50.0) as (sim, lines):
        is_parked = lambda: bool(sim.network._endpoints[CONTROLLER].open)  # noqa: E731
        sim.run_until_ms(10_000)
        sim.run_until_ms(20_000, is_parked)
        assert is_parked(), "the broker's fetch of the metadata waits at the controller"
        killed_ms = sim.loop.now_us / 1000
        sim.cluster.kill(CONTROLLER)
        sim.run_until_ms(30_000)
    (ended,) = grep(f"{BROKER}->{CONTROLLER} ended with .*its process ended", lines)
    by_ray = grep(f"broken +fetch {BROKER}->{CONTROLLER} .*its process ended", lines)
    assert time_ms(ended) - killed_ms < 10
    assert by_ray
    assert all(time_ms(each) - killed_ms > 1_000 for each in by_ray)


def test_a_node_that_begins_again_is_asked_for_another_lane() -> None:
    with cluster(SURE) as (sim, lines):
        sim.run_until_ms(10_000)
        opened = len(grep(f"{BROKER}->{CONTROLLER} is open", lines))
        sim.cluster.kill(CONTROLLER)
        sim.cluster.start(CONTROLLER)
        sim.run_until_ms(30_000)
    assert opened == 1
    assert len(grep(f"{BROKER}->{CONTROLLER} is open", lines)) == 2


@pytest.mark.parametrize("is_reset", [True, False])
def test_the_end_of_a_whole_machine_is_noticed_within_seconds(is_reset: bool) -> None:
    """Or as soon as a process runs there again, and gets a call of a lane that it does not know."""
    with cluster(SURE) as (sim, lines):
        sim.run_until_ms(10_000)
        killed_ms = sim.loop.now_us / 1000
        sim.cluster.kill(CONTROLLER, is_silent=True)
        if is_reset:
            sim.cluster.start(CONTROLLER)
        sim.run_until_ms(30_000)
    (ended,) = grep(f"{BROKER}->{CONTROLLER} ended with", lines)[:1]
    assert ("reset" in ended) is is_reset, ended
    assert time_ms(ended) - killed_ms <= STALLED_US / 1000


# ---- In whole runs -------------------------------------------------------------------------------------------------


def traced(seed: int) -> tuple[Simulation, list[str]]:
    lines: list[str] = []
    sim = Simulation(swarm(seed, seconds=15.0, **CHANGING_LANES), lines.append)
    outcome = sim.run()
    assert outcome.verdict is Verdict.OK, outcome
    return sim, lines


def test_calls_of_the_two_ways_overtake_each_other() -> None:
    """No message of these runs is lost, doubled or of a random delay, but by lane."""
    lines = [*traced(2)[1], *traced(3)[1]]
    overtaken = 0
    for pair in {each.split()[4] for each in lines if " deliver " in each}:
        numbers = re.findall(rf"deliver +\w+ {pair} #(\d+):(\d+)", "\n".join(lines))
        places = [(int(epoch), int(number)) for epoch, number in numbers]
        overtaken += sum(one > other for one, other in pairwise(places))
    assert overtaken > 1  # one fall is where the second run begins


def test_a_call_arrives_after_the_lane_that_it_took_has_ended() -> None:
    _, lines = traced(2)
    late = 0
    cut_off: set[str] = set()
    for line in lines:
        if re.search(r" broken .* by lane", line):
            cut_off.add(" ".join(line.split()[3:6]))
        elif " deliver " in line:
            late += " ".join(line.split()[3:6]) in cut_off
    assert late > 0


def test_a_run_says_what_its_lanes_did() -> None:
    sim, lines = traced(2)
    lanes = sim.outcome().lanes
    assert lanes["opened"] == len(grep("lane .*is open", lines)) > 0
    assert lanes["ended"] == len(grep("lane .*ended with", lines)) > 0
    assert lanes["refused"] == len(grep("lane .*cannot be opened", lines)) > 0
    assert lanes["calls"] == len(grep("send .*by lane", lines))
    assert 0 < lanes["cut off"] < lanes["calls"]


def test_three_of_four_runs_have_lanes_and_some_of_their_pairs_have_none() -> None:
    drawn = [swarm(seed).lanes for seed in range(400)]
    assert 270 <= sum(each.share > 0 for each in drawn) <= 330
    assert {each.breaks for each in drawn} >= {0.0, 0.05}
    options = SimOptions(seed=1, lanes=LanePlan(share=0.5))
    kinds = [Pair(options, caller_id, 1).kind for caller_id in range(200)]
    assert set(kinds) == set(LaneAvailability)
    assert 70 <= kinds.count(LaneAvailability.WORKS) <= 130


def test_without_lanes_a_run_draws_nothing_for_them() -> None:
    sim = Simulation(swarm(5, seconds=3.0, lanes=NO_LANES))
    sim.run()
    assert not any(sim.network.lanes.counts.values())
