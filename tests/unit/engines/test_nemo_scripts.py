"""How the engines of NeMo are started: what cannot run, and the lines that run around NeMo."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.engines.base import Command, Place, Script
from pytest_llmbench.engines.nemo import gnu_time
from pytest_llmbench.engines.nemo.base import Nemo
from pytest_llmbench.engines.nemo.launcher import ENGINE as LAUNCHER
from pytest_llmbench.engines.nemo.torchrun import ENGINE as TORCHRUN
from pytest_llmbench.readers.items import Total
from tests.support.shipped import shipped_recipes

FULL = shipped_recipes()
SMOKE = shipped_recipes("smoke")
TWO_CPUS = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)


def place(folder: Path, *, slurm: bool = True, **environment: Any) -> Place:
    own = {"root": "/root", "data": "/data", "paths": {"bpe": "/bpe", "launcher": "/launcher"}, **environment}
    return Place(folder=folder, environment=Environment(**own), slurm=slurm, time_limit_min=90)


def commands(engine: Nemo, recipe: Recipe, where: Place) -> tuple[Command, ...]:
    work = engine.work(recipe, Topology(nodes=recipe.nodes, gpus_per_node=recipe.gpus_per_node), where)
    assert isinstance(work, Script)
    return work.commands


@pytest.mark.parametrize("name", [name for name, recipe in FULL.items() if recipe.engine.startswith("nemo")])
def test_a_number_of_nodes_that_does_not_divide_the_batch_is_refused(name: str) -> None:
    recipe = FULL[name]
    engine: Nemo = LAUNCHER if recipe.engine == "nemo_launcher" else TORCHRUN
    (problem,) = engine.problems(recipe, Topology(nodes=24 * 7, gpus_per_node=8))
    assert "does not divide" in problem
    *_, last = engine.problems(recipe, TWO_CPUS)
    assert "bf16 needs GPUs" in last


def test_a_sharding_that_nemo_lacks_is_refused() -> None:
    recipe = SMOKE["azure_gpt3_126m"]
    sharded = recipe.model_copy(update={"parallelism": recipe.parallelism.model_copy(update={"sharding": "full"})})
    assert list(LAUNCHER.problems(sharded, TWO_CPUS)) == ["engine nemo_launcher shards none or the optimizer"]


def test_the_launcher_needs_slurm() -> None:
    with pytest.raises(ConfigError, match="--cluster slurm"):
        LAUNCHER.work(SMOKE["azure_gpt3_126m"], TWO_CPUS, place(Path("/run"), slurm=False))


def test_the_launcher_of_22_06_runs_on_the_host_and_that_of_22_09_in_its_image() -> None:
    image = Container(runtime="pyxis", image="image", mounts=("/root:/root", "/other:/other"))
    where = place(Path("/shared/session/runs/one"), container=image)
    old, new = (commands(LAUNCHER, FULL[name], where) for name in ("azure_gpt3_5b", "aws_gpt3_5b"))
    assert [command.bare for command in old] == [True, True]
    assert [command.bare for command in new] == [False, True]
    assert "debug=True" in old[0].argv
    assert new[0].env["BIGNLP_DEBUG"] == "1"
    for generate, _ in (old, new):
        # The launcher mounts its root itself.
        assert 'container_mounts=["/other:/other"]' in generate.argv
        assert "training.run.time_limit=01:30:00" in generate.argv
    assert "training.run.name=session-one" in old[0].argv
    assert "s|/root:/root,||" in new[1].argv[0]
    assert all(command.env == {"SLURM_GPUS_PER_NODE": "8"} for command in (old[1], new[1]))


def test_a_smoke_model_is_the_recipe_s() -> None:
    """What the launcher is told of the tiny model is what the recipe's own fields say."""
    for recipe in (SMOKE["azure_gpt3_175b"], SMOKE["aws_gpt3_175b"]):
        said = dict(word.partition("=")[::2] for word in commands(LAUNCHER, recipe, place(Path("/run")))[0].argv)
        model = recipe.model
        assert (int(said["training.model.num_layers"]), int(said["training.model.hidden_size"])) == (
            model.layers, model.hidden_size,
        )  # fmt: skip
        assert int(said["training.model.num_attention_heads"]) == model.attention_heads
        assert {int(said[f"training.model.{name}"]) for name in ("encoder_seq_length", "data.seq_length")} == {
            recipe.sequence_length
        }
        assert float(said["training.model.optim.lr"]) == recipe.optimizer.learning_rate
        assert int(said["training.model.global_batch_size"]) == recipe.global_batch_size


def test_the_copy_of_a_configuration_stands_alone(tmp_path: Path) -> None:
    """The launcher's file speaks of itself as `training`, and of the launcher's data folder."""
    configs = tmp_path / "launcher" / "conf" / "training" / "gpt3"
    configs.mkdir(parents=True)
    (configs / "126m.yaml").write_text(
        "a: ${training.run.results_dir}/results\nb: ${data_dir}/bpe/vocab.json\nc: ${multiply:${training.model.d}, 2}\n"
    )
    run = tmp_path / "a run"
    run.mkdir()
    where = place(run, paths={"bpe": "/bpe", "launcher": str(tmp_path / "launcher")}, data="/my data")
    copy, begin, train, end = commands(TORCHRUN, FULL["aws_torchrun_gpt3_126m"], where)
    subprocess.run(["bash", "-c", copy.argv[0]], check=True)
    assert (run / "config" / "126m.yaml").read_text() == (
        "a: ${run.results_dir}/results\nb: /my data/bpe/vocab.json\nc: ${multiply:${model.d}, 2}\n"
    )
    assert "--config-name=126m.yaml" in train.argv
    assert [command.bare for command in (copy, begin, train, end)] == [False, True, False, True]
    assert (train.launcher, train.folder) == ("torchrun", "/root")


def test_the_dates_are_what_the_reader_reads() -> None:
    *_, begin, _, end = commands(TORCHRUN, FULL["aws_torchrun_gpt3_126m"], place(Path("/run")))
    for command, name in ((begin, "begin_training"), (end, "end_training")):
        env = {"LC_ALL": "de_DE.UTF-8", "TZ": "Asia/Tokyo", "PATH": "/usr/bin:/bin"}
        done = subprocess.run(["bash", "-c", command.argv[0]], check=True, capture_output=True, text=True, env=env)
        (total,) = gnu_time.parse(done.stdout.strip())
        assert isinstance(total, Total)
        assert total.name == name


def test_a_program_of_nemo_2_is_told_the_recipe() -> None:
    recipe = SMOKE["aws_torchrun_gpt3_5b"]
    _, train, _ = commands(TORCHRUN, recipe, place(Path("/run")))
    assert train.argv[:4] == (
        "-m", "pytest_llmbench.workloads.cuda_on_cpu", "-m", "pytest_llmbench.engines.nemo.ranks.gpt",
    )  # fmt: skip
    told = Recipe.model_validate_json(train.argv[train.argv.index("--recipe") + 1])
    assert (told.model, told.parallelism, told.optimizer) == (recipe.model, recipe.parallelism, recipe.optimizer)
    assert (told.steps, told.tokens_per_step, told.data) == (recipe.steps, recipe.tokens_per_step, recipe.data)
    assert not told.references
