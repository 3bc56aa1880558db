"""One minute of `tests/ray/chaos.py`: nodes, members of a group and a whole Ray node are killed, nothing is lost."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ray.chaos_group import Diary, given_twice, wrong_in

pytestmark = [pytest.mark.ray, pytest.mark.lane, pytest.mark.timeout(780)]
_TIMEOUT_S = 720
KINDS = ("broker", "controller", "coordinator", "machine", "member", "lanes")


def test_a_minute_of_chaos_loses_nothing_and_ends_whole(environment: dict[str, str]) -> None:
    """The Ray node comes back under another id, and its nodes on it: no node may live on one that is gone.

    Eighty records a second, so that faults and not records take the processors: what is lost or given twice is lost
    around a fault. By default the program sends five hundred.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray.chaos", "--minutes", "1", "--pause-ms", "25"],
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


SENT: Any = SimpleNamespace(  # a sender whose two records were acknowledged
    topic="first",
    acknowledged={7: SimpleNamespace(partition=0, offset=0), 8: SimpleNamespace(partition=0, offset=1)},
)
WHOLE = ("P 1\nB first 0 0 1\nR first 0 0 7\nC first 0 1 1\n", "P 2\nB first 0 1 2\nR first 0 1 8\n")


@pytest.mark.parametrize(
    ("diaries", "wrong"),
    [
        (WHOLE, None),
        (
            (*WHOLE, "P 3\nR first 0 0 7\nR fir"),
            None,
        ),  # again, and a line that the end of the process cut off
        (WHOLE[:1], "1 acknowledged records were never given to the group"),
        ((*WHOLE, "R first 0 1 9\n"), "gave b'9' and b'8' at offset 1"),
        ((*WHOLE, "B first 0 0 3\nR first 0 0 7\n"), "member 2 began at .* after .* was acknowledged"),
    ],
)
def test_what_a_group_must_not_do_is_found_in_what_its_members_wrote_down(
    tmp_path: Path, diaries: tuple[str, ...], wrong: str | None
) -> None:
    paths = [tmp_path / f"{number}.txt" for number in range(len(diaries))]
    for path, text in zip(paths, diaries, strict=True):
        path.write_text(text)
    read = [Diary.read(path) for path in paths]
    problems = wrong_in(read, [SENT])
    assert len(problems) == (wrong is not None), problems
    assert wrong is None or re.search(wrong, problems[0])
    assert given_twice(read) == len(diaries[2:])
