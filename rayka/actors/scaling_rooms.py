"""Room for a broker or coordinator, asked of Ray: a placement group of one bundle, with the resources in the spec.

Ray's autoscaler starts a machine for a placement group as for an actor. A broker's actor is pinned to the Ray node that
has its disk, so there has to be a Ray node before the actor can be made. Ray names the Ray node when it has placed the
group. The group is detached and has a name, so that it outlives the supervisor that asked for it, and the next one
finds it. If the next spec has no planner for the group, the start and the next supervisor give it back.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rayka.actors.names import actor_name
from rayka.actors.node_placement import needs, shortage
from rayka.actors.scaling_planner import Room
from rayka.config.cluster_config import ClusterSpec
from rayka.ids import role_of

_GONE = "REMOVED"
_PLACED = "CREATED"
_END = " room"


def ask(spec: ClusterSpec, broker_id: int) -> None:
    """Asks Ray for room. Returns at once."""
    bundle = {name: amount for name, amount in needs(spec, broker_id).items() if amount}
    placement_group([bundle], name=_name(spec.name, broker_id), lifetime="detached")


def drop(cluster_name: str, broker_id: int) -> None:
    """Gives the room back, or withdraws the request. Does nothing if there is none."""
    for group_id in _groups(cluster_name).get(broker_id, {}):
        remove_placement_group(_handle(group_id))


def drop_all(cluster_name: str) -> None:
    """Gives back all rooms of the cluster."""
    for each in _groups(cluster_name):
        drop(cluster_name, each)


def drop_leftover(spec: ClusterSpec) -> list[int]:
    """Gives back the rooms that no planner looks after. Returns their nodes."""
    left = leftover(spec, _groups(spec.name))
    for each in left:
        drop(spec.name, each)
    return left


def leftover(spec: ClusterSpec, asked_for: Iterable[int]) -> list[int]:
    """Returns the nodes with a room that do not come by the load: the spec names them, or the count of their role is a
    number. Their rooms would keep resources that the nodes themselves need.
    """
    return sorted(each for each in asked_for if each in spec.roles or role_of(each) not in spec.ranges)


def find(cluster_name: str) -> dict[int, Room]:
    """Returns the rooms that are asked for, by broker."""
    return {
        broker_id: Room(next(filter(None, found.values()), ""))
        for broker_id, found in _groups(cluster_name).items()
    }


def lacking(spec: ClusterSpec, broker_id: int, free: Mapping[str, Mapping[str, float]]) -> str:
    """Names the resources that the Ray node with the most room lacks."""
    short = [each for has in free.values() if (each := shortage(spec, broker_id, has))]
    closest = min(short, key=lambda each: (each.count(","), each), default="")
    if not closest:
        return ""
    return f"none of {len(free)} Ray nodes has it free; the closest has {closest}, and Ray adds none"


def _groups(cluster_name: str) -> dict[int, dict[str, str]]:
    """Returns by broker the Ray node of each placement group; empty while Ray has placed none."""
    found: dict[int, dict[str, str]] = {}
    table: dict[str, Any] = placement_group_table()
    for group_id, group in table.items():
        number = group["name"].removesuffix(_END).rpartition("-")[2]
        is_ours = number.isdigit() and group["name"] == _name(cluster_name, int(number))
        if is_ours and group["state"] != _GONE:
            broker_id = int(number)
            home = group["bundles_to_node_id"].get(0, "") if group["state"] == _PLACED else ""
            found.setdefault(broker_id, {})[group_id] = home
    return found


def _handle(group_id: str) -> PlacementGroup:
    """Makes a handle by the id: Ray finds a group by its name only in the namespace of this process."""
    kind = type(PlacementGroup.empty().id)
    return PlacementGroup(kind(bytes.fromhex(group_id)))


def _name(cluster_name: str, broker_id: int) -> str:
    return f"{actor_name(cluster_name, broker_id)}{_END}"
