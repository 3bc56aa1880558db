"""One minute of `tests/ray/chaos.py`: nodes, members of a group and a whole Ray node are killed, nothing is lost."""

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.lane, pytest.mark.timeout(480)]
_TIMEOUT_S = 420
KINDS = ("broker", "controller", "coordinator", "machine", "member", "lanes")


def test_a_minute_of_chaos_loses_nothing_and_ends_whole(environment: dict[str, str]) -> None:
    """The Ray node comes back under another id, and its nodes on it: no node may live on one that is gone."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray.chaos", "--minutes", "1"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=_TIMEOUT_S,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    killed = {
        kind: int(times) for kind, times in re.findall(r"^\| (\w+) \| (\d+) \|", done.stdout, re.MULTILINE)
    }
    assert all(killed[kind] >= 1 for kind in KINDS), "every kind of fault"
    assert "came back as Ray node" in done.stdout
    assert "Every acknowledged record is where it was acknowledged" in done.stdout
    assert "and was given to the group" in done.stdout
