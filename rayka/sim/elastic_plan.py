"""What the brokers of a run do that come and go, and the balancing and healing that this asks for.

Drawn from the seed by a random of its own, so what else the seed draws stays as it is.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

BROKERS_MIN = 3  # that are there at the begin, and the largest replication factor


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """How often something comes to pass, and whether a broker dies for good."""

    scaling_pause_s: float = 4.0  # between what the operator does: brokers that join or leave, balances
    flap_pause_s: float = 8.0  # between brokers that end and begin several times
    has_death: bool = False
    # Between machines that Ray drains, one after another, of two at a time; 0 for none.
    drain_pause_s: float = 0.0


def draw_elastic(seed: int) -> ElasticPlan:
    """The plan, for a run that is asked for brokers that come."""
    random = Random(f"elastic swarm {seed}")
    return ElasticPlan(
        scaling_pause_s=random.choice((1.0, 4.0)),
        flap_pause_s=random.choice((4.0, 15.0)),
        has_death=random.random() < 0.6,
        drain_pause_s=random.choice((0.0, 3.0, 10.0)),
    )


def elastic_config(seed: int) -> dict[str, Any]:
    """Healing and balances within a run."""
    random = Random(f"elastic config {seed}")
    return {
        "broker_unavailable_timeout_ms": random.choice((3_000, 8_000)),
        "balancer_settle_ms": random.choice((500, 3_000)),
        "balancer_moves_max": random.choice((1, 2, 10)),
        "reassignment_replication_throttled_rate": random.choice((5_000, 100_000_000)),
        "replica_lag_time_max_ms": random.choice((2_000, 10_000)),
        "replica_fetch_wait_max_ms": 500,
        "leader_imbalance_check_interval_seconds": 5,
    }
