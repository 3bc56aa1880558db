"""The priority of a node's event loop among the processes of its machine."""

import os
from contextlib import suppress


def take_usual_niceness() -> None:
    """The calling thread, and those that it starts, wait for a processor no longer than those of other programs.

    Ray starts its workers with a niceness of 15, so that tasks hold up none of its own processes. A node is what others
    wait for, as these are: with 15 it waits whenever a client beside it has something to do. Where the system does not
    allow it (a container without the right SYS_NICE) the niceness stays as it is.
    """
    if os.getpriority(os.PRIO_PROCESS, 0) > 0:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, 0)
