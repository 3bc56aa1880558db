"""Long work on a log, by slices: a generator that yields after each, so that an event loop can let others have their
turn. What a slice has done stays done; the work counts once the generator has ended.
"""

from collections.abc import Generator
from typing import TypeVar

ResultT = TypeVar("ResultT")
Slices = Generator[None, None, ResultT]
SLICE_BATCHES = 1_000  # of a few microseconds each
SLICE_BYTES = 4 << 20  # a CRC over so much takes about a millisecond


def run_to_end(work: Slices[ResultT]) -> ResultT:
    """What the work comes to, with nothing in between its slices."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: ResultT = end.value
            return result
