"""Two machines: the lane between them is TCP, and where its ports are blocked Ray carries the calls."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.ray.namespaces import ADDRESSES, two_machines

pytestmark = pytest.mark.lane
_TIMEOUT_S = 500


def test_calls_go_by_ray_while_the_lanes_ports_are_blocked_and_by_the_lane_again_afterwards(
    record_property: Callable[[str, object], None],
) -> None:
    with two_machines() as machines:
        done = subprocess.run(
            machines.inside(
                1,
                sys.executable,
                "-m",
                "tests.ray.far_machine",
                machines.ray_address,
                f"{machines.directory}/data",
            ),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3_000:]
    saw = json.loads(done.stdout.splitlines()[-1])
    assert sorted(saw["hosts"].values()) == sorted(ADDRESSES), "a broker on each machine"
    record_property("says", f"80 records in {saw['blocked_s']:.1f} s from the moment of the block")
    assert saw["acknowledged"] >= 80
    assert all(each.startswith("calls go by Ray, not directly: ") for each in saw["said"])
    nodes = [each.removeprefix("calls go by Ray, not directly: ").split()[0] for each in saw["said"]]
    assert nodes
    assert len(nodes) == len(set(nodes)), "once for each node"
