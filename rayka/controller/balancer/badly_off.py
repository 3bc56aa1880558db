"""When the controller begins a balance by itself: brokers that are badly off, and have been so for a while. Soft state.

Badly off is a broker that holds less than a tenth of what the others hold on average, as one that has just joined, and
one whose disk is above 80 %. A cordoned broker is neither: it is to hold nothing more. What is seen has to last for
`balancer.settle.ms`, so a broker that flaps begins nothing; and for the same brokers a balance does not begin again
within five minutes, nor after an operator has cancelled it, until others are badly off. Rayka's own.
"""

from typing import TYPE_CHECKING

from rayka.config.broker_config import BrokerConfig
from rayka.controller.balancer.balance_plan import Goal
from rayka.controller.balancer.balance_run import DISKS_ARE_FULL, Cause, last_balance_event
from rayka.controller.decided_events import EventKind
from rayka.controller.placeable_directories import placeable_directories
from rayka.ids import node_name
from rayka.metadata.image import MetadataImage
from rayka.protocol.load import DISK_USE_MAX, capacities

if TYPE_CHECKING:
    from rayka.controller.request_context import RequestContext

REPEAT_MS = 300_000
NEARLY_EMPTY = 0.1  # of the mean number of replicas


class BadlyOff:
    """See the module."""

    def __init__(self) -> None:
        self._seen: Cause | None = None
        self._since_ms = 0
        self._begun_ms: dict[tuple[str, ...], int] = {}
        self._declined: tuple[str, ...] | None = None

    @classmethod
    def of(cls, image: MetadataImage) -> "BadlyOff":
        """Of a new active controller: what was cancelled last does not begin again."""
        made, last = cls(), last_balance_event(image)
        if last is not None and last.kind == EventKind.BALANCE_CANCELLED:
            made._declined = last.subjects
        return made

    def __repr__(self) -> str:
        return f"<BadlyOff {self._seen}>"

    def decline(self, cause: Cause) -> None:
        """An operator has cancelled that."""
        self._declined = cause.subjects

    def forget(self, cause: Cause) -> None:
        """A balance that began for this was switched off, and may begin again."""
        self._begun_ms.pop(cause.subjects, None)

    def on_unregistered(self, broker_id: int) -> None:
        """What comes with this id later is another broker, for which none has begun yet."""
        name = node_name(broker_id)
        self._begun_ms = {key: ms for key, ms in self._begun_ms.items() if name not in key}

    def look(self, context: "RequestContext", config: BrokerConfig) -> Cause | None:
        """Why a balance is to begin now; None while there is no reason, or not for long enough."""
        now_ms, seen = context.now_ms, badly_off(context) if config.balancer_enable else None
        if seen is None or self._seen is None or seen.subjects != self._seen.subjects:
            self._since_ms = now_ms
        self._seen = seen
        if seen is None or now_ms - self._since_ms < config.balancer_settle_ms:
            return None
        if seen.subjects == self._declined:
            return None
        self._declined = None
        begun_ms = self._begun_ms.get(seen.subjects)
        if begun_ms is not None and now_ms - begun_ms < REPEAT_MS:
            return None
        self._begun_ms = {key: ms for key, ms in self._begun_ms.items() if now_ms - ms < REPEAT_MS}
        self._begun_ms[seen.subjects] = now_ms
        return seen


def badly_off(context: "RequestContext") -> Cause | None:
    """As the module says, at this moment; None while a broker is away or has not reported its load."""
    if away_brokers(context):
        return None
    image = context.image
    nodes = [
        each
        for each in image.brokers.values()
        if each.is_active
        and each.takes_user_partitions
        and placeable_directories(image, context.config, each)
    ]
    reports = {each.broker_id: report for each in nodes if (report := context.loads.newest(each)) is not None}
    if len(nodes) < 2 or len(reports) < len(nodes):
        return None
    known = capacities(reports, {each.broker_id: each.registration.host for each in image.brokers.values()})
    use = {
        broker_id: report.size_bytes / known[broker_id]
        for broker_id, report in reports.items()
        if known[broker_id]
    }
    full = [broker_id for broker_id, share in use.items() if share > DISK_USE_MAX]
    if full:
        told = ", ".join(f"broker {each} at {use[each]:.0%}" for each in full)
        reason = f"{DISKS_ARE_FULL}: {told}"
        return Cause(tuple(map(node_name, full)), reason, Goal.CAPACITY)
    counts = {each.broker_id: context.replicas.of(each.broker_id).directories.total() for each in nodes}
    mean = sum(counts.values()) / len(counts)
    empty = [broker_id for broker_id, count in counts.items() if count < mean * NEARLY_EMPTY]
    if not empty:
        return None
    told = ", ".join(f"broker {each} holds {counts[each]:,}" for each in empty)
    reason = f"of {mean:,.0f} replicas on average {told}"
    return Cause(tuple(map(node_name, empty)), reason, Goal.LEADERS)


def away_brokers(context: "RequestContext") -> list[int]:
    """Those that hold replicas and do not run: what they hold may come back, or is made anew."""
    return [
        each.broker_id
        for each in context.image.brokers.values()
        if not each.is_active and context.replicas.of(each.broker_id).directories.total()
    ]
