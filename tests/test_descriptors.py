"""How many descriptors a process may have, and how many of them connections leave to files."""

import os
import resource
import subprocess
import sys

import pytest

from rayka import descriptors
from tests.descriptors import limited_to


@pytest.mark.parametrize(("limit", "reserved"), [(64, 32), (1024, 512), (4096, 2048)])
def test_half_of_the_descriptors_are_reserved(limit: int, reserved: int) -> None:
    with limited_to(limit):
        assert (descriptors.limit(), descriptors.reserved()) == (limit, reserved)
        assert descriptors.is_reserved(limit - reserved)
        assert not descriptors.is_reserved(limit - reserved - 1)


def test_a_process_raises_its_limit_as_far_as_it_may() -> None:
    code = "from rayka import descriptors; print(descriptors.raise_limit(), descriptors.limit())"
    hard = min(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    ran = subprocess.run(
        ["sh", "-c", f'ulimit -Sn 200; ulimit -Hn {hard}; exec "$0" -c "$1"', sys.executable, code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert ran.stdout.split() == [str(hard)] * 2
