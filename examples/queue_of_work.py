"""A topic where a queue of Ray would be used: python examples/queue_of_work.py

`ray.util.queue` is an actor that holds objects: what its consumer had taken when it died is gone, and every item costs
calls of the actor. A topic is on disk, a group hands its records out, and what was not committed is given again.
"""

import tempfile
import time

import ray
from ray.util.queue import Queue

import rayka

ITEMS = 2_000


@ray.remote(num_cpus=0.1)
def take_from_queue(queue: Queue) -> int:
    return sum(1 for _ in iter(queue.get, None))


@ray.remote(num_cpus=0.1)
def take_from_topic() -> int:
    with rayka.Consumer(
        "items", cluster="example", group_id="takers", auto_offset_reset="earliest"
    ) as consumer:
        for count, record in enumerate(consumer):
            if record.value == b"end":
                return count
    return 0


def through_queue() -> float:
    queue = Queue(actor_options={"num_cpus": 0.1})
    taken = take_from_queue.remote(queue)
    begin_s = time.monotonic()
    for number in range(ITEMS):
        queue.put(b"%d" % number)
    queue.put(None)
    assert ray.get(taken) == ITEMS
    elapsed_s = time.monotonic() - begin_s
    queue.shutdown()
    return ITEMS / elapsed_s


def through_topic(cluster: rayka.Cluster) -> float:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("items")
        taken = take_from_topic.remote()
        while "Stable" not in [each.state for each in admin.list_groups()]:
            time.sleep(0.05)
    begin_s = time.monotonic()
    with rayka.Producer(cluster=cluster) as producer:
        for number in range(ITEMS):
            producer.send("items", b"%d" % number)
        producer.send("items", b"end")
        producer.flush()
        assert ray.get(taken) == ITEMS
        return ITEMS / (time.monotonic() - begin_s)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        queue, topic = through_queue(), through_topic(cluster)
        print(f"ray.util.queue: {queue:,.0f} items/s, lost when its actor or a taker dies")
        print(f"a topic:        {topic:,.0f} items/s, on disk, given again when a taker dies")
        print(f"ratio: {topic / queue:.1f}")
        print(f"all {ITEMS:,} items came through both")


if __name__ == "__main__":
    main()
