"""The part of an `Admin` that is about load: the sync face of `AsyncLoadAdmin`. Rayka's own."""

from collections.abc import Iterable

from rayka.client.admin.admin_arguments import names_of
from rayka.client.admin.admin_face import AdminFace
from rayka.client.admin.admin_load_results import ClusterLoad


class LoadAdmin(AdminFace):
    """See the module; its methods are those of `Admin`."""

    def describe_load(self, topics: Iterable[str] | None = None) -> ClusterLoad:
        """How much every broker has to do: bytes and records in and out a second, processor, disk; and the partitions
        that take most of each broker, of these topics or of all.

        Brokers report every `broker.load.report.interval.ms` (5 s) to the active controller, which answers with means
        over up to twelve reports; after a change of controller a broker is unknown until its next report. Each broker
        names up to eight partitions. Raises UnknownTopicOrPartition.
        """
        return self._run(self._brain.load.describe, names_of(topics))
