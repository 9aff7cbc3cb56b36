"""Running nccl-tests on a node: a stand-in that takes real options alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.collectives.nodes.nccl_tests import NcclTestsOutputs, run
from pytest_llmbench.checks.collectives.report import read_nccl_tests, read_nccl_tests_json
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog
from tests.standins import nccl_tests as standin

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
