"""The invariants of brokers on machines that Ray drains, checked at each commit of metadata (decision 073).

From the mark in the metadata on no new replica is placed on such a broker, also where a client names it, and each
change of a partition leaves it the lead only where no other replica in sync can have it. When the mark is acknowledged
that holds of all partitions.
"""

from collections.abc import Collection

from rayka.controller.placeable_directories import is_draining
from rayka.metadata.image import MetadataImage, PartitionImage
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.partition_states import StateChange, changed


class DrainedMachines:
    """Looks at every committed image, and at marks that are acknowledged."""

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers
        self.count = 0  # of leads that were seen to have left

    def __repr__(self) -> str:
        return f"<DrainedMachines {self.count} leads have left>"

    def on_image(self, before: MetadataImage, after: MetadataImage) -> None:
        """A batch of metadata is committed. A broker counts as draining if it drained before and after the batch."""
        draining = [each for each in after.brokers if is_draining(before, each) and is_draining(after, each)]
        for change in changed(before, after) if draining else ():
            self._check_placed(change, draining)
            old, new = change.old, change.new
            if new.leader_id in draining and (others := _able(new, change.images)):
                self._report("drain-lead", f"{change.name}: {others} could lead: {old!r}, then {new!r}")
            self.count += old is not None and old.leader_id in draining and new.leader_id not in draining

    def on_marked(self, broker_ids: Collection[int]) -> None:
        """A client was told that the brokers are marked."""
        image = self._checkers.ledger.newest_image
        for key, state in image.partitions():
            is_led = state.leader_id in broker_ids and is_draining(image, state.leader_id)
            if is_led and (others := _able(state, (image,))):
                name = f"{image.topics_by_id[key.topic_id].name}-{key.partition}"
                self._report(
                    "drain-lead", f"{name} is led by a broker that drains; {others} could: {state!r}"
                )

    def _check_placed(self, change: StateChange, draining: Collection[int]) -> None:
        before = () if change.old is None else change.old.replicas
        placed = [each for each in change.new.replicas if each in draining and each not in before]
        if placed:
            self._report(
                "drain-placed", f"{change.name}: brokers {placed} drain: {change.old!r}, then {change.new!r}"
            )

    def _report(self, checker: str, evidence: str) -> None:
        self._checkers.report(checker, 0, evidence)


def _able(state: PartitionImage, images: Collection[MetadataImage]) -> list[int]:
    """The others in sync that could lead by each of the images."""
    others = [each for each in state.isr if each != state.leader_id]
    return [each for each in others if all(_may_lead(image, state, each) for image in images)]


def _may_lead(image: MetadataImage, state: PartitionImage, broker_id: int) -> bool:
    broker = image.brokers.get(broker_id)
    is_able = (
        broker is not None and broker.is_active and state.directory_of(broker_id) in broker.online_directories
    )
    return is_able and not is_draining(image, broker_id)
