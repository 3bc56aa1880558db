"""The consumers of a group in a simulation.

A member is the real `ConsumerCoordinator` with its `Fetcher` and `Delivery`; the loop here stands for the sync
consumer, which waits in a thread. Members come and go: one leaves, one dies and its session ends, one does not poll for
too long. In some runs members stand still for longer than a session, and the last commit of a member comes after its
death. What must hold is in `group_history`; when the faults are over, the group settles, reads everything and commits
it.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context

from rayka.client.consumer.consumer_coordinator import ConsumerCoordinator
from rayka.client.consumer.delivery import Delivery
from rayka.client.consumer.fetcher import Fetcher
from rayka.client.consumer.group_membership import GroupMetadata
from rayka.client.consumer.offset_commits import OffsetAndMetadata, Problems, first_problem
from rayka.client.consumer.rebalance_listener import HandoverStages, RebalanceListener, Stage
from rayka.clock import now_s
from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.group_records import OffsetValue
from rayka.coordinator.group_shard import OFFSETS_TOPIC, GroupShard
from rayka.errors import RaykaError, UnavailableError
from rayka.ids import TopicPartition
from rayka.sim.checks.group_history import GROUP_ID, GroupHistory, Life
from rayka.sim.clients.data_clients import DataClient, DataClients, SimHandle
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.machines import Machine

_POLL_MS = 200.0
_POLLS_MAX = 60  # then a member may go
_SESSION_MS = 3_000
_MAX_POLL_MS = 6_000
_TIMEOUT_MS = 5_000
_AUTO_COMMIT_S = 1.0
_NEVER_S = float("inf")
_Offsets = dict[TopicPartition, OffsetAndMetadata]


class GroupClients:
    """All members of the group of one run, and what they were given."""

    def __init__(self, data: DataClients) -> None:
        self.data = data
        self.topics: list[str] = []
        self.partitions: list[TopicPartition] = []
        count = data.cluster.options.config.get("offsets_topic_num_partitions", 1)
        self.history = GroupHistory(data.checkers, data.replication, count)
        statics = data.cluster.options.group.static_count
        self.members = [
            _Member(self, client_id, instance_id=f"place-{number}" * (number < statics))
            for number, client_id in enumerate(data.cluster.options.group_member_ids)
        ]
        if data.cluster.options.group.has_death and len(self.members) > 1:
            self.members[0].doom()

    def start(self, topics: Sequence[TopicPlan]) -> None:
        """Topics that have been created: the group reads them from now on."""
        for topic in topics:
            self.topics.append(topic.name)
            self.add(TopicPartition(topic.name, number) for number in range(topic.partition_count))
        for member in self.members if topics else ():
            member.start(topics)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions that the group has to read in the end."""
        self.partitions += partitions

    # ---- The end -----------------------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """The reasons why the group is not settled."""
        if not self.topics or not self.members:
            return []
        return self.unsettled() or [problem for each in self.partitions if (problem := self._behind(each))]

    def unsettled(self) -> list[str]:
        """The partitions that are not yet read by exactly one member, and why."""
        if not self.topics or not self.members:
            return []
        members = [each for each in self.members if not each.is_gone]
        found = [f"{each.life} is not settled" for each in members if not each.is_settled]
        owned = sorted(each for member in members for each in member.owned)
        if not found and owned != sorted(self.partitions):
            found.append(f"members own {owned} of {self.partitions}")
        return found

    def _behind(self, topic_partition: TopicPartition) -> str:
        replication = self.data.replication
        truth = replication.truth_named(topic_partition)
        state = None if truth is None else replication.state_of(truth)
        if truth is None or state is None or not state.has_leader or replication.has_lost(topic_partition):
            return ""
        replication.look_at_starts(truth)  # what expired meanwhile has not to be read
        committed = self.history.committed_end(topic_partition)
        is_read = truth.needed_end <= max(committed, truth.needed_begin)
        return "" if is_read else f"the group has committed {committed} of {truth!r}"

    def check_final(self) -> str:
        """Every record was given to the group."""
        return self.history.check_final(self.partitions) if self.members else ""

    def check_stored(self, machines: Iterable[Machine]) -> str:
        """The coordinator stores the last acknowledged offset, or that of a commit under way."""
        for machine in machines:
            stored = self.stored_on(machine)
            problem = "" if stored is None else self.history.check_stored(stored)
            if problem:
                return f"{machine!r} {problem}"
        return ""

    def stored_on(self, machine: Machine) -> dict[TopicPartition, OffsetValue] | None:
        """The offsets of the group; None where the machine does not coordinate it, or loads what it is to."""
        number, broker = self.history.number, machine.broker
        truth = self.data.replication.truth_named(TopicPartition(OFFSETS_TOPIC, number))
        state = None if truth is None else self.data.replication.state_of(truth)
        if state is None or state.leader_id != machine.node_id or broker is None:
            return None
        for (_, shard_number), hosted in broker.shards.shards.items():
            if shard_number == number and hosted.is_active and isinstance(hosted.shard, GroupShard):
                return hosted.shard.store.offsets.get(GROUP_ID, {})
        return None

    def close(self) -> None:
        """Gives up all operations. A paused member is resumed, so that its tasks find themselves cancelled."""
        for each in self.members:
            each.process.is_alive = False
            each.loop.resume(each.process)


class _Member(DataClient):
    """One member after another, of one process."""

    def __init__(self, group: GroupClients, client_id: int, *, instance_id: str) -> None:
        super().__init__(group.data, client_id)
        self._group = group
        self._plan = self.options.group
        self.life = Life(client_id, 0, instance_id)
        self._member: ConsumerCoordinator | None = None
        self.owned: tuple[TopicPartition, ...] = ()
        # By partition without a record yet: the generation that added it, and what was committed then.
        self._added: dict[TopicPartition, tuple[int, int]] = {}
        self._commit_due_s = 0.0
        self._dies_s = _NEVER_S
        self.is_gone = False

    def doom(self) -> None:
        """Kills the member for good within the time of the faults: only its session tells the group."""
        self._dies_s = self.random.random() * self.options.seconds

    @property
    def is_settled(self) -> bool:
        return self._member is not None and self._member.is_settled

    async def run(self) -> None:
        while not self.is_gone:
            self.life = Life(self.life.node_id, self.life.number + 1, self.life.instance_id)
            config = ConsumerConfig.parse(self._options(), what="simulated member")
            fetcher = Fetcher(SimHandle(self.cluster.network, self.process), config, self.random)
            member = self._member = ConsumerCoordinator(config, fetcher)
            reading = _Reading(fetcher, member)
            try:
                await self._live(reading)
            except RaykaError as error:
                self.tell("member", str(error)[:120])
            finally:
                await self._end(reading)
            await asyncio.sleep(self.random.random() * 2)

    def _options(self) -> dict[str, object]:
        return {
            "group_id": GROUP_ID,
            "group_instance_id": self.life.instance_id or None,
            "auto_offset_reset": "earliest",
            "session_timeout_ms": _SESSION_MS,
            "heartbeat_interval_ms": 500,
            "max_poll_interval_ms": _MAX_POLL_MS,
            "partition_assignment_strategy": [self._plan.assignor],
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
        await reading.member.subscribe(topics)
        while polls > 0 or self._plan.has_death or not self.owner.is_asking:
            polls -= 1
            if now_s() >= self._dies_s:
                self.is_gone = True
                self.tell("dies", "for good")
                return
            if len(self._group.topics) > len(topics):
                topics = tuple(self._group.topics)
                await reading.member.subscribe(topics)
            await self._poll(reading)
            await self._maybe_commit(reading)
            if self.owner.is_asking and not self._plan.has_death and self.random.random() < 0.01:
                await asyncio.sleep(_MAX_POLL_MS * 1.5 / 1000)  # its code is slow
            if self.owner.is_asking and self._plan.has_zombies and self.random.random() < 0.01:
                await self._stand_still(reading)
        if self.random.random() < 0.5:
            await reading.member.begin_leaving()
            await self._hand_over(reading)

    async def _maybe_commit(self, reading: "_Reading") -> None:
        """Commits from time to time, by the application or by the consumer itself."""
        if not self._plan.is_automatic:
            if self.random.random() < 0.1 or not self.owner.is_asking:
                await self._commit(reading)
        elif now_s() >= self._commit_due_s:
            self._commit_due_s = now_s() + _AUTO_COMMIT_S
            consumed, group = self._consumed(reading), reading.member.metadata
            self._commit_aside(reading, consumed, group)

    async def _stand_still(self, reading: "_Reading") -> None:
        """Longer or shorter than a session; then what it had read is committed as if no time had passed."""
        offsets, group = self._consumed(reading), reading.member.metadata
        pause_ms = int(_SESSION_MS * (0.5 + 1.5 * self.random.random()))
        self.tell("pause", f"for {pause_ms} ms")
        loop = self.loop
        self.process.is_paused = True
        loop.call_at_us(loop.now_us + pause_ms * 1000, loop.resume, self.process, context=Context())
        await asyncio.sleep(0)
        await self._send_commit(reading, offsets, group)

    async def _end(self, reading: "_Reading") -> None:
        """Without a leave: its session ends by itself. Its last commit may come late."""
        self.owned, self._added = (), {}
        offsets, group = self._consumed(reading), reading.member.metadata
        await asyncio.gather(*reading.member.end(), return_exceptions=True)
        if self._plan.has_zombies and self.owner.is_asking and self.random.random() < 0.5:
            await asyncio.sleep(0)
            self.begin("ghost", self._haunt(reading, offsets, group, self.life))
        else:
            await reading.fetcher.close()

    async def _haunt(self, reading: "_Reading", offsets: _Offsets, group: GroupMetadata, life: Life) -> None:
        await asyncio.sleep(self.random.random() * 2 * _SESSION_MS / 1000)
        await self._send_commit(reading, offsets, group, life)
        await reading.fetcher.close()

    # ---- Polls -------------------------------------------------------------------------------------------------------

    async def _poll(self, reading: "_Reading") -> None:
        reading.member.polled_s = now_s()
        await self._hand_over(reading)
        try:
            with reading.waiting():
                await reading.fetcher.poll(_POLL_MS, reading.delivery.add)
        except UnavailableError as error:
            self.tell("member", str(error)[:120])
        history = self._group.history
        while records := reading.delivery.next_records(100):
            for record in records:
                tp = TopicPartition(record.topic, record.partition)
                if tp not in self.owned:
                    self.report(
                        "group-owners", f"{self.life} is given {tp} {record.offset}, and gave that up"
                    )
                if tp in self._added:
                    generation_id, known_end = self._added.pop(tp)
                    history.on_begun(self.life, generation_id, tp, record.offset, known_end)
                history.on_given(self.life, tp, record.offset)

    async def _hand_over(self, reading: "_Reading") -> None:
        while (ready := reading.member.ready) is not None:
            stages, is_committed = HandoverStages(ready), False
            while stages:
                stage = stages.left[0]
                if stage is Stage.COMMIT:
                    is_committed = await self._commit(reading)
                    stages.left.popleft()
                elif stage is Stage.READ:
                    await self._read(reading, stages, is_committed=is_committed)
                else:
                    stages.callback(RebalanceListener())
        failure = await reading.member.take_failure()
        if failure is not None:
            raise failure

    async def _read(self, reading: "_Reading", stages: HandoverStages, *, is_committed: bool) -> None:
        history, handover = self._group.history, stages.handover
        generation_id = reading.member.metadata.generation_id
        added = {each: (generation_id, history.committed_end(each)) for each in handover.added or ()}
        if not await reading.member.read(handover):
            stages.left.clear()
            return
        reading.delivery.keep_only(dict.fromkeys(handover.read))
        revoked = [each for each in self.owned if each not in handover.read]
        self.owned = handover.read
        self.tell("owns", f"{list(self.owned)} in generation {generation_id}")
        self._added = {tp: self._added[tp] for tp in self.owned if tp in self._added} | added
        history.on_released(self.life, revoked, is_committed=is_committed)
        if handover.added is not None:
            history.on_owned(self.life, generation_id, self.owned, handover.added)
        stages.left.popleft()

    # ---- Commits -----------------------------------------------------------------------------------------------------

    def _consumed(self, reading: "_Reading") -> _Offsets:
        return reading.fetcher.consumed(reading.delivery.read())

    async def _commit(self, reading: "_Reading") -> bool:
        return await self._send_commit(reading, self._consumed(reading), reading.member.metadata)

    def _commit_aside(self, reading: "_Reading", offsets: _Offsets, group: GroupMetadata) -> None:
        """Commits without waiting for the answer, as automatic commits do."""
        life, group_offsets = self.life, reading.fetcher.group_offsets
        assert group_offsets is not None
        if not offsets:
            return
        fence = self._group.history.fence(life, group.generation_id)

        def on_ended(ended: asyncio.Future[Problems]) -> None:
            if ended.cancelled():
                return
            error = first_problem(ended.result(), offsets)
            if error is None:
                self._on_committed(life, group, offsets, fence)
            else:
                self.tell("uncommitted", str(error)[:120])

        try:
            group_offsets.begin(offsets, group, is_member=True).add_done_callback(on_ended)
        except RaykaError as error:
            self.tell("uncommitted", str(error)[:120])

    async def _send_commit(
        self, reading: "_Reading", offsets: _Offsets, group: GroupMetadata, life: Life | None = None
    ) -> bool:
        """Whether nothing is left to commit."""
        life, group_offsets = life or self.life, reading.fetcher.group_offsets
        assert group_offsets is not None
        if not offsets:
            return True
        fence = self._group.history.fence(life, group.generation_id)
        try:
            await group_offsets.commit(offsets, group, is_member=True)
        except RaykaError as error:
            self.tell("uncommitted", str(error)[:120])
            return False
        self._on_committed(life, group, offsets, fence)
        return True

    def _on_committed(self, life: Life, group: GroupMetadata, offsets: _Offsets, fence: str) -> None:
        self.tell("committed", str({repr(each): at.offset for each, at in offsets.items()}))
        self._group.history.on_committed(life, group.generation_id, offsets, fence)


class _Reading:
    """The consumer of one life of a member."""

    def __init__(self, fetcher: Fetcher, member: ConsumerCoordinator) -> None:
        self.fetcher = fetcher
        self.member = member
        self.delivery = Delivery()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within it a poll waits for records."""
        self.member.is_waiting = True
        try:
            yield
        finally:
            self.member.polled_s = now_s()
            self.member.is_waiting = False
