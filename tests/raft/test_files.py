"""The files of the quorum: `quorum-state`; and which replicas may vote."""

import json
from uuid import UUID

import pytest

from rayka.ids import ReplicaKey
from rayka.raft.election_state import ElectionState, decode_election, encode_election
from rayka.raft.voters import VoterSet
from tests.raft.support import ME

VOTERS = VoterSet((ME, ReplicaKey(3002, UUID(int=8))))


@pytest.mark.parametrize("election", [ElectionState(), ElectionState(4, 3001, ME), ElectionState(4, -1, ME)])
def test_an_election_comes_back_as_it_was(election: ElectionState) -> None:
    assert decode_election(encode_election(election)) == election


def test_quorum_state_is_kafkas_json() -> None:  # A7
    assert json.loads(encode_election(ElectionState(4, 3001, ME))) == {
        "leaderId": 3001,
        "leaderEpoch": 4,
        "votedId": 3001,
        "votedDirectoryId": "00000000-0000-0000-0000-000000000007",
        "data_version": 1,
    }


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[1]", encode_election(ElectionState())[:40]])
def test_a_damaged_quorum_state_is_none(content: bytes) -> None:  # A9
    assert decode_election(content) is None


def test_another_data_version_is_none() -> None:  # A7
    assert (
        decode_election(encode_election(ElectionState()).replace(b'"data_version":1', b'"data_version":2'))
        is None
    )


@pytest.mark.parametrize("voters", [(), (ME, ME), (ReplicaKey(3002, ME.directory_id), ME)])
def test_voters_are_one_or_more_ascending_each_once(voters: tuple[ReplicaKey, ...]) -> None:
    with pytest.raises(ValueError, match="voters are"):
        VoterSet(voters)
