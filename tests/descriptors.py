"""A process that has no descriptor left, for tests of what that means to disks and connections."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_free() -> Iterator[None]:
    """No file or socket can be opened in the block, unless another one is closed first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)  # the kernel gives the lowest free number
    os.close(lowest)
    with limited_to(lowest):
        yield
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


@contextmanager
def limited_to(count: int) -> Iterator[None]:
    """The process may have so many descriptors in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
