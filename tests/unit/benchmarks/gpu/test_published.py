"""One visit to a node: its stages and their time, their commands on 1 to 8 GPUs, and the table of what they leave."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.published import at_one_node
from benchmarks.gpu.published.plan import BETWEEN_GPUS, MINUTES, TRAININGS, Visit, plan, scales
from benchmarks.gpu.published.table import communicated, trained
from benchmarks.gpu.stages import LeftOut, Stage, environment, ran, shares
from benchmarks.gpu.training.records import Launch, Record
from benchmarks.gpu.training.rows import Case, Choice
from benchmarks.gpu.training.summary import table
from benchmarks.gpu.whole_path.host import Machine
from tests.docs.documents import CHECKOUT

NODES = (1, 2, 4, 8)


def visit(folder: Path, gpus: int = 8, **changes: Any) -> Visit:
    """A visit to a machine with so many GPUs."""
    plain: dict[str, Any] = {
        "machine": Machine(gpus=gpus, rehearsed=False), "folder": folder / "out", "work": folder / "work",
        "nccl_tests": None, "slurm": None,
    }  # fmt: skip
    return Visit(**{**plain, **changes})


def values(command: Sequence[str], option: str) -> list[str]:
    """What stands behind an option, up to the next one."""
    rest = list(command[command.index(option) + 1 :])
    ends = [place for place, word in enumerate(rest) if word.startswith("--")]
    return rest[: ends[0]] if ends else rest


def cells(stage: str, gpus: int, folder: Path) -> list[Case]:
    """What `engines.py` makes of a stage's command."""
    command = visit(folder, gpus).command(stage, 100.0)
    return list(
        Choice(
            rows=values(command, "--rows"), variants=values(command, "--variants"),
            gpus=[int(number) for number in values(command, "--gpus")], steps=int(values(command, "--steps")[0]),
            scale="full", device="cuda", options={},
        ).cases()
    )  # fmt: skip


def record(cases: Sequence[Case], launches: Sequence[Launch], **machine: object) -> Record:
    """The record that `engines.py` would write."""
    return Record(
        date="2026-01-01T00:00:00+00:00", command="python engines.py", complete=True, seconds=1.0, machine=machine,
        versions={}, source={}, rules={}, launches=tuple(launches), table=table(cases, launches),
        recipes={str(case): case.recipe.model_dump(mode="json", exclude={"references"}) for case in cases},
    )  # fmt: skip


def launch(case: Case, tokens_per_s: float = 1e6, step_s: float = 0.5) -> Launch:
    """A good launch of a cell, whose first steps are slow."""
    return Launch(
        row=case.row, variant=case.variant, gpus=case.gpus, turn=1, ours=True, seconds=30.0, tokens_per_s=tokens_per_s,
        samples_per_s=tokens_per_s / case.recipe.sequence_length, tflops_per_gpu=300.0, losses=(10.8, 8.7),
        step_seconds=(9.0,) * 5 + (step_s,) * 15, grad_norms=(2.0, 1.5, 1.2),
    )  # fmt: skip


# --- stages, whoever runs them


@given(st.dictionaries(st.text(min_size=1), st.floats(0.01, 1.0), min_size=1), st.floats(1.0, 600.0))
def test_all_time_is_shared_among_those_that_were_chosen(weights: dict[str, float], seconds: float) -> None:
    """By their weights, whichever they are."""
    chosen = sorted(weights)[: len(weights) // 2 + 1]
    found = shares(weights, chosen, seconds)
    assert list(found) == chosen
    assert sum(found.values()) == pytest.approx(seconds)
    first = chosen[0]
    assert all(found[name] * weights[first] == pytest.approx(found[first] * weights[name]) for name in chosen)


def test_a_bad_stage_ends_no_other_and_its_time_goes_on(tmp_path: Path) -> None:
    """One fails, one is late, one cannot start; the last knows of the time that they left."""
    told: list[float] = []

    def last(seconds: float) -> list[str]:
        told.append(seconds)
        return ["sh", "-c", "echo $NCCL_NVLS_ENABLE $MORE; exit 1"]

    def absent(_: float) -> list[str]:
        raise LeftOut("nothing to run")

    stages = [
        Stage(name="late", seconds=0.6, command=lambda _: ["sleep", "600"]),
        Stage(name="failing", seconds=300.0, command=lambda _: ["sh", "-c", "exit 3"]),
        Stage(name="absent", seconds=300.0, command=absent),
        Stage(name="last", seconds=3.0, command=last, good=(0, 1)),
    ]
    ended = list(ran(stages, tmp_path, environment(MORE="more")))
    assert [(each.how, each.good) for each in ended] == [
        ("late, and ended", False), ("exit status 3", False), ("left out: nothing to run", False),
        ("exit status 1", True),
    ]  # fmt: skip
    assert told[0] > 3.0
    assert (tmp_path / "last" / "terminal.txt").read_text() == "0 more\n"


# --- the plan


def test_the_minutes_are_fewer_than_nine_and_documented() -> None:
    """The program's text has every stage with its minutes, in the order in which they run."""
    written = re.findall(r"^    ([a-z_]+) +(\d\.\d)  ", at_one_node.__doc__ or "", re.MULTILINE)
    assert [(name, float(minutes)) for name, minutes in written] == list(MINUTES.items())
    assert sum(MINUTES.values()) < 9.0


@pytest.mark.parametrize("gpus", NODES)
def test_stages_between_gpus_need_two(gpus: int, tmp_path: Path) -> None:
    """On one GPU they are none; all others are there, in their order and with their time."""
    stages = plan(visit(tmp_path, gpus), list(MINUTES), {**MINUTES, "lambda": 3.0})
    assert [each.name for each in stages] == [name for name in MINUTES if gpus > 1 or name not in BETWEEN_GPUS]
    assert {each.name: each.seconds for each in stages}["lambda"] == 180.0
    assert [each.name for each in plan(visit(tmp_path, gpus), ["path", "azure"], MINUTES)] == ["azure", "path"]


def test_one_and_all_gpus_come_first() -> None:
    """So that there is an efficiency, however short the time."""
    assert {gpus: scales(gpus) for gpus in (*NODES, 6)} == {
        1: [1], 2: [1, 2], 4: [1, 4, 2], 8: [1, 8, 2, 4], 6: [1, 6, 2, 4],
    }  # fmt: skip


# --- the commands


@pytest.mark.parametrize("gpus", NODES)
def test_azure_is_trained_as_the_document_has_it(gpus: int, tmp_path: Path) -> None:
    """Its batch, steps, dropout and vocabulary on any number of GPUs; MP 2 where there are two."""
    found = cells("azure", gpus, tmp_path)
    tensor = {case.row: case.recipe.parallelism.tensor for case in found}
    assert tensor == {"azure125m": 1, "azure125m_mp1": 1, **({"azure125m_mp2": 2} if gpus > 1 else {})}
    for recipe in (case.recipe for case in found):
        assert (recipe.tokens_per_step, recipe.steps, recipe.optimizer.warmup_steps) == (524288, 50, 50)
        assert (recipe.model.dropout, recipe.model.vocab_size) == (0.1, 51196)


@pytest.mark.parametrize("gpus", NODES)
def test_scaling_is_weak(gpus: int, tmp_path: Path) -> None:
    """Both engines train the same tokens on each GPU."""
    found = cells("scaling", gpus, tmp_path)
    assert {case.recipe.tokens_per_step / case.gpus for case in found} == {65536}
    assert [case.gpus for case in found if case.variant == "torch"] == scales(gpus)


@pytest.mark.parametrize("gpus", NODES)
def test_the_other_trainings_take_all_gpus(gpus: int, tmp_path: Path) -> None:
    """Lambda's two shapes on their own batch, and the slice shared by all; nobody shares it alone."""
    lambdas = cells("lambda", gpus, tmp_path)
    assert [(case.recipe.samples_per_step, case.recipe.sequence_length) for case in lambdas] == [
        (24 * gpus, 512), (16 * gpus, 512),
    ]  # fmt: skip
    shared = [gpus] if gpus > 1 else []
    assert [case.recipe.parallelism.tensor for case in cells("slice", gpus, tmp_path)] == shared


def test_every_training_has_a_budget_within_its_time(tmp_path: Path) -> None:
    """`engines.py` ends before it would be interrupted, and compiles into one folder."""
    caches = set()
    for stage in TRAININGS:
        command = visit(tmp_path).command(stage, 100.0)
        assert float(values(command, "--budget-s")[0]) < 100.0
        caches.add(values(command, "--cache")[0])
    assert len(caches) == 1


def test_collectives_go_up_to_8_gib(tmp_path: Path) -> None:
    """All of them between them, against the programs that are named; without these they are left out."""
    there = visit(tmp_path, nccl_tests=tmp_path)
    asked = [values(there.command(stage, 1.0), "--collectives") for stage in ("all_reduce", "collectives")]
    assert asked == [["all_reduce"], ["all_gather", "reduce_scatter", "alltoall"]]
    sizes = [int(size) for size in values(there.command("collectives", 1.0), "--sizes")]
    assert {sizes[0], sizes[-1]} == {4096, 8 << 30}
    with pytest.raises(LeftOut, match="--nccl-tests"):
        visit(tmp_path).command("all_reduce", 1.0)


def test_the_path_gets_the_time_that_there_is(tmp_path: Path) -> None:
    """Its own minutes are within those of its stage; a Slurm is handed on, and a rehearsal stays one."""
    command = visit(tmp_path, slurm=tmp_path / "slurm.tar.xz").command("path", 300.0)
    assert 3.0 < float(values(command, "--minutes")[0]) < 5.0
    assert values(command, "--slurm") == [str(tmp_path / "slurm.tar.xz")]
    assert "--rehearse" not in command
    rehearsed = visit(tmp_path, machine=Machine(gpus=4, rehearsed=True))
    assert values(rehearsed.command("path", 300.0), "--rehearse") == ["4"]


# --- the table


def test_each_number_stands_beside_what_is_known(tmp_path: Path) -> None:
    """Azure's rate and Lambda's, with their ratio, and the rate of one GPU."""
    torch_8 = cells("azure", 8, tmp_path)[0]
    (row,) = trained(record([torch_8], [launch(torch_8, 3e6)]))
    assert row.measured == "3,000,000 words/s, 300.0 TFLOP/s/gpu"
    assert row.ratio == pytest.approx(15.0)
    assert "at least 200,000 words/s on 8 × A100-80GB" in row.beside
    sft = cells("lambda", 8, tmp_path)[0]
    rows = list(trained(record([sft], [launch(sft, 512 * 1200.0)])))
    assert [row.measured for row in rows] == ["1,200.0 samples/s, 300.0 TFLOP/s/gpu"] * 2
    assert [row.ratio for row in rows] == [pytest.approx(2.0), pytest.approx(1200 / 943)]
    one, all_ = (case for case in cells("scaling", 2, tmp_path) if case.variant == "torch")
    rows = list(trained(record([one, all_], [launch(one, 100.0), launch(all_, 190.0)])))
    assert [row.beside for row in rows] == ["", "2 × the rate of one GPU"]
    assert [row.ratio for row in rows] == [None, pytest.approx(0.95)]


def test_what_was_not_measured_has_no_ratio(tmp_path: Path) -> None:
    """A launch that nobody started has a line that says so."""
    (row, *_) = trained(record(cells("azure", 8, tmp_path), []))
    assert (row.measured, row.beside, row.ratio) == ("ERROR: not started: the time was up", "", None)
    assert str(row) == "| `azure125m` `torch` | 8 | ERROR: not started: the time was up |  |  |"


def curve(wrong: int) -> dict[str, Any]:
    """A curve of one size."""
    timing = {"time_us": 31000.0, "algbw": 274.0, "busbw": 400.0, "wrong": wrong}
    point = {"size": 8 << 30, "count": 2 << 30, "dtype": "float32", "redop": "sum", "out_of_place": timing}
    return {"collective": "all_reduce", "ranks": 8, "complete": True, "points": [point]}


def test_all_reduce_stands_beside_azures_numbers() -> None:
    """At the largest size; the lowest ratio is of all sizes, and wrong values are told."""
    rows = [
        {"collective": "all_reduce", "size": size, "place": "out_of_place", "ours": ours, "theirs": 400.0,
         "ratio": ours / 400.0}
        for size, ours in ((4096, 200.0), (1 << 27, 380.0), (8 << 30, 388.0))
    ]  # fmt: skip
    document = {"gpus": 8, "device": "cuda", "rows": rows, "ours": {"all_reduce": [curve(1)]}}
    found = list(communicated(document))
    largest = [row for row in found if "8GiB" in row.what]
    assert [row.beside.partition(",")[0] for row in largest] == ["400 GB/s of nccl-tests", "431 GB/s", "480 GB/s"]
    assert [row.ratio for row in largest] == pytest.approx([0.97, 388 / 431, 388 / 480])
    assert found[-2].what == "all_reduce, lowest ratio of 3, at 4KiB"
    assert found[-1].measured.startswith("WRONG VALUES")


# --- the program


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    command = [
        sys.executable,
        str(CHECKOUT / "benchmarks/gpu/published/at_one_node.py"),
        *map(str, arguments),
    ]
    # On a loaded machine, threads that wait for one another would spin.
    env = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300, cwd="/")


def test_a_folder_that_is_not_new_is_refused(tmp_path: Path) -> None:
    """Records of another visit would look like its own."""
    (tmp_path / "azure.json").write_text("{}")
    done = run(tmp_path, "--rehearse", 2)
    assert done.returncode == 2
    assert "name a new folder" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--stages", "azure,opt"), "no stage opt; there are azure"),
        (("--minutes", "azure:3"), "no stage azure:3"),
        (("--minutes", "azure=three"), "write STAGE=MINUTES"),
    ],
    ids=["stage", "form", "number"],
)
def test_words_that_mean_nothing_are_refused(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """With the legal ones, or the form."""
    done = run(tmp_path / "out", *words)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there: these ranks are CPU ranks")
@pytest.mark.skipif(find_spec("megatron") is None, reason="needs Megatron-Core")
def test_a_rehearsal_leaves_a_record_a_table_and_logs(tmp_path: Path) -> None:
    """Two ranks share the slice; what needs nccl-tests or GPUs is left out, says so, and is no success."""
    out = tmp_path / "out"
    done = run(out, "--rehearse", 2, "--stages", "all_reduce,slice", "--minutes", "slice=4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert {path.name for path in out.iterdir()} == {"slice.json", "summary.txt", "logs.tar.gz"}
    text = (out / "summary.txt").read_text(encoding="utf-8")
    assert re.search(r"^\| `slice175b` `megatron_core` \| 2 \| [\d,]+ words/s, ", text, re.MULTILINE)
    assert "left out: no nccl-tests (not given): name their folder with --nccl-tests" in text
    assert re.search(r"^slice +[\d.]+ s, exit status 0$", text, re.MULTILINE)
    with tarfile.open(out / "logs.tar.gz") as archive:
        assert "stages/slice/terminal.txt" in archive.getnames()
