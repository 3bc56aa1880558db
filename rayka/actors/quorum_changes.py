"""The voters of a running cluster, asked for and changed by the thread of a command."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from uuid import UUID

from rayka.actors.cluster_actors import ANSWER_TIMEOUT_S, START_TIMEOUT_S, wait_for
from rayka.client.admin.admin_brain import AsyncAdmin
from rayka.client.admin.admin_quorum import AsyncQuorumAdmin, ask_quorum
from rayka.client.admin.admin_results import QuorumInfo, ReplicaState
from rayka.client.bootstrap import ClusterHandle
from rayka.config.client_config import AdminConfig
from rayka.errors import ApiError, UnavailableError
from rayka.ids import ZERO_ID, node_name

# How the voters of the metadata quorum become those of a spec: one at a time, each change decided by what the quorum
# says of itself just then. So a caller that died half way, or a leader that changed, leaves nothing to be undone: the
# next look finds the next step, or that none is left.
#
# Invariants: one change is asked for when the one before is committed (A55); votes come before others go, so the quorum
# is never smaller than before and after; a vote goes only where the voters that are left have a majority that fetches;
# the leader goes last, so that the leadership moves once. Kafka leaves this to its operators (A56, A57).


ALIVE_MS = 3_000  # so long without a fetch, and a leader counts a voter as gone (A12)
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class VoterStep:
    """One change: a controller gets a vote (`is_added`) or loses it. `waits_for`: why it cannot be made yet."""

    node_id: int
    directory_id: UUID
    is_added: bool
    waits_for: str = ""


async def change_voters(
    quorum: AsyncQuorumAdmin, to_add: Collection[int], to_remove: Collection[int], timeout_s: float
) -> list[VoterStep]:
    """Gives and takes votes until none of these is left to do; returns what it did.

    Raises UnavailableError, which says what it waits for, when a step could not be made for so long.
    """
    loop = asyncio.get_running_loop()
    done: list[VoterStep] = []
    deadline_s = loop.time() + timeout_s
    while (step := next_step(await quorum.describe(), to_add, to_remove)) is not None:
        reason = step.waits_for or await _trouble(quorum, step)
        if not reason:
            done.append(step)
            deadline_s = loop.time() + timeout_s
            continue
        if loop.time() >= deadline_s:
            change = "get its vote" if step.is_added else "lose its vote"
            raise UnavailableError(
                f"{node_name(step.node_id)} did not {change} in {timeout_s:g} s: {reason}; see `rayka quorum status "
                "--replication`, and try again: what is done stays done"
            )
        await asyncio.sleep(_POLL_S)
    return done


async def _trouble(quorum: AsyncQuorumAdmin, step: VoterStep) -> str:
    """Makes the change. What stood against it, or that its outcome is not known: then the next look tells."""
    try:
        if step.is_added:
            await quorum.add_voter(step.node_id, step.directory_id)
        else:
            await quorum.remove_voter(step.node_id, step.directory_id)
    except (ApiError, UnavailableError) as error:
        return str(error)
    return ""


def next_step(info: QuorumInfo, to_add: Collection[int], to_remove: Collection[int]) -> VoterStep | None:
    """What is to be done first of what is left; None when nothing is."""
    voters = {each.node_id: each for each in info.voters}
    lacking = sorted(each for each in to_add if each not in voters)
    if lacking:
        return _addition(info, lacking)
    leaving = [each for each in info.voters if each.node_id in to_remove]
    if not leaving:
        return None
    chosen = min(
        leaving, key=lambda each: (each.node_id == info.leader_id, is_alive(info, each), each.node_id)
    )
    left = [each for each in info.voters if each is not chosen]
    return VoterStep(chosen.node_id, chosen.directory_id, is_added=False, waits_for=_minority(info, left))


def controllers_without_vote(
    info: QuorumInfo, controllers: Collection[int], added: Collection[int] = ()
) -> tuple[int, ...]:
    """The controllers that have no vote and follow, or were just added. One that only votes as its former self, on a
    disk that it lost, is none of these.
    """
    voters = {each.node_id for each in info.voters}
    following = {each.node_id for each in info.observers if follows(each)}
    return tuple(each for each in controllers if each not in voters and each in {*added, *following})


def _addition(info: QuorumInfo, node_ids: Sequence[int]) -> VoterStep:
    """Of the first that follows; all must in the end."""
    found = [each for id in node_ids for each in info.observers if each.node_id == id and follows(each)]
    if not found:
        reason = "it does not follow the metadata"
        return VoterStep(node_ids[0], ZERO_ID, is_added=True, waits_for=reason)
    return VoterStep(found[0].node_id, found[0].directory_id, is_added=True)


def follows(observer: ReplicaState) -> bool:
    """Whether it may become a voter: it names its directory, which a broker does not, and fetches."""
    return observer.directory_id != ZERO_ID and 0 <= observer.last_fetch_ago_ms <= ALIVE_MS


def is_alive(info: QuorumInfo, voter: ReplicaState) -> bool:
    """Whether the voter has fetched of late, or leads."""
    return voter.node_id == info.leader_id or 0 <= voter.last_fetch_ago_ms <= ALIVE_MS


def _minority(info: QuorumInfo, left: Sequence[ReplicaState]) -> str:
    """Why these cannot be all voters; empty where they can: a majority of them fetches."""
    alive = [each.node_id for each in left if is_alive(info, each)]
    if left and len(alive) > len(left) // 2:
        return ""
    ids, found = ", ".join(str(each.node_id) for each in left), ", ".join(map(str, alive)) or "none"
    return f"of the voters that would be left ({ids}) more than half must be there, and {found} fetches"


_NODE_TIMEOUT_MS = 3_000


def look_at_quorum(cluster: ClusterHandle) -> QuorumInfo | None:
    """As its leader sees it; None while no controller leads."""
    return wait_for(partial(_look, cluster), ANSWER_TIMEOUT_S)


def change_votes(cluster: ClusterHandle, to_add: Collection[int], to_remove: Collection[int]) -> None:
    """As `change_voters`, with a client of its own."""
    quorum = AsyncAdmin(cluster, AdminConfig(), Random()).quorum
    timeout_s = START_TIMEOUT_S * (1 + len(to_add) + len(to_remove))
    wait_for(partial(change_voters, quorum, to_add, to_remove, START_TIMEOUT_S), timeout_s)


async def _look(cluster: ClusterHandle) -> QuorumInfo | None:
    network = cluster.network()
    response, _ = await ask_quorum(network, await network.node_ids(), _NODE_TIMEOUT_MS)
    return None if response is None else QuorumInfo.of(response)
