"""Three consumers share a topic, one goes, the others take over: python examples/consumer_group.py

Each member runs in a thread here; on other machines or in Ray actors it would be the same code.
"""

import tempfile
import threading
import time

import rayka

ORDERS, PARTITIONS = 3_000, 6


class Member(threading.Thread):
    """Reads its share of the orders, and commits what it has handled."""

    def __init__(self, name: str, cluster: rayka.Cluster, handled: set[int]) -> None:
        super().__init__(name=name)
        self._cluster = cluster
        self._handled = handled  # by all members
        self._leaving = threading.Event()
        self.has_partitions = threading.Event()

    def run(self) -> None:
        with rayka.Consumer(
            cluster=self._cluster,
            group_id="shipping",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            partition_assignment_strategy="cooperative-sticky",  # what does not move is read on
            value_deserializer="json",
        ) as consumer:
            consumer.subscribe("orders", on_assign=self._say_got, on_revoke=self._say_gives)
            is_committed = True
            while not self._leaving.is_set() or not is_committed:
                orders = consumer.poll(timeout_ms=100)
                self._handled.update(order.value["number"] for order in orders)
                if orders or not is_committed:
                    is_committed = committed(consumer)

    def leave(self) -> None:
        """After what it has handled is committed."""
        self._leaving.set()

    def _say_got(self, partitions: list[rayka.TopicPartition]) -> None:
        self._say("reads", partitions)
        self.has_partitions.set()

    def _say_gives(self, partitions: list[rayka.TopicPartition]) -> None:
        self._say("gives away", partitions)

    def _say(self, verb: str, partitions: list[rayka.TopicPartition]) -> None:
        if partitions:
            print(f"{self.name} {verb} {', '.join(str(tp) for tp in sorted(partitions))}")


def committed(consumer: rayka.Consumer) -> bool:
    """What was handled is committed, after the work: each order is handled at least once."""
    try:
        consumer.commit()
    except (rayka.errors.RebalanceInProgress, rayka.errors.IllegalGeneration):
        return False  # partitions move: after the next poll
    return True


def send_orders(cluster: rayka.Cluster, first: int, end: int) -> None:
    with rayka.Producer(cluster=cluster, value_serializer="json") as producer:
        for number in range(first, end):
            producer.send("orders", {"number": number}, key=b"customer %d" % (number % 100))


def await_no_lag(admin: rayka.Admin) -> None:
    """Until everything that was sent is committed."""
    while True:
        offsets = admin.group_offsets("shipping")
        if len(offsets) == PARTITIONS and all(each.lag == 0 for each in offsets):
            return
        time.sleep(0.1)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
        rayka.Admin(cluster=cluster) as admin,
    ):
        admin.create_topic("orders", partitions=PARTITIONS)
        handled: set[int] = set()
        members = [Member(name, cluster, handled) for name in ("Ada", "Grace", "Edsger")]
        for each in members:
            each.start()
        for each in members:
            each.has_partitions.wait()
        send_orders(cluster, 0, ORDERS // 2)
        members[0].leave()
        send_orders(cluster, ORDERS // 2, ORDERS)
        await_no_lag(admin)
        for each in members:
            each.leave()
        for each in members:
            each.join()
        lag = sum(each.lag or 0 for each in admin.group_offsets("shipping"))
        print(f"{len(handled):,} of {ORDERS:,} orders are handled; {lag} wait")


if __name__ == "__main__":
    main()
