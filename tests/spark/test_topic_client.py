"""Planning and remote reading against the real nodes, in this process: files and network give the same rows."""

import asyncio
from functools import partial

import msgspec
import pytest

from rayka import Admin, Producer, TopicPartition, testing
from rayka.client import io_thread
from rayka.errors import OffsetOutOfRange, TopicRecreated, UnknownTopicOrPartition
from rayka.spark.partition_reader import read_range
from rayka.spark.plan import OffsetRange, plan_ranges
from rayka.spark.source_options import ReadOptions
from rayka.spark.topic_client import TopicClient, TopicDeleted, available_ranges, located

TIMEOUT_S = 150
RECORD_COUNT = 3_000


@pytest.fixture(scope="module")
def cluster():
    with testing.cluster(config={"log.segment.bytes": 100_000}) as running:
        make_topic(running, "a", RECORD_COUNT)
        yield running


def make_topic(cluster, name, record_count, *, partitions=1, value_bytes=100):
    with Admin(cluster=cluster) as admin:
        admin.create_topic(name, partitions=partitions)
    with Producer(cluster=cluster, batch_size=8_192, linger_ms=0) as producer:
        futures = [
            producer.send(name, value=b"%0*d" % (value_bytes, number), partition=0)
            for number in range(record_count)
        ]
        for future in futures:
            future.result(timeout=TIMEOUT_S)


def delete_topic(cluster, name):
    with Admin(cluster=cluster) as admin:
        admin.delete_topic(name)


def planned(client, **options):
    options = ReadOptions(("a",), **options)
    (only,) = plan_ranges(options, io_thread.run(partial(client.available, ("a",)), TIMEOUT_S))
    return only


def rows(wanted, file_ranges, client, **options):
    batches = read_range(ReadOptions(("a",), **options), wanted, file_ranges, lambda: client)
    return [row for batch in batches for row in batch.to_pylist()]


class ElsewhereClient(TopicClient):
    """On a machine that holds no replica."""

    async def locate(self, wanted):
        return ()


def files_of(client, wanted, **options):
    return io_thread.run(partial(located, wanted, ReadOptions(("a",), **options), client), TIMEOUT_S)


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
    file_ranges = files_of(client, wanted)
    assert len({each.path for each in file_ranges}) > 2  # several segments
    fetched = rows(wanted, (), ElsewhereClient(cluster))
    assert [row["offset"] for row in fetched] == list(range(17, RECORD_COUNT - 17))
    assert rows(wanted, file_ranges, None) == fetched


def test_from_the_first_file_that_is_gone_the_broker_is_asked(cluster):
    client = TopicClient(cluster)
    wanted = planned(client)
    first, second, *_ = files_of(client, wanted)
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
        file_ranges = files_of(client, wanted) if has_files else ()
        delete_topic(running, "a")
        with pytest.raises(
            TopicDeleted, match=r'topic .a. .* was deleted .* set the option "failOnDataLoss"'
        ):
            rows(wanted, file_ranges, client)
        make_topic(running, "a", 1)
        with pytest.raises(TopicRecreated, match=f"expected id {wanted.topic_id}.*failOnDataLoss"):
            rows(wanted, file_ranges, client)


@pytest.mark.parametrize("has_files", [False, True])
def test_without_fail_on_data_loss_a_topic_that_was_deleted_gives_no_more_rows(has_files, caplog):
    with testing.cluster() as running:
        make_topic(running, "a", 1)
        client = TopicClient(running)
        wanted = planned(client)
        file_ranges = files_of(client, wanted) if has_files else ()
        delete_topic(running, "a")
        assert rows(wanted, file_ranges, client, fail_on_data_loss=False) == []
        make_topic(running, "a", 1)
        assert rows(wanted, file_ranges, client, fail_on_data_loss=False) == []
        warnings = [each.getMessage() for each in caplog.records if each.name == "rayka.spark.plan"]
    deleted, recreated = warnings
    assert "'a' of cluster 'testing' was deleted after the query was made" in deleted
    assert "'a' of cluster 'testing' was deleted and created again" in recreated


def test_a_topic_that_is_deleted_while_it_is_read_ends_there(caplog):
    class Deleting(ElsewhereClient):
        async def fetch(self, wanted, offset, *, local_directory_ids=()):
            if offset > 0:
                await asyncio.to_thread(delete_topic, running, "a")
            return await super().fetch(wanted, offset, local_directory_ids=local_directory_ids)

    with testing.cluster() as running:
        make_topic(running, "a", RECORD_COUNT, value_bytes=5_000)
        client = Deleting(running)
        read = rows(planned(client), (), client, fail_on_data_loss=False)
    assert 0 < len(read) < RECORD_COUNT
    assert "was deleted after the query was made" in caplog.text


@pytest.mark.parametrize(("is_made_anew", "expected"), [(False, TopicDeleted), (True, TopicRecreated)])
def test_what_is_available_instead_of_offsets_out_of_range_is_of_the_same_topic(is_made_anew, expected):
    with testing.cluster() as running:
        make_topic(running, "a", 1, partitions=2)
        available = io_thread.run(partial(TopicClient(running).available, ("a",)), TIMEOUT_S)
        second = TopicPartition("a", 1)
        beyond = OffsetRange(second, available[second].topic_id, 5, 9)

        class Late(ElsewhereClient):
            async def available(self, topics):
                await asyncio.to_thread(delete_topic, running, "a")
                if is_made_anew:
                    await asyncio.to_thread(make_topic, running, "a", 1)
                return await TopicClient(running).available(topics)

        with pytest.raises(expected):
            rows(beyond, (), Late(running))


# ---- Planning ----


def plan_of(client, *topics, **options):
    available = io_thread.run(partial(available_ranges, ReadOptions(topics, **options), client), TIMEOUT_S)
    return plan_ranges(ReadOptions(topics, **options), available)


def test_a_topic_of_which_offsets_are_named_was_there_once(cluster, caplog):
    options = {"starting_offsets": {"gone": {0: 5}, "a": {0: -2}}, "fail_on_data_loss": False}
    (only,) = plan_of(TopicClient(cluster), "gone", "a", **options)
    assert only.topic_partition == TopicPartition("a", 0)
    assert "has no topic 'gone'" in caplog.text
    with pytest.raises(UnknownTopicOrPartition, match="has no topic 'gone'"):
        plan_of(TopicClient(cluster), "gone", "a", **options | {"fail_on_data_loss": True})


def test_a_topic_that_never_was_is_an_error_whatever_may_be_lost(cluster):
    with pytest.raises(UnknownTopicOrPartition, match="has no topic 'oders'"):
        plan_of(TopicClient(cluster), "oders", "a", fail_on_data_loss=False)


def test_a_topic_that_is_deleted_while_its_offsets_are_looked_up_was_there(caplog):
    with testing.cluster() as running:
        make_topic(running, "a", 1)
        client = TopicClient(running)
        io_thread.run(partial(client.available, ("a",)), TIMEOUT_S)
        delete_topic(running, "a")  # the client does not know
        assert plan_of(client, "a", fail_on_data_loss=False) == []
        assert "was deleted" in caplog.text


def test_the_files_of_what_was_deleted_while_the_query_was_planned_are_none():
    with testing.cluster() as running:
        make_topic(running, "a", 1)
        client = TopicClient(running)
        wanted = planned(client)
        beyond = OffsetRange(wanted.topic_partition, wanted.topic_id, 5, 9)
        assert files_of(client, beyond) == ()
        delete_topic(running, "a")
        assert files_of(client, wanted, fail_on_data_loss=False) == ()
        with pytest.raises(TopicDeleted, match="failOnDataLoss"):
            files_of(client, wanted)


def test_a_broker_that_is_down_for_a_while_only_delays_a_read():
    with testing.cluster() as running:
        make_topic(running, "a", 10)
        client = ElsewhereClient(running)
        wanted = planned(client)
        running.kill(1)
        running.restart(1)
        assert len(rows(wanted, (), client)) == 10
