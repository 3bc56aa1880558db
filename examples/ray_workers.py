"""A group of Ray actors that grows with what waits: python examples/ray_workers.py

Each batch takes a while. One worker would need too long for all, so others are added, one by one, and share partitions
with it.
"""

import tempfile
import time

import rayka

RECORDS, PARTITIONS = 600, 6


class Slow:
    """Made once in each worker; called with each batch."""

    def __init__(self) -> None:
        self._producer = rayka.Producer(cluster="example")

    def __call__(self, batch: list[rayka.Record]) -> None:
        time.sleep(0.02 * len(batch))
        for record in batch:
            self._producer.send("done", record.value)
        self._producer.flush()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("jobs", partitions=PARTITIONS)
            admin.create_topic("done")
        with rayka.Producer(cluster=cluster) as producer:
            for number in range(RECORDS):
                producer.send("jobs", b"%d" % number, partition=number % PARTITIONS)
        with rayka.workers(
            Slow, "jobs", cluster=cluster, group_id="slow", max=3, max_records=10, target_lag_seconds=1
        ) as pool:
            most = 0
            while pool.status().records < RECORDS:
                status = pool.status()
                if len(status.workers) > most:
                    most = len(status.workers)
                    print(f"{most} workers; {status.lag_records} records wait")
                time.sleep(0.1)
        done = {record.value for record in rayka.read("done", cluster=cluster)}
        print(f"{len(done)} of {RECORDS} jobs are done by up to {most} workers, none is lost")


if __name__ == "__main__":
    main()
