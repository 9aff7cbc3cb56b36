"""Halving a slow group: who is found, and after how many measured groups."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.network.group_bisection import bisect
from tests.support.slow_nodes import SlowNodes


@pytest.mark.parametrize("nodes", [4, 5, 8, 64, 100, 1000, 1024])
def test_one_bad_node_takes_logarithmically_many_groups(nodes: int) -> None:
    """Two halves a level, and the slow one once more: three groups for each halving of the nodes."""
    for seed in range(10):
        cluster = SlowNodes(nodes=nodes, bad=1, seed=seed)
        found = cluster.halve()
        assert set(found.culprits) == cluster.culprits
        assert found.together == ()
        assert cluster.runs <= 3 * math.ceil(math.log2(nodes))


@pytest.mark.parametrize(("nodes", "bad"), [(64, 2), (256, 5), (1024, 5)])
def test_several_bad_nodes(nodes: int, bad: int) -> None:
    for seed in range(10):
        cluster = SlowNodes(nodes=nodes, bad=bad, seed=seed)
        assert set(cluster.halve().culprits) == cluster.culprits
        assert cluster.runs <= 3 * bad * math.ceil(math.log2(nodes))


@given(st.integers(3, 60), st.data())
def test_without_noise_nobody_is_accused_falsely(count: int, data: st.DataObject) -> None:
    names = [f"n{number}" for number in range(count)]
    bad = set(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    found = bisect(names, lambda groups: [bool(bad & set(group)) for group in groups])
    assert set(found.culprits) <= bad
    assert bad <= set(found.culprits).union(*found.together)


@given(st.integers(2, 60), st.data())
def test_groups_of_a_round_are_disjoint(count: int, data: st.DataObject) -> None:
    names = [f"n{number}" for number in range(count)]
    bad = set(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))

    def slow(groups: Sequence[tuple[str, ...]]) -> list[bool]:
        members = [node for group in groups for node in group]
        assert len(set(members)) == len(members)
        assert all(len(group) > 1 for group in groups)
        return [bool(bad & set(group)) for group in groups]

    bisect(names, slow)


def test_noise_is_not_believed_at_once() -> None:
    """One group in a hundred is slow by chance: 50 drawn clusters, always the same ones."""
    for seed in range(50):
        cluster = SlowNodes(nodes=256, bad=2, seed=seed, sigma=0.02, fluke=0.01)
        assert set(cluster.halve().culprits) == cluster.culprits


def test_what_is_slow_only_together_names_nobody() -> None:
    """Two nodes in different halves that are slow only in one group: the smallest such group is named."""
    names = [f"n{number}" for number in range(8)]
    found = bisect(names, lambda groups: [{"n0", "n7"} <= set(group) for group in groups])
    assert found.culprits == ()
    assert found.together == (tuple(names),)
    inside = bisect(names, lambda groups: [{"n4", "n6"} <= set(group) for group in groups])
    assert inside.culprits == ()
    assert inside.together == (("n4", "n5", "n6", "n7"),)


def test_controls_keep_the_size_that_shows_the_fault() -> None:
    """A node that is slow only among four or more: its half is filled up with good nodes, and it is found."""
    names = [f"n{number}" for number in range(16)]
    found = bisect(names, lambda groups: [len(group) >= 4 and "n6" in group for group in groups])
    assert (found.culprits, found.together) == (("n6",), ())
    alone = bisect(names, lambda groups: [len(group) >= 16 and "n6" in group for group in groups])
    assert (alone.culprits, alone.together) == ((), (tuple(names),))


def test_two_nodes_cannot_be_told_apart() -> None:
    assert bisect(["a", "b"], lambda _: pytest.fail("nothing to measure")).together == (("a", "b"),)
