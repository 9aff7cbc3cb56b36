"""Recipes: named, complete training configurations. Data, not code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.reference import Reference
from pytest_llmbench.core.schema import MinutesField, Name, Strict, merge, read_yaml, validate

Scale = Literal["full", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "smoke")


class ModelShape(Strict):
    """A decoder-only transformer with learned positions and a tied output embedding.

    The feed-forward width is 4 × `hidden_size`, as in every published OPT size.
    """

    layers: PositiveInt
    hidden_size: PositiveInt
    attention_heads: PositiveInt
    vocab_size: PositiveInt
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _heads_divide(self) -> ModelShape:
        if self.hidden_size % self.attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.attention_heads} attention heads"
            )
        return self


class Optimizer(Strict):
    """AdamW with linear warm-up and linear decay to a tenth of the peak, as in the OPT baselines."""

    learning_rate: PositiveFloat
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    betas: tuple[float, float] = (0.9, 0.95)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip_grad_norm: PositiveFloat = 1.0


class SyntheticTokens(Strict):
    """Tokens drawn from a Zipf law.

    They depend on the seed and on the sequence's number in the whole run alone: the same on every machine
    and at any world size.
    """

    kind: Literal["synthetic"] = "synthetic"
    seed: int = 1


class TokenFile(Strict):
    """A flat file of token ids, read through a memory map; `path` is on the nodes."""

    kind: Literal["token_file"]
    path: Path
    dtype: Literal["uint16", "uint32", "int32"] = "uint16"


class Parallelism(Strict):
    """How the model is spread. `sharding: full` splits parameters, gradients and optimizer state."""

    sharding: Literal["none", "full"] = "none"
    activation_checkpointing: bool = False


class WarmUp(Strict):
    """The named rule that says which steps are judged: `skip_first` drops the first `steps` of them."""

    rule: Literal["skip_first"] = "skip_first"
    steps: Annotated[int, Field(ge=1)] = 5


class Deadlines(Strict):
    """When a run that makes no progress is ended and named.

    Attributes:
        startup_s: longest time from launch to the first step of every rank (compilation is in it).
        hang_factor: no step for this many times the median step time is a hang ...
        hang_floor_s: ... but never before this many seconds.
    """

    startup_s: PositiveFloat = 900.0
    hang_factor: PositiveFloat = 20.0
    hang_floor_s: PositiveFloat = 60.0


class Recipe(Strict):
    """One training benchmark, complete.

    Attributes:
        name: how `-k` and reports call it.
        engine: one of the modules of `pytest_llmbench.engines`.
        nodes, gpus_per_node: the shape it was published for; `--nodes` and `--gpus-per-node` override.
        global_batch_size: sequences per optimizer step over all ranks.
        micro_batch_size: sequences per forward pass of one rank; the rest is gradient accumulation.
        sequence_length: tokens per sequence.
        precision: `bf16` autocast needs a GPU, `fp32` runs anywhere.
        time_limit: wall clock of one run in Slurm's notation.
    """

    name: Name
    description: str = ""
    source: str = ""
    engine: str
    nodes: PositiveInt = 1
    gpus_per_node: Annotated[int, Field(ge=0)] = 8
    model: ModelShape
    parallelism: Parallelism = Parallelism()
    sequence_length: PositiveInt
    global_batch_size: PositiveInt
    micro_batch_size: PositiveInt
    precision: Literal["fp32", "bf16"] = "bf16"
    compile: bool = True
    optimizer: Optimizer
    data: Annotated[SyntheticTokens | TokenFile, Field(discriminator="kind")] = SyntheticTokens()
    steps: PositiveInt
    warm_up: WarmUp = WarmUp()
    time_limit: MinutesField
    deadlines: Deadlines = Deadlines()
    scale: Scale = "full"
    references: tuple[Reference, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.steps <= self.warm_up.steps:
            raise ValueError(f"{self.steps} steps leave none to judge after {self.warm_up.steps} of warm-up")
        names = [reference.name for reference in self.references]
        if len(set(names)) != len(names):
            raise ValueError(f"two references share a name: {', '.join(names)}")
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.global_batch_size * self.sequence_length


def load_recipes(folders: Iterable[Path], scale: Scale = "full") -> dict[str, Recipe]:
    """Read every recipe of every `*.yaml` in `folders`, by name in the order of the files.

    A file holds `recipes:`, a mapping of name to recipe, and optionally `defaults:`, laid under each
    of them, and `smoke:`, laid over each of them at `--scale smoke`.

    Raises:
        ConfigError: a file or key is wrong, or two files use one name.
    """
    found: dict[str, Recipe] = {}
    origin: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.yaml")):
            for name, recipe in _load_family(path, scale).items():
                if name in found:
                    raise ConfigError(f"recipe {name!r} is in both {origin[name]} and {path}; rename one")
                found[name], origin[name] = recipe, path
    return found


class _Family(Strict):
    """The shape of a recipe file."""

    family: str
    recipes: dict[str, dict[str, Any]]
    defaults: Mapping[str, Any] = {}
    smoke: Mapping[str, Any] = {}


def _load_family(path: Path, scale: Scale) -> dict[str, Recipe]:
    family = validate(_Family, read_yaml(path), str(path))
    recipes = {}
    for block in (family.defaults, family.smoke, *family.recipes.values()):
        for key in sorted({"name", "scale"} & set(block)):
            raise ConfigError(f"{path}: {key}: not for a file to say: it comes from the mapping or from --scale")
    for name, own in family.recipes.items():
        # Both scales are checked whatever is asked, so a typo in one does not wait for its day.
        full: Mapping[str, Any] = merge(merge(family.defaults, own), {"name": name})
        smoke = merge(merge(full, family.smoke), {"scale": "smoke"})
        both = {
            "full": validate(Recipe, full, f"{path}: recipe {name}"),
            "smoke": validate(Recipe, smoke, f"{path}: recipe {name} at scale smoke"),
        }
        recipes[name] = both[scale]
    return recipes
