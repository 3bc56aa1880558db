"""What waits for a group: how many records of its topics it has not committed yet."""

from collections.abc import Sequence

from rayka.client.admin.admin import Admin
from rayka.client.bootstrap import ClusterHandle
from rayka.client.consumer.consumer import Consumer
from rayka.ids import TopicPartition


class GroupLag:
    """Looks with clients of its own, which are members of no group. Made and used on one thread."""

    def __init__(
        self, cluster: ClusterHandle, group_id: str, topics: Sequence[str], *, begins_at_end: bool = False
    ) -> None:
        """`begins_at_end`: where the group has committed nothing, what is there already does not wait for it."""
        self._topics = topics
        self._begins_at_end = begins_at_end
        self._admin = Admin(cluster=cluster)
        self._consumer = Consumer(cluster=cluster, group_id=group_id, enable_auto_commit=False)

    def __repr__(self) -> str:
        return f"<GroupLag of {list(self._topics)}>"

    def check_topics(self) -> None:
        """Raises UnknownTopicOrPartition if a topic does not exist."""
        self._admin.describe_topics(self._topics)

    def look(self) -> tuple[int, int]:
        """The records that wait, and the number of partitions. Raises what `committed` and `end_offsets` raise."""
        partitions = [
            TopicPartition(each.name, number)
            for each in self._admin.describe_topics(self._topics)
            for number in range(len(each.partitions))
        ]
        ends = self._consumer.end_offsets(partitions)
        begins = self._consumer.beginning_offsets(partitions)
        committed = self._consumer.committed(partitions)
        starts = ends if self._begins_at_end else begins
        done = {tp: max(begins[tp], at.offset) for tp, at in committed.items() if at is not None}
        return sum(ends[tp] - done.get(tp, starts[tp]) for tp in partitions), len(partitions)

    def close(self) -> None:
        self._consumer.close()
        self._admin.close()
