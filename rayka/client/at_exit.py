"""The end of the interpreter, for producers that were not closed: what they have accepted is sent, within a bound, and
what was not acknowledged then is told, with an exit status.

The order in which a process ends, and what happens in it here:
1. the main thread is through. Before anything else, and before `concurrent.futures` refuses work that looking up a
   node needs, what is waiting is sent;
2. other threads end, unless they are daemons, and may send until then;
3. `atexit`: what they left is sent, before Ray leaves its cluster and before the IO thread stops; both were
   there before the last producer. The result is told;
4. Python flushes standard error, and takes a failure for exit status 120. That is how the status is set: an `atexit`
   callback has no other way, and `os._exit` would leave out what others do at the end.
A script that ended by an exception has its status, 1, already, and keeps it.

Senders are known by weak references: a producer that is dropped is collected, and its sender lives on the loop
until it has nothing more to send. Kafka's producer loses what is not flushed.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  # its own end is registered before ours, and so comes after it
import io
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from rayka.client import io_thread
from rayka.client.delivery_future import wait_until_done
from rayka.client.producer_batch import ProducerBatch
from rayka.client.sender import Sender

FLUSH_S = 5.0  # for all producers together
_CLOSE_S = 2.0


class _AtExit:
    """What this process has to see to when it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._senders: WeakSet[Sender] = WeakSet()
        self._pending: dict[ProducerBatch, Sender] = {}  # when the end began
        self._told: dict[ProducerBatch, None] = {}
        self._left_s = FLUSH_S
        self._is_registered = False
        self._was_forked = False

    def after_fork(self) -> None:
        """In a forked child the parent's producers are not its to flush."""
        for sender in self._senders:
            sender.accumulator.sticky.clear()  # the quick way of `send`, which asks nothing else
        self._lock = threading.Lock()
        self._senders = WeakSet()
        self._pending.clear()
        self._was_forked = True

    def watch(self, sender: Sender) -> None:
        with self._lock:
            self._senders.add(sender)
            if not self._is_registered:
                self._is_registered = True
                self._register()
            atexit.unregister(
                self._at_exit
            )  # so that it runs before all that was registered since, such as Ray's own
            atexit.register(self._at_exit)

    def _register(self) -> None:
        register_early = getattr(threading, "_register_atexit", None)
        if register_early is not None:  # it is not public
            with suppress(RuntimeError):  # the first producer is made while the process ends
                register_early(self._before_threads_end)

    # ---- The end ----

    def _before_threads_end(self) -> None:
        """Closes nothing yet: another thread may send, and a callback of `atexit` may close with more patience."""
        self._flush()
        if self._was_forked and multiprocessing.parent_process() is not None:
            self._tell()  # such a child gets no further

    def _at_exit(self) -> None:
        self._flush()
        self._tell()
        for sender in self._all():
            sender.logs_failures = False
            with suppress(TimeoutError, RuntimeError):  # a callback blocks the IO thread
                io_thread.run(sender.close(), _CLOSE_S)

    def _all(self) -> list[Sender]:
        with self._lock:
            return list(self._senders)

    def _flush(self) -> None:
        """Waits until all is acknowledged or has failed; a second time only for what is left of the bound."""
        end_s = time.monotonic() + self._left_s
        senders = self._all()
        for sender in senders:
            sender.logs_failures = False  # they are told
            with sender.lock:
                waiting = [each for each in sender.accumulator.hurry() if each not in self._told]
            self._pending.update(dict.fromkeys(waiting, sender))
            sender.wake()
        try:
            if self._pending:
                wait_until_done(list(self._pending), self._left_s)
                io_thread.wait_for_turn(
                    end_s - time.monotonic()
                )  # a batch is over before its callbacks have run
        except (TimeoutError, KeyboardInterrupt):  # Ctrl-C: no more patience
            end_s = 0.0
        self._left_s = max(0.0, end_s - time.monotonic())
        for sender in senders:
            sender.logs_failures = True  # another thread may go on

    def _tell(self) -> None:
        """Says once what was not delivered."""
        lost = {batch: sender for batch, sender in self._pending.items() if not _is_delivered(batch)}
        self._pending.clear()
        self._told.update(dict.fromkeys(lost))
        if not lost:
            return
        with suppress(OSError, ValueError):  # standard error is closed
            print(_message(lost), file=sys.stderr)
        if not hasattr(sys, "last_value"):  # no exception ended the script
            sys.stderr = _FailingAtTheEnd(sys.stderr or io.StringIO())


class _FailingAtTheEnd:
    """Standard error, of which the last flush of all fails. See the module."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        if sys.is_finalizing():
            raise OSError("records were not delivered")


def _is_delivered(batch: ProducerBatch) -> bool:
    return batch.is_done and batch.error is None


def _message(lost: dict[ProducerBatch, Sender]) -> str:
    counts = Counter[str]()
    for batch in lost:
        counts[batch.topic] += len(batch)
    total = sum(counts.values())
    topics = ", ".join(f"{count:,} for topic {topic!r}" for topic, count in counts.items())
    clusters = ", ".join(dict.fromkeys(repr(sender.cluster_name) for sender in lost.values()))
    return (
        f"rayka: {total:,} record{'s' * (total != 1)} sent to cluster {clusters} "
        f"{'was' if total == 1 else 'were'} not acknowledged when the program ended: {topics} ({_reason(list(lost))}); "
        f"the end waits {FLUSH_S:g} s at most, `close` and `flush` of a producer as long as delivery_timeout_ms says"
    )


def _reason(batches: Sequence[ProducerBatch]) -> str:
    """The first error there is; a batch may wait for an answer without any."""
    errors = (each.error or each.last_error for each in batches)
    error = next((each for each in errors if each is not None), None)
    return "no answer yet" if error is None else f"{type(error).__name__}: {error}"


_process = _AtExit()
os.register_at_fork(after_in_child=_process.after_fork)


def watch(sender: Sender) -> None:
    """Its records are sent before the interpreter ends, also when the producer is not closed."""
    _process.watch(sender)
