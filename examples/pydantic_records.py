"""Records as pydantic models: python examples/pydantic_records.py

What is sent is checked by its type, what is read comes back as models, and a record that is none is set aside.
"""

import tempfile

from pydantic import BaseModel

import rayka
from rayka.errors import SerializationError


class Departure(BaseModel):
    flight: int
    carrier: str
    delay_minutes: float


DEPARTURES = [
    Departure(flight=1545, carrier="UA", delay_minutes=2),
    Departure(flight=1714, carrier="UA", delay_minutes=4),
    Departure(flight=1141, carrier="AA", delay_minutes=-1),
]


def fill(cluster: rayka.Cluster) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic("departures", partitions=1)
    with rayka.Producer(cluster=cluster, value_serializer=Departure, key_serializer="string") as producer:
        for departure in DEPARTURES[:2]:
            producer.send("departures", departure, key=departure.carrier)
    with rayka.Producer(cluster=cluster) as careless:
        careless.send("departures", b'{"flight": "cancelled"}')
    with rayka.Producer(cluster=cluster, value_serializer=Departure, key_serializer="string") as producer:
        producer.send("departures", DEPARTURES[2], key="AA")


def read(cluster: rayka.Cluster) -> tuple[list[Departure], list[str]]:
    """The departures, and where what is none stands."""
    found: list[Departure] = []
    set_aside: list[str] = []
    with rayka.Consumer[Departure](
        "departures", cluster=cluster, auto_offset_reset="earliest", value_deserializer=Departure
    ) as consumer:
        while len(found) < len(DEPARTURES):
            try:
                found += [record.value for record in consumer.poll()]
            except SerializationError as error:
                if error.topic_partition is None or error.offset is None:
                    raise
                set_aside.append(f"{error.topic_partition}, offset {error.offset}")
                consumer.seek(error.topic_partition, error.offset + 1)
    return found, set_aside


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        rayka.Cluster.start(name="example", data_dir=directory) as cluster,
    ):
        fill(cluster)
        found, set_aside = read(cluster)
        print(f"set aside: {', '.join(set_aside)}")
        print(f"{len(found)} departures, {sum(each.delay_minutes for each in found):g} minutes late in all")


if __name__ == "__main__":
    main()
