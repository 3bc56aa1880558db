"""100,000 replicas on 100 brokers planned by the balancer: how long it takes, and the longest turn of the loop.

A turn is as many steps as the controller's runtime takes at once. Two clusters: one broker of the hundred is empty, and
replicas of random sizes lie at random. And what the reports cost that plans are made from.
"""

import gc
import random
import time
from collections.abc import Iterator

from benchmarks import load_reports
from benchmarks.harness import Row
from rayka.controller.planning.balance_plan import Plan, plan_balance
from rayka.controller.planning.shapes import BrokerShape, PartitionShape
from rayka.ids import TopicPartition
from rayka.shard.runtime import STEPS_PER_TURN

BROKERS, FACTOR, REPLICAS = 100, 3, 100_000
PLAN_MAX_S, TURN_MAX_S = 2.0, 0.020


def run(*, quick: bool) -> Iterator[Row]:
    """Processor time, for other programs are no matter of the planner's."""
    replicas = REPLICAS // 10 if quick else REPLICAS
    for name, partitions in (("one empty broker", _one_empty(replicas)), ("at random", _random(replicas))):
        nodes = [BrokerShape(each, f"rack-{each % 3}", f"machine-{each}") for each in range(1, BROKERS + 1)]
        plan_s, turn_s, plan = _timed(nodes, partitions)
        settings = f"{replicas:,} replicas, {BROKERS} brokers, {name}: {len(plan.moves):,} moves"
        yield Row.allowed("plan a balance", plan_s, "s", PLAN_MAX_S, settings=settings)
        yield Row.allowed("longest turn of that plan", turn_s, "s", TURN_MAX_S, settings=settings)
    yield load_reports.row(quick=quick)


def _timed(nodes: list[BrokerShape], partitions: list[PartitionShape]) -> tuple[float, float, Plan]:
    """All of it, its longest turn, and what came of it."""
    gc.collect()
    gc.freeze()  # as a node does when it has started
    planning = plan_balance(nodes, partitions)
    total_s = longest_s = 0.0
    while True:
        began_s = time.process_time()
        plan = _turn(planning)
        turn_s = time.process_time() - began_s
        total_s, longest_s = total_s + turn_s, max(longest_s, turn_s)
        if plan is not None:
            return total_s, longest_s, plan


def _turn(planning: Iterator[None]) -> Plan | None:
    try:
        for _ in range(STEPS_PER_TURN):
            next(planning)
    except StopIteration as end:
        plan: Plan = end.value
        return plan
    return None


def _one_empty(replicas: int) -> list[PartitionShape]:
    """Replicas of one size, in turns on all but the last broker, on three racks."""
    old = BROKERS - 1
    return [
        PartitionShape(
            TopicPartition("even", number),
            tuple(1 + (number + place) % old for place in range(FACTOR)),
            100_000_000,
        )
        for number in range(replicas // FACTOR)
    ]


def _random(replicas: int) -> list[PartitionShape]:
    """Replicas of 0 to 1 GB, on random brokers, some with traffic."""
    chance = random.Random(1)
    return [
        PartitionShape(
            TopicPartition("random", number),
            tuple(chance.sample(range(1, BROKERS + 1), FACTOR)),
            int(chance.random() ** 3 * 1e9),
            int(chance.random() ** 20 * 1e7),
            int(chance.random() ** 20 * 1e7),
        )
        for number in range(replicas // FACTOR)
    ]
