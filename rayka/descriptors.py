"""The descriptors of this process: how many it may have, and how many of them connections leave to files.

A process that has used up its descriptors (EMFILE), or whose machine has (ENFILE), can open no file: to its disks that
looks like a failure. So a node raises its limit as far as it may, and its direct lanes take no descriptor from the
`reserved` ones. The kernel gives the lowest free number: a lane server that gives back each number of the upper part
leaves that part to files, however many connections come. Kafka leaves both to the operator (`ulimit -n`).
"""

import errno
import resource
from contextlib import suppress

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_RESERVED_MAX = 4096


def raise_limit() -> int:
    """Raises the soft limit of descriptors to the hard one; returns what it is then."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # macOS refuses more than its kernel has.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit()


def limit() -> int:
    """How many descriptors the process may have now."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def reserved() -> int:
    """How many descriptors connections leave to files and to Ray: half of them, at most 4,096."""
    return min(limit() // 2, _RESERVED_MAX)


def is_reserved(descriptor: int) -> bool:
    """Whether a connection that was given this descriptor has to give it back."""
    return descriptor >= limit() - reserved()
