"""Ctrl-C, pressed by a test."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """The alarm of the process is a Ctrl-C."""
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, former)
