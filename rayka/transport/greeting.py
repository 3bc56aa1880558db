"""How a lane opens: a ticket that was handed out over Ray, shown before anything else is read.

The lane so inherits Ray's authentication: to get a ticket a caller must be able to call the actor. A ticket is valid
once and for `TICKET_S`. The greeting has a fixed size: no more is read of a connection without a ticket.
"""

import asyncio
import secrets
import socket
from collections import OrderedDict

from rayka.errors import NetworkException
from rayka.ports import Message

MAGIC = b"rayka lane 1\n"
TICKET_BYTES = 32
GREETING_BYTES = len(MAGIC) + TICKET_BYTES
WELCOME = b"welcome\n"
TICKET_S = 30.0
TICKETS_MAX = 10_000
GREETING_S = 5.0


class LaneOffer(Message, frozen=True, array_like=True):
    """Where a node serves its lane, and a ticket for one connection to it.

    `local_name` is an abstract Unix socket, reachable on the same machine alone and gone with its process; empty where
    the system has none. `port` is 0 where the node serves no TCP.
    """

    local_name: str
    host: str
    port: int
    ticket: bytes


class Tickets:
    """The tickets of one node that were not shown yet."""

    def __init__(self) -> None:
        self._valid: OrderedDict[bytes, float] = OrderedDict()  # when each expires, in s of the loop

    def __repr__(self) -> str:
        return f"<Tickets {len(self._valid)}>"

    def issue(self, now_s: float) -> bytes:
        """A new ticket; the oldest one that was not shown gives way when there are too many."""
        while self._valid and (len(self._valid) >= TICKETS_MAX or next(iter(self._valid.values())) <= now_s):
            self._valid.popitem(last=False)
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._valid[ticket] = now_s + TICKET_S
        return ticket

    def take(self, ticket: bytes, now_s: float) -> bool:
        """Whether the ticket is valid now; it is not any more afterwards."""
        return self._valid.pop(ticket, now_s) > now_s


def greeting(ticket: bytes) -> bytes:
    """What a caller sends first."""
    return MAGIC + ticket


def ticket_of(shown: bytes) -> bytes | None:
    """The ticket in a greeting; None when it is none."""
    return shown[len(MAGIC) :] if shown.startswith(MAGIC) else None


async def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """The first bytes of a connection, no more. Raises NetworkException when it ends before."""
    loop, received = asyncio.get_running_loop(), b""
    while len(received) < count:
        some = await loop.sock_recv(connection, count - len(received))
        if not some:
            raise NetworkException(
                "the lane was closed before it was open: its ticket is not valid, or expired"
            )
        received += some
    return received
