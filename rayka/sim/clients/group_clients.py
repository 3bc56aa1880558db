"""The consumers of a group in a simulation, and what must hold of them.

A member is the real `GroupMember` with its `Fetcher` and `Delivery`; the loop here stands for the sync consumer, which
waits in a thread. Members come and go: one leaves, one dies and its session ends, one does not poll for too long.

Checked: no partition has two owners in one generation (`group-owners`); a member begins where the group had committed
before its generation, or later (`group-went-back`); what is committed was given to some member, every record of it
(`group-skipped`). When the faults are over, the group settles, reads everything and commits it (`liveness`). After a
legal loss of the group's own partition, or of the partition that is read, nothing is asked of it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.group.group_member import GroupMember
from rayka.client.group.handover_stages import HandoverStages, Listener, Stage
from rayka.client.group.member_requests import MemberOptions
from rayka.client.group.offset_values import OffsetAndMetadata
from rayka.client.loop_time import now_s
from rayka.config import ConsumerConfig
from rayka.coordinator.group_shard import OFFSETS_TOPIC, partition_of_group
from rayka.errors import RaykaError, UnavailableError
from rayka.ids import TopicPartition
from rayka.sim.checks.partition_truth import PartitionTruth
from rayka.sim.clients.data_clients import DataClient, DataClients, SimHandle
from rayka.sim.run_options import TopicPlan

GROUP_ID = "group"
_POLL_MS = 200.0
_POLLS_MAX = 60  # then a member may go
_SESSION_MS = 3_000
_MAX_POLL_MS = 6_000
_TIMEOUT_MS = 5_000


class GroupClients:
    """All members of the group of one run, and what they were given."""

    def __init__(self, data: DataClients) -> None:
        self.data = data
        self.topics: list[str] = []
        self.partitions: list[TopicPartition] = []
        self.members = [_Member(self, each) for each in data.options.group_member_ids]
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._given: dict[TopicPartition, set[int]] = {}
        self._acknowledged: dict[TopicPartition, dict[int, int]] = {}  # by generation: the highest offset

    def start(self, topics: Sequence[TopicPlan]) -> None:
        """Topics that have been created: the group reads them from now on."""
        for topic in topics:
            self.topics.append(topic.name)
            self.partitions += [TopicPartition(topic.name, number) for number in range(topic.partition_count)]
        for member in self.members if topics else ():
            member.start(topics)

    # ---- What must hold ----------------------------------------------------------------------------------------------

    @property
    def _may_forget(self) -> bool:
        """Whether the partition that the group is on has legally lost something."""
        count = self.data.options.config["offsets_topic_num_partitions"]
        truth = self.data.replication.truth_named(OFFSETS_TOPIC, partition_of_group(GROUP_ID, count))
        return truth is not None and bool(truth.losses or truth.awaits_loss)

    def on_owned(self, member: "_Member", generation_id: int, owned: Iterable[TopicPartition]) -> None:
        """The member was told what it reads."""
        for each in owned if not self._may_forget else ():
            owner = self._owners.setdefault((generation_id, each), member.name)
            if owner != member.name:
                member.report(
                    "group-owners", f"{each} is {owner}'s and {member.name}'s in generation {generation_id}"
                )

    def on_begun(
        self, member: "_Member", generation_id: int, topic_partition: TopicPartition, offset: int
    ) -> None:
        """The first record that the member is given of a partition that this generation gave it."""
        known = self._acknowledged.get(topic_partition, {})
        before = max((known[each] for each in known if each < generation_id), default=0)
        if offset < before and not self._may_forget and not self._is_lost(topic_partition):
            member.report(
                "group-went-back",
                f"{member.name} begins {topic_partition} at {offset} in generation {generation_id}, {before} was"
                " committed",
            )

    def on_given(self, topic_partition: TopicPartition, offset: int) -> None:
        self._given.setdefault(topic_partition, set()).add(offset)

    def on_committed(
        self, member: "_Member", generation_id: int, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """The coordinator has acknowledged it."""
        for each, at in offsets.items():
            known = self._acknowledged.setdefault(each, {})
            known[generation_id] = max(known.get(generation_id, 0), at.offset)
            truth = self._truth(each)
            if truth is None or self._is_lost(each):
                continue
            begin = max(truth.log_start_offset, truth.deleted_up_to)
            given = self._given.get(each, set())
            skipped = [offset for offset in range(begin, min(at.offset, truth.end)) if offset not in given]
            if skipped:
                member.report(
                    "group-skipped",
                    f"{member.name} committed {at.offset} of {each}, never given: {skipped[:5]}",
                )

    @property
    def committed_count(self) -> int:
        """Of how many partitions something was committed."""
        return len(self._acknowledged)

    def _truth(self, topic_partition: TopicPartition) -> PartitionTruth | None:
        return self.data.replication.truth_named(topic_partition.topic, topic_partition.partition)

    def _is_lost(self, topic_partition: TopicPartition) -> bool:
        truth = self._truth(topic_partition)
        return truth is not None and bool(truth.losses or truth.awaits_loss)

    # ---- The end -----------------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """What the group has not come to."""
        if not self.topics or not self.members:
            return []
        found = [f"{each.name} is not settled" for each in self.members if not each.is_settled]
        owned = sorted(each for member in self.members for each in member.owned)
        if not found and owned != sorted(self.partitions):
            found.append(f"members own {owned} of {self.partitions}")
        return found or [problem for each in self.partitions if (problem := self._behind(each))]

    def _behind(self, topic_partition: TopicPartition) -> str:
        truth = self._truth(topic_partition)
        state = None if truth is None else self.data.replication.state_of(truth)
        if truth is None or state is None or not state.has_leader or self._is_lost(topic_partition):
            return ""
        committed = max(self._acknowledged.get(topic_partition, {}).values(), default=0)
        is_read = committed >= truth.end or truth.end <= max(truth.deleted_up_to, truth.log_start_offset)
        return "" if is_read else f"the group has committed {committed} of {truth!r}"

    def close(self) -> None:
        for each in self.members:
            each.process.is_alive = False


class _Member(DataClient):
    """One member after another, of one process."""

    def __init__(self, group: GroupClients, client_id: int) -> None:
        super().__init__(group.data, client_id)
        self._group = group
        self._life = 0
        self._member: GroupMember | None = None
        self.owned: tuple[TopicPartition, ...] = ()
        self._added_in: dict[TopicPartition, int] = {}  # by partition without a record: its generation

    @property
    def name(self) -> str:
        return f"member {self.process.node_id}.{self._life}"

    @property
    def is_settled(self) -> bool:
        return self._member is not None and self._member.is_settled

    async def run(self) -> None:
        while True:
            self._life += 1
            config = ConsumerConfig.parse(self._options(), what="simulated member")
            fetcher = Fetcher(SimHandle(self.owner.network, self.process), config, self.random)
            member = self._member = GroupMember(
                MemberOptions.of(config),
                fetcher.coordinators,
                fetcher,
                metadata_max_age_ms=config.metadata_max_age_ms,
                timeout_ms=_TIMEOUT_MS,
            )
            try:
                await self._live(_Reading(fetcher, member))
            except RaykaError as error:
                self.tell("member", str(error)[:120])
            finally:
                self.owned, self._added_in = (), {}
                await member.close()  # without a leave: its session ends by itself
                await fetcher.close()
            await asyncio.sleep(self.random.random() * 2)

    def _options(self) -> dict[str, object]:
        strategy = "range" if self.owner.options.seed % 2 else "cooperative-sticky"
        return {
            "group_id": GROUP_ID,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": _SESSION_MS,
            "heartbeat_interval_ms": 500,
            "max_poll_interval_ms": _MAX_POLL_MS,
            "partition_assignment_strategy": [strategy],
            "fetch_max_wait_ms": 200,
            "request_timeout_ms": 2_000,
            "default_api_timeout_ms": _TIMEOUT_MS,
            "metadata_max_age_ms": 2_000,
            "enable_auto_commit": False,
            "local_reads": False,
        }

    async def _live(self, reading: "_Reading") -> None:
        """Until it leaves or dies; once clients stop asking, for ever."""
        topics, polls = tuple(self._group.topics), self.random.randint(5, _POLLS_MAX)
        await reading.member.subscribe(topics)  # others may be created meanwhile
        while len(self._group.topics) == len(topics) and (polls > 0 or not self.owner.is_asking):
            polls -= 1
            await self._poll(reading)
            if self.random.random() < 0.1 or not self.owner.is_asking:
                await self._commit(reading)
            if self.owner.is_asking and self.random.random() < 0.01:
                await asyncio.sleep(_MAX_POLL_MS * 1.5 / 1000)  # its code is slow
        if self.random.random() < 0.5:
            await reading.member.begin_leaving()
            await self._hand_over(reading)

    async def _poll(self, reading: "_Reading") -> None:
        with reading.polling():
            await self._hand_over(reading)
            try:
                await reading.fetcher.poll(_POLL_MS, reading.delivery.add)
            except UnavailableError as error:
                self.tell("member", str(error)[:120])
        while records := reading.delivery.next_records(100):
            for record in records:
                tp = TopicPartition(record.topic, record.partition)
                if tp in self._added_in:
                    self._group.on_begun(self, self._added_in.pop(tp), tp, record.offset)
                self._group.on_given(tp, record.offset)

    async def _hand_over(self, reading: "_Reading") -> None:
        while (ready := reading.member.ready) is not None:
            stages = HandoverStages(ready)
            while stages:
                stage = stages.next()
                if stage is Stage.COMMIT:
                    await self._commit(reading)
                    stages.done()
                elif stage is Stage.READ:
                    await self._read(reading, stages)
                else:
                    stages.callback(Listener())
        failure = await reading.member.take_failure()
        if failure is not None:
            raise failure

    async def _read(self, reading: "_Reading", stages: HandoverStages) -> None:
        generation_id = reading.member.metadata.generation_id
        if not await reading.member.read(stages.handover):
            stages.give_up()
            return
        reading.delivery.keep_only(dict.fromkeys(stages.partitions))
        self.owned = stages.partitions
        self.tell("owns", f"{list(self.owned)} in generation {generation_id}")
        self._added_in = {tp: self._added_in[tp] for tp in self.owned if tp in self._added_in}
        if stages.handover.added is not None:
            self._added_in |= dict.fromkeys(stages.handover.added, generation_id)
            self._group.on_owned(self, generation_id, self.owned)
        stages.done()

    async def _commit(self, reading: "_Reading") -> None:
        offsets = reading.fetcher.consumed(reading.delivery.read())
        group, group_offsets = reading.member.metadata, reading.fetcher.group_offsets
        assert group_offsets is not None
        if not offsets or not group.member_id:
            return
        try:
            await group_offsets.commit(offsets, group)
        except RaykaError as error:
            self.tell("uncommitted", str(error)[:120])
        else:
            self.tell("committed", str({repr(each): at.offset for each, at in offsets.items()}))
            self._group.on_committed(self, group.generation_id, offsets)


class _Reading:
    """What one life of a member reads with."""

    def __init__(self, fetcher: Fetcher, member: GroupMember) -> None:
        self.fetcher = fetcher
        self.member = member
        self.delivery = Delivery(check_crcs=True)

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Within it the application polls."""
        self.member.is_polling = True
        try:
            yield
        finally:
            self.member.polled_s = now_s()
            self.member.is_polling = False
