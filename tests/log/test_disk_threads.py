"""The threads of the real disk: which calls wait for each other, and how a call that hangs affects the others."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from rayka.errors import DiskNotResponding, StorageError
from rayka.log.disk_threads import DiskThread, DiskThreads, Progress, Work

BOUND_S = 0.1


@pytest.fixture
def thread() -> Iterator[DiskThread]:
    thread = DiskThread("rayka-test", BOUND_S)
    yield thread
    thread.close()


def waiting_for(event: threading.Event) -> Callable[[Progress], None]:
    def call(on_progress: Progress) -> None:
        on_progress("sync /data/a")
        event.wait()

    return call


def test_each_directory_and_each_work_has_a_thread_of_its_own() -> None:
    threads = DiskThreads()
    for each in ("/data/a", "/data/b", "/data/a/metadata"):
        threads.add_directory(each)
    paths = ("/data/a/orders-0/0.log", "/data/b/orders-0/0.log", "/data/a/metadata/0.log", "/elsewhere/x")
    found = [threads.of(each, work) for each in paths for work in Work]
    assert len(set(found)) == len(paths) * len(Work)
    assert threads.of("/data/a/orders-1", Work.SYNC) is threads.of("/data/a", Work.SYNC)
    assert threads.of("/data/ab", Work.SYNC) is threads.of("/elsewhere/x", Work.SYNC)


def test_calls_are_made_one_after_another_in_their_order_and_raise_what_they_raise() -> None:
    thread = DiskThread("rayka-test", 60)
    made: list[int] = []

    def call(_: Progress, number: int) -> None:
        made.append(number)
        if number == 2:
            raise ValueError(number)

    async def run() -> None:
        outcomes = await asyncio.gather(
            *(thread.run(call, each) for each in range(4)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [type(None), type(None), ValueError, type(None)]

    asyncio.run(run())
    assert made == [0, 1, 2, 3]
    thread.close()


def test_an_error_of_a_posted_call_is_logged_and_ends_no_thread(
    thread: DiskThread, caplog: pytest.LogCaptureFixture
) -> None:
    def close(descriptor: int) -> None:
        raise OSError(f"cannot close {descriptor}")

    assert thread.post(close, 7)
    asyncio.run(thread.run(lambda _: None))
    assert "close failed: cannot close 7" in caplog.text


def test_a_call_that_hangs_fails_and_those_behind_it_and_later_ones_too(thread: DiskThread) -> None:
    released = threading.Event()

    async def run() -> None:
        calls = [thread.run(waiting_for(released)) for _ in range(2)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        outcomes += await asyncio.gather(thread.run(waiting_for(released)), return_exceptions=True)
        assert [type(each) for each in outcomes] == [DiskNotResponding] * 3
        assert "cannot sync /data/a: the disk has not answered for 0.1 s" in str(outcomes[0])

    asyncio.run(run())
    released.set()


def test_a_thread_whose_disk_answers_again_makes_its_next_calls(thread: DiskThread) -> None:
    released, second = threading.Event(), threading.Event()

    async def run() -> None:
        for event in (released, second):
            with pytest.raises(DiskNotResponding):
                await thread.run(waiting_for(event))
            event.set()
            while True:  # it is on its way back
                try:
                    await thread.run(lambda on_progress: on_progress("sync /data/b"))
                except DiskNotResponding:
                    await asyncio.sleep(0)
                else:
                    break

    asyncio.run(run())


def test_a_long_call_that_makes_progress_does_not_hang() -> None:
    thread, steps = DiskThread("rayka-test", 1.5), threading.Semaphore(0)

    def call(on_progress: Progress) -> None:
        for step in range(8):
            on_progress(f"step {step}")
            steps.acquire()

    async def run() -> None:
        long = asyncio.ensure_future(thread.run(call))
        for _ in range(8):
            await asyncio.sleep(0.25)
            steps.release()
        await long

    asyncio.run(run())
    thread.close()


def test_many_calls_leave_one_timer() -> None:
    thread = DiskThread("rayka-test", 60)

    async def run() -> None:
        loop, due = asyncio.get_running_loop(), []
        call_later = loop.call_later
        loop.call_later = lambda *given: due.append(given[0]) or call_later(*given)  # type: ignore[method-assign]
        for _ in range(100):
            await thread.run(lambda _: None)
        assert len(due) == 1

    asyncio.run(run())
    thread.close()


def test_the_end_does_not_wait_for_a_disk_that_hangs_nor_for_a_caller_that_gave_up() -> None:
    released = threading.Event()
    thread = DiskThread("rayka-test", BOUND_S)

    async def run() -> None:
        given_up = asyncio.ensure_future(thread.run(waiting_for(released)))
        await asyncio.sleep(0)
        given_up.cancel()
        with pytest.raises(DiskNotResponding):
            await thread.run(waiting_for(released))

    asyncio.run(run())
    thread.close()
    assert not thread.post(released.set)
    assert "rayka-test" in [each.name for each in threading.enumerate() if each.daemon]
    released.set()


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    bound_s = 0.5
    thread, released = DiskThread("rayka-test", bound_s), threading.Event()

    async def run() -> None:
        call = asyncio.ensure_future(thread.run(waiting_for(released)))
        await asyncio.sleep(0)
        # As in a process that gets SIGSTOP and later SIGCONT: neither the loop nor the thread goes on meanwhile.
        assert not released.wait(1.5 * bound_s)
        for _ in range(3):
            await asyncio.sleep(0)
        following = asyncio.ensure_future(thread.run(lambda _: None))
        await asyncio.sleep(0)
        released.set()
        await asyncio.gather(call, following)

    asyncio.run(run())
    thread.close()


def test_a_call_to_an_ended_thread_is_refused() -> None:
    thread = DiskThread("rayka-test", 60)
    thread.close()

    async def run() -> None:
        with pytest.raises(StorageError, match="closed"):
            await asyncio.wait_for(thread.run(lambda _: None), 30)

    asyncio.run(run())
