"""The removal of nodes from a running cluster for good.

A broker, or a coordinator:
1. The supervisor gets a spec without the broker, or it would bring the broker back.
2. The broker is stopped under control, and its actor ended.
3. The controller forgets the broker, if the broker has no replicas. A topic that was created since step 1 may have one
   there. Then the supervisor gets the spec with the broker again, and brings it back.
4. The broker's directories, which hold no replica, are removed.

Controllers, the active one too:
1. Their votes are taken, one after another, each only if the voters left have a majority that is there.
2. The supervisor gets a spec without them, or it would bring them back.
3. They are stopped under control, and their actors ended.
4. Their directories are removed. Their identities stay on record: so a removal that broke off after step 2 is known,
   and the next one finishes it.
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
    """Removes the broker from the cluster of this record, whether the broker runs or not. Finishes an interrupted
    removal, which has taken the broker out of the spec already. Raises the errors of `Cluster.remove_broker`.
    """
    spec = record.spec
    handle = node_handles.find(spec.name, int_of(broker_id, "node_id"))
    with Admin(cluster=cluster) as admin:
        registered = _registered(admin)
        if broker_id not in registered and broker_id not in spec.roles and handle is None:
            listed = ", ".join(map(str, registered)) or "none"
            raise BrokerIdNotRegistered(f"there is no broker {broker_id}; the cluster has {listed}")
        whole = with_broker(spec, broker_id)
        rest = ClusterRecord(without_broker(whole, broker_id), record.identities.without(broker_id))
        broker = registered.get(broker_id)
        if broker is not None and broker.replica_count:
            raise InvalidRequest(
                f"broker {broker_id}: expected no replica, found {broker.replica_count:,}; move them with `rayka "
                f"broker drain {broker_id}` first"
            )
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
    """Removes these directories on all Ray nodes. Logs the Ray nodes that could not do so."""
    answers = run_on_all(live_ray_nodes(), JOB_TIMEOUT_S, remove_directories, directories)
    for ray_node_id, reason in answers.failures.items():
        _logger.warning(
            "Ray node %s: %s, if it has any, were not removed: %s",
            ray_node_id,
            ", ".join(directories),
            reason,
        )


def stop_node(cluster_name: str, broker_id: int, handle: Any) -> None:
    """Stops the node. If it has no process, because its machine is gone, ends its actor at once."""
    if not has_process(handle):
        node_handles.end(handle)
        return
    process = process_of(handle)
    stop_nodes(cluster_name, {broker_id: handle}, {broker_id: process} if process else {})


def _forget(admin: Admin, broker_id: int, timeout_s: float) -> None:
    """Makes the controller forget the broker as soon as it is fenced: at its stop, or when its session ends."""
    deadline = time.monotonic() + timeout_s
    while (broker := _registered(admin).get(broker_id)) is not None:
        if broker.state == BrokerState.FENCED:
            # The broker was forgotten already if the answer to an earlier attempt was lost.
            with suppress(BrokerIdNotRegistered):
                admin.unregister_broker(broker_id)
            return
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"broker {broker_id} was ended but is {broker.state} after {timeout_s:g} s, expected fenced; try again"
            )
        time.sleep(_POLL_S)


def _registered(admin: Admin) -> dict[int, BrokerDescription]:
    return {each.node_id: each for each in admin.describe_cluster().brokers}


def remove_controllers(cluster: ClusterHandle, record: ClusterRecord, node_ids: Collection[int]) -> None:
    """Removes these controllers from the cluster of this record. Raises the errors of `Cluster.remove_controllers`."""
    for each in node_ids:
        roles = record.spec.roles.get(each, ())
        # A controller on record that is not in the spec was taken out of it by a removal that broke off.
        is_on_record = role_of(each) is Role.CONTROLLER and each in record.identities.directory_ids
        if roles != (Role.CONTROLLER,) and not is_on_record:
            controllers = ", ".join(map(str, nodes_with(record.spec, Role.CONTROLLER)))
            raise ConfigError(
                f"{node_name(each)} of cluster {record.spec.name!r} is {', '.join(roles) or 'not there'}: expected a "
                f"node that is a controller and nothing else; its controllers: {controllers}"
            )
    spec = without_nodes(record.spec, node_ids)
    with Admin(cluster=cluster) as admin:
        info = admin.describe_quorum()
    lacking = controllers_without_vote(info, nodes_with(spec, Role.CONTROLLER))
    change_votes(cluster, lacking, node_ids)
    if any(each in record.spec.roles for each in node_ids):
        replace_supervisor(ClusterRecord(spec, record.identities))
    for each, handle in node_handles.find_all(spec.name, node_ids).items():
        stop_node(spec.name, each, handle)
    remove_everywhere([path for each in node_ids for path in node_directories(spec, each)])
