"""The consumer for event loops: wraps the sync consumer, whose waiting calls run on a thread of the async consumer.

A sync consumer hands over partitions, calls back and commits in the thread that polls. The thread keeps this behaviour
without blocking the application's loop. Fetched records are taken in the loop, in one step: a task that is cancelled
during its wait has taken none. Kafka has no such client; aiokafka's runs on the loop of its user.
"""

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial, wraps
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack
from weakref import finalize, ref

import pyarrow as pa

from rayka import forks
from rayka.aio.opening import AioClient, Reports
from rayka.client import io_thread
from rayka.client.arguments import topic_names
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle
from rayka.client.consumer import consumer
from rayka.client.consumer.call_guard import MethodCall
from rayka.client.consumer.consumer_core import COMMIT_LATE_S, ConsumerCore, OnCommit
from rayka.client.consumer.delivery import ConsumerInterceptors, Delivery
from rayka.client.consumer.offset_commits import CommittableOffsets
from rayka.client.consumer.record import Record, ValueT
from rayka.config.client_config import ConsumerConfig
from rayka.errors import ClosedError
from rayka.options import ConsumerOptions

_Job = Callable[[], object] | None
ResultT = TypeVar("ResultT")


class CallThread:
    """The thread of one async client that makes the client's waiting sync calls, one after another.

    Invariants: calls are made in the order of `submit`; while the thread waits for a callback of the application, which
    runs in the event loop, the thread makes the calls that the callback awaits. The thread ends with `end`, or when the
    client is collected.
    """

    def __init__(self, name: str, callback_timeout_s: float) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._callback_timeout_s = callback_timeout_s
        self._thread = threading.Thread(target=_make_calls, args=(self._jobs,), name=name, daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<CallThread {self._thread.name}>"

    def end(self) -> None:
        """Ends the thread after the calls submitted before."""
        self._jobs.put(None)

    def submit(self, call: Callable[[], ResultT]) -> "Future[ResultT]":
        """Makes the call after the earlier ones. Raises UnavailableError in a forked child."""
        forks.refuse()
        future: Future[ResultT] = Future()
        self._jobs.put(partial(io_thread.fulfil, future, call))
        return future

    def in_loop(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function for this thread that runs the callback, which may be a coroutine function, in the running
        loop and waits for its end.

        The function raises the callback's exception, and TimeoutError after its time; never CancelledError, which would
        cancel the task that waits for the call.
        """
        loop = asyncio.get_running_loop()

        def called(*arguments: Any) -> Any:
            work = _result_of(callback, arguments)
            try:
                over = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:
                # The loop was closed.
                work.close()
                raise
            over.add_done_callback(lambda _: self._jobs.put(_nothing))
            self._work_until(over)
            if over.cancelled():
                raise RuntimeError(f"the callback {callback!r} was cancelled, or its client closed meanwhile")
            return over.result(0)

        return called

    def _work_until(self, over: "Future[Any]") -> None:
        """Raises TimeoutError."""
        deadline_s = time.monotonic() + self._callback_timeout_s
        while not over.done():
            try:
                job = self._jobs.get(timeout=max(0.0, deadline_s - time.monotonic()))
            except Empty:
                over.cancel()
                raise TimeoutError(
                    f"a callback did not end within {self._callback_timeout_s:g} s, and was cancelled"
                ) from None
            if job is None:  # for the thread, when this is over
                self._jobs.put(None)
                over.cancel()
                return
            job()


async def _result_of(callback: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    returned = callback(*arguments)
    return await returned if inspect.isawaitable(returned) else returned


def _nothing() -> None:
    """Wakes the thread."""


def _make_calls(jobs: "SimpleQueue[_Job]") -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep its client until the next one


logger = logging.getLogger(__name__)
P = ParamSpec("P")


HasSome = Callable[[Delivery], bool]


class _Wait:
    """A wait for records that a task may give up."""

    is_given_up = False

    def check(self) -> None:
        """Raises if the wait was given up."""
        if self.is_given_up:
            raise _GivenUpError


class _GivenUpError(Exception):
    """Ends a wait that no task waits for any more."""


class _OpenConsumer:
    """A sync consumer that separates the wait for records, which a task may give up, from taking them.

    `thread` makes the waiting calls.
    """

    def __init__(self, topics: tuple[Any, ...], cluster: str | ClusterHandle, config: ConsumerConfig) -> None:
        names = topic_names(*topics)
        # The thread makes one call at a time, and the loop calls for no longer than it takes records.
        self.core = ConsumerCore("aio.Consumer", cluster, config, waits_for_calls=True)
        self.methods = consumer.methods_of(self.core, names)
        self.thread = CallThread("rayka-aio-consumer", config.max_poll_interval_ms / 1000)
        # The wait that is under way.
        self._wait: _Wait | None = None
        finalize(self, self.thread.end)

    def __repr__(self) -> str:
        return repr(self.core)

    def is_at_hand(self, has_some: HasSome) -> bool:
        """Whether records can be taken now: some are fetched, and neither a call nor a change of the group is due."""
        core = self.core
        if core.is_closing or core.has_changes:
            return False
        call = MethodCall()
        try:
            return core.guard.begin(call) is None and has_some(core.delivery)
        finally:
            call.end()

    def poll_at_hand(self) -> None:
        """Does the steps of a poll that do not wait, before records are taken."""
        io_thread.refuse("aio.Consumer")
        core = self.core
        core.check_open()
        core.maybe_auto_commit(late_s=COMMIT_LATE_S)
        if core.rebalance_listener is not None:
            core.rebalance_listener.polled()

    def wait(self, wait: _Wait, timeout_ms: float, has_some: HasSome) -> bool:
        """Waits for records; False after `timeout_ms`."""
        self._wait = wait
        try:
            return bool(self.core.poll(timeout_ms, partial(has_some, self.core.delivery), wait.check))
        except _GivenUpError:
            return False
        finally:
            self._wait = None

    def give_up(self, wait: _Wait) -> None:
        """Ends the wait, also one that has not begun; for any thread."""
        wait.is_given_up = True
        io_thread.call_soon(self.core.fetcher.interrupt)

    def end_wait(self) -> None:
        """Ends the wait under way, if there is one."""
        wait = self._wait
        if wait is not None:
            self.give_up(wait)

    def iterator(self) -> Iterator[Record]:
        """Yields the fetched records; takes each only when it is requested."""
        found = self._take(Delivery.iterator)
        if found is None:
            return iter(())
        return (
            found
            if self.core.rebalance_listener is None
            else islice(found, self.core.config.max_poll_records)
        )

    def take(self, take: Callable[[Delivery], ResultT]) -> ResultT | None:
        """Calls `take` in the loop; returns None while the thread makes a call, which may move positions."""
        self.core.check_open()
        return self._take(take)

    def _take(self, take: Callable[[Delivery], ResultT]) -> ResultT | None:
        delivery = self.core.delivery
        call, attempt = MethodCall(), None
        try:
            try:
                if self.core.guard.begin(call) is not None:
                    return None
                delivery.begin()
                attempt = delivery.attempt
                taken = take(delivery)
                # Before the call ends: one of the thread may follow at once.
                attempt.is_handed = True
                return taken
            finally:
                call.end()
        except BaseException:
            if attempt is not None:
                attempt.is_handed = False
            raise


def _awaited(
    method: Callable[Concatenate[consumer.Consumer, P], ResultT],
) -> Callable[Concatenate["Consumer", P], Coroutine[Any, Any, ResultT]]:
    """The method of the sync consumer, awaitable; its callbacks are called in the loop."""

    @wraps(method)
    async def call(self: "Consumer", /, *arguments: P.args, **options: P.kwargs) -> ResultT:
        core = await self._open()
        named: Any = {
            name: core.thread.in_loop(each) if callable(each) else each for name, each in options.items()
        }
        return await asyncio.wrap_future(
            core.thread.submit(partial(method, core.methods, *arguments, **named))
        )

    return call


class Consumer(AioClient[_OpenConsumer], Generic[ValueT]):
    """Reads records of topics in order per partition, from an event loop. `async with` closes it.

    Arguments, options, guarantees and errors are those of `rayka.Consumer`. The first awaited call, or `async with`,
    looks up the cluster. `async for record in consumer` runs for ever; the next loop continues where one was left.
    Callbacks of `subscribe` run in the loop of the call and may be coroutine functions; they may await the consumer's
    other methods, but not `poll`, and heartbeats continue. `on_commit` of interceptors may be a coroutine function,
    too, and runs in the loop that opened the consumer; `on_consume` is a plain function, called in the task that reads.

    One task at a time reads; calls of several tasks are made one after another. A task that is cancelled in `poll` or
    in the loop has taken no record: the next poll returns the records. A task that is cancelled in another call ends
    only its wait for that call.

    Raises ConfigError; the first awaited call raises ClusterNotFound. Kafka: KafkaConsumer.
    """

    def __init__(
        self,
        *topics: str | Iterable[str],
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        self._config = ConsumerConfig.given(config, options, what="consumer")
        super().__init__(partial(_OpenConsumer, topics, cluster, self._config), "aio.Consumer")
        self._reports = Reports()
        # The task that was given records last.
        self._reader: ref[asyncio.Task[Any]] | None = None
        self._interceptors = ConsumerInterceptors.of(self._config.interceptors)

    def __del__(self) -> None:
        """Warns of an unclosed client here, because a thread may keep the core alive for longer."""
        if self._core is not None and not self._is_closed:
            self._core.core.warn_unclosed()

    # ---- Reading ---------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float = 1000, max_records: int | None = None) -> list[Record[ValueT]]:
        """Returns the next records, at most `max_records` (default `max_poll_records`); none after `timeout_ms`.

        Raises like `rayka.Consumer.poll`.
        """
        count_max = consumer.record_count(max_records, self._config.max_poll_records)
        return await self._taken(timeout_ms, lambda delivery: delivery.next_records(count_max)) or []

    async def poll_arrow(
        self, timeout_ms: float = 1000, max_records: int | None = None
    ) -> pa.RecordBatch | None:
        """Returns the next records as one Arrow batch, None after `timeout_ms`.

        Arguments, columns and errors are those of `rayka.Consumer.poll_arrow`.
        """
        count_max = consumer.record_count(max_records, sys.maxsize)
        return await self._taken(
            timeout_ms, lambda delivery: delivery.next_arrow(count_max), Delivery.has_rows
        )

    async def __aiter__(self) -> AsyncIterator[Record[ValueT]]:
        """Yields records until the consumer is closed, like a loop over a `rayka.Consumer`."""
        await self._open()
        while not self._is_closed:
            try:
                core = await self._until_there_are_records(consumer.ITERATION_POLL_MS, Delivery.has_records)
            except ClosedError:  # meanwhile, by another task
                return
            self._note_reader()
            for record in core.iterator():
                yield record

    # ---- As the sync consumer --------------------------------------------------------------------------------------

    assign = _awaited(consumer.Consumer.assign)
    subscribe = _awaited(consumer.Consumer.subscribe)
    seek = _awaited(consumer.Consumer.seek)
    seek_to_beginning = _awaited(consumer.Consumer.seek_to_beginning)
    seek_to_end = _awaited(consumer.Consumer.seek_to_end)
    position = _awaited(consumer.Consumer.position)
    beginning_offsets = _awaited(consumer.Consumer.beginning_offsets)
    end_offsets = _awaited(consumer.Consumer.end_offsets)
    seek_to_timestamp = _awaited(consumer.Consumer.seek_to_timestamp)
    offsets_for_times = _awaited(consumer.Consumer.offsets_for_times)
    pause = _awaited(consumer.Consumer.pause)
    resume = _awaited(consumer.Consumer.resume)
    paused = _awaited(consumer.Consumer.paused)
    lag = _awaited(consumer.Consumer.lag)
    commit = _awaited(consumer.Consumer.commit)
    committed = _awaited(consumer.Consumer.committed)
    assignment = _awaited(consumer.Consumer.assignment)
    subscription = _awaited(consumer.Consumer.subscription)
    group_metadata = _awaited(consumer.Consumer.group_metadata)

    async def unsubscribe(self) -> None:
        """Ends reading, like `rayka.Consumer.unsubscribe`. The last records given to a task count like at `close`."""
        is_processed = sys.exc_info()[0] is None and self._is_processed()
        core = await self._open()
        await asyncio.wrap_future(
            core.thread.submit(partial(core.core.unsubscribe, is_processed=is_processed))
        )

    async def commit_async(
        self, offsets: CommittableOffsets | None = None, callback: OnCommit | None = None
    ) -> None:
        """Begins a `commit` and does not wait for its end, like `rayka.Consumer.commit_async`.

        `callback(offsets, error)` is called in the loop at the end, and may be a coroutine function.
        """
        core = await self._open()
        told: Any = None if callback is None else self._reports.to_loop(callback, "callback")
        await asyncio.wrap_future(core.thread.submit(partial(core.methods.commit_async, offsets, told)))

    # ---- The end ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stops fetching and leaves the group at once; closing again does nothing.

        Calls of other tasks then raise ClosedError, and their loops end. The last records given to a task count as
        processed (see `rayka.Consumer.close`) when that task closes, or has ended without an error; not when another
        task closes, nor when an exception is propagating.
        """
        await self._end(is_processed=sys.exc_info()[0] is None)

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        await self._end(is_processed=kind is None)

    async def _end(self, *, is_processed: bool) -> None:
        core = await self._to_close()
        if core is None:
            return
        core.end_wait()
        end = partial(core.core.close, is_processed=is_processed and self._is_processed())
        try:
            await asyncio.shield(asyncio.wrap_future(core.thread.submit(end)))
            await self._reports.join()
        finally:
            core.thread.end()

    # ---- Within ----------------------------------------------------------------------------------------------------

    async def _open(self) -> _OpenConsumer:
        was_open = self._core is not None
        core = await super()._open()
        if not was_open and self._interceptors is not None:
            core.core.on_commit = self._reports.to_loop(self._interceptors.await_tell, "interceptors")
        return core

    async def _taken(
        self,
        timeout_ms: float,
        take: Callable[[Delivery], ResultT | None],
        has_some: HasSome = Delivery.has_records,
    ) -> ResultT | None:
        """Calls `take` until it returns a value, for `timeout_ms` at most; returns its last value."""
        began_s, left_ms = time.monotonic(), timeout_ms
        while True:
            core = await self._until_there_are_records(left_ms, has_some)
            self._note_reader()
            taken = core.take(take)
            # Nothing is called before the return: an interruption here would lose the records.
            if taken:
                return taken
            # Interceptors may have removed all fetched records, or a call of another task came between.
            left_ms = timeout_ms - (time.monotonic() - began_s) * 1000
            if left_ms <= 0:
                return taken

    def _note_reader(self) -> None:
        task = asyncio.current_task()
        self._reader = None if task is None else ref(task)

    def _is_processed(self) -> bool:
        """Whether the last records given count as processed: not while another task has them, nor if it failed."""
        reader = None if self._reader is None else self._reader()
        if reader is None or reader is asyncio.current_task():
            return True
        if not reader.done() or reader.cancelled():
            return False
        error = reader.exception()
        if error is not None:
            logger.warning(
                "%r: the records that %r was given last are not committed, as it failed", self, reader
            )
        return error is None

    async def _until_there_are_records(self, timeout_ms: float, has_some: HasSome) -> _OpenConsumer:
        """Waits for records, for `timeout_ms` at most."""
        core = self._core
        if core is None or self._is_closed:
            core = await self._open()
        if core.is_at_hand(has_some):
            core.poll_at_hand()
            return core
        wait = _Wait()
        waiting = core.thread.submit(partial(core.wait, wait, timeout_ms, has_some))
        try:
            await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            core.give_up(wait)
            raise
        return core
