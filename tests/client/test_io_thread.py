"""The IO thread that all clients of a process share."""

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any

import pytest

import rayka
import rayka.testing
from rayka.client import io_thread
from rayka.errors import RaykaError
from tests.testing.waiting import WAIT_S


async def thread_name() -> str:
    return threading.current_thread().name


def test_all_coroutines_run_on_one_thread():
    assert {io_thread.run(thread_name, 5) for _ in range(3)} == {"rayka-io"}
    assert not io_thread.is_current()


def test_an_error_reaches_the_caller():
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        io_thread.run(fail, 5)


def test_a_coroutine_that_takes_too_long_is_cancelled():
    begun, ended = threading.Event(), threading.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    timeout_s = 0.01
    while not begun.is_set():  # on a busy machine the time may be over before the coroutine begins
        with pytest.raises(TimeoutError):
            io_thread.run(hang, timeout_s)
        timeout_s *= 2
    assert ended.wait(60)


def test_a_blocking_call_on_the_io_thread_is_refused_by_name():
    async def block() -> None:
        io_thread.run(thread_name, 5)

    with pytest.raises(RuntimeError, match="thread_name was called on rayka's IO thread"):
        io_thread.run(block, 5)


def test_a_turn_comes_after_what_was_told_before():
    told: list[int] = []
    for number in range(3):
        io_thread.call_soon(told.append, number)
    io_thread.wait_for_turn(5)
    assert told == [0, 1, 2]


def test_twenty_producers_and_twenty_consumers_have_the_threads_of_one_of_each():
    def use(number: int) -> None:
        producer = clients.enter_context(rayka.Producer(cluster=cluster))
        producer.send("words", b"x").result()
        options = {"group_id": f"g{number}", "auto_offset_reset": "earliest"}
        consumer = clients.enter_context(rayka.Consumer("words", cluster=cluster, **options))
        while not consumer.poll(timeout_ms=5_000):
            pass

    quickly = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 1}
    with rayka.testing.cluster(config=quickly) as cluster, ExitStack() as clients:
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("words", partitions=1)
        use(0)
        threads = sorted(each.name for each in threading.enumerate())
        for number in range(1, 20):
            use(number)
        assert sorted(each.name for each in threading.enumerate()) == threads


def test_a_busy_thread_is_said_to_be_busy():
    release = threading.Event()
    io_thread.call_soon(release.wait, 5)
    with pytest.raises(TimeoutError, match="does a callback block it"):
        io_thread.wait_for_turn(0.01)
    release.set()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_would_end_the_loop_ends_only_what_raised_it(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
):
    async def leave() -> None:
        raise kind

    def leave_at_once() -> None:
        raise kind

    before = io_thread.loop()
    waiting = asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05, "slept"), before)
    io_thread.call_soon(leave_at_once)
    with pytest.raises(kind):
        io_thread.run(leave, 5)
    assert io_thread.run(thread_name, 5) == "rayka-io"
    assert waiting.result(60) == "slept"
    assert io_thread.loop() is before
    assert "tried to end it" in caplog.text


def test_a_loop_that_is_stopped_from_outside_goes_on():
    before = io_thread.loop()
    before.call_soon_threadsafe(before.stop)
    assert io_thread.run(thread_name, 5) == "rayka-io"
    assert io_thread.loop() is before


def test_the_exit_of_the_interpreter_ends_what_still_runs():
    script = """
import asyncio
from rayka.client import io_thread
from rayka.errors import RaykaError
from tests.testing.waiting import WAIT_S
async def work():
    try:
        await asyncio.Event().wait()
    finally:
        print("ended", flush=True)
keep = []
io_thread.call_soon(lambda: keep.append(asyncio.ensure_future(work())))
io_thread.wait_for_turn(5)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_a_process_ends_though_its_last_callback_comes_after_the_loop():
    script = (
        "import atexit, asyncio\n"
        "async def pause(): pass\n"
        "def late():\n"
        "    io_thread.call_soon(print, 'never')\n"
        "    try: io_thread.run(pause, 5)\n"
        "    except RuntimeError as error: print(error)\n"
        "atexit.register(late)\n"  # runs after those that are registered later
        "from rayka.client import io_thread\n"
        "io_thread.run(pause, 5)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "rayka's IO thread has ended with this process; close clients before exit\n"
    assert done.stderr == ""


def test_work_that_is_given_up_while_the_io_thread_is_busy_never_begins():
    free, begun = threading.Event(), []

    async def work() -> None:
        begun.append("it")

    io_thread.call_soon(free.wait, 60)
    with pytest.raises(TimeoutError):
        io_thread.run(work, 0.01)
    free.set()
    for _ in range(3):
        io_thread.wait_for_turn(60)
    assert begun == []


@pytest.mark.filterwarnings("error")
def test_ctrl_c_at_any_line_on_the_way_to_the_io_thread_leaves_no_coroutine_behind():
    ended: list[str] = []

    async def work() -> None:
        await asyncio.sleep(0)
        ended.append("whole")

    lines = interrupted_at_each_line(lambda: io_thread.run(work, 60))
    assert lines >= 8
    gc.collect()  # a coroutine that was never awaited warns when it goes
    io_thread.wait_for_turn(60)
    assert ended[-1] == "whole"


# What the caller's thread goes through. A lock that is held meanwhile is let go of in one step with its block, between
# which no signal comes, but a trace function would.
WAY = {each.__code__ for each in (io_thread.run, io_thread.refuse, io_thread.name_of, io_thread.is_current)}


def interrupted_at_each_line(call: Callable[[], object]) -> int:
    """Calls it again and again, each time with KeyboardInterrupt at one line later, until it gets through; how many."""
    return next(at for at in itertools.count() if not is_interrupted(call, at))


def is_interrupted(call: Callable[[], object], at: int) -> bool:
    passed = itertools.count()

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code not in WAY:
            return None
        if event == "line" and next(passed) == at:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)


def test_an_error_is_each_callers_own_with_all_that_it_says() -> None:
    async def fail(error: RaykaError) -> None:
        raise error from LookupError("why")

    kinds: list[type[RaykaError]] = [RaykaError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        shared = kind("what")
        shared.noted = 7  # type: ignore[attr-defined]
        with pytest.raises(kind) as caught:
            io_thread.run(partial(fail, shared), WAIT_S)
        own = caught.value
        assert own is not shared
        assert (type(own), str(own), own.args, vars(own)) == (kind, str(shared), shared.args, vars(shared))
        assert isinstance(own.__cause__, LookupError)
    assert len(kinds) > 50
