"""The clients with the same names, awaitable: for programs that run an event loop, Ray's async actors among them.

`async with` opens and closes them. A call that would block its thread awaits instead, and the loop of the caller goes
on meanwhile; the work is done where that of the sync clients is done, on rayka's one IO thread. A client may be used by
any number of tasks. When a task is cancelled in a call, the call is given up and the client goes on.
"""

from rayka.aio.aio_admin import Admin
from rayka.aio.aio_consumer import Consumer
from rayka.aio.aio_producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
