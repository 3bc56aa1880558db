"""Clients whose timeouts are Kafka's largest number, which is how its users say: for ever."""

import rayka
from rayka import testing

FOR_EVER = 2**63 - 1


def test_a_timeout_may_be_kafkas_largest() -> None:
    timeouts = {"request_timeout_ms": FOR_EVER, "metadata_max_age_ms": FOR_EVER}
    with testing.cluster() as cluster:
        with rayka.Admin(cluster=cluster, default_api_timeout_ms=FOR_EVER, **timeouts) as admin:
            admin.create_topic("words", partitions=1)
        waits = {"max_block_ms": FOR_EVER, "delivery_timeout_ms": FOR_EVER}
        with rayka.Producer(cluster=cluster, buffer_memory=1 << 16, **waits, **timeouts) as producer:
            for _ in range(300):  # more than the memory takes at once
                producer.send("words", b"x" * 1_000)
        found = rayka.read("words", cluster=cluster, default_api_timeout_ms=FOR_EVER, **timeouts)
        assert len(list(found)) == 300
