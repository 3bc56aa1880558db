"""The admin client for event loops: awaits the one call in which each method of the sync `Admin` ends."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from rayka.aio.opening import AioClient
from rayka.client.admin import admin
from rayka.client.bootstrap import DEFAULT_CLUSTER, ClusterHandle
from rayka.client.io_thread import await_for
from rayka.config.client_config import AdminConfig
from rayka.options import AdminOptions

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class _Core(admin.Admin):
    """Returns each call as an awaitable, for which the sync `Admin` would wait."""

    def _run(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, **options: Any) -> Any:
        self._check_open()
        return await_for(partial(work, *arguments, **options), self._async_admin.timeout_ms, caller=self)


def _awaited(
    method: Callable[Concatenate[admin.Admin, P], ResultT],
) -> Callable[Concatenate["Admin", P], Coroutine[Any, Any, ResultT]]:
    """The method of the sync admin, awaitable."""

    @wraps(method)
    async def call(self: "Admin", /, *arguments: P.args, **options: P.kwargs) -> ResultT:
        handed_back: Any = method(await self._open(), *arguments, **options)
        found: ResultT = await handed_back
        return found

    return call


class Admin(AioClient[_Core]):
    """Manages topics, partitions, brokers, groups and the quorum, from an event loop. `async with` closes it.

    Options, arguments, results and errors are those of `rayka.Admin`. It looks for its cluster when it is first
    awaited, or by `async with`. A task that is cancelled in a call ends the call: what it changes may or may not be
    done.
    Raises ConfigError; what is awaited first raises ClusterNotFound. Kafka: Admin.
    """

    def __init__(
        self,
        cluster: str | ClusterHandle = DEFAULT_CLUSTER,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        AdminConfig.given(config, options, what="admin")
        super().__init__(partial(_Core, cluster, config=config, **options), "aio.Admin")

    def __repr__(self) -> str:
        return f"<aio.Admin{' closed' * self._is_closed}>"

    create_topic = _awaited(admin.Admin.create_topic)
    delete_topic = _awaited(admin.Admin.delete_topic)
    list_topics = _awaited(admin.Admin.list_topics)
    describe_topic = _awaited(admin.Admin.describe_topic)
    describe_topics = _awaited(admin.Admin.describe_topics)
    create_partitions = _awaited(admin.Admin.create_partitions)
    delete_records = _awaited(admin.Admin.delete_records)
    describe_configs = _awaited(admin.Admin.describe_configs)
    alter_configs = _awaited(admin.Admin.alter_configs)
    alter_partition_reassignments = _awaited(admin.Admin.alter_partition_reassignments)
    drain_broker = _awaited(admin.Admin.drain_broker)
    describe_drains = _awaited(admin.Admin.describe_drains)
    cancel_drain = _awaited(admin.Admin.cancel_drain)
    list_partition_reassignments = _awaited(admin.Admin.list_partition_reassignments)
    elect_leaders = _awaited(admin.Admin.elect_leaders)
    list_groups = _awaited(admin.Admin.list_groups)
    describe_group = _awaited(admin.Admin.describe_group)
    delete_group = _awaited(admin.Admin.delete_group)
    group_offsets = _awaited(admin.Admin.group_offsets)
    reset_group_offsets = _awaited(admin.Admin.reset_group_offsets)
    describe_cluster = _awaited(admin.Admin.describe_cluster)
    log_dirs = _awaited(admin.Admin.log_dirs)
    alter_replica_log_dirs = _awaited(admin.Admin.alter_replica_log_dirs)
    unregister_broker = _awaited(admin.Admin.unregister_broker)
    describe_load = _awaited(admin.Admin.describe_load)
    balance = _awaited(admin.Admin.balance)
    describe_balance = _awaited(admin.Admin.describe_balance)
    cancel_balance = _awaited(admin.Admin.cancel_balance)
    events = _awaited(admin.Admin.events)
    describe_quorum = _awaited(admin.Admin.describe_quorum)
    add_raft_voter = _awaited(admin.Admin.add_raft_voter)
    remove_raft_voter = _awaited(admin.Admin.remove_raft_voter)

    async def close(self) -> None:
        """Ends; closing again does nothing."""
        core = await self._to_close()
        if core is not None:
            core.close()
