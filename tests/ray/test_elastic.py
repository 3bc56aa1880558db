"""A cluster that follows its load, on a Ray that starts and ends machines by itself."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ray
_TIMEOUT_S = 800  # longer than its own waits together, whose errors say more


def test_a_cluster_grows_with_its_load_and_shrinks_again_without_a_failed_request(
    environment: dict[str, str],
) -> None:
    """What is sent is there once, and no partition ever has fewer replicas: `tests.ray.elastic` checks that."""
    command = [sys.executable, "-m", "tests.ray.elastic"]
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=_TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}{ended.stderr}"
    seen = json.loads(ended.stdout.splitlines()[-1])
    counts = [brokers for _, brokers, _ in seen["seen"]]
    assert (counts[0], max(counts), counts[-1]) == (3, 5, 3)
    assert seen["seen"][-1][2] == 3, "Ray takes the machines of brokers that have gone"
    assert seen["failed"] == 0
    assert seen["problems"] == []
    assert seen["directories"] == ["broker-1", "broker-2", "broker-3", "controller-3001"]
    begun = [["scale-out-begun", "broker-4"], ["scale-out-begun", "broker-5"]]
    assert [each for each in seen["decided"] if each[0] == "scale-out-begun"] == begun
    ended_ids = {name for kind, name in seen["decided"] if kind == "scale-in-ended"}
    assert ended_ids == {"broker-4", "broker-5"}
