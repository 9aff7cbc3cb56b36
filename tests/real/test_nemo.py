"""NeMo 2 itself, on CPU ranks, and the launcher of NeMo Megatron itself.

The launcher's folder has its checkouts `src_22.06` (dd62d99c) and `src_22.09` (6cac4824), and a `venv` that can run
them.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import Place, Script
from pytest_llmbench.engines.nemo.launcher import ENGINE
from pytest_llmbench.session.script.scripts import write_script
from tests.conftest import UserFolder, require_slurm, slurm_nodes
from tests.real.conftest import REPOSITORY, built
from tests.support.shipped import shipped_recipes

FRAMEWORK = "nemo"
#: test variable LLMBENCH_NEMO_SYSTEM: a system file with both engines of NeMo
SYSTEM = os.environ.get("LLMBENCH_NEMO_SYSTEM")
DATA = Path(__file__).parents[1] / "data" / "nemo"
RECIPES = {name: recipe for name, recipe in shipped_recipes().items() if recipe.engine == "nemo_launcher"}
TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps([scalar.value for scalar in events.Scalars("train_step_timing in s")]))
"""
# As pyxis would: options of its own that srun itself does not know, an image, mounts of what is there.
PYXIS = """import os, sys
words, left, seen = sys.argv[1:], [], {}
while words and words[0].startswith("-"):
    word = words.pop(0)
    name, found, value = word.partition("=")
    if "container-" in name:
        flag = name in {"--container-mount-home", "--no-container-mount-home"}
        seen[name] = True if flag else value if found else words.pop(0)
        continue
    left.append(word)
    if not found and name in {"--output", "-o", "-e"}:
        left.append(words.pop(0))
if not seen.get("--container-image"):
    sys.exit("pyxis: no image")
for mount in seen["--container-mounts"].split(","):
    if not os.path.exists(mount.split(":")[0]):
        sys.exit(f"pyxis: couldn't mount {mount}")
here = os.path.dirname(os.path.abspath(__file__))
path = [folder for folder in os.environ["PATH"].split(":") if folder != here]
real = next(f"{folder}/srun" for folder in path if os.access(f"{folder}/srun", os.X_OK))
os.execv(real, ["srun", *left, *words])
"""
# Stands in for the image's Python: rank 0 prints the output of a real run, and has its event file.
PYTHON = """#!/bin/sh
case "$*" in *pretrain*) ;; *) exit 0 ;; esac
echo "$SLURMD_NODENAME $SLURM_PROCID $SLURM_NTASKS $SLURM_NNODES" >> {seen}-$SLURM_STEP_NODELIST
[ "$SLURM_PROCID" = 0 ] || exit 0
for word; do
  case "$word" in
    training.exp_manager.explicit_log_dir=*) results="${{word#*=}}" ;;
    --config-path=*) results="${{word#*=}}/results" ;;
  esac
done
mkdir -p "$results" && {python} {moved} "$results" && cat {log}
"""
# Its events are of the time at which that was.
MOVED = """import sys, time
from pathlib import Path
sys.path[:0] = [{repository!r}, {repository!r} + "/tests/support"]  # the launcher has a package `tests` as well
from events import moved
(events,) = Path({data!r}).glob("events.out.tfevents.*")
(Path(sys.argv[1]) / events.name).write_bytes(moved(events.read_bytes(), time.time()))
"""


@pytest.fixture(scope="module")
def launcher() -> Path:
    #: test variable LLMBENCH_NEMO_LAUNCHER_ROOT: a folder with checkouts of NVIDIA's launcher
    named = os.environ.get("LLMBENCH_NEMO_LAUNCHER_ROOT")
    return Path(named) if named else built("nemo_launcher")


def test_a_small_model_learns(user: UserFolder, system_file: str) -> None:
    result = user.run("--system", system_file, "--scale", "smoke", "-n0", "-k", "aws_torchrun_gpt3_126m")
    assert result.case.properties["verdict"] == "PASS", result.text
    record = result.record("aws_torchrun_gpt3_126m")
    assert [step["step"] for step in record["steps"]] == list(range(1, 41))
    assert all(step["tokens"] == 8 * 32 for step in record["steps"])
    assert record["metrics"]["loss_drop"]["value"] > 0.5
    assert record["totals"]["end_training"] >= record["totals"]["begin_training"]
    assert record["provenance"]["nemo-toolkit"]
    (events,) = result.session.rglob("events.out.tfevents.*")
    environment = load_system(system_file, []).environments["nemo_torchrun"]
    done = subprocess.run(
        [environment.python, "-c", TENSORBOARD, str(events)], capture_output=True, text=True, check=True
    )
    timings = json.loads(done.stdout)
    assert [step["seconds"] for step in record["steps"]] == timings
    assert record["metrics"]["step_time_after_5"]["value"] == pytest.approx(sum(timings[5:]) / 35)


def written(recipe: Recipe, folder: Path, launcher: Path) -> tuple[str, dict[str, Any], list[str]]:
    """What the launcher makes of a recipe on its own nodes: its script, the configuration, and the srun in the script.

    The run's own script runs, with a recorder in the place of srun.
    """
    version = str(recipe.options["version"])
    root = launcher / f"src_{version}"
    environment = Environment(
        root=str(root),
        data="/data",
        python=str(launcher / "venv" / "bin" / "python3"),
        paths={"bpe": "/data/bpe"},
        env={"NCCL_TOPO_FILE": "/opt/microsoft/ndv4-topo.xml", "NCCL_DEBUG": "INFO", "PYTHONWARNINGS": "ignore"},
        # 22.09 runs in its image, which is not here; bare, it knows one of its own.
        container=Container(runtime="pyxis", image="image:tag", mounts=("/opt/microsoft:/opt/microsoft",))
        if version == "22.06"
        else None,
    )
    run = folder / "session" / "runs" / recipe.name
    run.mkdir(parents=True)
    topology = Topology(nodes=recipe.nodes, gpus_per_node=recipe.gpus_per_node)
    place = Place(folder=run, environment=environment, slurm=True, time_limit_min=recipe.time_limit)
    work = ENGINE.work(recipe, topology, place)
    assert isinstance(work, Script)
    (run / "run.sh").write_text(write_script(work, place, topology, {}))
    (folder / "srun").write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > {shlex.quote(str(run / "asked"))}\n')
    (folder / "srun").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "run.sh"], cwd=run, env=env, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    asked = (run / "asked").read_text().split("\0")[:-1]
    if version == "22.06":
        script = (run / "train.sh").read_text()
        said = dict(word.split("=", 1) for word in shlex.split(asked[-1]) if "=" in word)
        return script, {name.removeprefix("training."): value for name, value in said.items()}, asked
    (path,) = run.glob("results/*/*_submission.sh")
    (hydra,) = run.glob("results/*/*_hydra.yaml")
    return path.read_text(), flat(yaml.safe_load(hydra.read_text())), asked


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_the_launcher_does(name: str, tmp_path: Path, launcher: Path) -> None:
    """Shape, batch, steps and optimizer of a recipe are those of the launcher's configuration."""
    recipe = RECIPES[name]
    script, said, asked = written(recipe, tmp_path, launcher)
    model, spread, optimizer = recipe.model, recipe.parallelism, recipe.optimizer
    expected = {
        "trainer.num_nodes": recipe.nodes, "trainer.devices": recipe.gpus_per_node, "trainer.max_steps": recipe.steps,
        "trainer.log_every_n_steps": 1, "trainer.gradient_clip_val": optimizer.clip_grad_norm,
        "model.micro_batch_size": recipe.micro_batch_size, "model.global_batch_size": recipe.global_batch_size,
        "model.tensor_model_parallel_size": spread.tensor, "model.pipeline_model_parallel_size": spread.pipeline,
        "model.encoder_seq_length": recipe.sequence_length, "model.num_layers": model.layers,
        "model.hidden_size": model.hidden_size, "model.ffn_hidden_size": 4 * model.hidden_size,
        "model.num_attention_heads": model.attention_heads, "model.hidden_dropout": model.dropout,
        "model.optim.lr": optimizer.learning_rate, "model.optim.weight_decay": optimizer.weight_decay,
        "model.optim.sched.warmup_steps": optimizer.warmup_steps,
        "model.optim.sched.min_lr": optimizer.learning_rate / 10, "exp_manager.step_timing_kwargs.buffer_size": 5,
    }  # fmt: skip
    assert {key: float(said[key]) for key in expected} == pytest.approx(expected)
    assert said["trainer.precision"] == recipe.precision
    assert str(said["model.sequence_parallel"]) == str(spread.sequence)
    granularity = str(said["model.activations_checkpoint_granularity"])
    recomputed = "none" if granularity == "full" else granularity  # of 0 layers
    assert recomputed == spread.activation_checkpointing
    distributed = str(said["model.optim.name"]).startswith("distributed")
    assert distributed == (spread.sharding == "optimizer")
    assert f"--nodes={recipe.nodes}\n" in script
    assert "--ntasks-per-node=8\n" in script
    assert str(tmp_path) in str(said["exp_manager.explicit_log_dir"])
    if recipe.options["version"] == "22.06":
        assert asked[asked.index("--container-image") + 1] == "image:tag"
        mounts = asked[asked.index("--container-mounts") + 1].split(",")
        results = f"{tmp_path}/session/runs/{name}/results"
        assert mounts[1:] == ["/data:/data", f"{results}:{results}", "/opt/microsoft:/opt/microsoft"]
        assert said["env_vars.NCCL_TOPO_FILE"] == "/opt/microsoft/ndv4-topo.xml"
        assert not list((launcher / "src_22.06/bignlp/train_scripts").glob("*.sh"))
    else:
        assert "export NCCL_TOPO_FILE=/opt/microsoft/ndv4-topo.xml" in script
        assert "\n/usr/bin/time srun " in script


@pytest.mark.slurm
@pytest.mark.parametrize("version", ["22.06", "22.09"])
def test_the_script_that_it_writes_runs_on_our_nodes(version: str, user: UserFolder, launcher: Path) -> None:
    """Two runs on two nodes each of four: its srun, which names no nodes or tasks, starts one task on each."""
    require_slurm()
    programs = user.path / "programs"
    programs.mkdir()
    (programs / "srun").write_text(f"#!{sys.executable}\n{PYXIS}")
    (user.path / "moved.py").write_text(MOVED.format(repository=str(REPOSITORY), data=str(DATA)))
    (programs / "python3").write_text(
        PYTHON.format(
            seen=user.path / "seen", log=DATA / "output.log", python=sys.executable, moved=user.path / "moved.py"
        )
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    environment = {
        "root": str(launcher / f"src_{version}"),
        "data": str(user.path),
        "python": str(launcher / "venv" / "bin" / "python3"),
        "setup": [f"export PATH={programs}:$PATH"],
        "env": {"PYTHONWARNINGS": "ignore"},
    }
    system = {"name": "here", "cluster": "slurm", "gpus_per_node": 0, "cpu_ranks_per_node": 1}
    (user.path / "here.yaml").write_text(yaml.safe_dump({**system, "environments": {"nemo_launcher": environment}}))
    user.recipe(
        "launched", engine="nemo_launcher", parallelism={"tensor": 2}, global_batch_size=8, steps=40, nodes=2,
        warm_up={"steps": 5}, options={"version": version, "training": "gpt3/126m"},
    )  # fmt: skip
    with slurm_nodes():
        result = user.run("--system", "here.yaml", "--nodes", "4", "--nodes-per-run", "2", "-n0", "-k", "launched")
    assert [case.properties["verdict"] for case in result.cases.values()] == ["PASS", "PASS"], result.text
    tasks = [line.split() for path in user.path.glob("seen-*") for line in path.read_text().splitlines()]
    assert len({host for host, *_ in tasks}) == len(tasks) == 4
    for key in ("launched-group1", "launched-group2"):
        record = result.record(key)
        own = sorted(task[1:] for task in tasks if task[0] in record["hosts"])
        assert own == [["0", "2", "2"], ["1", "2", "2"]]
        assert record["metrics"]["step_time_after_5"]["value"] == pytest.approx(0.16908189292464937)
        if version == "22.09":
            assert record["totals"]["end_training"] >= record["totals"]["begin_training"]
            assert record["metrics"]["elapsed"]["value"] == record["totals"]["elapsed_s"]
