"""Voter sets, and their history in snapshot and log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayka.ids import ReplicaKey
from rayka.raft.voters import SUPPORTED_KRAFT_VERSIONS, VersionRange, VoterSet, VoterSetHistory
from tests.raft.support import ME, OTHER, THIRD, key

ONE, TWO, THREE = VoterSet((ME,)), VoterSet((ME, OTHER)), VoterSet((ME, OTHER, THIRD))


@pytest.mark.parametrize("voters", [(), (ME, ME), (OTHER, ME)])
def test_voters_are_one_or_more_ascending_each_once(voters: tuple[ReplicaKey, ...]) -> None:  # A55
    with pytest.raises(ValueError, match="voters are"):
        VoterSet(voters)


def test_each_voter_has_its_versions_or_all_have_the_usual() -> None:  # A58
    with pytest.raises(ValueError, match="one version range"):
        VoterSet((ME, OTHER), (VersionRange(0, 1),))
    assert THREE.kraft_versions_of(OTHER) == SUPPORTED_KRAFT_VERSIONS
    changed = THREE.with_kraft_versions(OTHER, VersionRange(0, 2))
    assert (changed.kraft_versions_of(OTHER), changed.kraft_versions_of(ME)) == (
        VersionRange(0, 2),
        SUPPORTED_KRAFT_VERSIONS,
    )
    assert changed.with_kraft_versions(OTHER, SUPPORTED_KRAFT_VERSIONS) == THREE


def test_a_voter_is_a_node_and_its_directory() -> None:  # A55
    assert ME in THREE
    assert key(1, 9) not in THREE
    assert (THREE.with_id(3001), THREE.with_id(3009)) == (ME, None)


def test_voters_come_and_go_one_at_a_time_but_the_last_stays() -> None:  # A56, A57
    assert ONE.with_voter(OTHER) == TWO
    assert VoterSet((OTHER,)).with_voter(ME) == TWO
    assert THREE.without_voter(THIRD) == TWO
    assert THREE.without_voter(key(3, 9)) is None
    assert ONE.without_voter(ME) is None


@pytest.mark.parametrize(
    ("one", "other", "overlaps"),
    [
        (THREE, THREE, True),
        (TWO, THREE, True),
        (THREE, TWO, True),
        (THREE, VoterSet((ME, OTHER, key(3, 9))), True),
        (ONE, THREE, False),
        (THREE, ONE, False),
        (TWO, VoterSet((key(3), key(4))), False),
    ],
)
def test_majorities_overlap_when_at_most_one_comes_and_one_goes(
    one: VoterSet, other: VoterSet, overlaps: bool
) -> None:  # A59
    assert one.has_overlapping_majority(other) == overlaps


@pytest.mark.parametrize(("count", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(count: int, majority: int) -> None:
    assert VoterSet(tuple(key(number) for number in range(count))).majority == majority


# ---- History ---------------------------------------------------------------------------------------------------------


def test_the_checkpoint_comes_before_everything() -> None:  # A24, A48
    history = VoterSetHistory(TWO)
    assert (history.voters, history.voters_offset, history.is_bootstrap, history.kraft_version) == (
        TWO,
        -1,
        True,
        1,
    )
    history.add_voters(2, TWO)
    assert (history.voters_offset, history.is_bootstrap) == (2, False)
    history.truncate_to(2)
    assert history.is_bootstrap


def test_a_history_without_voters_names_none() -> None:
    history = VoterSetHistory(None)
    assert (history.voters, history.kraft_version) == (None, 0)
    history.add_kraft_version(1, 1)
    history.add_voters(2, THREE)
    assert (history.voters, history.kraft_version) == (THREE, 1)


def test_another_version_is_no_other_set() -> None:  # A58
    history = VoterSetHistory(TWO)
    history.add_voters(2, TWO)
    history.add_kraft_version(5, 1)
    assert (history.voters, history.voters_offset, history.kraft_version) == (TWO, 2, 1)


def test_a_truncation_brings_the_set_before_back() -> None:  # A59
    history = VoterSetHistory(TWO)
    history.add_voters(2, TWO)
    history.add_voters(9, THREE)
    history.truncate_to(10)
    assert history.voters == THREE
    history.truncate_to(9)
    assert (history.voters, history.voters_offset) == (TWO, 2)


def test_a_set_counts_from_its_offset_on() -> None:  # A56
    history = VoterSetHistory(ONE)
    history.add_voters(5, TWO)
    history.add_voters(9, THREE)
    assert [history.voters_at(end) for end in (0, 5, 6, 9, 10, 99)] == [ONE, ONE, TWO, TWO, THREE, THREE]


def test_two_changes_at_once_are_the_end() -> None:  # A59
    history = VoterSetHistory(ONE)
    history.add_voters(2, ONE)
    with pytest.raises(AssertionError, match="at once"):
        history.add_voters(3, THREE)


def test_offsets_do_not_go_back() -> None:
    history = VoterSetHistory(ONE)
    history.add_voters(5, TWO)
    with pytest.raises(AssertionError, match="goes back"):
        history.add_voters(5, THREE)


def test_a_snapshot_takes_the_place_of_everything_before_it() -> None:  # A49
    history = VoterSetHistory(ONE)
    history.add_voters(5, TWO)
    history.restart_at(100, THREE, 1)
    assert (history.voters, history.voters_offset, history.is_bootstrap) == (THREE, 99, False)
    history.truncate_to(100)
    assert history.voters == THREE


def test_what_no_replica_can_ask_for_any_more_is_forgotten() -> None:  # A51
    history = VoterSetHistory(ONE)
    history.add_voters(5, TWO)
    history.add_voters(9, THREE)
    history.forget_before(9)
    assert (history.voters_at(9), history.voters_at(10), history.voters_at(1)) == (TWO, THREE, TWO)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), max_size=30))
def test_the_history_is_that_of_the_records_that_are_left(steps: list[tuple[bool, int]]) -> None:  # A59
    history, model, offset = VoterSetHistory(ONE), [(-1, ONE)], 0
    for is_truncation, size in steps:
        if is_truncation:
            offset = max(offset - size, 0)
            model = model[:1] + [entry for entry in model[1:] if entry[0] < offset]
            history.truncate_to(offset)
        else:
            voters = model[-1][1]
            changed = voters.without_voter(OTHER) or (voters if OTHER in voters else voters.with_voter(OTHER))
            model.append((offset, changed))
            history.add_voters(offset, changed)
            offset += size
        assert (history.voters_offset, history.voters) == model[-1]
