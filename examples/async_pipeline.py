"""A pipeline in an event loop: python examples/async_pipeline.py

Reads a topic as a member of a group, works on many records at once, writes what comes out to another topic, and commits
when that is acknowledged: nothing is lost when it is killed, and what it had not committed is worked on again.
"""

import asyncio
import tempfile

import rayka
import rayka.aio

COUNT = 1_000


async def worked_on(value: bytes) -> bytes:
    """What would ask another service, say."""
    await asyncio.sleep(0.001)
    return b"%d" % (int(value) ** 2)


async def pipeline(cluster: rayka.Cluster) -> None:
    consumer = rayka.aio.Consumer(
        "numbers",
        cluster=cluster,
        group_id="squares",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    async with consumer, rayka.aio.Producer(cluster=cluster) as producer:
        done = 0
        while done < COUNT:
            records = await consumer.poll()
            values = await asyncio.gather(*(worked_on(record.value) for record in records))
            pairs = zip(records, values, strict=True)
            sent = [await producer.send("squares", value, key=record.key) for record, value in pairs]
            for future in sent:
                await future
            await consumer.commit()
            done += len(records)


async def run(cluster: rayka.Cluster) -> None:
    async with rayka.aio.Admin(cluster=cluster) as admin:
        await admin.create_topic("numbers", partitions=3)
        await admin.create_topic("squares", partitions=3)
    async with rayka.aio.Producer(cluster=cluster) as producer:
        for number in range(COUNT):
            await producer.send("numbers", b"%d" % number, key=b"%d" % (number % 10))
    await pipeline(cluster)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        asyncio.run(run(cluster))
        squares = [int(record.value) for record in rayka.read("squares", cluster=cluster)]
        print(
            f"{len(squares):,} squares add up to {sum(squares):,}; expected {sum(n * n for n in range(COUNT)):,}"
        )


if __name__ == "__main__":
    main()
