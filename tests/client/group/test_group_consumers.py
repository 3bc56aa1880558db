"""Consumers of a group on the real nodes in this process (E3 to E9)."""

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any

import pytest

import rayka.testing
from rayka import Consumer, Producer, TopicPartition
from rayka.client.consumer.offset_commits import OffsetAndMetadata
from rayka.coordinator.group_shard import OFFSETS_TOPIC
from rayka.errors import (
    ClosedError,
    ConfigError,
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InconsistentTopicId,
    InvalidGroupId,
    InvalidSessionTimeout,
    RaykaError,
    UnavailableError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from rayka.testing import InProcessCluster
from tests.client.group.consumer_support import QUICK, Told, new_topic, poll_until, send
from tests.testing.interrupts import interrupted_after
from tests.testing.waiting import WAIT_S, wait_until

NO_END = {"session_timeout_ms": 1_800_000}  # of a session: what is left behind has been given up by a request


@pytest.fixture(scope="module")
def cluster() -> Iterator[InProcessCluster]:
    with rayka.testing.cluster(config=QUICK) as running:
        yield running


@pytest.fixture
def topic(cluster: InProcessCluster) -> str:
    return new_topic(cluster)


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_two_consumers_share_a_topic_and_one_takes_over_when_the_other_closes(
    cluster: InProcessCluster, topic: str, assignor: str
) -> None:  # E5 E6
    first, second = (
        Told(cluster, topic, topic=topic, partition_assignment_strategy=assignor, **NO_END) for _ in range(2)
    )
    send(cluster, topic)
    poll_until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
    poll_until(lambda: {*first.values, *second.values} >= {b"%d-9" % n for n in range(4)}, first, second)
    assert sorted(first.owned + second.owned) == [0, 1, 2, 3]
    second.consumer.close()
    assert second.told[-1].startswith("revoked")
    poll_until(lambda: len(first.owned) == 4, first)
    send(cluster, topic, 1)
    first.records.clear()
    poll_until(lambda: {*first.values} >= {b"%d-0" % n for n in range(4)}, first)
    first.consumer.close()


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_a_group_that_does_not_fail_is_given_each_record_once(
    cluster: InProcessCluster, topic: str, assignor: str
) -> None:  # E9 E10
    members = [Told(cluster, topic, partition_assignment_strategy=assignor) for _ in range(3)]
    send(cluster, topic, 300)

    def given(count: int) -> bool:
        return sum(len(each.records) for each in members) >= count

    members[0].subscribe(topic)
    poll_until(lambda: given(100), members[0])
    members[1].subscribe(topic)
    poll_until(lambda: len(members[1].owned) == 2, *members[:2])
    members[2].subscribe(topic)
    poll_until(lambda: len(members[2].owned) > 0, *members)
    send(cluster, topic, 300)
    members[0].consumer.close()
    poll_until(lambda: given(2_400), *members[1:])
    seen = sorted((each.partition, each.offset) for member in members for each in member.records)
    assert seen == [(partition, offset) for partition in range(4) for offset in range(600)]
    for each in members[1:]:
        each.consumer.close()


def test_topics_given_to_the_constructor_are_subscribed_to(
    cluster: InProcessCluster, topic: str
) -> None:  # E3
    send(cluster, topic, 1)
    with Consumer(topic, cluster=cluster, group_id=topic, auto_offset_reset="earliest") as consumer:
        assert consumer.subscription() == (topic,)
        values = []
        while len(values) < 4:
            values += [each.value for each in consumer.poll(timeout_ms=5_000)]
        metadata = consumer.group_metadata()
        assert (metadata.group_id, metadata.generation_id) == (topic, 1)
        assert metadata.member_id.startswith("rayka-")
        consumer.unsubscribe()
        assert (consumer.subscription(), consumer.assignment()) == ((), ())
        assert consumer.poll(timeout_ms=1) == []


def test_a_loop_over_a_group_reads_all(cluster: InProcessCluster, topic: str) -> None:  # E5
    send(cluster, topic, 500)
    seen = set()
    with Consumer(
        topic, cluster=cluster, group_id=topic, auto_offset_reset="earliest", max_poll_records=100
    ) as consumer:
        for record in consumer:
            seen.add((record.partition, record.offset))
            if len(seen) == 2_000:
                break


def test_a_subscription_and_an_assignment_exclude_each_other(cluster: InProcessCluster, topic: str) -> None:
    with Consumer(topic, cluster=cluster, group_id=topic) as consumer:
        with pytest.raises(RuntimeError, match="unsubscribe first"):
            consumer.assign([TopicPartition(topic, 0)])
        consumer.unsubscribe()
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(RuntimeError, match="reads what `assign` named"):
            consumer.subscribe(topic)
        consumer.assign([])
        consumer.subscribe(topic)


def test_what_needs_a_group_says_so(cluster: InProcessCluster, topic: str) -> None:
    with Consumer(cluster=cluster) as consumer:
        with pytest.raises(ConfigError, match="give the consumer a group_id"):
            consumer.subscribe(topic, on_assign=print)
        with pytest.raises(InvalidGroupId, match="give it a group_id"):
            consumer.group_metadata()
        with pytest.raises(ValueError, match="topics or a pattern"):
            consumer.subscribe([])


def test_a_topic_that_does_not_exist_is_named(cluster: InProcessCluster, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="nearest name"):
        Consumer(topic + "x", cluster=cluster, group_id=topic)


def test_a_group_of_the_longest_id_is_joined_and_is_in_one_of_fifty_partitions(
    cluster: InProcessCluster, topic: str
) -> None:  # E1 E3
    made = Told(cluster, "g" * 32_767, topic=topic)
    poll_until(lambda: len(made.owned) == 4, made)
    with rayka.Admin(cluster=cluster) as admin:
        assert len(admin.describe_topic(OFFSETS_TOPIC).partitions) == 50
    made.consumer.close()


# ---- Topics ----------------------------------------------------------------------------------------------------------


def test_topics_that_match_a_pattern_are_read_and_those_that_are_created_later_too(
    cluster: InProcessCluster, topic: str
) -> None:  # E8
    made = Told(cluster, topic, metadata_max_age_ms=50)
    made.consumer.subscribe(pattern=f"{topic}(-.*)?")
    poll_until(lambda: len(made.owned) == 4, made)
    assert made.consumer.subscription() == (topic,)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_topic(f"{topic}-more", partitions=2)
        admin.create_topic(f"other-{topic}", partitions=2)
    poll_until(lambda: len(made.owned) == 6, made)
    assert made.consumer.subscription() == (topic, f"{topic}-more")
    made.consumer.close()


@pytest.mark.parametrize("pattern", ["flights-(", re.compile(b"flights"), 5])
def test_what_is_no_pattern_is_refused(cluster: InProcessCluster, topic: str, pattern: Any) -> None:
    with Consumer(cluster=cluster, group_id=topic) as consumer:
        with pytest.raises((ValueError, TypeError), match="expected a regular expression"):
            consumer.subscribe(pattern=pattern)
        with pytest.raises(ValueError, match="topics or a pattern"):
            consumer.subscribe(topic, pattern=topic)
    with (
        Consumer(cluster=cluster) as consumer,
        pytest.raises(ConfigError, match="give the consumer a group_id"),
    ):
        consumer.subscribe(pattern=topic)


def test_partitions_that_are_added_are_shared(cluster: InProcessCluster, topic: str) -> None:  # E8
    first, second = (Told(cluster, topic, topic=topic, metadata_max_age_ms=50) for _ in range(2))
    poll_until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_partitions(topic, 6)
    poll_until(lambda: len(first.owned) == len(second.owned) == 3, first, second)
    send(cluster, topic, 1, partitions=6)
    poll_until(lambda: {*first.values, *second.values} >= {b"%d-0" % n for n in range(6)}, first, second)
    for each in (first, second):
        each.consumer.close()


def test_what_is_newer_than_the_subscription_is_read_from_its_beginning(
    cluster: InProcessCluster, topic: str
) -> None:  # E8, G16
    made = Told(cluster, topic, auto_offset_reset="latest", metadata_max_age_ms=500)
    made.consumer.subscribe(pattern=f"{topic}.*")
    poll_until(lambda: len(made.consumer.assignment()) == 4, made)
    with rayka.Admin(cluster=cluster) as admin:
        admin.create_partitions(topic, 6)
        admin.create_topic(f"{topic}-later")
    with Producer(cluster=cluster) as producer:
        for tp in (TopicPartition(topic, 5), TopicPartition(f"{topic}-later", 0)):
            producer.send(tp.topic, f"{tp}".encode(), partition=tp.partition)
    poll_until(lambda: len(made.values) == 2, made)
    assert set(made.values) == {f"{topic}-5".encode(), f"{topic}-later-0".encode()}
    made.consumer.close()


def test_a_topic_that_is_deleted_is_no_error_to_a_group_and_is_read_again_when_it_is_created_again(
    cluster: InProcessCluster, topic: str
) -> None:  # E8
    other = new_topic(cluster, 2)
    made = Told(cluster, topic, metadata_max_age_ms=50)
    made.subscribe(topic, other)
    poll_until(lambda: len(made.owned) == 6, made)
    with rayka.Admin(cluster=cluster) as admin:
        admin.delete_topic(other)
        poll_until(lambda: len(made.owned) == 4, made)
        assert made.consumer.subscription() == (topic, other)
        admin.create_topic(other, partitions=3)
    poll_until(lambda: len(made.owned) == 7, made)
    send(cluster, other, 1, partitions=3)
    poll_until(lambda: len(made.values) == 3, made)
    made.consumer.close()


def test_a_topic_that_is_created_again_at_once_is_read_from_its_first_record(
    cluster: InProcessCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:  # E8 E10
    send(cluster, topic, 5)
    made = Told(cluster, topic, topic=topic, metadata_max_age_ms=500)
    poll_until(lambda: len(made.values) == 20, made)
    made.consumer.commit()
    with rayka.Admin(cluster=cluster) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=4)
    made.records.clear()
    send(cluster, topic, 2)
    poll_until(lambda: len(made.values) == 8, made)
    assert sorted((each.partition, each.offset) for each in made.records) == [
        (partition, offset) for partition in range(4) for offset in range(2)
    ]
    made.consumer.commit()
    partitions = [TopicPartition(topic, number) for number in range(4)]
    assert {each.offset for each in made.consumer.committed(partitions).values() if each is not None} == {2}
    made.consumer.close()
    assert sum("created again" in each for each in caplog.messages) <= 1  # none where its absence was seen


# ---- Callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["on_assign", "on_revoke"])
def test_a_callback_that_raises_is_raised_from_poll_and_loses_nothing(
    cluster: InProcessCluster, topic: str, which: str
) -> None:
    def fail(partitions: list[TopicPartition]) -> None:
        raise LookupError(f"{which} {len(partitions)}")

    send(cluster, topic, 5)
    made, other = Told(cluster, topic), Told(cluster, topic)
    made.consumer.subscribe(topic, **{which: fail})
    errors: list[str] = []

    def poll() -> None:
        try:
            made.poll(1_000)
        except LookupError as error:
            errors.append(str(error))

    while len(made.values) < 20:
        poll()
    other.subscribe(topic)
    while len(made.owned) != 2 or not errors:
        poll()
        other.poll()
    assert errors[0] == f"{which} 4"
    with pytest.raises(LookupError) if which == "on_revoke" else nullcontext():
        made.consumer.close()
    poll_until(lambda: len(other.owned) == 4, other)
    other.consumer.close()


def test_a_callback_may_seek_and_look_but_not_poll(cluster: InProcessCluster, topic: str) -> None:
    send(cluster, topic, 5)
    found: list[object] = []
    consumer = Consumer(cluster=cluster, group_id=topic, auto_offset_reset="earliest")

    def on_assign(partitions: list[TopicPartition]) -> None:
        for each in partitions:
            consumer.seek(each, 4)
        found.append(consumer.position(partitions[0]))
        with pytest.raises(RuntimeError, match="in a callback of the group"):
            consumer.poll()

    with consumer:
        consumer.subscribe(topic, on_assign=on_assign)
        values = []
        while len(values) < 4:
            values += [each.value for each in consumer.poll(5_000)]
    assert sorted(values) == [b"0-4", b"1-4", b"2-4", b"3-4"]
    assert found == [4]


# ---- Members that fail -----------------------------------------------------------------------------------------------


def test_an_application_that_does_not_poll_in_time_loses_its_place_and_is_told(
    cluster: InProcessCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:  # E4 E6
    slow = Told(cluster, topic, topic=topic, max_poll_interval_ms=1_500)
    poll_until(lambda: len(slow.owned) == 4, slow)
    other = Told(cluster, topic, topic=topic)
    poll_until(lambda: len(other.owned) == 4, other)  # the slow one does not poll meanwhile
    assert "has not polled for max_poll_interval_ms=1500" in caplog.text
    assert slow.told[-1] == "assigned 0 1 2 3"
    poll_until(lambda: len(slow.owned) == len(other.owned) == 2, slow, other)
    assert slow.told[1] == "lost 0 1 2 3"
    for each in (slow, other):
        each.consumer.close()


def test_what_the_callback_for_lost_partitions_raises_comes_from_poll_and_loses_nothing(
    cluster: InProcessCluster, topic: str
) -> None:  # E4
    def fail(partitions: list[TopicPartition]) -> None:
        raise LookupError(f"lost {len(partitions)}")

    slow = Told(cluster, topic, max_poll_interval_ms=1_500)
    slow.consumer.subscribe(topic, on_lost=fail)
    poll_until(lambda: len(slow.consumer.assignment()) == 4, slow)
    other = Told(cluster, topic, topic=topic)
    poll_until(lambda: len(other.owned) == 4, other)  # the slow one does not poll meanwhile
    with pytest.raises(LookupError, match="lost 4"):
        poll_until(lambda: False, slow, other)
    other.consumer.close()
    send(cluster, topic, 2)
    poll_until(lambda: len(slow.values) == 8, slow)
    slow.consumer.close()


def test_user_code_that_is_slow_is_kept_by_heartbeats(cluster: InProcessCluster, topic: str) -> None:  # E6
    made = Told(cluster, topic, topic=topic, session_timeout_ms=2_000)
    poll_until(lambda: len(made.owned) == 4, made)
    is_over = threading.Event()
    is_over.wait(3)
    for _ in range(3):
        made.poll()
    assert made.told == ["assigned 0 1 2 3"]
    made.consumer.close()


def test_the_second_process_of_an_instance_fences_the_first(
    cluster: InProcessCluster, topic: str
) -> None:  # E7
    first = Told(cluster, topic, topic=topic, group_instance_id="one")
    poll_until(lambda: len(first.owned) == 4, first)
    second = Told(cluster, topic, topic=topic, group_instance_id="one")
    poll_until(lambda: len(second.owned) == 4, second)
    for _ in range(2):
        with pytest.raises(FencedInstanceId, match="one"):
            poll_until(lambda: False, first)
    assert first.told[-1] == "lost 0 1 2 3"
    first.consumer.close()
    second.poll()
    second.consumer.close()
    assert second.told == ["assigned 0 1 2 3", "revoked 0 1 2 3"]


def test_a_static_member_that_is_restarted_moves_nothing(cluster: InProcessCluster, topic: str) -> None:  # E7
    strategy = {"partition_assignment_strategy": "cooperative-sticky"}
    first = Told(cluster, topic, topic=topic, group_instance_id="one", **strategy)
    poll_until(lambda: len(first.owned) == 4, first)
    second = Told(cluster, topic, topic=topic, group_instance_id="two", **strategy)
    poll_until(lambda: len(first.owned) == len(second.owned) == 2, first, second)
    generation, owned = first.consumer.group_metadata().generation_id, second.owned
    second.consumer.close()
    again = Told(cluster, topic, topic=topic, group_instance_id="two", **strategy)
    poll_until(lambda: len(again.owned) == 2, first, again)
    assert again.owned == owned
    assert first.consumer.group_metadata().generation_id == generation
    for each in (first, again):
        each.consumer.close()


def test_members_that_have_no_assignor_in_common_are_told_by_poll(
    cluster: InProcessCluster, topic: str
) -> None:  # E3
    first = Told(cluster, topic, topic=topic, partition_assignment_strategy="range")
    poll_until(lambda: len(first.owned) == 4, first)
    second = Told(cluster, topic, topic=topic, partition_assignment_strategy="roundrobin")
    with pytest.raises(InconsistentGroupProtocol, match="share no protocol"):
        second.poll(5_000)
    for each in (first, second):
        each.consumer.close()


def test_a_session_timeout_that_the_cluster_does_not_allow_is_told_by_poll(
    cluster: InProcessCluster, topic: str
) -> None:  # E3
    made = Told(cluster, topic, topic=topic, session_timeout_ms=90)
    with pytest.raises(InvalidSessionTimeout, match="expected 100 to"):
        made.poll(5_000)
    made.consumer.close()


def test_a_member_too_many_is_told_by_poll_and_joins_when_there_is_room() -> None:  # E3
    with rayka.testing.cluster(config={**QUICK, "group.max.size": 1}) as small:
        topic = new_topic(small)
        first, second = Told(small, topic, topic=topic), Told(small, topic, topic=topic)
        poll_until(lambda: len(first.owned) == 4, first)
        with pytest.raises(GroupMaxSizeReached, match="has 1 members"):
            second.poll(5_000)
        first.consumer.close()
        poll_until(lambda: len(second.owned) == 4, second)
        second.consumer.close()


# ---- Topics that are created again -----------------------------------------------------------------------------------


def created_again(cluster: InProcessCluster, topic: str, partitions: int) -> None:
    with rayka.Admin(cluster=cluster) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=partitions)


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_a_member_that_owned_nothing_goes_on_where_its_group_has_committed_in_a_topic_created_again(
    cluster: InProcessCluster, reset: str
) -> None:  # E10
    topic, other = new_topic(cluster, partitions=1), new_topic(cluster, partitions=1)
    leader = Told(cluster, topic, topic=other)  # which looks at the topics, so that the last member need not
    poll_until(lambda: leader.owned == [0], leader)
    options = {"auto_offset_reset": reset, "metadata_max_age_ms": 3_600_000}
    members = [Told(cluster, topic, topic=topic, **options) for _ in range(2)]
    everyone = (leader, *members)
    poll_until(lambda: sum(len(each.owned) for each in members) == 1, *everyone)
    poll_until(
        lambda: len({each.consumer.group_metadata().generation_id for each in everyone}) == 1, *everyone
    )
    idle, owner = sorted(members, key=lambda each: len(each.owned))
    created_again(cluster, topic, 1)
    send(cluster, topic, 1, 1)
    poll_until(lambda: owner.consumer.position(TopicPartition(topic, 0)) == 1, *everyone)
    owner.consumer.commit()
    send(cluster, topic, 10, 1)  # which wait for the other member, all the same
    owner.consumer.pause(*owner.consumer.assignment())
    owner.consumer.close()
    poll_until(lambda: len(idle.values) >= 10, leader, idle)
    assert [each.offset for each in idle.records] == list(range(1, 11))
    for each in (leader, idle):
        each.consumer.close()


def test_an_idle_consumer_is_told_what_is_committed_of_a_topic_created_again(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, group_id=topic) as idle:
        idle.end_offsets([tp])  # the topic is known from here on
        created_again(cluster, topic, 1)
        with Consumer(cluster=cluster, group_id=topic) as other:
            other.commit({tp: 5})
        found = idle.committed([tp])[tp]
    assert found is not None
    assert found.offset == 5


@pytest.mark.parametrize("is_async", [False, True])
def test_a_commit_of_an_idle_consumer_is_refused_where_its_topic_was_created_again(
    cluster: InProcessCluster, topic: str, is_async: bool
) -> None:  # E10
    """The offset may be meant for either topic. It is not lost in the former one, and not taken for the new one."""
    tp = TopicPartition(topic, 0)
    errors: list[RaykaError | None] = []

    def commit(offset: int) -> None:
        if not is_async:
            idle.commit({tp: offset})
            return
        errors.clear()
        idle.commit_async({tp: offset}, lambda offsets, error: errors.append(error))
        wait_until(lambda: bool(errors))
        if errors[0] is not None:
            raise errors[0]

    with Consumer(cluster=cluster, group_id=topic) as idle:
        idle.end_offsets([tp])  # the topic is known from here on
        created_again(cluster, topic, 1)
        with pytest.raises(InconsistentTopicId, match=f"{topic!r}.* was deleted and created again"):
            commit(5)
        assert idle.committed([tp]) == {tp: None}
        commit(6)
        assert idle.committed([tp]) == {tp: OffsetAndMetadata(6)}


def test_a_commit_of_an_idle_consumer_is_refused_where_its_topic_was_deleted(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    tp = TopicPartition(topic, 0)
    with Consumer(cluster=cluster, group_id=topic) as idle:
        idle.end_offsets([tp])
        with rayka.Admin(cluster=cluster) as admin:
            admin.delete_topic(topic)
        with pytest.raises(UnknownTopicOrPartition, match=topic):
            idle.commit({tp: 5})


# ---- The end of a member ---------------------------------------------------------------------------------------------


def test_a_consumer_that_was_not_closed_leaves_when_it_is_gone(
    cluster: InProcessCluster, topic: str
) -> None:  # E6
    forgotten, other = (
        Told(cluster, topic, topic=topic, **NO_END),
        Told(cluster, topic, topic=topic, **NO_END),
    )
    poll_until(lambda: len(forgotten.owned) == len(other.owned) == 2, forgotten, other)
    with pytest.warns(ResourceWarning, match="not closed"):
        forgotten.consumer.__del__()
    poll_until(lambda: len(other.owned) == 4, other)
    other.consumer.close()
    forgotten.consumer.close()


def test_a_loop_in_another_thread_ends_when_the_consumer_is_closed_and_the_member_leaves(
    cluster: InProcessCluster, topic: str
) -> None:  # E6
    made, other = Told(cluster, topic, topic=topic, **NO_END), Told(cluster, topic, topic=topic, **NO_END)
    poll_until(lambda: len(made.owned) == len(other.owned) == 2, made, other)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, made.consumer)
        wait_until(made.consumer._core.guard.locked)
        made.consumer.close()
        assert reading.result(WAIT_S) == []
    poll_until(lambda: len(other.owned) == 4, other)
    other.consumer.close()


def test_ctrl_c_ends_a_poll_at_once_and_the_next_one_goes_on(cluster: InProcessCluster, topic: str) -> None:
    send(cluster, topic, 5)
    made, other = Told(cluster, topic, topic=topic), Told(cluster, topic)
    poll_until(lambda: len(made.values) == 20, made)
    with interrupted_after(0.3), pytest.raises(KeyboardInterrupt):
        made.poll(60_000)
    other.subscribe(topic)
    poll_until(lambda: len(made.owned) == len(other.owned) == 2, made, other)
    assert made.told[:2] == ["assigned 0 1 2 3", "revoked 0 1 2 3"]
    for each in (made, other):
        each.consumer.close()


def test_ctrl_c_in_a_callback_ends_the_poll_and_no_callback_is_called_twice(
    cluster: InProcessCluster, topic: str
) -> None:
    calls: list[str] = []

    def on_assign(partitions: list[TopicPartition]) -> None:
        calls.append(f"assigned {len(partitions)}")
        raise KeyboardInterrupt

    send(cluster, topic, 1)
    made = Told(cluster, topic)
    made.consumer.subscribe(topic, on_assign=on_assign)
    with pytest.raises(KeyboardInterrupt):
        made.poll(60_000)
    poll_until(lambda: len(made.values) == 4, made)
    assert calls == ["assigned 4"]
    made.consumer.close()


def test_a_member_that_its_group_goes_on_without_takes_nothing_back(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    """It has not polled in time, the other one has read on and left: an empty group takes commits of any caller."""
    options = {"topic": topic, "enable_auto_commit": False}
    slow = Told(cluster, topic, max_poll_interval_ms=1_500, session_timeout_ms=1_000, **options)
    send(cluster, topic, 1)
    poll_until(lambda: len(slow.values) == 4, slow)
    quick = Told(cluster, topic, **options)
    poll_until(lambda: len(quick.values) == 4, quick)
    send(cluster, topic, 1)
    poll_until(lambda: len(quick.values) == 8, quick)
    quick.consumer.commit()
    quick.consumer.close()
    with pytest.raises(UnknownMemberId, match="poll to join again"):
        slow.consumer.commit()
    slow.consumer.close()
    with Consumer(cluster=cluster, group_id=topic) as reader:
        partitions = [TopicPartition(topic, number) for number in range(4)]
        found = [each.offset for each in reader.committed(partitions).values() if each is not None]
    assert found == [2] * 4


def test_a_group_whose_cluster_is_gone_is_an_error_and_goes_on_when_it_is_back() -> None:
    with rayka.testing.cluster(config=QUICK) as cluster:
        topic = new_topic(cluster)
        made = Told(cluster, topic, topic=topic, default_api_timeout_ms=500, request_timeout_ms=200)
        cluster.kill(1)
        with pytest.raises(UnavailableError, match=r"no node of cluster .* has answered"):
            made.poll(60_000)
        cluster.restart(1)
        deadline_s = time.monotonic() + WAIT_S
        while len(made.owned) != 4 and time.monotonic() < deadline_s:
            with suppress(UnavailableError):
                made.poll(100)
        assert made.owned == [0, 1, 2, 3]
        made.consumer.close()


def test_ctrl_c_while_a_consumer_closes_leaves_no_member_behind(
    cluster: InProcessCluster, topic: str
) -> None:  # E6
    def interrupt(partitions: list[TopicPartition]) -> None:
        raise KeyboardInterrupt

    made = Told(cluster, topic, **NO_END)
    made.consumer.subscribe(topic, on_revoke=interrupt)
    poll_until(lambda: len(made.owned) == 4, made)
    with pytest.raises(KeyboardInterrupt):
        made.consumer.close()
    with pytest.raises(ClosedError):
        made.poll()
    other = Told(cluster, topic, topic=topic, **NO_END)
    poll_until(lambda: len(other.owned) == 4, other)
    other.consumer.close()


def test_a_generator_that_is_left_half_way_costs_nothing(cluster: InProcessCluster, topic: str) -> None:
    send(cluster, topic, 50)
    made = Told(cluster, topic, topic=topic)
    seen = [(record.partition, record.offset) for record in islice(made.consumer, 30)]
    generator = iter(made.consumer)
    record = next(generator)
    seen.append((record.partition, record.offset))
    generator.close()
    poll_until(lambda: len(made.records) == 169, made)
    seen += [(each.partition, each.offset) for each in made.records]
    assert sorted(seen) == [(partition, offset) for partition in range(4) for offset in range(50)]
    made.consumer.close()


def test_what_was_given_of_a_generator_is_committed_and_no_more(
    cluster: InProcessCluster, topic: str
) -> None:  # E10
    send(cluster, topic, 50)
    with Consumer(topic, cluster=cluster, group_id=topic, auto_offset_reset="earliest") as consumer:
        seen = [(record.partition, record.offset) for record in islice(consumer, 30)]
    rest = Told(cluster, topic, topic=topic)
    poll_until(lambda: len(rest.records) == 170, rest)
    seen += [(each.partition, each.offset) for each in rest.records]
    assert sorted(seen) == [(partition, offset) for partition in range(4) for offset in range(50)]
    rest.consumer.close()
