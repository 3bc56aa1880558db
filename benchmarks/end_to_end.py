"""From a producer's timestamp to the consumer's poll, at an even pace."""

import struct
import threading
import time
from collections.abc import Callable, Sequence

_STAMP = struct.Struct("<QQ")  # the run, and when the record was sent, in ns
_TIMEOUT_S = 60.0
Send = Callable[[bytes], object]
Poll = Callable[[], Sequence[bytes]]


def latencies(send: Send, poll: Poll, *, size_bytes: int, rate: int, count: int) -> list[float]:
    """Seconds that each of so many records takes, sent by this thread and polled by another one.

    Records of earlier runs are passed over. Raises RuntimeError when a record does not come.
    """
    run, padding = time.perf_counter_ns(), bytes(size_bytes - _STAMP.size)
    taken: list[float] = []
    polling = threading.Thread(target=_poll_until, args=(poll, run, count, taken), daemon=True)
    polling.start()
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        send(_STAMP.pack(run, time.perf_counter_ns()) + padding)
    polling.join(_TIMEOUT_S)
    if len(taken) < count:
        raise RuntimeError(f"{count - len(taken)} of {count} records did not come within {_TIMEOUT_S:g} s")
    return taken


def _poll_until(poll: Poll, run: int, count: int, taken: list[float]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while len(taken) < count and time.monotonic() < deadline:
        values = poll()
        now = time.perf_counter_ns()
        for value in values:
            its_run, sent = _STAMP.unpack_from(value)
            if its_run == run:
                taken.append((now - sent) / 1e9)
