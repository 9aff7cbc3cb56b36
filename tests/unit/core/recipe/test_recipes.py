"""Recipe files: what they mean, how mistakes in them are told, and the ranks of a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe, SyntheticTokens, TokenFile, load_recipes
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import merge, validate
from tests.support.shipped import SCALES

SMALL: dict[str, Any] = {
    "model": {"layers": 2, "hidden_size": 32, "attention_heads": 2, "vocab_size": 256},
    "global_batch_size": 8, "micro_batch_size": 2,
}  # fmt: skip
FAMILY: dict[str, Any] = {
    "family": "tiny",
    "defaults": {
        "engine": "torch", "sequence_length": 32, "optimizer": {"learning_rate": 1e-3}, "steps": 12,
        "time_limit": "00:05:00",
        "references": [
            {
                "name": "learns", "statistic": "loss_drop", "at_least": "0.1 nat", "why": "it must", "source": "here",
                "date": "2026-01-01",
            }
        ],
    },
    "smoke": {"sequence_length": 16, "model": {"layers": 1}, "precision": "fp32"},
    "recipes": {"small": SMALL, "large": merge(SMALL, {"model": {"layers": 4}})},
}  # fmt: skip

Load = Callable[..., dict[str, Recipe]]


def dump(data: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False)
    return text


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Read the family with some of its values replaced, or the given text, as the recipe file it is."""

    def run(changes: dict[str, Any] | str | None = None, **options: Any) -> dict[str, Recipe]:
        text = changes if isinstance(changes, str) else dump(merge(FAMILY, changes or {}))
        (tmp_path / "tiny.yaml").write_text(text)
        return load_recipes([tmp_path], **options)

    return run


def test_defaults_are_under_every_recipe_and_smoke_over_it(load: Load) -> None:
    full, smoke = load()["small"], load(scale="smoke")["small"]
    assert (full.name, full.scale, full.sequence_length, full.model.layers) == ("small", "full", 32, 2)
    assert (smoke.name, smoke.scale, smoke.sequence_length, smoke.model.layers) == ("small", "smoke", 16, 1)
    assert smoke.model.hidden_size == full.model.hidden_size
    assert (full.precision, smoke.precision) == ("bf16", "fp32")
    assert full.time_limit == 5


def test_recipes_come_in_the_order_of_files_and_names(load: Load, tmp_path: Path) -> None:
    (tmp_path / "also.yaml").write_text(dump(FAMILY | {"recipes": {"zebra": SMALL, "ant": SMALL}}))
    (tmp_path / "notes.txt").write_text("no recipe")
    assert list(load()) == ["zebra", "ant", "small", "large"]


def test_a_recipe_survives_json_and_counts_its_work_over_all_ranks(load: Load) -> None:
    recipe = load({"defaults": {"optimizer": {"learning_rate": 0.1 + 0.2}}})["small"]
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert validate(Recipe, recipe.model_dump(mode="json"), "task") == recipe
    assert load()["small"].tokens_per_step == 8 * 32


def test_data_is_of_the_kind_that_is_named(load: Load) -> None:
    assert load()["small"].data == SyntheticTokens()
    data = {"kind": "token_file", "path": "/data/tokens", "dtype": "int32"}
    assert load({"defaults": {"data": data}})["small"].data == TokenFile.model_validate(data)


REFERENCE = FAMILY["defaults"]["references"][0]
_UPPER = {key: value for key, value in REFERENCE.items() if key != "at_least"} | {"name": "cap", "at_most": "-9 nat"}


def references(**changes: Any) -> dict[str, Any]:
    """Build the change that replaces values of the one reference."""
    return {"defaults": {"references": [REFERENCE | changes]}}


@pytest.mark.parametrize(("changes", "messages"), [
    ({"famly": 1}, ["tiny.yaml: famly: unknown key 'famly' (did you mean 'family'?); legal: defaults, family, "]),
    ({"defaults": {"stpes": 1}}, ["tiny.yaml: recipe small: stpes: unknown key 'stpes' (did you mean 'steps'?)"]),
    ({"recipes": {"large": {"model": {"layer": 3}}}},
     ["recipe large: model.layer: unknown key 'layer' (did you mean 'layers'?); legal: activation, "]),
    ({"defaults": {"optimizer": {"lr": 3}}}, ["recipe small: optimizer.lr: unknown key 'lr'",
                                              "legal: betas, clip_grad_norm, decay, eps, learning_rate, "]),
    (references(applies_to={"gpuss": 1}), ["references.0.applies_to.gpuss: unknown key",
                                           "did you mean 'gpus'?); legal: gpu, gpus, nodes, system"]),
    ({"defaults": {"data": {"kind": "synthetic", "path": "x"}}}, ["data.synthetic.path: unknown key"]),
    ({"defaults": {"data": {"kind": "tokens"}}}, ["data: ", "'synthetic', 'token_file'"]),
    (references(at_least=0.1), ["references.0.at_least: 0.1 has no unit; write it with one"]),
    (references(at_least="5 words/s"), ["references.0: a bound in words/s belongs to a machine: add applies_to"]),
    ({"defaults": {"references": [REFERENCE, REFERENCE]}},
     ["recipe small: two references share a name: learns, learns"]),
    ({"defaults": {"references": [REFERENCE, _UPPER]}},
     ["recipe small: references learns and cap cannot both hold: no loss_drop is at least"]),
    ({"smoke": {"stpes": 1}}, ["tiny.yaml: recipe small at scale smoke: stpes: unknown key 'stpes'"]),
    ({"smoke": {"model": {"heads": 1}}}, ["at scale smoke: model.heads: unknown key 'heads'"]),
    ({"smoke": {"steps": 5}}, ["recipe small at scale smoke: 5 steps leave none to judge after 5 of warm-up"]),
    ({"defaults": {"time_limit": "soon"}}, ["recipe small: time_limit: 'soon' is not a time limit"]),
    ({"defaults": {"warm_up": {"rule": "guess"}}}, ["warm_up.rule: ", "'skip_first'"]),
    ({"defaults": {"model": {"dropout": 1}}}, ["model.dropout: ", "less than 1"]),
    ({"smoke": {"model": {"attention_heads": 3}}}, ["hidden_size 32 does not divide into 3 attention heads"]),
    ({"recipes": {"small": {"engine": None}}}, ["recipe small: engine: "]),
    ({"recipes": []}, ["tiny.yaml: recipes: "]),
])  # fmt: skip
def test_mistakes_have_their_place(load: Load, tmp_path: Path, changes: dict[str, Any], messages: list[str]) -> None:
    """A mistake stops a file at any scale, and each line begins with its place."""
    for scale in SCALES:
        with pytest.raises(ConfigError) as error:
            load(changes, scale=scale)
        told = str(error.value)
        assert all(message in told for message in messages), told
        assert all(line.startswith(f"{tmp_path / 'tiny.yaml'}: ") for line in told.splitlines())


def test_a_mistake_in_yaml_is_told_with_its_line(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"line 4, column 15: 1:30:00 without quotes "):
        load("family: a\nrecipes: {}\ndefaults:\n  time_limit: 1:30:00")


def test_one_name_in_two_files_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(dump(FAMILY | {"recipes": {"small": SMALL}}))
    with pytest.raises(ConfigError, match="rename one") as error:
        load()
    for name in ("tiny.yaml", "other.yaml"):
        assert str(tmp_path / name) in str(error.value)


@pytest.mark.parametrize("block", ["defaults", "smoke", "own"])
@pytest.mark.parametrize("key", ["name", "scale"])
def test_a_file_does_not_name_or_scale_its_recipes(tmp_path: Path, block: str, key: str) -> None:
    """A recipe's name is its key and its scale is asked for: a file that says either is refused, not overruled."""
    blocks: dict[str, dict[str, str]] = {"defaults": {}, "smoke": {}, "own": {}}
    blocks[block] = {key: "smoke"}
    (tmp_path / "mine.yaml").write_text(
        f"family: mine\ndefaults: {blocks['defaults']}\nsmoke: {blocks['smoke']}\nrecipes: {{one: {blocks['own']}}}\n"
    )
    with pytest.raises(ConfigError, match=f"mine.yaml: {key}: must not be in a file"):
        load_recipes([tmp_path])


@given(st.integers(1, 4096), st.integers(0, 16), st.integers(1, 128))
def test_there_is_a_rank_per_gpu_or_the_cpu_ranks_asked_for(nodes: int, gpus: int, cpu_ranks: int) -> None:
    topology = Topology(nodes=nodes, gpus_per_node=gpus, cpu_ranks_per_node=cpu_ranks)
    assert topology.ranks_per_node == (gpus or cpu_ranks)
    assert topology.world_size == nodes * topology.ranks_per_node
    assert topology.gpus == nodes * gpus
    assert topology.device == ("cuda" if gpus else "cpu")


@pytest.mark.parametrize(("nodes", "gpus", "cpu_ranks", "text"), [
    (1, 8, 1, "1 node × 8 GPUs"), (128, 1, 1, "128 nodes × 1 GPU"), (1, 0, 1, "1 node × 1 CPU rank"),
    (2, 0, 4, "2 nodes × 4 CPU ranks"),
])  # fmt: skip
def test_it_reads_as_a_phrase(nodes: int, gpus: int, cpu_ranks: int, text: str) -> None:
    assert str(Topology(nodes=nodes, gpus_per_node=gpus, cpu_ranks_per_node=cpu_ranks)) == text
