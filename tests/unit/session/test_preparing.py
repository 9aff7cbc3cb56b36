"""Preparing a run: how its checks reach the framework's environment, and what its ranks cannot be told."""

import math
import os
import subprocess
from pathlib import Path

import pytest

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.engines.base import Place, RankTask, get_engine
from pytest_llmbench.session.script.prepared import container_prefix, prepare, setup_of
from tests.conftest import TINY

FOLDER = Path("/shared/run")


def words(container: Container) -> str:
    place = Place(folder=FOLDER, environment=Environment(container=container), slurm=True, time_limit_min=5)
    return container_prefix(container, place, {"NCCL_DEBUG", "HF_TOKEN"})


def test_the_setup_is_that_of_the_script(tmp_path: Path) -> None:
    """First the file of exports, over it what the system's file says, and then the setup."""
    file = tmp_path / "with space.sh"
    file.write_text("export A=file B=file\n")
    environment = Environment(env_file=str(file), env={"B": "own value"}, setup=("C=$A$B",))
    script = "\n".join(["set -eo pipefail", *setup_of(environment), 'echo "$A, $B, $C"'])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout == "file, own value, fileown value\n"
    assert setup_of(Environment(setup=("module load x",))) == ("module load x",)


def test_pyxis_opens_the_image_once_on_the_first_node() -> None:
    assert words(Container(runtime="pyxis", image="/apps/x.sqsh", mounts=("/data:/data",))) == (
        'srun --nodes=1 --ntasks=1 --nodelist="$LLMBENCH_FIRST_HOST" --container-image=/apps/x.sqsh '
        "--container-mounts=/shared/run:/shared/run,/data:/data --container-workdir=/shared/run "
        "--no-container-mount-home"
    )


@pytest.mark.parametrize("runtime", ["enroot", "docker"])
def test_others_open_it_where_they_are_started(runtime: str) -> None:
    line = words(Container.model_validate({"runtime": runtime, "image": "image"}))
    assert runtime in line
    assert "srun" not in line
    assert "/shared/run:/shared/run" in line
    for name in ("HF_TOKEN", "NCCL_DEBUG", "LLMBENCH_HOSTFILE"):
        assert f"--env {name} " in line


def test_a_config_that_would_not_arrive_is_told_before_anything_starts(
    tmp_path: Path, unigram: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = Recipe.model_validate({**TINY, "name": "tiny"})
    task = RankTask(entry="some:train", config={"schedule": {"decay": [1.0, math.inf]}})
    monkeypatch.setattr(type(get_engine("unigram")), "work", lambda *_: task)
    system = load_system("local", list(SYSTEMS.usable().values()))
    settings = Settings(system=system, cluster="local", allocation="session", run_dir=tmp_path, gpus_per_node=0)
    assert prepare(RunSpec(key="tiny", recipe=recipe), settings, Session(id="s", folder=tmp_path / "s")) == Problem(
        kind="impossible",
        message="engine unigram: the config of its ranks: schedule.decay.1: must be a finite number (given: inf)",
    )


@pytest.mark.parametrize(("fault", "kind"), [("far-cores", "not_struck"), ("no-p2p", "environment_missing")])
def test_a_fault_of_our_ranks_never_strikes_a_program(
    tmp_path: Path, unigram: None, monkeypatch: pytest.MonkeyPatch, fault: str, kind: str
) -> None:
    """Its ranks adopt the variables of NCCL alone."""
    monkeypatch.setattr(type(get_engine("unigram")), "kind", "command")
    settings = Settings(
        system=load_system("local", list(SYSTEMS.usable().values())), cluster="local", allocation="session",
        run_dir=tmp_path, gpus_per_node=0, simulate=SimulatedFault.parse(fault),
    )  # fmt: skip
    run = RunSpec(key="tiny", recipe=Recipe.model_validate({**TINY, "name": "tiny"}))
    refused = prepare(run, settings, Session(id="s", folder=tmp_path / "s"))
    assert isinstance(refused, Problem)
    assert refused.kind == kind
