"""Who plays whom in which round, who is to blame, and halving a slow group: on clusters that are simulated."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.network.group_bisection import bisect
from pytest_llmbench.checks.network.tournament import (
    Game,
    Pair,
    Rounds,
    disjoint,
    floor_of,
    judge,
    schedule,
    second_pass,
    suspect,
)
from tests.support.slow_nodes import SlowNodes


def _names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@pytest.mark.parametrize("nodes", [3, 4, 5, 8, 64, 1024])
@pytest.mark.parametrize("share", [0, 0.01, 0.25])
def test_without_noise_all_bad_nodes_are_found_and_nobody_else(nodes: int, share: float) -> None:
    for seed in range(3):
        cluster = SlowNodes(nodes=nodes, bad=max(int(nodes * share), share == 0.01), seed=seed)
        verdict = cluster.hunt()
        assert set(verdict.culprits) == cluster.culprits
        assert not verdict.unresolved
        assert not verdict.links
        # Each suspect plays three times more, and there are as many suspects as bad nodes.
        assert cluster.runs == sum(map(len, schedule(cluster.names))) + 3 * cluster.bad


def test_a_reference_finds_a_majority_of_bad_nodes() -> None:
    assert set((cluster := SlowNodes(nodes=8, bad=5, seed=1)).hunt(0.9).culprits) == cluster.culprits
    assert not SlowNodes(nodes=8, bad=5, seed=1).hunt().culprits


@pytest.mark.parametrize(("nodes", "bad"), [(8, 0), (8, 2), (64, 5), (256, 2), (1024, 5)])
def test_with_noise_nobody_is_accused_falsely(nodes: int, bad: int) -> None:
    """3 % noise and one in a hundred pairs slow by chance; 20 drawn clusters, always the same ones."""
    found = falsely = links = 0
    for seed in range(20):
        cluster = SlowNodes(nodes=nodes, bad=bad, seed=seed, sigma=0.03, fluke=0.01)
        verdict = cluster.hunt()
        found += len(cluster.culprits & set(verdict.culprits))
        falsely += len(set(verdict.culprits) - cluster.culprits)
        links += len(verdict.links)
    assert found >= 0.99 * 20 * bad
    assert falsely == 0
    assert links == 0


def test_a_slow_link_accuses_neither_of_its_ends() -> None:
    """Both are suspects, both are well with good partners, and their link stays slow."""
    cluster = SlowNodes(nodes=6, bad=0, seed=0, links=(("n1", "n4"),))
    verdict = cluster.hunt()
    assert verdict.culprits == ()
    assert set(verdict.acquitted) == {"n1", "n4"}
    assert [set(pair) for pair in verdict.links] == [{"n1", "n4"}]


def test_without_a_good_partner_all_stay_unresolved() -> None:
    """With two nodes, or all pairs below a reference, no node is known to be good, so none is named."""
    verdict = judge([Game(pair=("a", "b"), value=1.0)], _nothing, floor=2.0)
    assert (verdict.culprits, verdict.unresolved) == ((), ("a", "b"))
    games = [Game(pair=pair, value=1.0) for pairs in schedule(_names(6)) for pair in pairs]
    assert set(judge(games, _nothing, floor=2.0).unresolved) == set(_names(6))


def test_one_slow_game_by_chance_is_played_again_and_forgiven() -> None:
    games = [Game(pair=pair, value=1.0) for pairs in schedule(_names(8)) for pair in pairs]
    games[0] = Game(pair=games[0].pair, value=0.1)
    verdict = judge(games, lambda rounds: [Game(pair=pair, value=1.0) for pairs in rounds for pair in pairs], floor=0.9)
    assert set(verdict.acquitted) == set(games[0].pair)
    assert (verdict.culprits, verdict.links) == ((), ())


def test_a_pair_without_a_number_is_bad() -> None:
    def play(rounds: Rounds) -> list[Game]:
        return [Game(pair=pair, value=None if "n2" in pair else 1.0) for pairs in rounds for pair in pairs]

    games = play(schedule(_names(5)))
    assert judge(games, play, floor=floor_of(games, 0.1)).culprits == ("n2",)


def test_floor_is_no_question_of_two() -> None:
    assert floor_of([Game(pair=("a", "b"), value=1.0)], 0.1) is None
    games = [Game(pair=pair, value=10.0) for pairs in schedule(_names(6)) for pair in pairs]
    assert floor_of(games, 0.1) == pytest.approx(9.0)


@given(st.integers(4, 40), st.data())
def test_suspects_meet_different_good_partners(count: int, data: st.DataObject) -> None:
    """In the second pass nobody plays twice in a round, every suspect plays `repeats` times, and partners are good."""
    names = _names(count)
    bad = set(data.draw(st.lists(st.sampled_from(names), max_size=count // 2, unique=True)))
    games = [
        Game(pair=pair, value=0.5 if bad & set(pair) else 1.0) for pairs in schedule(names, count) for pair in pairs
    ]
    suspicion = suspect(games, 0.9)
    assert set(suspicion.suspects) == bad
    rounds = second_pass(suspicion, 3)
    assert all(len({player for pair in pairs for player in pair}) == 2 * len(pairs) for pairs in rounds)
    partners = {name: [other for pairs in rounds for one, other in pairs if one == name] for name in bad}
    assert all(len(met) == 3 and not set(met) & bad for met in partners.values())
    assert all(len(set(met)) == min(3, count - len(bad)) for met in partners.values())


def test_leagues_stay_among_themselves() -> None:
    names = [f"{node} {rail}" for rail in "xy" for node in "abcd"]
    games = [
        Game(pair=pair, value=0.5 if "b x" in pair else 1.0)
        for rail in "xy"
        for pairs in schedule([name for name in names if name.endswith(rail)])
        for pair in pairs
    ]
    rounds = second_pass(suspect(games, 0.9), 3, league=lambda name: name[-1])
    assert [pair[0] for pairs in rounds for pair in pairs] == ["b x"] * 3
    assert all(pair[1].endswith("x") for pairs in rounds for pair in pairs)


def _nothing(rounds: Sequence[Sequence[Pair]]) -> list[Game]:
    raise AssertionError(f"nothing to play, but {rounds}")


@given(st.integers(2, 41))
def test_everybody_meets_everybody_once(count: int) -> None:
    """N - 1 rounds for an even N, N for an odd one; no node is in two pairs of a round."""
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
