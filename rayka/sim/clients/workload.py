"""The clients of a simulation: they create and delete topics and read the metadata, and remember what they were told.

A client is a process of the network like any node, calls through the real `Caller`, and finds the active controller as
every client does. It never tries an operation again: each attempt is one entry of the history.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from rayka.errors import ApiError, ErrorCode
from rayka.ids import NO_NODE, ZERO_ID
from rayka.protocol.active_controller import ActiveController
from rayka.protocol.membership import MetadataRequest, MetadataResponse
from rayka.protocol.quorum_messages import AddRaftVoterRequest, DescribeQuorumRequest, RemoveRaftVoterRequest
from rayka.protocol.topics import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    NewTopic,
    TopicResult,
)
from rayka.sim.checks.checkers import Checkers
from rayka.sim.checks.data_history import History, Operation, OperationKind, OperationOutcome
from rayka.sim.clients.acting import Acting
from rayka.sim.run_options import TopicPlan
from rayka.sim.world.machines import SimCluster

_TIMEOUT_MS = 3_000
_OUTSTANDING_MAX = 64
_TOPICS_MAX = 30
_NAME_BEGIN = "t"  # of topics that come and go; those with records are called otherwise
_FIND_PAUSE_S = 0.05
_VOTER_CHANGE_PAUSE_S = 2.0


class Workload:
    """All clients of one run."""

    def __init__(self, cluster: SimCluster, checkers: Checkers, history: History) -> None:
        self.cluster = cluster
        self.checkers = checkers
        self.history = history
        self.clients = [_Client(self, each) for each in cluster.options.client_ids]
        self.on_created: Callable[[Sequence[TopicPlan]], None] = lambda topics: None
        self._asking: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """The clients begin."""
        options = self.cluster.options
        random = Random(f"operator {options.seed}")
        for client in self.clients:
            self._asking.append(client.begin("client", client.run()))
            if options.voter_changes:
                self._asking.append(client.begin("operator", _change_voters(self.clients[0], random)))
        self.clients[0].begin("topics", self._create_topics())

    async def _create_topics(self) -> None:
        """The topics that have records, one after the other, however many attempts that takes."""
        for plan in self.cluster.options.topics:
            topic = NewTopic(plan.name, plan.partition_count, plan.replication_factor, plan.configs)
            while True:
                operation = await self.clients[0].attempt(OperationKind.CREATE, plan.name, topic)
                exists = operation.what == ErrorCode.TOPIC_ALREADY_EXISTS.name
                if operation.outcome is OperationOutcome.ACKNOWLEDGED or exists:
                    break
                await asyncio.sleep(_FIND_PAUSE_S)
            self.on_created((plan,))

    def stop_asking(self) -> None:
        """No new operations; those under way go on."""
        for task in self._asking:
            task.cancel()

    async def create_until_acknowledged(self) -> None:
        """The last proof of life: a topic is created, however many attempts that takes."""
        attempt = 0
        while True:
            operation = await self.clients[0].attempt(OperationKind.CREATE, f"alive-{attempt}")
            if operation.outcome is OperationOutcome.ACKNOWLEDGED:
                return
            attempt += 1
            await asyncio.sleep(_FIND_PAUSE_S)


class _Client(Acting):
    def __init__(self, workload: Workload, client_id: int) -> None:
        super().__init__(workload.cluster, client_id)
        options = self.options
        self._workload = workload
        self._random = Random(f"client {options.seed} {client_id}")
        self._pause_s = options.clients / options.ops_per_second if options.ops_per_second else 0.0
        # What a broker takes with it has to be elsewhere.
        self._replication_factor = 2 if options.comers else 1
        self.active = ActiveController(self.cluster.network.port(self.process))
        self._count = 0
        self._outstanding: dict[asyncio.Task[Operation], None] = {}

    async def run(self) -> None:
        if not self._pause_s:
            return
        while True:
            await asyncio.sleep(self._random.expovariate(1) * self._pause_s)
            if len(self._outstanding) < _OUTSTANDING_MAX and await self._knows_active():
                kind, name = self._draw()
                task = asyncio.get_running_loop().create_task(self.attempt(kind, name), name="operation")
                self._outstanding[task] = None
                task.add_done_callback(self._outstanding.pop)

    async def _knows_active(self) -> bool:
        """A client that finds no active controller sends nothing."""
        try:
            return await self.active.find() != NO_NODE
        except ApiError:
            return False

    def _draw(self) -> tuple[OperationKind, str]:
        topics = [
            each for each in self._workload.history.ledger.newest_image.topics if each[0] == _NAME_BEGIN
        ]
        draw = self._random.random()
        self._count += 1
        if draw < 0.4 and len(topics) < _TOPICS_MAX:
            return OperationKind.CREATE, f"{_NAME_BEGIN}{self.process.node_id - 9000}-{self._count}"
        if draw < 0.8 and topics:
            name = topics[self._random.randrange(len(topics))]
            return (OperationKind.DELETE if draw < 0.7 else OperationKind.CREATE), name
        return OperationKind.READ, "all"

    # ---- One attempt -------------------------------------------------------------------------------------------------

    async def attempt(self, kind: OperationKind, name: str, topic: NewTopic | None = None) -> Operation:
        """One operation, with whatever end; it is in the history."""
        workload = self._workload
        operation = workload.history.begin(self.process.node_id, kind, name, self.cluster.loop.now_ms)
        self.tell("op", f"{operation.number} {kind} {name}")
        try:
            if kind is OperationKind.READ:
                response: MetadataResponse = await self.active.call(MetadataRequest(None), _TIMEOUT_MS)
                operation.outcome = OperationOutcome.ACKNOWLEDGED
                problem = workload.history.check_read(operation, response)
                workload.checkers.report_if("read", self.process.node_id, problem)
            else:
                await self._change(operation, topic)
        except ApiError as error:  # the request failed as a whole: whether it was executed is open
            operation.outcome, operation.what = OperationOutcome.UNKNOWN, error.code.name
        self.tell("done", str(operation))
        if operation.kind is not OperationKind.READ:
            workload.checkers.report_if(
                "acknowledged", self.process.node_id, workload.history.check_change(operation)
            )
        return operation

    async def _change(self, operation: Operation, topic: NewTopic | None) -> None:
        response: CreateTopicsResponse | DeleteTopicsResponse
        if operation.kind is OperationKind.CREATE:
            topic = topic or NewTopic(operation.name, self._random.randint(1, 2), self._replication_factor)
            response = await self.active.call(CreateTopicsRequest((topic,)), _TIMEOUT_MS)
        else:
            response = await self.active.call(DeleteTopicsRequest((operation.name,)), _TIMEOUT_MS)
        result: TopicResult = response.topics[0]
        if result.error_code is ErrorCode.NONE:
            operation.outcome = OperationOutcome.ACKNOWLEDGED
            operation.topic_id, operation.metadata_offset = result.topic_id, response.metadata_offset
        else:
            operation.outcome, operation.what = OperationOutcome.REFUSED, result.error_code.name


async def _change_voters(client: _Client, random: Random) -> None:
    """Now and then: what the quorum refuses is as good as what it does."""
    while True:
        await asyncio.sleep(random.expovariate(1) * _VOTER_CHANGE_PAUSE_S)
        try:
            await _change_one(client, random)
        except ApiError as error:
            client.tell("voters", f"failed: {error.code.name}")


async def _change_one(client: _Client, random: Random) -> None:
    quorum = await client.active.call(DescribeQuorumRequest(), _TIMEOUT_MS)
    replicas = [each.replica for each in quorum.observers]
    observers = [each for each in replicas if each.directory_id != ZERO_ID]  # brokers keep no log of it
    request: AddRaftVoterRequest | RemoveRaftVoterRequest
    if observers and random.random() < 0.7:
        voter = observers[random.randrange(len(observers))]
        request = AddRaftVoterRequest(client.cluster.cluster_id, voter, _TIMEOUT_MS)
    elif len(quorum.voters) > 2:
        voter = quorum.voters[random.randrange(len(quorum.voters))].replica
        request = RemoveRaftVoterRequest(client.cluster.cluster_id, voter, _TIMEOUT_MS)
    else:
        return
    client.tell("voters", f"{type(request).__name__} {voter.node_id}")
    response = await client.active.call(request, _TIMEOUT_MS)
    client.tell("voters", f"{type(request).__name__} {voter.node_id}: {response.error_code.name}")
