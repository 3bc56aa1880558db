"""The sessions of brokers: their last contacts, soft state of the active controller (H6).

A broker is alive for `session_timeout_ms` after its last contact. A broker without a contact in its epoch has a session
if it is unfenced, or registered after this controller became active; the next sweep starts the clock of this session. A
broker that was fenced before has no session: the session ended under a former controller, or nothing depends on it.
With a session, requests that wait for its end would wait anew with each controller. Time in which the controller stood
still counts for no session, because the controller has not read the heartbeats of that time. Kafka:
`BrokerHeartbeatManager`, `BrokerHeartbeatTracker`; both let that time count.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rayka.metadata.image import BrokerImage


class _Contact(NamedTuple):
    broker_epoch: int
    # Monotonic; a late sweep moves it forward, never beyond the present.
    last_ms: int
    # The last metadata record that the broker has applied; -1 before its first heartbeat.
    metadata_offset: int
    # The number of the heartbeat; later heartbeats of a process have larger numbers.
    number: int


class BrokerSessions:
    """Contact times and metadata offsets by broker."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}
        # Offsets of the records that began a controlled shutdown, by broker.
        self._shutdown_offsets: dict[int, int] = {}
        # Epochs of brokers whose process has ended.
        self._exited: dict[int, int] = {}
        # Epochs of brokers that may lack leads.
        self._unfenced: dict[int, int] = {}
        # Brokers with an epoch from here on registered with this active controller.
        self._active_since_offset = 0

    def __repr__(self) -> str:
        return f"<BrokerSessions {[(key, contact.last_ms) for key, contact in self._contacts.items()]}>"

    def on_active(self, next_offset: int) -> None:
        """Becomes active. The first record that this controller writes has this offset."""
        self._active_since_offset = next_offset

    def touch(self, broker: BrokerImage, *, metadata_offset: int, number: int = 0, now_ms: int) -> None:
        """Records a contact with a broker that has applied the metadata up to and with this offset. Ignores a heartbeat
        that comes after one with a larger number.
        """
        if not self.is_late(broker, number):
            contact = _Contact(broker.broker_epoch, now_ms, metadata_offset, number)
            self._contacts[broker.broker_id] = contact

    def is_late(self, broker: BrokerImage, number: int) -> bool:
        """Whether a heartbeat of this process with a larger number came already."""
        contact = self._contact(broker)
        return contact is not None and number < contact.number

    def end(self, broker: BrokerImage) -> None:
        """Records that the registered process has ended; its later heartbeats do not count."""
        self._exited[broker.broker_id] = broker.broker_epoch

    def has_exited(self, broker: BrokerImage) -> bool:
        """Whether the registered process is known to have ended."""
        return self._exited.get(broker.broker_id) == broker.broker_epoch

    def on_unfencing(self, broker: BrokerImage) -> None:
        """Records that the broker is being unfenced. Its leads follow in later records."""
        self._unfenced[broker.broker_id] = broker.broker_epoch

    def may_lack_leads(self, broker: BrokerImage) -> bool:
        """Whether the unfenced broker may still lack some of its leads."""
        return self._unfenced.get(broker.broker_id) == broker.broker_epoch

    def on_leads_taken(self, broker: BrokerImage) -> None:
        """Records that no leads are left for the broker to take."""
        self._unfenced.pop(broker.broker_id, None)

    def sweep(self, brokers: Mapping[int, BrokerImage], *, late_ms: int, now_ms: int) -> None:
        """Starts the clock of each broker that has a session and no contact in its epoch. First extends all sessions by
        `late_ms`, the time for which the controller stood still.
        """
        for broker_id, contact in self._contacts.items():
            self._contacts[broker_id] = contact._replace(last_ms=min(contact.last_ms + late_ms, now_ms))
        for broker in brokers.values():
            if self._contact(broker) is None and self._is_presumed_alive(broker):
                self.touch(broker, metadata_offset=-1, now_ms=now_ms)

    def is_alive(self, broker: BrokerImage, now_ms: int) -> bool:
        return self.remaining_ms(broker, now_ms) > 0

    def remaining_ms(self, broker: BrokerImage, now_ms: int) -> int:
        """Time until the session of the broker ends without another contact; 0 after its end."""
        if self.has_exited(broker):
            return 0
        contact = self._contact(broker)
        if contact is None:
            return self._timeout_ms if self._is_presumed_alive(broker) else 0
        return max(0, contact.last_ms + self._timeout_ms - now_ms)

    def silent_ms(self, broker: BrokerImage, now_ms: int) -> int:
        """Time since the last heartbeat of this process; -1 if none has come to this controller."""
        contact = self._contact(broker)
        return -1 if contact is None or contact.metadata_offset < 0 else now_ms - contact.last_ms

    def _is_presumed_alive(self, broker: BrokerImage) -> bool:
        return not broker.is_fenced or broker.broker_epoch >= self._active_since_offset

    def on_controlled_shutdown(self, broker_id: int, offset: int) -> None:
        """Notes the offset of the record that begins a controlled shutdown, after those that moved leads."""
        self._shutdown_offsets[broker_id] = offset

    def have_seen_shutdown(self, broker: BrokerImage, brokers: Mapping[int, BrokerImage]) -> bool:
        """Whether every active broker has applied the moves away from one in controlled shutdown (H5)."""
        offset = self._shutdown_offsets[broker.broker_id]
        contacts = [self._contact(each) for each in brokers.values() if each.is_active]
        return all(contact is not None and contact.metadata_offset >= offset for contact in contacts)

    def _contact(self, broker: BrokerImage) -> _Contact | None:
        contact = self._contacts.get(broker.broker_id)
        return contact if contact is not None and contact.broker_epoch == broker.broker_epoch else None
