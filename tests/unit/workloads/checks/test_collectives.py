"""Collectives between real ranks, whether a wrong value would be seen, a stand-in for nccl-tests, rounds of groups."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_llmbench.checks.answers import read_answers
from pytest_llmbench.checks.base import Answer, Probe
from pytest_llmbench.checks.collectives.nodes.answer import MeasuredCollectives, RankCollectives
from pytest_llmbench.checks.collectives.nodes.collectives import choose_largest, measure
from pytest_llmbench.checks.collectives.nodes.nccl_tests import NcclTestsOutputs, run
from pytest_llmbench.checks.collectives.nodes.ops import (
    Call,
    Operation,
    Values,
    Works,
    fill,
    spoil,
    why_unsupported,
    wrong,
)
from pytest_llmbench.checks.collectives.report import read_nccl_tests, read_nccl_tests_json
from pytest_llmbench.checks.network.nodes.answer import RankGames
from pytest_llmbench.core.errors import ConfigError, RunError
from pytest_llmbench.core.record.curves import COLLECTIVES, IN_PARTS, busbw_factor
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog
from tests.standins import nccl_tests as standin
from tests.support.fleet import ProcessFleet, cpu_site

RANKS = 3
SIZES = [8, 128, 4096, 65536]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Answer[RankCollectives]]:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path_factory.mktemp("collectives"), torch=True)
    config = {"collectives": COLLECTIVES, "sizes": SIZES, "iterations": 3, "warm_up": 1, "checked": 2}
    probe = Probe(
        name="all", entry="pytest_llmbench.checks.collectives.nodes.collectives:measure", config=config,
        ranks_per_node=RANKS, together=True, deadline_s=240.0,
    )  # fmt: skip
    return read_answers(fleet.run([probe])[0], RankCollectives)


def measured(answers: list[Answer[RankCollectives]]) -> MeasuredCollectives:
    assert answers[0].data is not None, answers[0].why
    assert answers[0].data.measured is not None
    return answers[0].data.measured


def test_every_collective_is_measured_and_right(answers: list[Answer[RankCollectives]]) -> None:
    """Every size of nccl-tests, in the places that torch.distributed offers, with no wrong value at any rank."""
    data = measured(answers)
    assert (data.unsupported, data.notes, data.device) == ({}, (), "cpu")
    assert tuple(data.curves) == COLLECTIVES
    for name, curve in data.curves.items():
        assert (curve.ranks, curve.nodes, curve.gpus, curve.complete) == (RANKS, 1, 0, True)
        assert {point.wrong for point in curve.points} == {0}
        places = (curve.points[0].out_of_place is not None, curve.points[0].in_place is not None)
        assert places == (name not in ("all_reduce", "broadcast", "reduce"), name not in ("alltoall", "sendrecv"))
        for point in curve.points:
            for timing in point.timings:
                assert timing.busbw == pytest.approx(timing.algbw * busbw_factor(name, RANKS))
                assert timing.algbw == pytest.approx(point.size / timing.time_us / 1e3)
    for name, curve in data.curves.items():
        sizes = [point.size for point in curve.points]
        assert sizes == ([96, 4080, 65520] if name in IN_PARTS else SIZES)
    other = RankCollectives(wrong=dict.fromkeys(COLLECTIVES, 0), measured=None)
    assert [answer.data for answer in answers[1:]] == [other] * (RANKS - 1)


def received(name: str, rank: int, count: int, round_: int) -> torch.Tensor:
    """What a rank receives, computed here from what all ranks write."""
    values, sent = Values(RANKS, torch.float32), []
    for sender in range(RANKS):
        operation = Operation(name=name, rank=sender, ranks=RANKS)
        first, second = (torch.zeros(count * RANKS) for _ in range(2))
        send, recv = operation.views(first, second, count, operation.places[0])
        operation.write(send, recv, values, round_)
        sent.append(send)
    mine = slice(rank * count, (rank + 1) * count)
    match name:
        case "all_reduce" | "reduce":
            return torch.stack(sent).sum(0)
        case "reduce_scatter":
            return torch.stack(sent).sum(0)[mine]
        case "all_gather":
            return torch.cat(sent)
        case "alltoall":
            return torch.cat([each[mine] for each in sent])
    return sent[0 if name == "broadcast" else (rank - 1) % RANKS]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_wrong_value_is_seen(name: str) -> None:
    """One element, in whatever way it is wrong; and none where all is right."""
    values = Values(RANKS, torch.float32)
    operation = Operation(name=name, rank=0, ranks=RANKS)
    right = received(name, 0, 1000, 5)
    assert operation.wrong(right, values, 5) == 0
    for value in (right[123] + 1, -right[123] - 1, torch.nan, torch.inf):
        damaged = right.clone()
        damaged[123] = value
        assert operation.wrong(damaged, values, 5) == 1


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_is_not_written_or_old_or_elsewhere_is_seen(name: str) -> None:
    """What stood there before, the values of the round before, and values that are shifted or of another rank."""
    values = Values(RANKS, torch.float32)
    operation = Operation(name=name, rank=0, ranks=RANKS)
    right = received(name, 0, 1000, 5)
    untouched = right.clone()
    spoil(untouched)
    assert operation.wrong(untouched, values, 5) == len(right)
    assert operation.wrong(received(name, 0, 1000, 4), values, 5) > 0.9 * len(right)
    assert operation.wrong(right.roll(1), values, 5) > 0.9 * len(right)
    if name in ("reduce_scatter", "alltoall", "sendrecv"):
        assert operation.wrong(received(name, 1, 1000, 5), values, 5) > 0.9 * len(right)


@pytest.mark.parametrize("name", ["all_reduce", "reduce", "reduce_scatter"])
def test_a_contribution_that_is_missing_or_doubled_is_seen(name: str) -> None:
    """A sum without one rank, or with one rank twice in another's place, is wrong nearly everywhere."""
    values = Values(RANKS, torch.float32)
    operation = Operation(name=name, rank=0, ranks=RANKS)
    right = received(name, 0, 1000, 0)
    parts = [torch.zeros(1000) for _ in range(RANKS)]
    for rank, part in enumerate(parts):
        fill(part, values.part(rank, 0))
    assert torch.equal(right, torch.stack(parts).sum(0))
    assert operation.wrong(right - parts[2], values, 0) > 980
    assert operation.wrong(right - parts[2] + parts[1], values, 0) == 1000


def test_only_the_root_of_a_reduce_has_a_result() -> None:
    other = Operation(name="reduce", rank=1, ranks=RANKS)
    assert other.wrong(torch.zeros(10), Values(RANKS, torch.float32), 0) == 0


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 256, 1024])
def test_every_sum_of_every_order_is_exact(ranks: int) -> None:
    """In bfloat16 there are no whole numbers between 256 and 258: no sum is above, and all single values are exact."""
    values = Values(ranks, torch.bfloat16)
    assert int(values.total(0).max()) <= 256
    tables = torch.stack([values.of(rank, 3) for rank in range(ranks)])
    assert torch.equal(tables.to(torch.bfloat16).to(torch.int64), tables)
    assert all(values.part(rank, 0).any() for rank in range(ranks))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_total_is_the_sum_of_its_parts_wherever_it_starts(dtype: torch.dtype) -> None:
    values = Values(5, dtype)
    parts = torch.stack([values.part(rank, 3, 777) for rank in range(5)])
    assert torch.equal(values.total(3, 777), parts.sum(0))
    assert torch.equal(values.of(2, 3, 777), values.of(2, 3).roll(-777))


def test_a_buffer_of_many_blocks() -> None:
    """Longer than what is compared at once: an error behind the first piece is found, too."""
    values = Values(2, torch.float32)
    table = values.of(1, 0)
    tensor = torch.empty((1 << 22) + 12345)
    fill(tensor, table)
    assert wrong(tensor, table) == 0
    assert float(tensor[(1 << 22) + 5000]) == float(table[((1 << 22) + 5000) % values.period])
    tensor[-1] += 1
    assert wrong(tensor, table) == 1


def test_what_a_backend_cannot_do_is_told_from_what_fails() -> None:
    """One makes the check of the operation a SKIP, in the backend's words; the other is an error."""

    def raises(error: Exception) -> Call:
        def call() -> Works:
            raise error

        return call

    words = "ProcessGroupGloo does not support\n  alltoall"
    assert why_unsupported(raises(RuntimeError(words))) == "ProcessGroupGloo does not support alltoall"
    assert why_unsupported(raises(NotImplementedError("not implemented"))) == "not implemented"
    assert why_unsupported(lambda: ()) is None
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        why_unsupported(raises(RuntimeError("Connection closed by peer")))


def test_sizes_end_where_memory_does() -> None:
    sizes = [1 << power for power in range(3, 34)]
    largest, notes = choose_largest(sizes, free=5.0 * 2**30)
    assert largest == 2 << 30
    assert notes == ["sizes end at 2GiB: two buffers of 8GiB do not fit into the 5.0 GiB that a rank has free"]
    assert choose_largest(sizes, free=17.0 * 2**30) == (8 << 30, [])
    with pytest.raises(RunError, match="two buffers of 8B do not fit into 0 MiB"):
        choose_largest(sizes, free=15)


def test_a_plan_that_is_none_is_refused(context: RankContext) -> None:
    context = dataclasses.replace(context, config={"collectives": ["all_reduce"], "sizes": [0]})
    with pytest.raises(ConfigError, match=r"collectives: sizes\.0"):
        measure(context, ProbeLog(context))


ARGS = ("-b", "8", "-e", "4194304", "-f", "2", "-n", "20", "-w", "5", "-c", "4", "-d", "float")


def answer(context: RankContext, root: Path, *collectives: str, mode: str = "", **config: Any) -> NcclTestsOutputs:
    told = {
        "root": str(root), "collectives": collectives, "args": ARGS, "hosts": ["a"], "gpus": 4, "timeout_s": 60.0,
        "env": {"STANDIN_NCCL_TESTS": mode, "A_SECRET": "hidden"}, **config,
    }  # fmt: skip
    context = dataclasses.replace(context, config=told)
    return run(context, ProbeLog(context))


def test_one_node_is_one_process_with_all_gpus(context: RankContext, tmp_path: Path) -> None:
    """Both what it printed and what it wrote come back, without its environment; what it wrote it wrote elsewhere."""
    root = standin.install(tmp_path / "nccl-tests" / "build", "all_reduce").parent
    told = answer(context, root, "all_reduce", setup=["export A_SETUP=1"])
    result = told.runs["all_reduce"]
    assert result.command.startswith(f"{root}/build/all_reduce_perf -g 4 -b 8 -e 4194304 -f 2 ")
    assert result.code == 0
    (printed,) = read_nccl_tests(result.text)
    assert printed.points[-1].size == read_nccl_tests_json(result.written or "").points[-1].size == 4194304
    assert (printed.ranks, printed.complete) == (4, True)
    assert "env" not in json.loads(result.written or "")
    assert "hidden" not in told.model_dump_json()


def test_several_nodes_are_started_by_a_launcher(context: RankContext, tmp_path: Path) -> None:
    root = standin.install(tmp_path / "nccl-tests", "all_reduce")
    launcher = ("env", "STANDIN_RANKS={ranks}", "NODES={nodes}", "HOSTS={hosts}", "GPUS={gpus}")
    told = answer(context, root, "all_reduce", hosts=["a", "b"], launcher=launcher).runs["all_reduce"]
    assert told.command.startswith("env STANDIN_RANKS=8 NODES=2 HOSTS=a,b GPUS=4 ")
    assert f"{root}/all_reduce_perf -g 1 -b 8 " in told.command
    assert read_nccl_tests_json(told.written or "").ranks == 8


def test_a_program_without_json_is_read_by_what_it_prints(context: RankContext, tmp_path: Path) -> None:
    """An unknown option would end the program with status 0, without a measurement."""
    root = standin.install(tmp_path / "nccl-tests", "reduce")
    told = answer(context, root, "reduce", mode="old").runs["reduce"]
    assert (told.code, told.written) == (0, None)
    assert " -J " not in told.command
    assert read_nccl_tests(told.text)[0].complete


@pytest.mark.parametrize(("mode", "code"), [("crash", 3), ("wrong", 1), ("truncated", 0)])
def test_how_it_ended_comes_back(context: RankContext, tmp_path: Path, mode: str, code: int) -> None:
    root = standin.install(tmp_path / "nccl-tests", "broadcast")
    told = answer(context, root, "broadcast", mode=mode).runs["broadcast"]
    assert told.code == code
    assert told.text


def test_a_program_that_is_missing_is_named(context: RankContext, tmp_path: Path) -> None:
    root = standin.install(tmp_path / "nccl-tests", "reduce")
    told = answer(context, root, "alltoall", "reduce").runs
    assert (told["alltoall"].code, told["reduce"].code) == (127, 0)
    assert told["alltoall"].text == f"neither {root}/alltoall_perf nor {root}/build/alltoall_perf can be run"


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
def games_of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Answer[RankGames]]:
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


def test_all_groups_of_whole_ranks_are_measured(games_of_ranks: list[Answer[RankGames]]) -> None:
    """Bus bandwidth is that of nccl-tests."""
    for rank, rounds in {0: (0, 1, 2, 4), 2: (0, 2, 3, 4), 3: (0, 4), 4: (0, 1, 3, 4)}.items():
        games = _games(games_of_ranks[rank])
        for number in rounds:
            assert games[number].measured.wrong == 0
            assert games[number].measured.busbw > 0
            assert games[number].measured.latency_s > 0
        assert _data(games_of_ranks[rank]).stopped is None
    pair, four = _games(games_of_ranks[0])[0].measured, _games(games_of_ranks[0])[4].measured
    assert pair.busbw == pytest.approx(2**16 / pair.seconds / 1e9)
    assert four.busbw == pytest.approx(1.5 * 2**16 / four.seconds / 1e9)


def test_a_killed_rank_costs_that_game_alone_a_hung_one_is_given_up(
    games_of_ranks: list[Answer[RankGames]],
) -> None:
    assert games_of_ranks[1].data is None
    assert _games(games_of_ranks[2])[1].error
    assert _games(games_of_ranks[3])[3].missing == (1,)
    assert _games(games_of_ranks[3])[2].error
    assert _games(games_of_ranks[0])[3].missing == (5,)
    assert _data(games_of_ranks[5]).stopped is not None
    assert _games(games_of_ranks[5])[0].measured.wrong == 0
