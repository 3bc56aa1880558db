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

from rayka.actors import node_handles
from rayka.actors.cluster_actors import process_of, replace_supervisor, stop_nodes
from rayka.actors.formatting import remove_directories
from rayka.actors.names import node_directories, nodes_with
from rayka.actors.quorum_changes import change_votes, controllers_without_vote
from rayka.actors.ray_nodes import JOB_TIMEOUT_S, live_ray_nodes, run_on_all
from rayka.actors.ray_records import has_process
from rayka.actors.spec_changes import with_broker, without_broker, without_nodes
from rayka.actors.supervisor_handle import ClusterRecord
from rayka.client.admin.admin import Admin
from rayka.client.admin.admin_results import BrokerDescription, BrokerState
from rayka.client.arguments import int_of
from rayka.client.bootstrap import ClusterHandle
from rayka.errors import BrokerIdNotRegistered, ConfigError, InvalidRequest, UnavailableError
from rayka.ids import Role, node_name, role_of

_SLACK_S = 10.0
_POLL_S = 0.1
_logger = logging.getLogger(__name__)


def remove_broker(cluster: ClusterHandle, record: ClusterRecord, broker_id: int) -> None:
    """Takes the broker out of the cluster whose record this is, running or not; one that an interrupted removal has
    taken out of the spec already, too. Raises what `Cluster.remove_broker` raises.
    """
    spec = record.spec
    handle = node_handles.find(spec.name, int_of(broker_id, "node_id"))
    with Admin(cluster=cluster) as admin:
        broker = _find(admin, broker_id, is_known=broker_id in spec.roles or handle is not None)
        whole = with_broker(spec, broker_id)
        rest = ClusterRecord(without_broker(whole, broker_id), record.identities.without(broker_id))
        _refuse_in_use(broker)
        try:
            replace_supervisor(rest)
            if handle is not None:
                stop_node(spec.name, broker_id, handle)
            _forget(admin, broker_id, spec.config.broker_session_timeout_ms / 1000 + _SLACK_S)
        except BaseException:
            replace_supervisor(ClusterRecord(whole, record.identities))
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
        node_handles.end(handle)
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


# Controllers taken out of a running cluster for good, the active one too.
#
# 1. Their votes are taken, one after another, each only where the voters left have a majority that is there.
# 2. The supervisor keeps a spec without them, or it would bring them back.
# 3. They are stopped under control, and their actors ended.
# 4. Their directories go. Their identities stay on record: so a removal that broke off after step 2 is known, and
#    finished by another one.


def remove_controllers(cluster: ClusterHandle, record: ClusterRecord, node_ids: Collection[int]) -> None:
    """Takes these out of the cluster whose record this is. Raises what `Cluster.remove_controllers` raises."""
    for each in node_ids:
        _refuse_other(record, each)
    spec = without_nodes(record.spec, node_ids)
    controllers = nodes_with(spec, Role.CONTROLLER)
    with Admin(cluster=cluster) as admin:
        info = admin.describe_quorum()
    change_votes(cluster, controllers_without_vote(info, controllers), node_ids)
    if any(each in record.spec.roles for each in node_ids):
        replace_supervisor(ClusterRecord(spec, record.identities))
    for each, handle in node_handles.find_all(spec.name, node_ids).items():
        stop_node(spec.name, each, handle)
    remove_everywhere([path for each in node_ids for path in node_directories(spec, each)])


def _refuse_other(record: ClusterRecord, node_id: int) -> None:
    """Raises ConfigError for a node that is no controller, or not only that. One that is on record without being in the
    spec was taken out of it by a removal that broke off.
    """
    spec = record.spec
    is_on_record = role_of(node_id) is Role.CONTROLLER and node_id in record.identities.directory_ids
    if spec.roles.get(node_id) != (Role.CONTROLLER,) and not is_on_record:
        roles = ", ".join(spec.roles.get(node_id, ())) or "not there"
        controllers = ", ".join(map(str, nodes_with(spec, Role.CONTROLLER)))
        raise ConfigError(
            f"{node_name(node_id)} of cluster {spec.name!r} is {roles}: expected a node that is a controller and "
            f"nothing else; its controllers: {controllers}"
        )
