"""Arrow in, Arrow out: python examples/arrow_batches.py

Sends a table without making a Python object of any row, and reads it back as record batches.
"""

import tempfile

import pyarrow as pa
import pyarrow.compute as pc

import rayka


def main() -> None:
    numbers = pa.array(range(100_000))
    table = pa.table(
        {
            "key": pc.cast(pc.cast(pc.bit_wise_and(numbers, 255), pa.string()), pa.binary()),
            "value": pc.cast(pc.cast(numbers, pa.string()), pa.binary()),
        }
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        with rayka.Admin(cluster=cluster) as admin:
            admin.create_topic("numbers", partitions=2)

        with rayka.Producer(cluster=cluster, compression_type="lz4") as producer:
            producer.send_batch("numbers", table)
            producer.flush()

        batches = list(rayka.read("numbers", cluster=cluster).arrow_batches())
        total = sum(
            pc.sum(pc.cast(batch["value"].cast(pa.string()), pa.int64())).as_py() for batch in batches
        )
        print(
            f"{sum(map(len, batches)):,} records in {len(batches)} batches, columns {batches[0].schema.names}"
        )
        print(f"their values add up to {total:,}; expected {sum(range(100_000)):,}")


if __name__ == "__main__":
    main()
