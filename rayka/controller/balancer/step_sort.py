"""Sorts a long list step by step: in one go, tens of thousands of entries hold others up for tens of milliseconds."""

from collections.abc import Generator
from heapq import merge
from itertools import islice
from typing import TypeVar

from rayka.ids import TopicPartition

EntryT = TypeVar("EntryT", bound=tuple[int, int] | tuple[int, TopicPartition, int])
RUN = 256
_MERGED_PER_STEP = 8


def sorted_in_steps(entries: list[EntryT]) -> Generator[None, int, list[EntryT]]:
    """As `sorted`; a short list is sorted at once."""
    if len(entries) <= RUN:
        return sorted(entries)
    runs = []
    for begin in range(0, len(entries), RUN):
        runs.append(sorted(entries[begin : begin + RUN]))
        yield
    merged, whole = merge(*runs), list[EntryT]()
    while part := list(islice(merged, _MERGED_PER_STEP)):
        whole += part
        yield
    return whole
