"""Engine deepspeed_chat: the arguments of the source's scripts, the log's head, what its last lines must add up to."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster.runs import RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.engines.base import BatchLog, Command, Place, Script
from pytest_llmbench.engines.deepspeed_chat.engine import ENGINE
from pytest_llmbench.session.forecast import peak_of
from pytest_llmbench.session.script.prepared import PreparedRun, preparations, prepare
from tests.support.shipped import shipped_recipes

NODE = Topology(nodes=1, gpus_per_node=8)
TWO_NODES = Topology(nodes=2, gpus_per_node=8)
CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
RECIPES = {name: recipe for name, recipe in shipped_recipes().items() if recipe.engine == "deepspeed_chat"}
SMOKE = shipped_recipes("smoke")
PLACE = Place(
    folder=Path("/shared/run"),
    environment=Environment(
        root="/fork",
        data="/cache",
        paths={
            "opt_350m": "facebook/opt-350m", "opt_13b": "facebook/opt-13b", "opt_66b": "facebook/opt-66b",
            "actor": "/cache/actor", "critic": "/cache/critic", "on_cpu": "/on_cpu.py",
        },
        env={"NCCL_IB_HCA": "=mlx5_1,mlx5_2", "MY_SWITCH": "1", "HF_TOKEN": "x"},
        secrets={"PASSPHRASE": "/home/user/passphrase"},
    ),
    slurm=True,
    time_limit_min=20,
)  # fmt: skip
_PUBLISHED = Path(__file__).parents[2] / "data" / "published" / "deepspeed_chat.yaml"
# Arguments that the source's scripts give to `main.py` of each step.
SCRIPTS: Mapping[str, Mapping[str, str]] = yaml.safe_load(_PUBLISHED.read_text("utf-8"))


def commands(recipe: Recipe, topology: Topology = NODE, place: Place = PLACE) -> tuple[Command, ...]:
    script = ENGINE.work(recipe.on(topology), topology, place)
    assert isinstance(script, Script)
    return script.commands


def arguments(command: Command) -> dict[str, str]:
    """The arguments of `main.py` by name; a bare flag is empty."""
    pieces = re.split(r"(?:^| )--", " ".join(command.argv[1:]))[1:]
    return {name: value for name, _, value in (piece.partition(" ") for piece in pieces)}


@pytest.mark.parametrize("name", RECIPES)
def test_the_arguments_are_those_of_the_source(name: str) -> None:
    """Each recipe gives `main.py` of its step what the source's script gives it, and nothing else."""
    command = commands(RECIPES[name])[-1]
    assert command.launcher == "deepspeed"
    step = {"chat_13b_rlhf": "step3_rlhf_finetuning"}.get(name)
    step = step or ("step2_reward_model_finetuning" if "_rm" in name else "step1_supervised_finetuning")
    assert command.argv[0] == f"/fork/applications/DeepSpeed-Chat/training/{step}/main.py"
    assert arguments(command) == SCRIPTS[name]


def test_the_log_begins_with_the_hostfile() -> None:
    """Lambda's evaluator finds the hosts there; the shell that writes them needs no image."""
    head, _ = commands(RECIPES["chat_350m_bs24_zero0"])
    assert (head.launcher, head.shell, head.bare) == ("once", True, True)
    assert head.argv == ('cat "$LLMBENCH_HOSTFILE" && echo',)


def test_one_node_asks_nobody_by_ssh() -> None:
    """DeepSpeed would ask the node that it is on; of several it is told the first."""
    recipe = RECIPES["chat_350m_bs24_zero0"]
    meeting = ("--master_addr", "$LLMBENCH_FIRST_HOST", "--master_port", "$LLMBENCH_PORT")
    assert commands(recipe)[-1].launcher_args == ("--no_ssh_check", *meeting)
    assert commands(recipe, TWO_NODES)[-1].launcher_args == meeting


def test_other_nodes_get_the_variables_that_matter_and_no_secret(tmp_path: Path) -> None:
    """DeepSpeed's launcher takes along what is in a file that we make, as bash makes it."""
    _, variables, deepspeed = commands(RECIPES["chat_350m_bs24_zero0"], TWO_NODES, replace(PLACE, folder=tmp_path))
    assert deepspeed.env == {"DS_ENV_FILE": str(tmp_path / "deepspeed_env")}
    wanted = {
        "NCCL_IB_HCA": "=mlx5_1,mlx5_2", "UCX_TLS": "self", "MY_SWITCH": "1", "PATH": os.environ["PATH"],
        "PROJECT_PATH": "/p", "USER": "u",
    }  # fmt: skip
    unwanted = {"HF_TOKEN": "x", "PASSPHRASE": "x", "NCCL_MY_SECRET": "x", "HOME": "/home/u", "PATHS": "x"}
    subprocess.run(["bash", "-e", "-o", "pipefail", "-c", variables.argv[0]], env=wanted | unwanted, check=True)
    lines = (tmp_path / "deepspeed_env").read_text().splitlines()
    assert dict(line.split("=", maxsplit=1) for line in lines) == wanted


def test_an_image_on_several_nodes_needs_a_way_in() -> None:
    """`ssh` ends outside of the image, unless the images have servers of their own."""
    recipe, image = RECIPES["chat_350m_bs24_zero0"], Container(runtime="docker", image="chat")
    inside = replace(PLACE, environment=PLACE.environment.model_copy(update={"container": image}))
    assert len(commands(recipe, NODE, inside)) == 2
    with pytest.raises(ConfigError, match=r"give --nodes-per-run 1, or images with a server"):
        commands(recipe, TWO_NODES, inside)
    served = {"container": image, "launcher_args": ("--ssh_port", "2222")}
    own = replace(PLACE, environment=PLACE.environment.model_copy(update=served))
    assert len(commands(recipe, TWO_NODES, own)) == 3


@pytest.mark.parametrize("name", RECIPES)
def test_the_tiny_variant_runs_through_a_stand_in(name: str) -> None:
    command = commands(SMOKE[name], CPUS)[-1]
    assert command.argv[0] == "/on_cpu.py"
    assert command.env["MAIN"].endswith("_finetuning/main.py")
    given = arguments(command)
    # `main.py` of each step knows its own alone.
    assert given.keys() <= SCRIPTS[name].keys() | {"print_loss", "disable_dropout"}
    assert not {word for word in given if "lora" in word or "hybrid" in word}
    assert ("print_loss" in given) == ("step1" in command.env["MAIN"])


@pytest.mark.parametrize(("changes", "message"), [
    ({"precision": "bf16"}, "DeepSpeed-Chat trains in fp16, not bf16"),
    ({"parallelism": {"tensor": 2}}, "DeepSpeed-Chat has no tensor or pipeline parallelism"),
    ({"parallelism": {"activation_checkpointing": "selective"}}, "DeepSpeed-Chat checkpoints none or"),
    ({"optimizer": {"learning_rate": 1.0, "warmup_steps": 110}}, "110 steps leave none to time after"),
    ({"gradient_accumulation_steps": 2}, "its steps are micro batches, so that a step has 24 samples of"),
])  # fmt: skip
def test_what_it_cannot_run(changes: dict[str, object], message: str) -> None:
    plain = RECIPES["chat_350m_bs24_zero0"].model_dump(mode="json")
    recipe = Recipe.model_validate({**plain, "name": "x", **changes}).on(NODE)
    assert any(problem.startswith(message) for problem in ENGINE.problems(recipe, NODE))


def said(seconds: float, steps: int, rate: float) -> StepSeries:
    totals = {"execution_time_s": seconds, "execution_steps": float(steps), "throughput_samples_per_s": rate}
    return StepSeries(totals=totals, completed="Throughput")


def doubts(series: StepSeries, topology: Topology = NODE, name: str = "chat_350m_bs24_zero0") -> list[str]:
    return list(ENGINE.doubts(RECIPES[name].on(topology), topology, series))


@given(seconds=st.floats(1.0, 5000.0), nodes=st.integers(1, 64))
def test_rounding_raises_no_doubt(seconds: float, nodes: int) -> None:
    """Both numbers have four decimals, however long a run was and however many nodes it had; published ones add up."""
    assert doubts(said(20.3507, 100, 943.4550)) == []
    assert doubts(said(175.4549, 100, 72.9532), name="chat_13b_bs16_zero0") == []
    series = said(round(seconds, 4), 100, round(24 * 8 * nodes * 100 / seconds, 4))
    assert doubts(series, Topology(nodes=nodes, gpus_per_node=8)) == []


@pytest.mark.parametrize(("series", "message"), [
    (said(20.3507, 100, 943.4550 / 8), "117.932 samples/s over 20.3507 s are 2400 samples, where 100 steps of 24"),
    (said(20350.7, 100, 943.4550), "943.455 samples/s over 20350.7 s are"),
    (said(20.3507, 100, 943.4650), "943.465 samples/s over 20.3507 s are"),
    (said(4.0701, 20, 943.46), "it timed 20 steps where the recipe has 100"),
    (StepSeries(), "its log has no line `Execution time:` followed by `Throughput:`"),
])  # fmt: skip
def test_what_does_not_add_up_is_doubted(series: StepSeries, message: str) -> None:
    """Another unit, another number of ranks, another batch, too few steps, no last lines."""
    assert doubts(series)[0].startswith(message)


def test_the_two_numbers_swapped_are_doubted_where_steps_are_logged() -> None:
    steps = (Step(step=10, seconds=0.2032),)
    assert doubts(said(20.3507, 100, 943.4550).model_copy(update={"steps": steps})) == []
    (doubt,) = doubts(said(943.4550, 100, 20.3507).model_copy(update={"steps": steps}))
    assert doubt == "100 steps in 943.455 s, where the steps it logged take 0.203 s each"


def test_a_pair_or_an_episode_has_no_tokens_and_no_recipe_flops(tmp_path: Path) -> None:
    """A sample of step 1 is one sequence; of step 2 it is two, and of step 3 one that is generated first."""
    log = tmp_path / "run.log"
    log.write_text(
        "[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   train_batch_size ............. 192\n"
        "[2024-07-08 05:16:11,993] [INFO] [timer.py:258:stop] epoch=0/micro_step=10/global_step=10, "
        "RunningAvgSamplesPerSec=950.0, CurrSamplesPerSec=960.0, MemAllocated=5.53GB, MaxMemAllocated=33.78GB\n"
    )
    tokens = {name: ENGINE.read(log, RECIPES[name]).steps[0].tokens for name in RECIPES if "66b" not in name}
    assert tokens["chat_350m_bs24_zero0"] == tokens["chat_13b_bs16_zero0"] == 192 * 512
    assert tokens["chat_350m_rm"] is None
    assert tokens["chat_13b_rlhf"] is None
    assert all(ENGINE.uncounted(recipe) for recipe in RECIPES.values())


@pytest.mark.parametrize(("steps", "short"), [(90, True), (100, False), (110, False)])
def test_epochs_that_end_before_the_steps_are_named(tmp_path: Path, steps: int, *, short: bool) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"Execution time: 18.6705 seconds for {steps} steps\nThroughput: 59233.4026 samples/sec\n")
    said = ENGINE.read(log, RECIPES["chat_350m_bs24_zero0"]).short
    told = "it timed 90 steps where the recipe has 100: its epochs ended before its steps"
    assert (said is not None and said.startswith(told)) is short


def test_progress_counts_over_epochs(tmp_path: Path) -> None:
    """The fork numbers steps anew in every epoch; its log may also say none, and then nothing is known."""
    (tmp_path / "logs").mkdir()
    output = tmp_path / "logs" / "output.log"
    output.write_text("Beginning of Epoch 1/10, Total Micro Batches 40\n[Rank 0] time (ms) | overflow_check: 1.0\n")
    assert ENGINE.progress(tmp_path) is None
    with output.open("a") as log:
        log.write("Epoch: 0, Step: 39, Rank: 0, loss = 5.5\nBeginning of Epoch 2/10, Total Micro Batches 40\n")
        log.write("Epoch: 1, Step: 2, Rank: 0, loss = 5.25\nEpoch: 1, Step: 3, Rank: 0, lo")
    seen = ENGINE.progress(tmp_path)
    assert seen is not None
    assert seen.step == 43


def test_a_run_without_a_log_has_its_row_all_the_same(tmp_path: Path) -> None:
    """Lambda's evaluator never hears of it; here no run of a batch is lost."""
    log = tmp_path / "output.log"
    log.write_text("node-1 slots=8\n\nThroughput: 900.0000 samples/sec\n")
    runs = [BatchLog(path=log, hosts=("node-1",)), BatchLog(path=tmp_path / "none.log", hosts=("node-2", "node-3"))]
    assert ENGINE.evaluate is not None
    assert ENGINE.evaluate(runs, 900.0) == (
        b'Hostnames,Throughput (samples/sec),Status\r\nnode-1,900.0,Success\r\n"node-2, node-3",-1,Fail\r\n'
    )


def test_no_speed_is_held_against_a_peak() -> None:
    """What these steps compute is not what the formula says, so no bound is called impossible or bold by it."""
    system = load_system("Lambda_8xH100", [shipped("systems")])
    settings = Settings(system=system, cluster="slurm", allocation="run", run_dir=Path("/shared"))
    known = [name for name, recipe in RECIPES.items() if peak_of(recipe, settings) is not None]
    assert known == []


@pytest.mark.parametrize(("system", "most"), [("Lambda_8xH100", 64), ("Lambda_8xH100_docker", 1)])
def test_the_shipped_systems_can_run_it(system: str, most: int) -> None:
    """Bare on any number of nodes; in the document's image on one to a run, and the plan says so."""
    for nodes in (1, 2, 64):
        settings = Settings(
            system=load_system(system, [shipped("systems")]), cluster="slurm", allocation="session", nodes=nodes,
            run_dir=Path("/shared"),
        )  # fmt: skip
        for recipe in RECIPES.values():
            run = RunSpec(key=recipe.name, recipe=recipe.on(settings.topology(recipe)))
            prepared = prepare(run, settings, Session(id="s", folder=Path("/shared/s")))
            assert isinstance(prepared, PreparedRun) == (nodes <= most), prepared
            assert isinstance(prepared, PreparedRun) or "give --nodes-per-run 1" in prepared.message


@pytest.mark.parametrize("name", RECIPES)
def test_what_a_run_needs_is_looked_for_and_made_by_known_commands(name: str) -> None:
    """Every recipe is prepared; its checks are one shell command each, with names that the environment has."""
    items = {item.name: item for item in preparations(RECIPES[name], PLACE)}
    assert {"project-path", "open-files", "reach-of-other-nodes", "compiled-kernels", "model"} <= items.keys()
    for item in items.values():
        done = subprocess.run(["bash", "-n", "-c", item.check or ""], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{item.name}: {done.stderr}"


def checked(name: str, env: Mapping[str, str], before: str = "") -> bool:
    """Whether the check of a preparation succeeds, in the shell that runs it."""
    (check,) = [item.check for item in preparations(RECIPES["chat_350m_rm"], PLACE) if item.name == name]
    script = f"set -eo pipefail\n{before}\n{check}"
    done = subprocess.run(["bash", "-c", script], env={"PATH": os.environ["PATH"], **env}, check=False)
    return done.returncode == 0


@pytest.mark.parametrize(("nodes", "limit", "enough"), [(1, 256, True), (32, 256, True), (33, 256, False)])
def test_many_nodes_need_many_open_files(nodes: int, limit: int, *, enough: bool) -> None:
    """The document: beyond 32 nodes nothing is launched with 1024 of them."""
    hosts = ",".join(f"n{number}" for number in range(nodes))
    assert checked("open-files", {"LLMBENCH_HOSTS": hosts}, f"ulimit -n {limit}") is enough


def test_one_node_needs_no_way_to_others() -> None:
    assert checked("reach-of-other-nodes", {"LLMBENCH_HOSTS": "n1"})
    assert not checked("reach-of-other-nodes", {"LLMBENCH_HOSTS": "no-such-host-1,no-such-host-2"})


def test_compiled_kernels_are_found_where_they_are(tmp_path: Path) -> None:
    assert not checked("compiled-kernels", {"HOME": str(tmp_path)}, "python() { false; }")
    assert checked("compiled-kernels", {"HOME": str(tmp_path)}, "python() { true; }")
    for folder in ("extensions/fused_adam", ".cache/torch_extensions/py310_cu118/fused_adam"):
        path = tmp_path / folder / "fused_adam.so"
        path.parent.mkdir(parents=True)
        path.touch()
        where = {"HOME": str(tmp_path), "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
        assert checked("compiled-kernels", where, "python() { false; }")
        path.unlink()
