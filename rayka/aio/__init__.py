"""Awaitable clients under the same names, for programs with an event loop, such as Ray's async actors.

`async with` opens and closes a client. A call that would block its thread awaits instead, and the caller's loop runs
other tasks; the work is done on rayka's one IO thread, as for sync clients. Any number of tasks may use a client. When
a task is cancelled in a call, the call is given up and the client stays usable.
"""

from rayka.aio.aio_admin import Admin
from rayka.aio.aio_consumer import Consumer
from rayka.aio.aio_producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
