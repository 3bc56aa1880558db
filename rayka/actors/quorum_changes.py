"""The changes of a running cluster's voters: one at a time, each decided by the present state of the quorum.

A caller that died half way, or a leader that changed, leaves nothing to undo: the next look finds the next step, or
that none is left. Invariants:
- A change is requested when the one before is committed (A55).
- Votes are given before others are taken, so the quorum is never smaller than before and after.
- A vote is taken only if the voters that are left have a majority that fetches.
- The leader loses its vote last, so that the leadership moves once.

Kafka leaves this to its operators (A56, A57).
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from uuid import UUID

from rayka.actors.cluster_actors import ANSWER_TIMEOUT_S, START_TIMEOUT_S, wait_for
from rayka.client.admin.admin_quorum import AsyncQuorumAdmin, ask_quorum
from rayka.client.admin.admin_results import QuorumInfo, ReplicaState
from rayka.client.admin.async_admin import AsyncAdmin
from rayka.client.bootstrap import ClusterHandle
from rayka.config.client_config import AdminConfig
from rayka.errors import ApiError, UnavailableError
from rayka.ids import ZERO_ID, node_name

# A voter that has not fetched for this long counts as gone to a leader (A12).
ALIVE_MS = 3_000
_POLL_S = 0.1
_NODE_TIMEOUT_MS = 3_000


@dataclass(frozen=True, slots=True)
class VoterStep:
    """One change of the voters."""

    node_id: int
    directory_id: UUID
    # Whether the controller gets a vote, or loses it.
    is_added: bool
    # Why the change cannot be made yet.
    waits_for: str = ""


def look_at_quorum(cluster: ClusterHandle) -> QuorumInfo | None:
    """Returns the quorum as its leader sees it; None while no controller leads."""

    async def look() -> QuorumInfo | None:
        network = cluster.network()
        response, _ = await ask_quorum(network, await network.node_ids(), _NODE_TIMEOUT_MS)
        return None if response is None else QuorumInfo.of(response)

    return wait_for(look, ANSWER_TIMEOUT_S)


def change_votes(cluster: ClusterHandle, to_add: Collection[int], to_remove: Collection[int]) -> None:
    """Calls `change_voters` with a client of its own, and waits for the result."""
    quorum = AsyncAdmin(cluster, AdminConfig(), Random()).quorum
    timeout_s = START_TIMEOUT_S * (1 + len(to_add) + len(to_remove))
    wait_for(partial(change_voters, quorum, to_add, to_remove, START_TIMEOUT_S), timeout_s)


async def change_voters(
    quorum: AsyncQuorumAdmin, to_add: Collection[int], to_remove: Collection[int], timeout_s: float
) -> list[VoterStep]:
    """Gives and takes votes until all these changes are made; returns them.

    Raises UnavailableError, which says what it waits for, when a step could not be made for so long.
    """
    loop = asyncio.get_running_loop()
    done: list[VoterStep] = []
    deadline_s = loop.time() + timeout_s
    while (step := next_step(await quorum.describe(), to_add, to_remove)) is not None:
        reason = step.waits_for or await _make_change(quorum, step)
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


async def _make_change(quorum: AsyncQuorumAdmin, step: VoterStep) -> str:
    """Makes the change. Returns the reason if it failed, or if its outcome is not known: the next look finds out."""
    try:
        if step.is_added:
            await quorum.add_voter(step.node_id, step.directory_id)
        else:
            await quorum.remove_voter(step.node_id, step.directory_id)
    except (ApiError, UnavailableError) as error:
        return str(error)
    return ""


def next_step(info: QuorumInfo, to_add: Collection[int], to_remove: Collection[int]) -> VoterStep | None:
    """Returns the first of the changes that are left; None if none is."""
    voters = {each.node_id: each for each in info.voters}
    lacking = sorted(each for each in to_add if each not in voters)
    if lacking:
        # The first that follows; all must follow in the end.
        found = [each for id in lacking for each in info.observers if each.node_id == id and follows(each)]
        if not found:
            reason = "it does not follow the metadata"
            return VoterStep(lacking[0], ZERO_ID, is_added=True, waits_for=reason)
        return VoterStep(found[0].node_id, found[0].directory_id, is_added=True)
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
    """Returns the controllers that have no vote and follow, or were just added. Leaves out a controller whose former
    self, on a disk that it lost, has a vote.
    """
    voters = {each.node_id for each in info.voters}
    following = {each.node_id for each in info.observers if follows(each)}
    return tuple(each for each in controllers if each not in voters and each in {*added, *following})


def follows(observer: ReplicaState) -> bool:
    """Whether the observer may become a voter: it names its directory, which a broker does not, and fetches."""
    return observer.directory_id != ZERO_ID and 0 <= observer.last_fetch_ago_ms <= ALIVE_MS


def is_alive(info: QuorumInfo, voter: ReplicaState) -> bool:
    """Whether the voter has fetched lately, or leads."""
    return voter.node_id == info.leader_id or 0 <= voter.last_fetch_ago_ms <= ALIVE_MS


def _minority(info: QuorumInfo, left: Sequence[ReplicaState]) -> str:
    """Explains why these cannot be all voters; empty if a majority of them fetches."""
    alive = [each.node_id for each in left if is_alive(info, each)]
    if left and len(alive) > len(left) // 2:
        return ""
    ids, found = ", ".join(str(each.node_id) for each in left), ", ".join(map(str, alive)) or "none"
    return f"of the voters that would be left ({ids}) more than half must be there, and {found} fetches"
