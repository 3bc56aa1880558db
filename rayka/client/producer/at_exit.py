"""The end of the interpreter, for producers that were not closed: what they have accepted is sent, within a bound; what
is not acknowledged by then is reported on standard error, and sets the exit status.

The order in which a process ends, and what happens in it here:
1. the main thread has ended. What is waiting is sent first, before `concurrent.futures` refuses the work that the
   look-up of a node needs;
2. other threads end, unless they are daemons, and may send until then;
3. `atexit`: what they left is sent, before Ray leaves its cluster and before the IO thread stops, which both were
   registered before the last producer. What was not acknowledged is reported;
4. Python flushes standard error, and a failure there makes the exit status 120. The status is set by such a failure: an
   `atexit` callback has no other way, and `os._exit` would skip all later callbacks.
A script that ended by an exception keeps its status, 1.

Senders are known by weak references: a producer that is dropped is collected, and its sender lives on the loop
until it has nothing more to send. Kafka's producer loses what is not flushed.
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

FLUSH_S = 5.0  # for all producers together
_CLOSE_S = 2.0


class _AtExit:
    """What this process has to see to when it ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._senders: WeakSet[Sender] = WeakSet()
        self._pending: dict[ProducerBatch, Sender] = {}  # when the end began
        self._reported: dict[ProducerBatch, None] = {}
        self._left_s = FLUSH_S
        self._is_registered = False
        self._was_forked = False

    def after_fork(self) -> None:
        """In a forked child: the producers are the parent's, which flushes them."""
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
            # Again for each producer, so that it runs before all that was registered meanwhile, such as Ray's own.
            atexit.unregister(self._at_exit)
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
            self._report()  # multiprocessing ends such a child without `atexit`

    def _at_exit(self) -> None:
        self._flush()
        self._report()
        for sender in self._all():
            sender.outcomes.logs_failures = False
            with suppress(TimeoutError, RuntimeError):  # a callback blocks the IO thread
                io_thread.run(sender.close, _CLOSE_S)

    def _all(self) -> list[Sender]:
        with self._lock:
            return list(self._senders)

    def _flush(self) -> None:
        """Waits until all is acknowledged or has failed; a second time only for what is left of the bound."""
        end_s = time.monotonic() + self._left_s
        senders = self._all()
        for sender in senders:
            sender.outcomes.logs_failures = False  # `_report` names them
            waiting = [each for each in sender.accumulator.end_linger() if each not in self._reported]
            self._pending.update(dict.fromkeys(waiting, sender))
        try:
            if self._pending:
                wait_until_done(list(self._pending), self._left_s)
                # A batch is over before its callbacks have run.
                io_thread.wait_for_turn(end_s - time.monotonic())
        except (TimeoutError, KeyboardInterrupt):  # Ctrl-C ends the wait
            end_s = 0.0
        self._left_s = max(0.0, end_s - time.monotonic())
        for sender in senders:
            sender.outcomes.logs_failures = True  # another thread may go on

    def _report(self) -> None:
        """Names what was not delivered, each batch once."""
        lost = {batch: sender for batch, sender in self._pending.items() if not _is_delivered(batch)}
        self._pending.clear()
        self._reported.update(dict.fromkeys(lost))
        if not lost:
            return
        with suppress(OSError, ValueError):  # standard error is closed
            print(_message(lost), file=sys.stderr)
        if not hasattr(sys, "last_value"):  # no exception ended the script
            is_closed = sys.stderr is None or getattr(
                sys.stderr, "closed", False
            )  # Python would not flush it
            sys.stderr = _FailingAtTheEnd(io.StringIO() if is_closed else sys.stderr)


class _FailingAtTheEnd:
    """Standard error whose flush fails at the very end of the interpreter. See the module."""

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
    """The first error there is; a batch may wait for an answer without any."""
    errors = (each.error_of(0, len(each)) or each.last_error for each in batches)
    error = next((each for each in errors if each is not None), None)
    return "no answer yet" if error is None else f"{type(error).__name__}: {error}"


_process = _AtExit()
os.register_at_fork(after_in_child=_process.after_fork)


def watch(sender: Sender) -> None:
    """Its records are sent before the interpreter ends, also when the producer is not closed."""
    _process.watch(sender)
