"""Controllers taken out of a running cluster for good, the active one too.

1. Their votes are taken, one after another, each only where the voters left have a majority that is there.
2. The supervisor keeps a spec without them, or it would bring them back.
3. They are stopped under control, and their actors ended.
4. Their directories go. Their identities stay on record: so a removal that broke off after step 2 is known, and
   finished by another one.
"""

from collections.abc import Collection

from rayka.actors import launch
from rayka.actors.bring_up import keep
from rayka.actors.cluster_record import ClusterRecord
from rayka.actors.names import node_directories, nodes_with
from rayka.actors.quorum_votes import change_votes
from rayka.actors.removal import remove_everywhere, stop_node
from rayka.actors.spec_changes import without_nodes
from rayka.actors.voter_steps import unvoted
from rayka.client.admin.admin import Admin
from rayka.client.bootstrap import ClusterHandle
from rayka.errors import ConfigError
from rayka.ids import Role, node_name, role_of


def remove_controllers(cluster: ClusterHandle, record: ClusterRecord, node_ids: Collection[int]) -> None:
    """Takes these out of the cluster whose record this is. Raises what `Cluster.remove_controllers` raises."""
    for each in node_ids:
        _refuse_other(record, each)
    spec = without_nodes(record.spec, node_ids)
    controllers = nodes_with(spec, Role.CONTROLLER)
    with Admin(cluster=cluster) as admin:
        info = admin.describe_quorum()
    change_votes(cluster, unvoted(info, controllers), node_ids)
    if any(each in record.spec.roles for each in node_ids):
        keep(ClusterRecord(spec, record.identities))
    for each, handle in launch.find_all(spec.name, node_ids).items():
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
