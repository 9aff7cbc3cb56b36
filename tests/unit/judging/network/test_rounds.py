"""Who plays whom in which round."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.network.tournament import disjoint, schedule


def _names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@given(st.integers(2, 41))
def test_everybody_meets_everybody_once(count: int) -> None:
    """N - 1 rounds for an even N, N for an odd one; nobody is in two pairs of a round."""
    rounds = schedule(_names(count), count)
    assert len(rounds) == count - 1 + count % 2
    met = Counter(frozenset(pair) for pairs in rounds for pair in pairs)
    assert len(met) == count * (count - 1) // 2
    assert set(met.values()) == {1}
    for pairs in rounds:
        assert len({player for pair in pairs for player in pair}) == 2 * len(pairs) == count - count % 2


@given(st.integers(2, 200), st.integers(1, 9))
def test_few_rounds_still_test_everybody(count: int, rounds: int) -> None:
    made = schedule(_names(count), rounds)
    pairs = [frozenset(pair) for each in made for pair in each]
    assert {player for pair in pairs for player in pair} == set(_names(count))
    assert len(set(pairs)) == len(pairs)
    assert len(made) <= max(rounds, 1 + count % 2)


def test_how_many_rounds_by_default() -> None:
    """All up to 16 nodes, and beyond as many for a thousand nodes as for seventeen."""
    assert [len(schedule(_names(count))) for count in (2, 3, 16, 17, 1024)] == [1, 3, 15, 8, 8]


@pytest.mark.parametrize(("players", "rounds"), [(1, None), (4, 0)])
def test_no_tournament(players: int, rounds: int | None) -> None:
    with pytest.raises(ValueError, match="make no tournament"):
        schedule(_names(players), rounds)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(10, 19)).map(lambda pair: (f"n{pair[0]}", f"n{pair[1]}"))))
def test_links_are_distributed_over_rounds(pairs: list[tuple[str, str]]) -> None:
    rounds = disjoint(pairs)
    assert Counter(pair for each in rounds for pair in each) == Counter(pairs)
    assert all(len({player for pair in each for player in pair}) == 2 * len(each) for each in rounds)
