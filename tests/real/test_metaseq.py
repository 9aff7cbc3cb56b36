"""metaseq itself, on CPU ranks.

The environment's path `train_python`, if it has one, stands for the python of the launcher's train command: a program
that leaves out what no CPU can do, and trains sequences of 128 tokens, one on each copy of the model.
"""

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.cluster.system import System, load_system
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import Place, Script
from pytest_llmbench.engines.metaseq.engine import ENGINE
from pytest_llmbench.session.script.scripts import write_script
from tests.conftest import UserFolder, require_slurm, slurm_nodes
from tests.support.shipped import shipped_recipes

FRAMEWORK = "metaseq"
SYSTEM = os.environ.get("LLMBENCH_METASEQ_SYSTEM")
RECIPES = {name: recipe for name, recipe in shipped_recipes().items() if recipe.engine == "metaseq"}
# Stands in for a program that the launcher starts, and writes down its arguments.
RECORDER = '#!/bin/sh\nprintf "%s\\n" "$@" > {}\n'
EIGHT_MILLION: dict[str, Any] = {
    "engine": "metaseq", "gpus_per_node": 8,
    "model": {"layers": 4, "hidden_size": 128, "attention_heads": 2, "vocab_size": 2044}, "sequence_length": 128,
    "global_batch_size": 2, "micro_batch_size": 1, "precision": "fp32", "optimizer": {"learning_rate": 1.0e-3},
    "steps": 50, "warm_up": {"rule": "skip_first", "steps": 5}, "time_limit": "00:10:00",
    "statistic_of_record": "median_wps",
    "options": {"model_size": "8m_mp1", "arguments": {"python": "{train_python}", "no-wandb": True}},
}  # fmt: skip


@pytest.fixture(scope="module")
def system(system_file: str) -> System:
    return load_system(system_file, [])


def test_a_small_model_learns(user: UserFolder, system_file: str) -> None:
    user.test()
    result = user.run(f"--system={system_file}", "--scale", "smoke", "-n0", "-k", "metaseq125m")
    verdicts = {name: case.properties["verdict"] for name, case in result.cases.items()}
    assert verdicts == {
        "test_reference[metaseq125m-azure_200k]": "SKIP",  # it is for GPUs
        "test_reference[metaseq125m-loss_falls]": "PASS",
    }, result.text
    record = result.record("metaseq125m")
    assert [step["step"] for step in record["steps"]] == list(range(5, 41, 5))
    assert all(step["tokens"] == 8 * 64 for step in record["steps"])
    assert record["metrics"]["median_wps"]["value"] > 0.0
    assert record["provenance"]["git_commit"]
    assert record["device"] == "cpu"


def test_the_launcher_itself_trains(user: UserFolder, system: System, system_file: str) -> None:
    """`opt-baselines --benchmark --local` with its smallest model: all of the run but the python of its ranks."""
    if "train_python" not in system.environments["metaseq"].paths:
        pytest.skip("the environment has no train_python")
    user.recipe("eight", **EIGHT_MILLION)
    result = user.run(f"--system={system_file}", "-n0", "-k", "eight")
    assert result.case.properties["verdict"] == "PASS", result.text
    record = result.record("eight")
    assert [step["step"] for step in record["steps"]] == list(range(5, 51, 5))
    assert record["metrics"]["loss_drop"]["value"] > 0.5


@pytest.mark.slurm
def test_the_launcher_itself_trains_on_nodes(user: UserFolder, system: System, system_file: str) -> None:
    """`opt-baselines --benchmark --salloc`: its own srun starts two ranks on each of two nodes and writes their log."""
    require_slurm()
    if "train_python" not in system.environments["metaseq"].paths:
        pytest.skip("the environment has no train_python")
    here = yaml.safe_load(Path(system_file).read_text())
    (user.path / "here.yaml").write_text(yaml.safe_dump({**here, "cluster": "slurm"}))
    # The launcher asks for 12 processors for each rank.
    options = {**EIGHT_MILLION["options"], "arguments": {**EIGHT_MILLION["options"]["arguments"], "cpus-per-task": 1}}
    user.recipe("eight", **{**EIGHT_MILLION, "nodes": 2, "global_batch_size": 4, "options": options})
    with slurm_nodes():
        result = user.run("--system=here.yaml", "-n0", "-k", "eight")
    assert result.case.properties["verdict"] == "PASS", result.text
    record = result.record("eight")
    assert len(set(record["hosts"])) == 2
    assert [step["step"] for step in record["steps"]] == list(range(5, 51, 5))
    assert all(step["tokens"] == 4 * 128 for step in record["steps"])
    assert record["metrics"]["loss_drop"]["value"] > 0.5
    (log,) = result.session.glob("runs/eight/checkpoints/*/train.log")
    assert "done training in " in log.read_text()


def test_a_training_that_fails_is_an_error_though_the_launcher_succeeds(user: UserFolder, system_file: str) -> None:
    """`opt-baselines --local` drops the exit code of the training: nothing proves that it did its work."""
    user.recipe("eight", **{**EIGHT_MILLION, "options": {"model_size": "8m_mp1", "arguments": {"python": "false"}}})
    result = user.run(f"--system={system_file}", "-n0", "-k", "eight")
    assert result.case.properties["verdict"] == "ERROR", result.text
    record = result.record("eight")
    assert record["problem"]["kind"] == "no_evidence_of_completion"
    assert "done training" in record["problem"]["message"]
    assert json.loads((result.session / "runs" / "eight" / "driver.json").read_text())["exit_code"] == 0


def asked(recipe: Recipe, system: System, folder: Path) -> dict[str, str]:
    """What the launcher asks of metaseq's training program, by flag, when a recipe's script runs on its own nodes."""
    topology = Topology(nodes=recipe.nodes, gpus_per_node=recipe.gpus_per_node)
    place = Place(folder=folder, environment=system.environments["metaseq"], slurm=True, time_limit_min=1)
    work = ENGINE.work(recipe, topology, place)
    assert isinstance(work, Script)
    (command,) = work.commands
    programs = folder / "programs"
    programs.mkdir()
    for name in ("python", "srun"):
        (programs / name).write_text(RECORDER.format(shlex.quote(str(folder / "asked"))))
        (programs / name).chmod(0o755)
    command = replace(command, argv=(*command.argv, "--python", str(programs / "python")))
    (folder / "run.sh").write_text(write_script(Script(commands=(command,)), place, topology, system.env))
    # Our `srun` is first on PATH only if the environment has no PATH of its own.
    env = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "run.sh"], cwd=folder, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert (folder / "asked").exists(), done.stdout
    words = (folder / "asked").read_text().splitlines()
    return {
        word.removeprefix("--"): following if not following.startswith("--") else ""
        for word, following in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--")
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_the_launcher_does(name: str, system: System, tmp_path: Path) -> None:
    """Shape, batch, steps and optimizer of a recipe are those that the launcher gives to the training program."""
    recipe = RECIPES[name]
    found = asked(recipe, system, tmp_path)
    world = recipe.nodes * recipe.gpus_per_node
    model, optimizer = recipe.model, recipe.optimizer
    expected = {
        "distributed-world-size": world, "decoder-layers": model.layers, "decoder-embed-dim": model.hidden_size,
        "decoder-ffn-embed-dim": 4 * model.hidden_size, "decoder-attention-heads": model.attention_heads,
        "dict-size": model.vocab_size, "dropout": model.dropout, "tokens-per-sample": recipe.sequence_length,
        "batch-size": recipe.micro_batch_size, "update-freq": 1, "max-update": recipe.steps,
        "model-parallel-size": recipe.parallelism.tensor, "lr": optimizer.learning_rate,
        "end-learning-rate": optimizer.learning_rate / 10, "warmup-updates": optimizer.warmup_steps,
        "weight-decay": optimizer.weight_decay, "clip-norm": optimizer.clip_grad_norm, "adam-eps": optimizer.eps,
        "log-interval": recipe.warm_up.steps,
    }  # fmt: skip
    assert {key: float(found[key]) for key in expected} == pytest.approx(expected)
    assert found["adam-betas"] == str(optimizer.betas)
    assert found["ddp-backend"] == "fully_sharded"
    assert {"memory-efficient-fp16", "checkpoint-activations", "no-reshard-after-forward"} <= found.keys()
    assert recipe.micro_batch_size * world == recipe.samples_per_step * recipe.parallelism.tensor
    assert Path(found["save-dir"]).parent == tmp_path / "checkpoints"
    assert ("nodes" in found) == (recipe.nodes > 1)
    assert found.get("nodes", "1") == str(recipe.nodes)
