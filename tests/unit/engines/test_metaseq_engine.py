"""The metaseq engine: what it refuses, the commands it builds, and what it reads and doubts in a log."""

import statistics as stats
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Environment
from pytest_llmbench.core.recipe.recipes import Recipe, Scale
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Progress, StepSeries
from pytest_llmbench.core.schema import merge, validate
from pytest_llmbench.engines.base import Command, Place, Script, get_engine, statistics_of
from pytest_llmbench.engines.metaseq.engine import ENGINE
from pytest_llmbench.judging.statistics import Measurement, judged_steps
from tests.support.shipped import shipped_recipes

NODE = Topology(nodes=1, gpus_per_node=8)
CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
SIZES = ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "30b", "66b", "175b")
RATES = ("720000", "931072.4", "940000", "920000", "1.23457e+06")
LINE = (
    '2023-03-20 10:00:0{index} | INFO | train_inner | {{"epoch": 1, "update": 0.1, "loss": "{loss}", "wps": "{wps}", '
    '"ups": "{ups}", "wpb": "524288", "bsz": "256", "num_updates": "{step}", "gnorm": "1.5", "loss_scale": "4"}}'
)
DONE = "2023-03-20 10:01:00 | INFO | metaseq_cli.train | done training in 123.4 seconds"


def recipe(name: str = "metaseq125m", scale: Scale = "full", **changes: Any) -> Recipe:
    shipped_one = shipped_recipes(scale)[name].model_dump(mode="json")
    return validate(Recipe, merge(shipped_one, changes), name)


def command(what: Recipe, topology: Topology = NODE, **environment: Any) -> Command:
    where, own = Path("/shared/runs") / what.name, Environment.model_validate(environment)
    place = Place(folder=where, environment=own, slurm=topology.nodes > 1, time_limit_min=30)
    work = ENGINE.work(what, topology, place)
    assert isinstance(work, Script)
    (only,) = work.commands
    return only


def problems(what: Recipe, topology: Topology) -> list[str]:
    return list(ENGINE.problems(what, topology))


def log(folder: Path, *lines: str, name: str = "logs/output.log") -> Path:
    """Write a log of a run, with a step line for each of RATES, then these lines."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        LINE.format(index=index, loss=10 - index, wps=wps, ups=round(float(wps) / 524288, 2), step=5 * index)
        for index, wps in enumerate(RATES, start=1)
    ]
    path.write_text("".join(f"{line}\n" for line in [*steps, *lines]))
    return path


def median_wps(what: Recipe, series: StepSeries) -> float | None:
    judged = judged_steps(what, series.steps)
    measurement = Measurement(
        recipe=what, steps=series.steps, judged=judged, gpus=8, matmul_flops_per_s=None, peak_flops_per_s=None
    )
    return statistics_of(get_engine("metaseq"))["median_wps"].compute(measurement)


def test_every_size_is_there_under_a_name_that_the_torch_recipes_do_not_have() -> None:
    """`-k opt125m` must not choose a recipe of another engine as well."""
    found = shipped_recipes()
    names = {name for name, each in found.items() if each.engine == "metaseq"}
    assert names == {f"metaseq{size}" for size in SIZES}
    assert all(found[f"metaseq{size}"].options["model_size"] == size for size in SIZES)
    assert not any(other in name for name in names for other in found if found[other].engine != "metaseq")


@pytest.mark.parametrize("size", SIZES)
def test_a_size_computes_what_the_torch_recipe_of_its_name_does(size: str) -> None:
    """Both follow the same table of metaseq's launcher; its benchmark mode has 50 steps."""
    found = shipped_recipes()
    own, torch = found[f"metaseq{size}"], found[f"opt{size}"]
    assert (own.model, own.optimizer) == (torch.model, torch.optimizer)
    assert (own.tokens_per_step, own.steps) == (torch.tokens_per_step, 50)
    copies = own.nodes * own.gpus_per_node // own.parallelism.tensor
    assert own.micro_batch_size * copies == own.samples_per_step


def test_one_node_runs_the_command_of_the_document() -> None:
    found = command(recipe())
    assert found.launcher == "once"
    assert " ".join(found.argv) == (
        "opt-baselines --model-size 125m --benchmark -t 1 -g 8 -n 1 -p metaseq125m --local --azure "
        "--checkpoints-dir /shared/runs/metaseq125m/checkpoints --no-wandb"
    )
    assert found.env == {}
    assert found.folder is None  # the launcher copies its sources to where it starts


def test_several_nodes_are_those_of_the_run() -> None:
    """The launcher starts its ranks in the allocation that is there, and submits nothing."""
    found = command(recipe("metaseq175b"), Topology(nodes=128, gpus_per_node=8))
    assert {"--salloc", "128"} <= set(found.argv)
    assert "--local" not in found.argv
    assert found.env == {"SLURM_KILL_BAD_EXIT": "1"}


def test_arguments_may_speak_of_the_environment_and_a_long_name_leaves_room_for_the_launcher_s_folder() -> None:
    own = recipe(options={"arguments": {"python": "{train_python}", "no-wandb": False}})
    assert command(own, paths={"train_python": "/opt/python"}).argv[-2:] == ("--python", "/opt/python")
    with pytest.raises(ConfigError, match="train_python"):
        command(own)
    argv = command(recipe().model_copy(update={"name": "x" * 100})).argv
    assert len(argv[argv.index("-p") + 1]) <= 50


def test_smoke_runs_the_training_program_on_every_rank() -> None:
    found = command(recipe(scale="smoke"), CPUS)
    assert found.launcher == "torchrun"
    assert found.argv[:4] == ("-m", "pytest_llmbench.workloads.cuda_on_cpu", "-m", "metaseq.cli.train")
    given = dict(zip(found.argv, found.argv[1:], strict=False))
    assert (given["--distributed-world-size"], given["--model-parallel-size"]) == ("2", "2")
    # One copy of the model makes two forward passes of 4 for the 8 sequences of an update.
    assert (given["--batch-size"], given["--update-freq"]) == ("4", "2")
    assert given["--adam-betas"] == "(0.9, 0.95)"
    assert given["--save-dir"] == "/shared/runs/metaseq125m/checkpoints"
    assert "--no-wandb" not in found.argv


@pytest.mark.parametrize(
    ("name", "nodes", "rounded"), [("metaseq125m", 128, 0), ("metaseq350m", 96, 0), ("metaseq175b", 96, 10)]
)
def test_a_batch_that_the_launcher_would_round_is_refused(name: str, nodes: int, rounded: int) -> None:
    (why,) = problems(recipe(name), Topology(nodes=nodes, gpus_per_node=8))
    assert f"opt-baselines would round in silence to {rounded} on each" in why


def test_other_shapes_that_cannot_run_are_refused() -> None:
    assert "do not divide into copies" in problems(recipe("metaseq175b"), Topology(nodes=1, gpus_per_node=4))[0]
    alone = recipe(parallelism={"tensor": 1})
    (why,) = problems(alone, Topology(nodes=2, gpus_per_node=1))
    assert "opt-baselines refuses fewer than 2 GPUs" in why
    assert "pass --scale smoke" in problems(recipe(), CPUS)[0]
    (why,) = problems(recipe(scale="smoke", global_batch_size=6), CPUS)
    assert "6 does not divide into micro batches of 4 on 1 copies" in why
    layout = {"tensor": 2, "pipeline": 2, "sequence": True, "activation_checkpointing": "selective"}
    said = "; ".join(problems(recipe(parallelism=layout), Topology(nodes=1, gpus_per_node=8)))
    assert all(f"has no {kind} parallelism; engine megatron_core has" in said for kind in ("pipeline", "sequence"))
    assert "engine metaseq checkpoints none or full, not selective" in said


@pytest.mark.parametrize("name", ["logs/output.log", "checkpoints/test-125m.dummy_lm.ngpu16/train.log", "train.log"])
def test_its_log_is_found_where_it_is(tmp_path: Path, name: str) -> None:
    log(tmp_path, DONE, name=name)
    console = tmp_path / "logs" / "output.log"
    console.parent.mkdir(exist_ok=True)
    console.touch()
    series = ENGINE.read(tmp_path, recipe())
    assert [step.step for step in series.steps] == [5, 10, 15, 20, 25]
    assert series.completed is not None
    assert series.unread == 0


@pytest.mark.parametrize("name", ["logs/output.log", "checkpoints/test-125m.dummy_lm.ngpu16/train.log"])
def test_progress_is_that_of_the_log_with_steps(tmp_path: Path, name: str) -> None:
    assert ENGINE.progress(tmp_path) is None
    assert ENGINE.laggards(tmp_path) == "it printed nothing"
    console = tmp_path / "logs" / "output.log"
    console.parent.mkdir()
    console.write_text("running command: srun ...\n")
    assert ENGINE.progress(tmp_path) is None
    log(tmp_path, "the last words", name=name)
    assert ENGINE.progress(tmp_path) == Progress(step=25, seconds=524288 / 1.23457e6)
    assert ENGINE.laggards(tmp_path) == "the last line of its output is: the last words"


def test_what_a_rank_said_last_explains_a_run_without_proof(tmp_path: Path) -> None:
    """The launcher keeps it apart from the log, and ends with exit code 0."""
    log(tmp_path, name="checkpoints/a/train.log")
    (tmp_path / "checkpoints/a/train.stderr.17").write_text("RuntimeError: CUDA error: out of memory\n")
    series = ENGINE.read(tmp_path, recipe())
    assert series.completed is None
    assert series.failure == "RuntimeError: CUDA error: out of memory"


def test_the_statistic_of_record_is_the_median_without_the_first_line(tmp_path: Path) -> None:
    log(tmp_path, DONE)
    found = median_wps(recipe(), ENGINE.read(tmp_path, recipe()))
    assert found == stats.median(map(float, RATES[1:])) == pytest.approx(935_536.2)
    assert recipe().statistic_of_record == "median_wps"


@pytest.mark.parametrize("line", [
    LINE.format(index=9, loss=3, wps="0", ups=0, step=30),
    LINE.format(index=9, loss=3, wps="1", ups=0, step=30).replace("wps", "x"),
])  # fmt: skip
def test_a_line_without_a_rate_leaves_no_number(tmp_path: Path, line: str) -> None:
    """A rate of 0 means that the clock has just started. Some of the lines are no measurement, and one line is none."""
    log(tmp_path, line, DONE)
    assert median_wps(recipe(), ENGINE.read(tmp_path, recipe())) is None
    (tmp_path / "logs" / "output.log").write_text(LINE.format(index=1, loss=9, wps="200000", ups=0.38, step=5) + "\n")
    assert median_wps(recipe(), ENGINE.read(tmp_path, recipe())) is None


OVERFLOW = (
    "x | INFO | metaseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 2.0"
)


@pytest.mark.parametrize(("line", "doubt"), [
    ("x | INFO | metaseq_cli.train | Stopping training due to num_updates: 50 >= max_update: 50", None),
    ("x | INFO | metaseq_cli.train | Stopping training due to num_updates: 25 >= max_update: 25",
     "its own limit is 25 updates; the recipe has 50"),
    (OVERFLOW, None),
    ("\n".join([OVERFLOW] * 12), None),
    ("\n".join([OVERFLOW] * 13), "13 passes were discarded next to 50 updates"),
])  # fmt: skip
def test_what_its_other_lines_say_against_it(tmp_path: Path, line: str, doubt: str | None) -> None:
    """Another end than the recipe's, and many passes whose time counts in words per second, and whose words do not."""
    log(tmp_path, line, DONE)
    found = list(ENGINE.doubts(recipe(), NODE, ENGINE.read(tmp_path, recipe())))
    assert len(found) == (doubt is not None)
    assert doubt is None or found[0].startswith(doubt)


@pytest.mark.parametrize(
    ("topology", "wps", "sane"), [(CPUS, "3776.1", True), (CPUS, "4176.1", False), (NODE, "3776.1", False)]
)
def test_on_busy_cpus_its_clocks_may_be_read_apart(tmp_path: Path, topology: Topology, wps: str, *, sane: bool) -> None:
    """In a true log, five steps took 0.68 s, and 10 ms lie between the two clocks: the rank waited for its turn."""
    path = tmp_path / "logs" / "output.log"
    path.parent.mkdir()
    lines = [
        LINE.format(index=index, loss=7 - index, wps=rate, ups=ups, step=5 * index).replace("524288", "512")
        for index, (rate, ups) in enumerate([(wps, 7.27), ("2506", 4.89)], start=1)
    ]
    path.write_text("".join(f"{line}\n" for line in [*lines, DONE]))
    what = recipe(scale="smoke")
    found = list(ENGINE.doubts(what, topology, ENGINE.read(tmp_path, what)))
    assert [doubt for doubt in found if "has wps" in doubt] == found
    assert (found == []) == sane
