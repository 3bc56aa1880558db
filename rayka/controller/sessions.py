"""When each broker was last in contact: soft state, known to the active controller only (H6).

A broker is alive for `session_timeout_ms` after its last contact. One without a contact in its epoch counts as alive
when it has registered since this controller became active, or was unfenced then; its clock starts at the next sweep.
One that was fenced then has no session: it was over already, or nothing depends on it, and what waits for its end would
wait anew with each controller. Time in which the controller itself stood still counts for no session: heartbeats that
came meanwhile are not read yet.
Kafka: `BrokerHeartbeatManager`, `BrokerHeartbeatTracker`; both let that time count.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rayka.metadata.image import BrokerImage


class _Contact(NamedTuple):
    broker_epoch: int
    last_ms: int
    metadata_offset: int
    number: int


class BrokerSessions:
    """Contact times and metadata offsets by broker."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}
        self._shutdown_offsets: dict[int, int] = {}
        self._exited: dict[int, int] = {}
        self._unfenced: dict[int, int] = {}  # epochs of brokers that may lack leads
        self._active_since_offset = 0

    def __repr__(self) -> str:
        return f"<BrokerSessions {[(key, contact.last_ms) for key, contact in self._contacts.items()]}>"

    def on_active(self, next_offset: int) -> None:
        """The controller becomes active; what it writes itself begins at this offset."""
        self._active_since_offset = next_offset

    def touch(self, broker: BrokerImage, *, metadata_offset: int, number: int = 0, now_ms: int) -> None:
        """A contact: the broker has applied the metadata up to this offset, inclusive. Of a heartbeat that comes
        after one with a larger number nothing counts.
        """
        if not self.is_late(broker, number):
            contact = _Contact(broker.broker_epoch, now_ms, metadata_offset, number)
            self._contacts[broker.broker_id] = contact

    def is_late(self, broker: BrokerImage, number: int) -> bool:
        """Whether a later heartbeat of the same process came before the one of this number."""
        contact = self._contact(broker)
        return contact is not None and number < contact.number

    def end(self, broker: BrokerImage) -> None:
        """The broker's process is known to have ended: nothing in its name counts any more."""
        self._exited[broker.broker_id] = broker.broker_epoch

    def has_exited(self, broker: BrokerImage) -> bool:
        """Whether the process that is registered is known to have ended."""
        return self._exited.get(broker.broker_id) == broker.broker_epoch

    def on_unfencing(self, broker: BrokerImage) -> None:
        """The broker is being unfenced, and leads are to follow."""
        self._unfenced[broker.broker_id] = broker.broker_epoch

    def may_lack_leads(self, broker: BrokerImage) -> bool:
        """Whether some of them may not have followed."""
        return self._unfenced.get(broker.broker_id) == broker.broker_epoch

    def on_leads_taken(self, broker: BrokerImage) -> None:
        """There are none left for the broker to take."""
        self._unfenced.pop(broker.broker_id, None)

    def sweep(self, brokers: Mapping[int, BrokerImage], *, late_ms: int, now_ms: int) -> None:
        """Starts the clocks of those that count as alive without a contact in their epoch. A sweep that comes late,
        for the controller stood still, extends all sessions by that time.
        """
        for broker_id, contact in self._contacts.items():
            self._contacts[broker_id] = contact._replace(last_ms=min(contact.last_ms + late_ms, now_ms))
        for broker in brokers.values():
            if self._contact(broker) is None and self._is_presumed_alive(broker):
                self.touch(broker, metadata_offset=-1, now_ms=now_ms)

    def is_alive(self, broker: BrokerImage, now_ms: int) -> bool:
        return self.remaining_ms(broker, now_ms) > 0

    def remaining_ms(self, broker: BrokerImage, now_ms: int) -> int:
        """How long its session still lasts without another contact."""
        if self.has_exited(broker):
            return 0
        contact = self._contact(broker)
        if contact is None:
            return self._timeout_ms if self._is_presumed_alive(broker) else 0
        return max(0, contact.last_ms + self._timeout_ms - now_ms)

    def silent_ms(self, broker: BrokerImage, now_ms: int) -> int:
        """The time since the last heartbeat of this process; -1 if none has come to this controller."""
        contact = self._contact(broker)
        return -1 if contact is None or contact.metadata_offset < 0 else now_ms - contact.last_ms

    def _is_presumed_alive(self, broker: BrokerImage) -> bool:
        return not broker.is_fenced or broker.broker_epoch >= self._active_since_offset

    def on_controlled_shutdown(self, broker_id: int, offset: int) -> None:
        """The record at this offset says that the broker shuts down; those before it moved its partitions."""
        self._shutdown_offsets[broker_id] = offset

    def have_seen_shutdown(self, broker: BrokerImage, brokers: Mapping[int, BrokerImage]) -> bool:
        """Whether every active broker has applied the moves away from one in controlled shutdown (H5)."""
        offset = self._shutdown_offsets[broker.broker_id]
        contacts = [self._contact(each) for each in brokers.values() if each.is_active]
        return all(contact is not None and contact.metadata_offset >= offset for contact in contacts)

    def _contact(self, broker: BrokerImage) -> _Contact | None:
        contact = self._contacts.get(broker.broker_id)
        return contact if contact is not None and contact.broker_epoch == broker.broker_epoch else None
