"""A broker taken out of a running cluster for good: stopped, forgotten, its empty directories removed.

1. The supervisor keeps a spec without it, or it would bring the broker back.
2. The broker is stopped under control, and its actor ended.
3. The controller forgets it, which it does only of a broker without replicas: a topic that was created in the meantime
   may have one there. Then the supervisor gets the spec with the broker back, and brings it back.
4. Its directories go; nothing of any partition's replica was to be there.
"""

import logging
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from rayka.actors import launch
from rayka.actors.bring_up import keep, process_of, stop_nodes
from rayka.actors.cluster_record import ClusterRecord
from rayka.actors.format_jobs import remove_directories
from rayka.actors.names import node_directories
from rayka.actors.on_ray_node import JOB_TIMEOUT_S, live_ray_nodes, run_on_all
from rayka.actors.ray_records import has_process
from rayka.actors.spec_changes import with_broker, without_broker
from rayka.client.admin.admin import Admin
from rayka.client.admin.admin_results import BrokerDescription, BrokerState
from rayka.client.arguments import int_of
from rayka.client.bootstrap import ClusterHandle
from rayka.errors import BrokerIdNotRegistered, InvalidRequest, UnavailableError

_SLACK_S = 10.0
_POLL_S = 0.1
_logger = logging.getLogger(__name__)


def remove_broker(cluster: ClusterHandle, record: ClusterRecord, broker_id: int) -> None:
    """Takes the broker out of the cluster whose record this is, running or not; one that an interrupted removal has
    taken out of the spec already, too. Raises what `Cluster.remove_broker` raises.
    """
    spec = record.spec
    handle = launch.find(spec.name, int_of(broker_id, "node_id"))
    with Admin(cluster=cluster) as admin:
        broker = _find(admin, broker_id, is_known=broker_id in spec.roles or handle is not None)
        whole = with_broker(spec, broker_id)
        rest = ClusterRecord(without_broker(whole, broker_id), record.identities.without(broker_id))
        _refuse_in_use(broker)
        try:
            keep(rest)
            if handle is not None:
                stop_node(spec.name, broker_id, handle)
            _forget(admin, broker_id, spec.config.broker_session_timeout_ms / 1000 + _SLACK_S)
        except BaseException:
            keep(ClusterRecord(whole, record.identities))
            raise
    remove_everywhere(node_directories(whole, broker_id))


def remove_everywhere(directories: Collection[str]) -> None:
    """Removes these directories on whichever Ray nodes they are; says which Ray nodes could not do so."""
    answers = run_on_all(live_ray_nodes(), JOB_TIMEOUT_S, remove_directories, directories)
    for ray_node_id, reason in answers.failures.items():
        _logger.warning(
            "Ray node %s: %s, if it has any, were not removed: %s",
            ray_node_id,
            ", ".join(directories),
            reason,
        )


def _find(admin: Admin, broker_id: int, *, is_known: bool) -> BrokerDescription | None:
    """The broker as it is registered. Raises BrokerIdNotRegistered where it is neither registered nor in the spec."""
    brokers = _registered(admin)
    if broker_id not in brokers and not is_known:
        listed = ", ".join(map(str, brokers)) or "none"
        raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
    return brokers.get(broker_id)


def _refuse_in_use(broker: BrokerDescription | None) -> None:
    if broker is not None and broker.replica_count:
        raise InvalidRequest(
            f"broker {broker.node_id}: expected no replica, found {broker.replica_count:,}; move them with `rayka "
            f"broker drain {broker.node_id}` first"
        )


def stop_node(cluster_name: str, broker_id: int, handle: Any) -> None:
    """Stops the node; one that has no process, as its machine is gone, is ended at once."""
    if not has_process(handle):
        launch.end(handle)
        return
    process = process_of(handle)
    stop_nodes(cluster_name, {broker_id: handle}, {broker_id: process} if process else {})


def _forget(admin: Admin, broker_id: int, timeout_s: float) -> None:
    """Has the controller forget the broker once it is fenced: at its stop, or when its session ends."""
    deadline = time.monotonic() + timeout_s
    while (broker := _registered(admin).get(broker_id)) is not None:
        if broker.state == BrokerState.FENCED:
            with suppress(BrokerIdNotRegistered):  # it was forgotten at the first try, whose answer was lost
                admin.unregister_broker(broker_id)
            return
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"broker {broker_id} was ended but is {broker.state} after {timeout_s:g} s, expected fenced; try again"
            )
        time.sleep(_POLL_S)


def _registered(admin: Admin) -> dict[int, BrokerDescription]:
    return {each.node_id: each for each in admin.describe_cluster().brokers}
