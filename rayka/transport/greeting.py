"""How a lane opens: a ticket that was handed out over Ray, shown before anything else is read.

The lane so inherits Ray's authentication: to get a ticket a caller must be able to call the actor. A ticket is valid
once and for `TICKET_S`. The greeting has a fixed size: no more is read of a connection without a ticket.

Both ends prove that they know the ticket, and neither shows it: when a node has ended, anybody on its machine may
listen at the node's former address.

1. The caller sends `MAGIC` and the ticket's digest. 2. The node sends `node_proof`. 3. The caller sends `caller_proof`.
4. The node sends `WELCOME`.

A caller of an older release sends `MAGIC_SHOWN` and the ticket itself, and is welcomed at once; so is a caller of this
release by a node whose offer does not promise the proof.
"""

import asyncio
import hashlib
import hmac
import secrets
import socket
from collections import OrderedDict
from typing import NamedTuple

from rayka.errors import NetworkException
from rayka.ports import Message

MAGIC = b"rayka lane 2\n"
MAGIC_SHOWN = b"rayka lane 1\n"
PROOF_BYTES = 32
TICKET_BYTES = 32
GREETING_BYTES = len(MAGIC) + TICKET_BYTES
WELCOME = b"welcome\n"
TICKET_S = 30.0
TICKETS_MAX = 10_000
GREETING_S = 5.0


class LaneOffer(Message, frozen=True, array_like=True):
    """Where a node serves its lane, and a ticket for one connection to it.

    `local_name` is an abstract Unix socket, reachable on the same machine alone and gone with its process; empty where
    the system has none. `port` is 0 where the node serves no TCP. `has_proof`: the node proves that it knows the
    ticket.
    """

    local_name: str
    host: str
    port: int
    ticket: bytes
    has_proof: bool = False


class Tickets:
    """The tickets of one node that were not shown yet."""

    def __init__(self) -> None:
        # By digest, the oldest first.
        self._valid: OrderedDict[bytes, _Ticket] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Tickets {len(self._valid)}>"

    def issue(self, now_s: float) -> bytes:
        """A new ticket; the oldest one that was not shown gives way when there are too many."""
        while self._valid and (
            len(self._valid) >= TICKETS_MAX or next(iter(self._valid.values())).expires_s <= now_s
        ):
            self._valid.popitem(last=False)
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._valid[_digest(ticket)] = _Ticket(ticket, now_s + TICKET_S)
        return ticket

    def take(self, shown: bytes, now_s: float) -> bytes | None:
        """The ticket of this digest, or the ticket itself, if it is valid now; it is not any more afterwards."""
        for digest in (shown, _digest(shown)):
            found = self._valid.pop(digest, None)
            if found is not None and found.expires_s > now_s:
                return found.ticket
        return None


class _Ticket(NamedTuple):
    ticket: bytes
    # By the clock of the loop.
    expires_s: float


def greeting(offer: LaneOffer) -> bytes:
    """What a caller sends first."""
    return MAGIC + _digest(offer.ticket) if offer.has_proof else MAGIC_SHOWN + offer.ticket


def node_proof(ticket: bytes) -> bytes:
    """Proves that the sender is the node that issued the ticket."""
    return hmac.digest(ticket, b"node", "sha256")


def caller_proof(ticket: bytes) -> bytes:
    """Proves that the sender is the caller that was given the ticket."""
    return hmac.digest(ticket, b"caller", "sha256")


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()


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
