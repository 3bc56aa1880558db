"""The checkers that look into a node, after each callback of its process.

A watch remembers what it saw last and compares a handful of values; only what has changed is looked at more closely.
"""

from collections.abc import Collection, Sequence

from rayka.ids import ReplicaKey
from rayka.metadata.image import MetadataImage
from rayka.node.broker_node import BrokerNode, BrokerParts
from rayka.node.controller_node import ControllerNode, ControllerParts
from rayka.partition.partition import Partition
from rayka.raft.leader import Leader
from rayka.raft.quorum import Quorum
from rayka.raft.voters import VoterSet
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.ledger import Compared, difference
from rayka.sim.checks.replica_checkers import ReplicaCheckers
from rayka.sim.checks.replica_views import ReplicaView
from rayka.sim.loop import VirtualLoop
from rayka.sim.world.machines import Machine, SimNode

_SLACK_US = 1_000_000


class ControllerWatch:
    """One incarnation of one controller, as long as it runs."""

    def __init__(
        self, machine: Machine, checkers: Checkers, loop: VirtualLoop, fetch_timeout_ms: int
    ) -> None:
        self._machine = machine
        self._node_id = machine.node_id
        self._incarnation = machine.incarnation
        self._checkers = checkers
        self._loop = loop
        self._fetch_timeout_us = fetch_timeout_ms * 1000
        self._node: SimNode | None = None
        self._controller: ControllerNode | None = None
        self._observed: ControllerParts | None = None
        self._role: object = None
        self._leads = False
        self._election_count = -1
        self._high_watermark = -1
        self._compared = 0
        self._log_start_offset = -1
        self._voters: VoterSet | None = None
        self._voters_end = 0
        self._voters_us = 0
        self._committing: VoterSet | None = None
        self._quorum_deadline_us = 0
        self._registered: Leader | None = None
        self._replayed_offset = -1
        self._compared_images: Compared | None = None

    def __call__(self) -> None:
        machine = self._machine
        if machine.node is not self._node:
            self._node, self._controller = machine.node, machine.controller
        controller = self._controller
        observed = controller.observed if controller is not None else None
        if observed is None:
            return
        if observed is not self._observed:
            check_directory(self._checkers, self._machine)
            self._begin(observed)
        quorum, log = self._quorum, self._log
        led = self._leads  # one that commits its own removal resigns in the same breath
        if quorum.role is not self._role:
            self._on_role(quorum)
        if quorum.election_count != self._election_count:
            self._election_count = quorum.election_count
            if quorum.leader_id >= 0:
                self._checkers.check_leader(self._node_id, quorum.leader_id, quorum.epoch)
            self._committing = quorum.voters
        if quorum.known_high_watermark != self._high_watermark:
            self._on_high_watermark(quorum, is_leader=led or self._leads)
        if log.log_end_offset < self._high_watermark:
            self._report("truncation", f"{quorum!r} is cut below its high watermark, {self._high_watermark}")
        if log.log_start_offset != self._log_start_offset:
            self._on_log_start(quorum)
        if self._leads:
            self._look_at_leader(quorum)
        if observed.shard.replayed_offset != self._replayed_offset:
            self._on_replayed(observed)

    def _report(self, checker: str, evidence: str) -> None:
        self._checkers.report(checker, self._node_id, evidence)

    def _begin(self, observed: ControllerParts) -> None:
        self._observed, self._quorum = observed, observed.driver.quorum
        self._log = self._quorum.log
        self._high_watermark, self._compared = -1, 0
        self._role, self._leads = None, False
        self._election_count = -1
        self._log_start_offset = -1
        self._checkers.homes[self._quorum.local] = (self._machine, self._machine.disk)

    # ---- Elections ---------------------------------------------------------------------------------------------------

    def _on_role(self, quorum: Quorum) -> None:
        self._role = role = quorum.role
        self._leads = isinstance(role, Leader)
        self._checkers.trace.add(self._node_id, "role", f"{type(role).__name__} epoch {quorum.epoch}")
        if not isinstance(role, Leader):
            return
        self._voters, self._voters_end = quorum.voters, 0
        self._quorum_deadline_us = self._loop.now_us + 3 * self._fetch_timeout_us
        if quorum.epoch > self._checkers.ledger.last_epoch:  # votes may come late, for an epoch that is over
            self._check_leader_completeness(quorum)

    def _on_leader_persisted(self, epoch: int) -> None:
        """From now on it may append: no other has led the epoch, nor has it itself before (A9)."""
        own, known = (self._node_id, self._incarnation), self._checkers.leaders.get(epoch)
        if known is not None and (known[0] != self._node_id or known[1] != 0):
            self._report("single-leader", f"node and incarnation {known} led epoch {epoch} before {own} does")
        self._checkers.leaders[epoch] = own

    def _check_leader_completeness(self, quorum: Quorum) -> None:
        """An elected leader has every committed record."""
        ledger, log = self._checkers.ledger, quorum.log
        if log.log_end_offset < ledger.end:
            self._report("leader-completeness", f"{quorum!r} is elected without what {ledger!r} has")
        elif ledger.end > log.log_start_offset and quorum.log.epoch_of(ledger.end - 1) != ledger.last_epoch:
            self._report(
                "leader-completeness", f"{quorum!r} holds another record at {ledger.end - 1} than {ledger!r}"
            )

    def _look_at_leader(self, quorum: Quorum) -> None:
        role = self._role
        assert isinstance(role, Leader), "it leads"
        if role is not self._registered and quorum.is_persisted:
            self._registered = role
            self._on_leader_persisted(quorum.epoch)
        now_us = self._loop.now_us
        if now_us > self._quorum_deadline_us and not self._machine.has_failed:
            self._check_quorum(quorum, role, now_us)
        if role.voters is not self._voters:
            self._on_voters(quorum, role)
        if quorum.finished_download is not None:
            self._report("leader-loads-no-snapshot", f"{quorum!r} has fetched {quorum.finished_download!r}")

    def _check_quorum(self, quorum: Quorum, role: Leader, now_us: int) -> None:
        """A leader that no majority fetches from resigns (A12); the bound has room for the window's begin."""
        fetched_us = self._checkers.last_fetch_us
        times_us = sorted(
            now_us if each.node_id == self._node_id else fetched_us.get((self._node_id, each.node_id), 0)
            for each in role.voters.voters
        )
        # A leader cannot resign while it waits for the disk.
        busy_until_us = self._machine.disk.busy_until_ms * 1000
        resumed_us = self._machine.process.resumed_us if self._machine.process is not None else 0
        of_majority_us = max(times_us[(len(times_us) - 1) // 2], busy_until_us, resumed_us, self._voters_us)
        self._quorum_deadline_us = of_majority_us + 3 * self._fetch_timeout_us + _SLACK_US
        if now_us > self._quorum_deadline_us:
            silent_ms = (now_us - of_majority_us) // 1000
            self._report(
                "check-quorum", f"{quorum!r} leads though no majority has fetched for {silent_ms} ms"
            )

    def _on_voters(self, quorum: Quorum, role: Leader) -> None:
        """A change of the voters begins when the one before is committed (A55)."""
        if self._high_watermark < self._voters_end:
            self._report(
                "one-voter-change", f"{quorum!r}: {role.voters!r} before {self._voters!r} is committed"
            )
        self._voters, self._voters_end = role.voters, quorum.log.log_end_offset
        self._voters_us = self._loop.now_us  # of the new set a majority may never have fetched

    # ---- The log -----------------------------------------------------------------------------------------------------

    def _on_high_watermark(self, quorum: Quorum, *, is_leader: bool) -> None:
        before, now = self._high_watermark, quorum.known_high_watermark
        self._high_watermark = now
        if now < before:  # I1
            self._report("high-watermark", f"{quorum!r}: it falls from {before} to {now}")
            return
        checkers = self._checkers
        has_news = now > checkers.ledger.end
        checkers.on_committed(self._node_id, quorum, self._compared, now, is_leader=is_leader)
        self._compared = now
        if has_news and checkers.violation is None:
            self._on_news(quorum)

    def _on_news(self, quorum: Quorum) -> None:
        ledger = self._checkers.ledger
        if ledger.last_epoch != quorum.epoch:
            self._report(
                "commits-own-epoch", f"{quorum!r} commits records of epoch {ledger.last_epoch} alone"
            )
        sets = [each for each in (self._committing, quorum.voters) if each is not None]
        self._committing = quorum.voters  # one appended after the commit, in one callback, did not make it
        ends = [[self._durable_end(voter) for voter in each.voters] for each in sets]
        if not any(2 * sum(end >= ledger.end for end in each) > len(each) for each in ends):  # I3
            self._report("majority", f"{quorum!r} commits up to {ledger.end}; durable with {sets}: {ends}")

    def _durable_end(self, voter: ReplicaKey) -> int:
        home = self._checkers.homes.get(voter)
        if home is None:
            return -1
        machine, disk = home
        return disk.durable_end(machine.metadata_dir)

    def _on_log_start(self, quorum: Quorum) -> None:
        """I5: a log that does not begin at 0 begins at the end of its earliest snapshot."""
        start = self._log_start_offset = quorum.log.log_start_offset
        earliest = quorum.log.snapshots.earliest
        if start > 0 and (earliest is None or earliest.offset != start):
            self._report(
                "snapshot-at-log-start", f"{quorum!r} begins at {start}; its earliest snapshot is {earliest}"
            )

    def _on_replayed(self, controller: ControllerParts) -> None:
        """A standby has replayed committed records only."""
        offset = self._replayed_offset = controller.shard.replayed_offset
        if controller.shard.takes_requests:  # it is ahead of what is committed, and may turn out to be wrong
            if self._leads and offset <= self._high_watermark:
                self._compare_image(controller.image())
        elif offset <= self._checkers.ledger.end:
            self._compare_image(controller.image())
        else:
            self._report("standby", f"a standby has replayed up to {offset}, {self._checkers.ledger!r}")

    def _compare_image(self, image: MetadataImage) -> None:
        self._compared_images = check_image(self._checkers, self._node_id, image, self._compared_images)


class BrokerWatch:
    """One incarnation of one broker: its image is that of the committed log, and so are its replicas."""

    def __init__(self, machine: Machine, checkers: Checkers, replica_checkers: ReplicaCheckers) -> None:
        self._machine = machine
        self._checkers = checkers
        self._replica_checkers = replica_checkers
        self._node: SimNode | None = None
        self._broker: BrokerNode | None = None
        self._views: dict[Partition, ReplicaView] = {}
        self._partitions: Collection[Partition] = ()
        self._looked_at: Sequence[ReplicaView] = ()  # the views of these partitions
        self._observed: BrokerParts | None = None
        self._image: MetadataImage | None = None
        self._compared: Compared | None = None

    def __call__(self) -> None:
        machine = self._machine
        if machine.node is not self._node or machine.is_controller:  # a combined node may have another broker
            self._node, self._broker = machine.node, machine.broker
        broker = self._broker
        observed = broker.observed if broker is not None else None
        if observed is None:
            return
        if observed is not self._observed:
            self._observed = observed
            check_directory(self._checkers, self._machine)
        if observed.follower.image is not self._image:
            self._image = image = observed.follower.image
            self._compared = check_image(self._checkers, self._machine.node_id, image, self._compared)
        partitions = observed.replicas.partitions
        if partitions is not self._partitions:
            for partition in partitions:
                if partition not in self._views:
                    self._views[partition] = self._replica_checkers.open(self._machine.node_id, partition)
            self._partitions, self._looked_at = partitions, [self._views[each] for each in partitions]
        for view in self._looked_at:
            if view.has_changed():
                self._replica_checkers.look(view)


def check_directory(checkers: Checkers, machine: Machine) -> None:
    """No node opens a directory that is another's (F4)."""
    if machine.swapped_with is not None:
        checkers.report(
            "foreign-directory", machine.node_id, f"it has opened {machine.swapped_with.data_dir}"
        )


def check_image(
    checkers: Checkers, node_id: int, image: MetadataImage, before: Compared | None
) -> Compared | None:
    """An image that a node has published is the one that the committed records make; what was compared."""
    ledger = checkers.ledger
    if image.next_offset > ledger.end:
        checkers.report("images", node_id, f"{image!r} holds what is not committed: {ledger!r}")
        return None
    expected = ledger.image(image.next_offset)
    if expected is None:
        return None
    problem = difference(image, expected, before)
    checkers.report_if("images", node_id, f"at offset {image.next_offset}: {problem}" if problem else "")
    return image, expected
