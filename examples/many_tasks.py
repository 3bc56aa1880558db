"""Twenty Ray tasks send to one topic at the same time: python examples/many_tasks.py

Each task makes a producer of its own: a client belongs to one process, a cluster is found by its name from anywhere on
the same Ray.
"""

import tempfile
import time

import ray

import rayka

TASKS, RECORDS = 20, 1_000


@ray.remote(num_cpus=1)
def send(task: int) -> int:
    with rayka.Producer(cluster="example", value_serializer="json") as producer:
        futures = [producer.send("readings", key=b"%d" % task, value=number) for number in range(RECORDS)]
        producer.flush()
        return len({future.result().offset for future in futures})


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("readings", partitions=4)
        begin_s = time.monotonic()
        acknowledged = sum(ray.get([send.remote(task) for task in range(TASKS)]))
        elapsed_s = time.monotonic() - begin_s
        print(f"{TASKS} tasks: {acknowledged:,} records acknowledged in {elapsed_s:.1f} s")

        last: dict[bytes | None, int] = {}
        for record in rayka.read("readings", cluster=cluster, value_deserializer="json"):
            if record.value != last.get(record.key, -1) + 1:
                raise SystemExit(f"{record.key!r}: {record.value} follows {last.get(record.key)}")
            last[record.key] = record.value
        print(f"read: {len(last)} keys, each with its {RECORDS:,} records in their order")


if __name__ == "__main__":
    main()
