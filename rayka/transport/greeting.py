"""The opening of a lane: a ticket that was handed out over Ray is proved before anything else is read.

So the lane inherits Ray's authentication: to get a ticket, a caller must be able to call the actor. A ticket is valid
once and for `TICKET_S`. The greeting has a fixed size: a connection without a ticket is read no further.

Both ends prove that they know the ticket, and neither shows it: when a node has ended, any process on its machine may
listen at the node's former address.

1. The caller sends `MAGIC` and the ticket's digest.
2. The node sends `node_proof`.
3. The caller sends `caller_proof`.
4. The node sends `WELCOME`.

A caller of an older release sends `MAGIC_SHOWN` and the ticket itself, and is welcomed at once. A caller of this
release does the same if the node's offer does not promise the proof.
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
    """The addresses at which a node serves its lane, and a ticket for one connection."""

    # An abstract Unix socket, reachable from the same machine only and gone with its process; empty if the system has
    # none.
    local_name: str
    host: str
    # 0: the node serves no TCP.
    port: int
    ticket: bytes
    # The node proves that it knows the ticket.
    has_proof: bool = False


class Tickets:
    """The unused tickets of one node."""

    def __init__(self) -> None:
        # By digest, the oldest first.
        self._valid: OrderedDict[bytes, _Ticket] = OrderedDict()

    def issue(self, now_s: float) -> bytes:
        """Issues a ticket; drops the oldest unused ticket when there are too many."""
        while self._valid and (
            len(self._valid) >= TICKETS_MAX or next(iter(self._valid.values())).expires_s <= now_s
        ):
            self._valid.popitem(last=False)
        ticket = secrets.token_bytes(TICKET_BYTES)
        self._valid[_digest(ticket)] = _Ticket(ticket, now_s + TICKET_S)
        return ticket

    def take(self, shown: bytes, now_s: float) -> bytes | None:
        """Uses up a valid ticket, shown by its digest or itself; None: there is none."""
        for digest in (shown, _digest(shown)):
            found = self._valid.pop(digest, None)
            if found is not None and found.expires_s > now_s:
                return found.ticket
        return None


class _Ticket(NamedTuple):
    ticket: bytes
    # By the event loop's clock.
    expires_s: float


def greeting(offer: LaneOffer) -> bytes:
    """The first bytes that a caller sends."""
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
    """Receives exactly `count` bytes. Raises NetworkException when the connection ends before."""
    loop, received = asyncio.get_running_loop(), b""
    while len(received) < count:
        some = await loop.sock_recv(connection, count - len(received))
        if not some:
            raise NetworkException(
                "the lane was closed before it was open: its ticket is not valid, or expired"
            )
        received += some
    return received
