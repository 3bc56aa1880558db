"""One consumer's membership of its group, as a synchronous core: the next request, and the next change of the
assignment.

`ConsumerCoordinator` sends the requests of `next_step` and brings back their outcomes. A change of the assignment is a
`Handover`. The thread that polls applies it (`rebalance_listener`): only then partitions are given up or begun, and a
join follows only when the application was told. States: unjoined → joining → syncing → stable. A stable member that has
to join again stays stable, and its heartbeats go on, until the application polls.

Invariants: at most one join or sync is under way, and one heartbeat; an answer to any other request changes nothing;
`owned` are the partitions of which the application was told, and no others; a member whose generation is gone has lost
its partitions, and the application is told so before anything else.

Eager members give up all partitions before they join. Cooperative ones keep their partitions, give up those that moved,
and join again. Each assignor of a member is offered with the member's subscription. For an assignor that remembers, the
subscription claims the partitions that the member has, or had in its last generation if it gives up all before it
joins.

Kafka: AbstractCoordinator, ConsumerCoordinator (E3 to E9). Left out: commits.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from rayka.config.client_config import ConsumerConfig
from rayka.coordinator.assignors.assignors import ASSIGNORS
from rayka.coordinator.assignors.subscribers import RacksByTopic, Subscriber
from rayka.errors import (
    ErrorCode,
    FencedInstanceId,
    IllegalGeneration,
    RaykaError,
    RebalanceInProgress,
    UnavailableError,
    UnknownMemberId,
)
from rayka.ids import TopicPartition
from rayka.ports import Request
from rayka.protocol.groups import (
    CONSUMER_PROTOCOL_TYPE,
    NO_GENERATION,
    ConsumerAssignment,
    ConsumerSubscription,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    GroupProtocol,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
    decode_member_data,
    encode_member_data,
)

# Claims change nothing for these assignors. Without them a restarted member sends the subscription that it sent before.
_FORGETFUL = ("range", "roundrobin")
# The first pause between heartbeats; each is twice as long as the one before, up to heartbeat_interval_ms.
_FIRST_PAUSE_MS = 100

logger = logging.getLogger(__name__)


class GroupMetadata(NamedTuple):
    """A member of a group in one generation. Kafka: ConsumerGroupMetadata."""

    group_id: str
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str = ""


class MemberState(StrEnum):
    """The place of a member between two generations."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


@dataclass(frozen=True, slots=True)
class Handover:
    """A change of the assignment, which the application is told when it polls."""

    kept: tuple[TopicPartition, ...] = ()
    revoked: tuple[TopicPartition, ...] = ()
    # None: the member is to join, or leaves, and has no new assignment yet.
    added: tuple[TopicPartition, ...] | None = None
    # Other members may read the revoked partitions already, so there is nothing to commit.
    is_lost: bool = False

    @property
    def read(self) -> tuple[TopicPartition, ...]:
        """The partitions that are read after the change."""
        return (*self.kept, *(self.added or ()))


@dataclass(frozen=True, slots=True)
class LookUpTopics:
    """Asks for the partitions of topics, and for the racks of their replicas if `has_racks`: the leader assigns by
    them. The answer is `RacksByTopic`, with no partitions for a topic that does not exist.
    """

    topics: tuple[str, ...]
    has_racks: bool


Step = Request[Any] | LookUpTopics


class Claim(NamedTuple):
    """Partitions of a member, and the generation in which they were assigned to it."""

    partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION


def is_cooperative(config: ConsumerConfig) -> bool:
    """Whether all assignors are cooperative. One eager assignor makes the member eager, so that the members of a group
    can change from one to the other.
    """
    return all(ASSIGNORS[each].is_cooperative for each in config.partition_assignment_strategy)


def join_request(
    config: ConsumerConfig, metadata: GroupMetadata, topics: tuple[str, ...], claim: Claim, client_host: str
) -> JoinGroupRequest:
    """A join with all assignors of the member, in its order, and the name of its machine: a call by Ray has no address
    that the coordinator could see.

    A member that gives up all partitions before it joins claims none from a cooperative assignor, which would keep
    them from the others.
    """
    protocols = []
    for name in config.partition_assignment_strategy:
        has_claim = name not in _FORGETFUL and ASSIGNORS[name].is_cooperative == is_cooperative(config)
        claimed = claim if has_claim else Claim()
        subscription = ConsumerSubscription(
            topics, claimed.partitions, claimed.generation_id, config.client_rack
        )
        protocols.append(GroupProtocol(name, encode_member_data(subscription)))
    return JoinGroupRequest(
        metadata.group_id,
        config.session_timeout_ms,
        config.max_poll_interval_ms,
        metadata.member_id,
        CONSUMER_PROTOCOL_TYPE,
        tuple(protocols),
        metadata.group_instance_id,
        config.client_id,
        client_host,
    )


def sync_request(
    metadata: GroupMetadata, protocol_name: str, assignments: tuple[MemberAssignment, ...] = ()
) -> SyncGroupRequest:
    """A sync of this generation. The sync of the leader has the assignments of all members."""
    group_id, generation_id, member_id, instance_id = metadata
    return SyncGroupRequest(
        group_id,
        generation_id,
        member_id,
        assignments,
        CONSUMER_PROTOCOL_TYPE,
        protocol_name,
        instance_id,
    )


def subscribers_of(members: Iterable[JoinedMember]) -> list[Subscriber]:
    """The members of a generation as an assignor sees them. Raises CorruptRecord."""
    return [
        Subscriber(
            each.member_id,
            decode_member_data(ConsumerSubscription, each.metadata),
            each.group_instance_id,
        )
        for each in members
    ]


def assigned_counts(members: Iterable[JoinedMember]) -> dict[str, int]:
    """By topic, the number of its partitions when they were assigned, as far as the members' assignments show.

    Raises CorruptRecord.
    """
    counts: dict[str, int] = {}
    for each in members:
        if each.assignment:
            for tp in decode_member_data(ConsumerAssignment, each.assignment).partitions:
                counts[tp.topic] = max(counts.get(tp.topic, 0), tp.partition + 1)
    return counts


def assignments_of(
    protocol_name: str, members: Iterable[Subscriber], topics: RacksByTopic
) -> tuple[MemberAssignment, ...]:
    """The assignments of all members, by the assignor that the coordinator has chosen. Kafka: onLeaderElected (E9)."""
    counts = {name: len(partitions) for name, partitions in topics.items()}
    assigned = ASSIGNORS[protocol_name].assign(members, counts, topics)
    return tuple(
        MemberAssignment(member_id, encode_member_data(ConsumerAssignment(tuple(partitions))))
        for member_id, partitions in assigned.items()
    )


class Membership:
    """The state of one member. Time is an argument; the owner asks for the next step after each input and at
    `next_due_ms`.
    """

    def __init__(self, config: ConsumerConfig, client_host: str = "") -> None:
        self._config = config
        self._client_host = client_host
        self._is_cooperative = is_cooperative(config)
        self.state = MemberState.UNJOINED
        instance_id = config.group_instance_id or ""
        self.metadata = GroupMetadata(config.group_id or "", group_instance_id=instance_id)
        # The topics that the member subscribes to.
        self.topics: tuple[str, ...] = ()
        # The partitions of which the application was told last.
        self.owned: dict[TopicPartition, None] = {}
        # The leader has assigned by these partitions; None: the member does not lead.
        self.leader_topics: RacksByTopic | None = None
        # A member of the group that this one leads has named a rack.
        self.has_racks = False
        # The error for the application, until `take_failure`.
        self.failure: RaykaError | None = None
        self._claim = Claim()
        # The assignment of this generation, until it is handed over.
        self._assigned: tuple[TopicPartition, ...] | None = None
        # The members to assign to, until the leader has assigned.
        self._subscribers: list[Subscriber] | None = None
        # Partition counts of the assignment that stays as it is; None: the leader assigns anew.
        self._former_counts: dict[str, int] | None = None
        self._sync: SyncGroupRequest | None = None
        # The leave that has yet to be sent.
        self._leave: LeaveGroupRequest | None = None
        # The join, the sync or the look-up that is under way.
        self._out: Step | None = None
        # The heartbeat that is under way.
        self._heartbeat: GroupHeartbeatRequest | None = None
        self._heartbeat_due_ms = 0
        # The pause before the next heartbeat.
        self._pause_ms = 0
        # No join, sync or look-up leaves before.
        self._retry_ms = 0
        self._must_join = False
        # The application was told that the member joins.
        self._is_prepared = False
        # The application has yet to be told that its partitions are lost.
        self._is_lost = False
        self._is_leaving = False

    def __repr__(self) -> str:
        group_id, generation_id, member_id, _ = self.metadata
        return f"<Membership of {group_id} {self.state} {member_id!r} generation={generation_id}>"

    # ---- Wishes of the application -----------------------------------------------------------------------------------

    def subscribe(self, topics: tuple[str, ...]) -> None:
        """Joins with these topics. A member joins again if they are others than before (E8)."""
        self._must_join |= self._is_leaving or topics != self.topics or self.state is MemberState.UNJOINED
        self.topics, self._is_leaving = topics, False

    def begin_leaving(self) -> None:
        """Leaves when the application was told of the last handover. A static member only stops (E6, E7)."""
        self._is_leaving = True

    def expire(self, reason: str) -> None:
        """Leaves without telling the application first. The next poll joins again."""
        self._leave_group(reason)
        self._forget()
        self._is_prepared = False

    def take_failure(self) -> RaykaError | None:
        """The error for the application. A fenced member stays so; after another error the next poll tries again."""
        failure = self.failure
        if not isinstance(failure, FencedInstanceId):
            self.failure = None
        return failure

    def successor(
        self, former: GroupMetadata, partitions: Iterable[TopicPartition], error: RaykaError
    ) -> GroupMetadata | None:
        """The member as which a commit of `former` goes on after a refusal with this error. None if the coordinator has
        forgotten the member, or if another member may have had a partition since (E10).
        """
        now = self.metadata
        if now.generation_id == NO_GENERATION or now.member_id != former.member_id:
            return None
        if now.generation_id == former.generation_id:
            # The assignments have yet to come, or the answer to a join is on its way.
            is_under_way = isinstance(error, RebalanceInProgress) or self.state is MemberState.JOINING
            return now if is_under_way else None
        is_next = now.generation_id == former.generation_id + 1
        return now if is_next and all(each in self.owned for each in partitions) else None

    # ---- Changes of the assignment -----------------------------------------------------------------------------------

    @property
    def handover(self) -> Handover | None:
        """The next change, for a poll to apply; `on_handed_over` follows."""
        owned = tuple(self.owned)
        if self._is_lost:
            return Handover(revoked=owned, is_lost=True)
        if self._is_leaving:
            return Handover(revoked=owned)
        if self._assigned is not None:
            kept = {each: None for each in self._assigned if each in self.owned}
            added = tuple(each for each in self._assigned if each not in kept)
            return Handover(tuple(kept), tuple(each for each in owned if each not in kept), added)
        if self._must_join and not self._is_prepared and self.failure is None:
            # A cooperative member reads its partitions during the rebalance, too.
            kept = {each: None for each in owned if self._is_cooperative and each.topic in self.topics}
            return Handover(tuple(kept), tuple(each for each in owned if each not in kept))
        return None

    def on_handed_over(self, handover: Handover) -> None:
        """The application was told of the change, and reads the new assignment."""
        self.owned = dict.fromkeys(handover.read)
        if self._is_leaving:
            self._leave_group("the consumer was closed or has unsubscribed")
            self._forget()
            self._must_join = self._is_leaving = self._is_prepared = False
            self.topics, self.failure = (), None
        elif handover.is_lost:
            self._is_lost, self._is_prepared, self._claim = False, self.failure is None, Claim()
        elif handover.added is None:
            self._is_prepared = True
            if self._is_cooperative:
                self._claim = self._claim._replace(partitions=tuple(self.owned))
        else:
            self._assigned = None
            self._claim = Claim(tuple(self.owned), self.metadata.generation_id)
            # A further rebalance assigns the revoked partitions to others.
            self._must_join |= self._is_cooperative and bool(handover.revoked)

    # ---- Requests ----------------------------------------------------------------------------------------------------

    def next_step(self, now_ms: int) -> Step | None:
        """The next request to send, or the topics to look up. Each is given once."""
        if self._leave is not None:
            leave, self._leave = self._leave, None
            return leave
        if self._out is None and self._is_rebalancing and now_ms >= self._retry_ms:
            if self.state is not MemberState.SYNCING:
                self.state, self._must_join, self._heartbeat = MemberState.JOINING, False, None
                self._out = join_request(
                    self._config, self.metadata, self.topics, self._claim, self._client_host
                )
            elif self._subscribers is not None:
                topics = {topic: None for each in self._subscribers for topic in each.subscription.topics}
                self._out = LookUpTopics(tuple(topics), self.has_racks)
            else:
                self._out = self._sync
            return self._out
        if self._beats and now_ms >= self._heartbeat_due_ms:
            group_id, generation_id, member_id, instance_id = self.metadata
            self._heartbeat = GroupHeartbeatRequest(group_id, generation_id, member_id, instance_id)
            return self._heartbeat
        return None

    def next_due_ms(self) -> int | None:
        """The time of the next step if no input comes before."""
        due = [self._heartbeat_due_ms] if self._beats else []
        if self._out is None and self._is_rebalancing:
            due.append(self._retry_ms)
        return min(due, default=None)

    @property
    def _beats(self) -> bool:
        return self._heartbeat is None and self.state in (MemberState.SYNCING, MemberState.STABLE)

    @property
    def _is_rebalancing(self) -> bool:
        # A member that leaves syncs, too: its last commit waits for the assignments.
        if self.state is MemberState.SYNCING:
            return True
        wants_to_join = self.state is MemberState.JOINING or (self._must_join and self._is_prepared)
        return wants_to_join and not self._is_leaving

    def _leave_group(self, reason: str) -> None:
        """A static member keeps its place until its session ends, so that a restart moves nothing (E7)."""
        group_id, _, member_id, instance_id = self.metadata
        if member_id and not instance_id:
            self._leave = LeaveGroupRequest(group_id, (LeavingMember(member_id, reason=reason),))

    # ---- Outcomes ----------------------------------------------------------------------------------------------------

    def on_response(self, step: Step, response: Any, now_ms: int) -> None:
        """Takes the answer to a step. An answer to a step that the member does not wait for changes nothing."""
        if step is self._heartbeat:
            self._heartbeat = None
            self._on_heartbeat(response, now_ms)
        elif step is self._out:
            self._out = None
            try:
                if isinstance(response, JoinGroupResponse):
                    self._on_joined(response, now_ms)
                elif isinstance(response, SyncGroupResponse):
                    nothing = encode_member_data(ConsumerAssignment(()))
                    received = decode_member_data(ConsumerAssignment, response.assignment or nothing)
                    self._assigned = tuple(dict.fromkeys(received.partitions))
                    self.state, self._is_prepared = MemberState.STABLE, False
                else:
                    self._assign(response)
            # Another member's subscription or assignment cannot be decoded.
            except RaykaError as error:
                self.fail(error)

    def on_error(self, step: Step, error: RaykaError, now_ms: int) -> None:
        """Takes the refusal of a step, or the reason why no answer came."""
        due_ms = now_ms + self._config.retry_backoff_ms
        if step is self._heartbeat:
            self._heartbeat, self._heartbeat_due_ms = None, due_ms
        elif step is self._out:
            self._out, self._retry_ms = None, due_ms
            # The application is told; the member goes on trying.
            if isinstance(error, UnavailableError):
                self.failure = self.failure or error
        else:
            return
        # The generation that was about to begin has ended already.
        if isinstance(error, RebalanceInProgress):
            self.state, self._retry_ms = MemberState.JOINING, now_ms
        elif isinstance(error, (UnknownMemberId, IllegalGeneration)):
            logger.info("group %r: %s; the member joins again", self.metadata.group_id, error)
            self._forget(keeps_id=isinstance(error, IllegalGeneration))
        elif not (isinstance(error, UnavailableError) or error.retriable):
            self.fail(error)

    def on_topics(self, topics: RacksByTopic) -> None:
        """Takes the newest partitions of the topics of `leader_topics`. A leader that has assigned by other partitions,
        or by other racks, joins again (E8).
        """
        former = self.leader_topics
        if former is not None and former != topics and former.keys() == topics.keys():
            self._must_join = True

    def _on_heartbeat(self, response: GroupHeartbeatResponse, now_ms: int) -> None:
        """The first heartbeats of a generation come soon, since one rebalance is often followed by another."""
        self._heartbeat_due_ms = now_ms + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, self._config.heartbeat_interval_ms)
        is_over = response.error_code is ErrorCode.REBALANCE_IN_PROGRESS
        self._must_join |= is_over and self.state is MemberState.STABLE

    def _on_joined(self, response: JoinGroupResponse, now_ms: int) -> None:
        self.metadata = self.metadata._replace(member_id=response.member_id)
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            return
        self.metadata = self.metadata._replace(generation_id=response.generation_id)
        self.state, self.leader_topics = MemberState.SYNCING, None
        self._pause_ms = min(_FIRST_PAUSE_MS, self._config.heartbeat_interval_ms)
        self._heartbeat_due_ms = now_ms + self._pause_ms
        self._sync = sync_request(self.metadata, response.protocol_name)
        if response.leader_id == response.member_id:
            self._subscribers = subscribers_of(response.members)
            self.has_racks = any(each.subscription.rack for each in self._subscribers)
            self._former_counts = assigned_counts(response.members) if response.skip_assignment else None

    def _assign(self, topics: RacksByTopic) -> None:
        """Assigns as the leader. A leader that took a static member's place was told that all stays as it was (E7); it
        joins again if there are partitions that the former process had not assigned.
        """
        assert self._subscribers is not None
        assert self._sync is not None
        subscribers, self._subscribers, self.leader_topics = self._subscribers, None, topics
        if self._former_counts is None:
            name = self._sync.protocol_name
            self._sync = sync_request(self.metadata, name, assignments_of(name, subscribers, topics))
        else:
            self._must_join |= any(self._former_counts.get(name, 0) != len(topics[name]) for name in topics)

    # ---- The end of a generation -------------------------------------------------------------------------------------

    def fail(self, error: RaykaError) -> None:
        """Ends the membership: the application gets the error, and has lost its partitions."""
        self.failure = error
        self._forget()
        self._is_prepared = False

    def _forget(self, *, keeps_id: bool = False) -> None:
        """Leaves the generation: the member's partitions are lost, and it has to join again."""
        member_id = self.metadata.member_id if keeps_id else ""
        self.metadata = self.metadata._replace(generation_id=NO_GENERATION, member_id=member_id)
        self.state, self._out, self._heartbeat = MemberState.UNJOINED, None, None
        self._assigned = self._subscribers = self.leader_topics = None
        self._must_join, self._is_lost = True, bool(self.owned)
        self._is_prepared = self._is_prepared and not self.owned
