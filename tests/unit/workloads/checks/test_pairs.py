"""Rounds of groups on real processes that speak gloo, some of which die or hang in the middle."""

from typing import Any

import pytest

from pytest_llmbench.checks.answers import read_answers
from pytest_llmbench.checks.base import Answer, Probe
from pytest_llmbench.checks.network.nodes.answer import RankGames
from tests.support.fleet import ProcessFleet, cpu_site

# Rank 1 is killed in round 1, rank 5 is stopped in round 2 and goes on long after the others gave it up.
_FAULTY = """
import os, signal, subprocess
from pytest_llmbench.checks.network.nodes import pairs

class Faulty(pairs.DirectGroup):
    def __init__(self, store, ranks, rank, *rest):
        super().__init__(store, ranks, rank, *rest)
        if (rank, sorted(ranks)) == (1, [1, 2]):
            os.kill(os.getpid(), signal.SIGKILL)
        if (rank, sorted(ranks)) == (5, [3, 5]):
            subprocess.Popen(["sh", "-c", f"sleep 10; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)

pairs.DirectGroup = Faulty
play = pairs.play
"""
ROUNDS = [[[0, 1], [2, 3], [4, 5]], [[0, 4], [1, 2]], [[3, 5], [0, 2]], [[1, 3], [2, 4], [0, 5]], [[0, 2, 3, 4]]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer[RankGames]]:
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "faulty.py").write_text(_FAULTY)
    hosts = tuple(f"n{number}" for number in range(6))
    env = {host: {"PYTHONPATH": str(folder)} for host in hosts}
    fleet = ProcessFleet(site=cpu_site(6), hosts=hosts, folder=folder, env=env, torch=True)
    sizes = {"bytes": 2**16, "small_bytes": 8, "iterations": 2, "warm_up": 1}
    limits = {"timeout_s": 2.0, "patience_s": 60.0, "limit_s": 90.0}
    config = {"rounds": ROUNDS, **sizes, **limits}
    probe = Probe(name="p", entry="faulty:play", deadline_s=100.0, config=config, together=True)
    return read_answers(fleet.run([probe])[0], RankGames)


def _data(answer: Answer[RankGames]) -> RankGames:
    assert answer.data is not None, answer.why
    return answer.data


def _games(answer: Answer[RankGames]) -> dict[int, Any]:
    return {game.round: game for game in _data(answer).games}


def test_all_groups_of_whole_ranks_are_measured(answers: list[Answer[RankGames]]) -> None:
    """Bus bandwidth is that of nccl-tests."""
    for rank, rounds in {0: (0, 1, 2, 4), 2: (0, 2, 3, 4), 3: (0, 4), 4: (0, 1, 3, 4)}.items():
        games = _games(answers[rank])
        for number in rounds:
            assert games[number].measured.wrong == 0
            assert games[number].measured.busbw > 0
            assert games[number].measured.latency_s > 0
        assert _data(answers[rank]).stopped is None
    pair, four = _games(answers[0])[0].measured, _games(answers[0])[4].measured
    assert pair.busbw == pytest.approx(2**16 / pair.seconds / 1e9)
    assert four.busbw == pytest.approx(1.5 * 2**16 / four.seconds / 1e9)


def test_a_killed_rank_costs_its_partner_that_game_alone_and_one_that_hangs_is_given_up(
    answers: list[Answer[RankGames]],
) -> None:
    assert answers[1].data is None
    assert _games(answers[2])[1].error
    assert _games(answers[3])[3].missing == (1,)
    assert _games(answers[3])[2].error
    assert _games(answers[0])[3].missing == (5,)
    assert _data(answers[5]).stopped is not None
    assert _games(answers[5])[0].measured.wrong == 0
