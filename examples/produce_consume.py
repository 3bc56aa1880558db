"""Records in, records out: python examples/produce_consume.py

Starts a cluster in a temporary directory, on the Ray that runs or on a local one, and stops it at the end.
"""

import tempfile

import rayka


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("greetings", partitions=3)

        with rayka.Producer(cluster=cluster, value_serializer="string") as producer:
            futures = [producer.send("greetings", key=b"de", value=f"Hallo {number}") for number in range(5)]
            for future in futures:
                metadata = future.result(timeout=30)
                print(f"acknowledged: {metadata.topic}-{metadata.partition} at offset {metadata.offset}")

        for record in rayka.read(
            "greetings", cluster=cluster
        ):  # bounded: what is there now, and then it ends
            print(f"read: {record.key!r} -> {record.value!r}")

        with rayka.Consumer("greetings", cluster=cluster, auto_offset_reset="earliest") as consumer:
            print(f"polled: {len(consumer.poll(timeout_ms=5_000))} records")


if __name__ == "__main__":
    main()
