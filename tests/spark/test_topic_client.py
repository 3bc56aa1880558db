"""Planning and remote reading against the real nodes, in this process: files and network give the same rows."""

import msgspec
import pytest

from rayka import Admin, Producer, TopicPartition, testing
from rayka.client import io_thread
from rayka.errors import OffsetOutOfRange, UnknownTopicOrPartition
from rayka.spark.options import ReadOptions
from rayka.spark.plan import OffsetRange, plan_ranges
from rayka.spark.reading import read_range
from rayka.spark.topic_client import TopicClient, TopicRecreated

TIMEOUT_S = 60
RECORD_COUNT = 3_000


@pytest.fixture(scope="module")
def cluster():
    with testing.cluster(config={"log.segment.bytes": 100_000}) as running:
        make_topic(running, "a", RECORD_COUNT)
        yield running


def make_topic(cluster, name, record_count):
    with Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=1)
    with Producer(cluster=cluster, batch_size=8_192, linger_ms=0) as producer:
        futures = [producer.send(name, value=b"%0100d" % number) for number in range(record_count)]
        for future in futures:
            future.result(timeout=TIMEOUT_S)


def planned(client, **options):
    options = ReadOptions(("a",), **options)
    (only,) = plan_ranges(options, io_thread.run(client.available(("a",)), TIMEOUT_S))
    return only


def rows(wanted, file_ranges, client, **options):
    batches = read_range(ReadOptions(("a",), **options), wanted, file_ranges, lambda: client)
    return [row for batch in batches for row in batch.to_pylist()]


class ElsewhereClient(TopicClient):
    """On a machine that holds no replica."""

    async def locate(self, wanted):
        return ()


def located(client, wanted):
    return io_thread.run(client.locate(wanted), TIMEOUT_S)


def test_what_is_available_is_the_whole_log(cluster):
    wanted = planned(TopicClient(cluster))
    assert (wanted.topic_partition, wanted.start_offset, wanted.end_offset) == (
        TopicPartition("a", 0),
        0,
        RECORD_COUNT,
    )


def test_files_and_the_broker_give_the_same_rows(cluster):
    client = TopicClient(cluster)
    wanted = planned(client, starting_offsets={"a": {0: 17}}, ending_offsets={"a": {0: RECORD_COUNT - 17}})
    file_ranges = located(client, wanted)
    assert len({each.path for each in file_ranges}) > 2  # several segments
    fetched = rows(wanted, (), ElsewhereClient(cluster))
    assert [row["offset"] for row in fetched] == list(range(17, RECORD_COUNT - 17))
    assert rows(wanted, file_ranges, None) == fetched


def test_from_the_first_file_that_is_gone_the_broker_is_asked(cluster):
    client = TopicClient(cluster)
    wanted = planned(client)
    first, second, *_ = located(client, wanted)
    gone = msgspec.structs.replace(second, inode=second.inode + 1)
    elsewhere = ElsewhereClient(cluster)
    assert [row["offset"] for row in rows(wanted, (first, gone), elsewhere)] == list(range(RECORD_COUNT))


def test_what_the_plan_could_not_name_is_found_where_the_task_runs(cluster):
    class UnaskedClient(TopicClient):
        async def fetch(self, wanted, offset, *, local_directory_ids=()):
            assert local_directory_ids, "records were sent, though their files are here"
            return await super().fetch(wanted, offset, local_directory_ids=local_directory_ids)

    client = UnaskedClient(cluster)
    wanted = planned(client)
    assert [row["offset"] for row in rows(wanted, (), client)] == list(range(RECORD_COUNT))


def test_a_read_that_is_given_up_leaves_nothing_pending(cluster):
    client = ElsewhereClient(cluster)
    reading = read_range(ReadOptions(("a",)), planned(client), (), lambda: client)
    assert next(reading).num_rows > 0
    reading.close()


def test_offsets_that_went_away_after_planning_are_an_error_that_names_them(cluster):
    client = TopicClient(cluster)
    wanted = planned(client)
    beyond = OffsetRange(wanted.topic_partition, wanted.topic_id, RECORD_COUNT + 5, RECORD_COUNT + 9)
    with pytest.raises(OffsetOutOfRange) as refused:
        rows(beyond, (), client)
    assert "offsets [3005, 3009) were asked for, [0, 3000) are available" in str(refused.value)
    assert rows(beyond, (), client, fail_on_data_loss=False) == []


@pytest.mark.parametrize("has_files", [False, True])
def test_a_topic_made_anew_is_not_taken_for_the_old_one(has_files):
    with testing.cluster() as running:
        make_topic(running, "a", 1)
        client = TopicClient(running)
        wanted = planned(client)
        file_ranges = located(client, wanted) if has_files else ()
        with Admin(cluster=running) as admin:
            admin.delete_topic("a")
            with pytest.raises(UnknownTopicOrPartition, match="has no topic 'a'"):
                rows(wanted, file_ranges, client)
        make_topic(running, "a", 1)
        with pytest.raises(TopicRecreated, match=f"expected id {wanted.topic_id}"):
            rows(wanted, file_ranges, client)


def test_a_broker_that_is_down_for_a_while_only_delays_a_read():
    with testing.cluster() as running:
        make_topic(running, "a", 10)
        client = ElsewhereClient(running)
        wanted = planned(client)
        running.kill(1)
        running.restart(1)
        assert len(rows(wanted, (), client)) == 10
