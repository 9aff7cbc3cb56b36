"""Leases: no two runs share a node, and every node comes back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster.lease import Lease, LeasePool, TooFewLeftError
from pytest_llmbench.core.errors import ClusterError

HOSTS = ("n1", "n2", "n3", "n4")


def test_a_run_waits_until_enough_nodes_are_free() -> None:
    pool = LeasePool(HOSTS)
    first = pool.acquire(3)
    assert first == ("n1", "n2", "n3")
    assert pool.acquire(2) is None
    assert pool.acquire(1) == ("n4",)
    pool.release(first)
    assert pool.acquire(2) == ("n1", "n2")


def test_more_than_there_are_is_an_error_with_the_way_out() -> None:
    with pytest.raises(ClusterError, match=r"needs 5 nodes; the allocation has 4 \(n1, n2, n3, n4\): give --nodes 5"):
        LeasePool(HOSTS).acquire(5)


def test_a_lost_node_is_lent_no_more() -> None:
    """A run that no longer fits is told which node is missing."""
    pool = LeasePool(HOSTS)
    lease = pool.acquire(2)
    assert lease == ("n1", "n2")
    pool.lose(("n2",))
    pool.release(lease)
    assert pool.acquire(3) == ("n1", "n3", "n4")
    with pytest.raises(
        TooFewLeftError, match=r"needs 4 nodes; the allocation has lost n2, and has 3 left \(n1, n3, n4\)"
    ):
        pool.acquire(4)
    with pytest.raises(ClusterError, match="the run needs 5 nodes; the allocation has 4"):
        pool.acquire(5)


def test_a_spare_node_joins_the_group_of_a_lost_one() -> None:
    """The other groups keep their nodes; without a spare one, the group is not whole any more."""
    pool = LeasePool((*HOSTS, "n5"))
    pool.lose(("n2",))
    assert pool.acquire_group(2, 2) == ("n3", "n4")
    first = pool.acquire_group(1, 2)
    assert first == ("n1", "n5")
    pool.lose(("n1",))
    pool.release(first)
    with pytest.raises(TooFewLeftError, match=r"group 1 \(n1, n5\) is not whole any more: the allocation has lost n1:"):
        pool.acquire_group(1, 2)


@given(st.lists(st.integers(min_value=-4, max_value=4).filter(bool), max_size=40))
def test_no_node_is_lent_twice_or_lost(moves: list[int]) -> None:
    pool = LeasePool(HOSTS)
    lent: list[Lease] = []
    for move in moves:
        if move > 0:
            lease = pool.acquire(move)
            if lease is not None:
                lent.append(lease)
        elif lent:
            pool.release(lent.pop(-move % len(lent)))
        out = [host for lease in lent for host in lease]
        assert len(out) == len(set(out))
        assert set(out) <= set(HOSTS)
    for lease in lent:
        pool.release(lease)
    assert pool.acquire(4) == HOSTS
