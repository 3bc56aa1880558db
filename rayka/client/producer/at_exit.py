"""Flushes unclosed producers when the interpreter ends, within FLUSH_S; reports lost records on standard error.

Lost records also set the exit status. A process ends in this order:
1. The main thread has ended. This module flushes first, before `concurrent.futures` refuses work: the look-up of a node
   needs such work.
2. Other threads that are no daemons end; they may send until their end.
3. `atexit`: this module flushes the records of step 2 and reports the lost ones. Ray leaves its cluster and the IO
   thread stops only later, because both were registered before the last producer.
4. Python flushes standard error, and a failure of this flush makes the exit status 120. This module makes the flush
   fail: an `atexit` callback has no other way to set the status, and `os._exit` would skip all later callbacks.
A script that ended by an exception keeps its status, 1.

Weak references hold the senders: a dropped producer is collected, and its sender lives on the loop until all records
are sent. Kafka's producer loses unflushed records.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  # it registers its end before this module does, so it ends later
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
from rayka.client.producer.delivery_future import wait_until_done
from rayka.client.producer.producer_batch import ProducerBatch
from rayka.client.producer.sender import Sender

# Bound of all flushes of all producers together.
FLUSH_S = 5.0
_CLOSE_S = 2.0


class _AtExit:
    """The producers of this process, and the flushes and the report at its end."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._senders: WeakSet[Sender] = WeakSet()
        # Unfinished batches at the beginning of a flush, each with its sender.
        self._pending: dict[ProducerBatch, Sender] = {}
        self._reported: dict[ProducerBatch, None] = {}
        # Rest of FLUSH_S.
        self._left_s = FLUSH_S
        self._is_registered = False
        self._was_forked = False

    def after_fork(self) -> None:
        """Forgets all producers in a forked child: they belong to the parent, which flushes them."""
        for sender in self._senders:
            sender.accumulator.topics.after_fork()
        self._lock = threading.RLock()
        self._senders = WeakSet()
        self._pending.clear()
        self._was_forked = True

    def watch(self, sender: Sender) -> None:
        with self._lock:
            self._senders.add(sender)
            if not self._is_registered:
                self._is_registered = True
                self._register()
            # Registered again for each producer, to run before callbacks registered since, such as Ray's own.
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)

    def _register(self) -> None:
        register_early = getattr(threading, "_register_atexit", None)
        # A private function of Python, which may be missing.
        if register_early is not None:
            # Raised if the first producer is made while the process ends.
            with suppress(RuntimeError):
                register_early(self._before_threads_end)

    # ---- The end ----

    def _before_threads_end(self) -> None:
        """Flushes, but closes no producer: another thread may send, and a callback of `atexit` may close with a longer
        timeout.
        """
        self._flush()
        if self._was_forked and multiprocessing.parent_process() is not None:
            # multiprocessing ends such a child without `atexit`.
            self._report()

    def _at_exit(self) -> None:
        self._flush()
        self._report()
        for sender in self._all():
            sender.outcomes.logs_failures = False
            # Raised if a callback blocks the IO thread.
            with suppress(TimeoutError, RuntimeError):
                io_thread.run(sender.close, _CLOSE_S)

    def _all(self) -> list[Sender]:
        with self._lock:
            return list(self._senders)

    def _flush(self) -> None:
        """Waits until all batches are done, within the rest of FLUSH_S."""
        end_s = time.monotonic() + self._left_s
        senders = self._all()
        for sender in senders:
            # `_report` names the failures.
            sender.outcomes.logs_failures = False
            waiting = [each for each in sender.accumulator.end_linger() if each not in self._reported]
            self._pending.update(dict.fromkeys(waiting, sender))
        try:
            if self._pending:
                wait_until_done(list(self._pending), self._left_s)
                # A batch is done before its callbacks have run.
                io_thread.wait_for_turn(end_s - time.monotonic())
        # Ctrl-C ends the wait.
        except (TimeoutError, KeyboardInterrupt):
            end_s = 0.0
        self._left_s = max(0.0, end_s - time.monotonic())
        for sender in senders:
            # Another thread may send more.
            sender.outcomes.logs_failures = True

    def _report(self) -> None:
        """Prints the undelivered records, each batch once, and makes the exit status 120."""
        lost = {batch: sender for batch, sender in self._pending.items() if not _is_delivered(batch)}
        self._pending.clear()
        self._reported.update(dict.fromkeys(lost))
        if not lost:
            return
        # Raised if standard error is closed.
        with suppress(OSError, ValueError):
            print(_message(lost), file=sys.stderr)
        # No exception ended the script.
        if not hasattr(sys, "last_value"):
            # Python does not flush a closed standard error, so a fresh stream takes its place.
            is_closed = sys.stderr is None or getattr(sys.stderr, "closed", False)
            sys.stderr = _FailingAtTheEnd(io.StringIO() if is_closed else sys.stderr)


class _FailingAtTheEnd:
    """Standard error whose flush fails while the interpreter finalizes (module, step 4)."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        self._stream.flush()
        if sys.is_finalizing():
            raise OSError("records were not delivered")


def _is_delivered(batch: ProducerBatch) -> bool:
    return batch.is_done and batch.error_of(0, len(batch)) is None


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
    """The first error of the batches; "no answer yet" if none has an error."""
    errors = (each.error_of(0, len(each)) or each.last_error for each in batches)
    error = next((each for each in errors if each is not None), None)
    return "no answer yet" if error is None else f"{type(error).__name__}: {error}"


_process = _AtExit()
os.register_at_fork(after_in_child=_process.after_fork)


def watch(sender: Sender) -> None:
    """Flushes the sender's records when the interpreter ends, also if the producer is not closed."""
    _process.watch(sender)
