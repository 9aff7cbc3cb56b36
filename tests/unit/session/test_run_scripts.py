"""Scripts of runs whose engine is a command: golden files, what other shapes change, how their checks are started."""

import difflib
import math
import os
import re
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.core.wire.fault import SimulatedFault
from pytest_llmbench.engines.base import Place, RankTask, get_engine
from pytest_llmbench.session.script.prepared import container_prefix, prepare, setup_of
from tests.conftest import TINY
from tests.support.golden import assert_golden
from tests.support.shipped import shipped_recipes

GOLDEN = Path(__file__).parents[2] / "golden" / "scripts"
# Each run's folder is /shared/run/runs/<recipe>.
SESSION = Session(id="run", folder=Path("/shared/run"))
# A system file, and recipes that run there as a command, for each engine, launcher and container: of the first recipe
# the whole script is kept, and of the others what they have instead.
KINDS = [
    ("juwels_booster", ["nlp175b", "nlp175b_jube", "nlp13b"]), ("nd96amsr_a100_v4", ["metaseq175b", "metaseq125m"]),
    ("lambda_8xh100", ["chat_13b_rlhf"]), ("lambda_8xh100", ["chat_350m_bs24_zero0", "chat_13b_bs16_zero0"]),
    ("lambda_8xh100_docker", ["chat_350m_bs24_zero0"]), ("nd96amsr_a100_v4", ["azure_gpt3_175b", "azure_gpt3_126m"]),
    ("p4de.24xlarge", ["aws_gpt3_175b", "aws_gpt3_5b"]),
    ("p4de.24xlarge", ["aws_torchrun_gpt3_175b", "aws_torchrun_gpt3_126m"]),
]  # fmt: skip
ROWS = [(system, recipe) for system, recipes in KINDS for recipe in recipes]
# DeepSpeed-Chat is published for one node; its launcher does more on several.
SEVERAL = ("lambda_8xh100", "chat_350m_bs24_zero0", 2)
NODES = (1, 2, 8, 96, 128)
SHAPE = "do not divide into copies of the model"
BATCH = "a global batch of .* does not divide"
SSH = "--nodes-per-run 1"
TIME = "at the published peak of .*, and its time limit is 240 min"
# The numbers of nodes that a recipe cannot run on, and words of the reason.
REFUSED = {
    ("juwels_booster", "nlp13b"): {1: SHAPE}, ("juwels_booster", "nlp175b"): {1: SHAPE, 2: SHAPE, 8: SHAPE},
    ("juwels_booster", "nlp175b_jube"): {1: SHAPE, 2: SHAPE, 8: SHAPE},
    ("nd96amsr_a100_v4", "metaseq125m"): {96: BATCH, 128: BATCH},
    ("nd96amsr_a100_v4", "metaseq175b"): {1: TIME, 2: TIME, 96: BATCH},
    ("lambda_8xh100_docker", "chat_350m_bs24_zero0"): {2: SSH, 8: SSH, 96: SSH, 128: SSH},
    ("nd96amsr_a100_v4", "azure_gpt3_126m"): {96: BATCH, 128: BATCH},
    ("nd96amsr_a100_v4", "azure_gpt3_175b"): {1: SHAPE, 2: SHAPE}, ("p4de.24xlarge", "aws_gpt3_5b"): {96: BATCH},
    ("p4de.24xlarge", "aws_gpt3_175b"): {1: SHAPE, 2: SHAPE, 96: BATCH},
    ("p4de.24xlarge", "aws_torchrun_gpt3_126m"): {96: BATCH, 128: BATCH},
    ("p4de.24xlarge", "aws_torchrun_gpt3_175b"): {1: SHAPE, 2: SHAPE, 96: BATCH},
}  # fmt: skip


@cache
def script(system: str, name: str, nodes: int) -> str:
    """The script of a recipe on so many nodes of a system, or one line that says why there is none."""
    settings = Settings(
        system=load_system(str(shipped("systems") / f"{system}.yaml"), []), cluster="slurm", allocation="run",
        nodes=nodes, run_dir=SESSION.folder.parent,
    )  # fmt: skip
    recipe = shipped_recipes()[name].on(settings.topology(shipped_recipes()[name]))
    prepared = prepare(RunSpec(key=name, recipe=recipe), settings, SESSION)
    return f"CANNOT RUN: {prepared.message}\n" if isinstance(prepared, Problem) else prepared.script or ""


def published(system: str, name: str) -> str:
    """The script of a recipe on the nodes that it is published for."""
    return script(system, name, shipped_recipes()[name].nodes)


def golden() -> dict[str, str]:
    """The text of each golden file, as this code writes it."""
    system, recipe, nodes = SEVERAL
    texts = {f"{system}/{recipe}_{nodes}_nodes.differences": differences(system, recipe, script(*SEVERAL))}
    for system, (kept, *others) in KINDS:
        texts[f"{system}/{kept}.sh"] = published(system, kept)
        for other in others:
            texts[f"{system}/{other}.differences"] = differences(system, kept, published(system, other))
    return texts


def differences(system: str, recipe: str, other: str) -> str:
    """What a recipe's published script has (-), and another script instead (+)."""
    lines = difflib.ndiff(parts(published(system, recipe)), parts(other))
    return "".join(f"{line}\n" for line in lines if line[0] in "+-")


def parts(text: str) -> list[str]:
    """The lines of a script, with a line for each flag and its values."""
    return [part for line in text.replace("\\\n", " ").splitlines() for part in re.split(r"\s+(?=-)", line)]


@pytest.mark.parametrize("name", golden())
def test_the_script_is_the_golden_one(name: str) -> None:
    """What runs on the nodes changes on purpose only. LLMBENCH_ACCEPT_GOLDEN=1 accepts what is there now."""
    assert_golden(GOLDEN / name, golden()[name], __file__)


def test_no_golden_file_is_left_over() -> None:
    assert {str(path.relative_to(GOLDEN)) for path in GOLDEN.rglob("*.*") if path.is_file()} == set(golden())


@pytest.mark.parametrize(("system", "recipe"), ROWS)
def test_another_number_of_nodes_changes_numbers_alone(system: str, recipe: str) -> None:
    """What is asked of the nodes is for as many as there are; a shape that the recipe does not have is refused."""
    texts = {nodes: script(system, recipe, nodes) for nodes in {*NODES, shipped_recipes()[recipe].nodes}}
    refused = REFUSED.get((system, recipe), {})
    assert {nodes for nodes, text in texts.items() if text.startswith("CANNOT RUN: ")} == set(refused)
    for nodes, why in refused.items():
        assert re.search(why, texts.pop(nodes))
    for nodes, text in texts.items():
        assert f"# {recipe}: {nodes} node" in text.splitlines()[1]
        asked = set(re.findall(r"(?:--nodes=|--nnodes=|num_nodes=|cluster\.nodes=| -n )(\d+)", text))
        assert asked <= {"1", str(nodes)}
        # DeepSpeed's launcher has its nodes from a file of hosts; with one node there is nothing to ask for.
        assert str(nodes) in asked or "--hostfile=" in text or nodes == 1
    assert len({without_numbers(text) for nodes, text in texts.items() if nodes > 1}) <= 1


def without_numbers(text: str) -> str:
    """The words of a script, with each number replaced."""
    return re.sub(r"\d+", "#", " ".join(text.replace("\\\n", " ").split()))


@pytest.mark.parametrize(("system", "recipe"), ROWS)
def test_a_flag_and_its_value_stay_on_one_line(system: str, recipe: str) -> None:
    """No line of a script ends with a flag whose value begins the next one."""
    for line, after in pairwise(published(system, recipe).splitlines()):
        last = line.removesuffix(" \\").split()[-1:] if line.endswith(" \\") else []
        assert not (last and re.fullmatch("--?[a-z][a-z0-9_-]*", last[0])) or after.lstrip().startswith("-")


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
