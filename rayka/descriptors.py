"""The file descriptors of this process: their limit, and the share that connections leave to files.

A process without a free descriptor (EMFILE), or on a machine without one (ENFILE), can open no file, which looks like a
failed disk. A node therefore raises its limit as far as allowed, and its direct lanes use no `reserved` descriptor. The
kernel gives the lowest free number: a lane server that closes each connection with a number in the upper part leaves
that part to files, however many connections come. Kafka leaves both to the operator (`ulimit -n`).
"""

import errno
import resource
from contextlib import suppress

NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_RESERVED_MAX = 4096


def raise_limit() -> int:
    """Raises the soft limit of descriptors to the hard one; returns the limit in force."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # macOS refuses more than its kernel has.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return limit()


def limit() -> int:
    """The number of descriptors that the process may have now."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def reserved() -> int:
    """The number of descriptors that connections leave to files and to Ray: half of the limit, at most 4,096."""
    return min(limit() // 2, _RESERVED_MAX)


def is_reserved(descriptor: int) -> bool:
    """Whether a connection with this descriptor must be closed, because the descriptor is reserved."""
    return descriptor >= limit() - reserved()
