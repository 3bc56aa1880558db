"""Jobs of the real disk: they run in another process, which a node outlives and which does not outlive its node."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayka.errors import DiskFull
from rayka.log import job_server
from rayka.log.job_server import joined_slices
from rayka.log.local_disk import LocalDisk
from rayka.ports import Disk, JobDied, Slice
from rayka.testing.memory_disk import MemoryDisk
from tests.descriptors import none_free


@dataclass
class Echo:
    """Says what it was answered, and where it runs; ends at the answer "end"."""

    path: str

    def run(self, disk: Disk) -> Generator[Any, Any, None]:
        disk.append(self.path, [b"written"])
        answer = yield os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)
        while answer != "end":
            answer = yield answer


class Failing:
    """Fails as a full disk does, after one step."""

    def run(self, _: Disk) -> Generator[Any, Any, None]:
        yield "before"
        raise DiskFull("cannot append to /x: disk full")


@dataclass
class Working:
    """Counts how often its process gives way in a while of work, and says so twice. Others leave it the share given."""

    least_share: float

    def run(self, _: Disk) -> Generator[Any, Any, None]:
        count = 0

        def give_way() -> None:
            nonlocal count
            count += 1

        os.sched_yield = give_way
        job_server._LEAST_SHARE = self.least_share
        yield None  # the share counts from the next step on
        count, end_s = 0, time.process_time() + 0.1
        while time.process_time() < end_s:
            pass
        yield count
        yield count


class Slow:
    """Has a second step that takes for ever."""

    def run(self, _: Disk) -> Generator[Any, Any, None]:
        yield os.getpid()
        time.sleep(1000)
        yield "never"


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    local = LocalDisk()
    yield local
    local.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 1
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)


def is_alive(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def pid_of(disk: LocalDisk, path: Path) -> int:
    """A whole job; returns the process that ran it."""
    job = disk.start(Echo(str(path)))
    pid, _ = await job.next(None)
    assert await job.next("end") is None
    await job.end()
    return int(pid)


@pytest.mark.parametrize("is_local", [True, False])
def test_a_job_takes_answers_and_fails_with_its_own_error(is_local: bool, tmp_path: Path) -> None:
    async def use(disk: LocalDisk | MemoryDisk, path: str) -> None:
        job = disk.start(Echo(path))
        assert len(await job.next(None)) == 2
        assert [await job.next(each) for each in ("a", (1, b"b"), "end")] == ["a", (1, b"b"), None]
        await job.end()
        assert disk.read_at(path, 0, 100) == b"written"
        failing = disk.start(Failing())
        assert await failing.next(None) == "before"
        with pytest.raises(DiskFull, match="cannot append to /x"):
            await failing.next(None)
        await failing.end()

    if is_local:
        local = LocalDisk()
        asyncio.run(use(local, str(tmp_path / "file")))
        local.close()
    else:
        asyncio.run(use(MemoryDisk(), "/file"))


def test_jobs_run_one_after_another_in_one_process_of_a_lower_priority(
    disk: LocalDisk, tmp_path: Path
) -> None:
    async def use() -> None:
        job = disk.start(Echo(str(tmp_path / "a")))
        pid, niceness = await job.next(None)
        assert pid != os.getpid()
        assert niceness == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 15)
        other = await pid_of(disk, tmp_path / "b")  # at the same time: in one of its own
        assert other not in (pid, os.getpid())
        await job.next("end")
        assert await pid_of(disk, tmp_path / "c") in (pid, other)

    asyncio.run(use())


def test_a_process_gives_way_while_its_job_works_and_not_while_it_waits(
    disk: LocalDisk, tmp_path: Path
) -> None:
    async def use() -> None:
        job = disk.start(Working(least_share=0.0))
        assert await job.next(None) is None
        before = await job.next(None)
        assert before >= 3
        await pid_of(disk, tmp_path / "a")  # in another process, whose start takes hundreds of milliseconds
        assert await job.next(None) <= before + 2  # at the end of one step and at the begin of the next
        await job.end()

    asyncio.run(use())


def test_a_process_that_has_less_than_its_share_gives_way_no_more(disk: LocalDisk) -> None:
    async def use() -> None:
        job = disk.start(Working(least_share=2.0))  # no process of one thread has as much
        assert await job.next(None) is None
        assert await job.next(None) == 0
        await job.end()

    asyncio.run(use())


def test_a_process_that_is_killed_ends_its_job_and_the_next_has_another(
    disk: LocalDisk, tmp_path: Path
) -> None:
    async def use() -> None:
        job = disk.start(Echo(str(tmp_path / "a")))
        pid, _ = await job.next(None)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(JobDied, match=f"process {pid} ended with -9"):
            await job.next("x")
        await job.end()
        idle = await pid_of(disk, tmp_path / "b")
        os.kill(idle, signal.SIGKILL)
        until(lambda: not is_alive(idle))
        assert await pid_of(disk, tmp_path / "c") not in (pid, idle)

    asyncio.run(use())


def test_a_step_that_is_waited_for_ends_with_its_process_and_with_its_waiter() -> None:
    async def use() -> None:
        disk = LocalDisk()
        for is_closed in (False, True):
            job = disk.start(Slow())
            pid = await job.next(None)
            step = asyncio.create_task(job.next(None))
            await asyncio.sleep(0)
            if is_closed:
                disk.close()
                with pytest.raises(JobDied, match=f"process {pid} ended"):
                    await step
            else:
                step.cancel()
                await asyncio.wait([step])
                await job.end()
            assert not is_alive(pid)

    asyncio.run(use())


def test_a_job_that_is_ended_writes_nothing_more(disk: LocalDisk, tmp_path: Path) -> None:
    async def use() -> None:
        job = disk.start(Echo(str(tmp_path / "a")))
        pid, _ = await job.next(None)
        await job.end()
        assert not is_alive(pid)

    asyncio.run(use())


def test_a_process_that_cannot_be_started_is_a_job_that_died(
    disk: LocalDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/there/is/no/python")
    with pytest.raises(JobDied, match="cannot start a process"):
        asyncio.run(disk.start(Failing()).next(None))


def test_a_job_that_finds_no_descriptor_has_died_and_the_next_one_runs(
    disk: LocalDisk, tmp_path: Path
) -> None:
    async def run() -> None:
        with none_free(), pytest.raises(JobDied, match=r"cannot start a process: .*Too many open files"):
            await disk.start(Failing()).next(None)
        assert await pid_of(disk, tmp_path / "a") > 0

    asyncio.run(run())


NODE = """
import asyncio, sys, time
from rayka.log.local_disk import LocalDisk
from tests.log.test_job_process import Echo

async def use():
    job = LocalDisk().start(Echo(sys.argv[1]))
    print((await job.next(None))[0], flush=True)
    time.sleep(600)

asyncio.run(use())
"""


def test_a_process_ends_with_its_node(tmp_path: Path) -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(tmp_path / "a")],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert node.stdout is not None
    pid = int(node.stdout.readline())
    assert is_alive(pid)
    node.kill()
    node.wait()
    node.stdout.close()
    until(lambda: not is_alive(pid))


def test_a_closed_disk_leaves_no_process(tmp_path: Path) -> None:
    disk = LocalDisk()
    pid = asyncio.run(pid_of(disk, tmp_path / "a"))
    assert is_alive(pid)
    disk.close()
    assert not is_alive(pid)


def test_several_slices_are_told_as_one_and_no_byte_is_lost_before_the_end() -> None:
    answers: list[object] = []

    def steps() -> Generator[Any, Any, None]:
        for number in range(17):
            answers.append((yield Slice(number)))
        answers.append((yield "a step"))
        answers.append((yield Slice(9 << 20)))

    found, received = joined_slices(steps()), []
    answer: object = None
    while True:
        try:
            received.append(found.send(answer))
        except StopIteration:
            break
        answer = f"answer {len(received)}"
    assert received == [Slice(sum(range(8))), Slice(sum(range(8, 16))), "a step", Slice((9 << 20) + 16)]
    assert [each for each in answers if each is not None] == [f"answer {number}" for number in range(1, 5)]
