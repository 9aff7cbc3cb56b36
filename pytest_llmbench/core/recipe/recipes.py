"""Recipes: named, complete training configurations. Data, not code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.reference import Reference, refuse_contradictions
from pytest_llmbench.core.recipe.shape import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import MinutesField, Name, Strict, merge, validate
from pytest_llmbench.core.yaml_files import read_yaml

Scale = Literal["full", "smoke"]
Precision = Literal["fp32", "bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
# Keys of a recipe that no file has: a name comes from the mapping, a scale from `--scale`.
NOT_WRITTEN = ("name", "scale")


class Optimizer(Strict):
    """AdamW with linear warm-up and decay to a tenth of the peak, linear as in the OPT baselines or along a cosine."""

    learning_rate: PositiveFloat
    """Peak learning rate of AdamW."""
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    """Number of steps in which the learning rate rises linearly."""
    decay: Literal["linear", "cosine"] = "linear"
    """Shape of the learning rate's decay to a tenth of its peak at the last step."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    eps: PositiveFloat = 1e-8
    """Term that AdamW adds to the denominator."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    """Weight decay of AdamW."""
    clip_grad_norm: PositiveFloat = 1.0
    """Largest L2 norm of the gradient; a longer one is scaled down."""


class SyntheticTokens(Strict):
    """Tokens drawn from a Zipf law.

    They depend on the seed and on the sequence's number in the whole run alone: the same on every machine
    and at any world size.
    """

    kind: Literal["synthetic"] = "synthetic"
    """Source of the tokens: a random draw from a Zipf law, or a file. Used by engines with ranks of our own."""
    seed: int = 1
    """Seed for synthetic tokens."""


class TokenFile(Strict):
    """A flat file of token ids, read through a memory map; `path` is on the nodes."""

    kind: Literal["token_file"]
    """Source of the tokens: a random draw from a Zipf law, or a file. Used by engines with ranks of our own."""
    path: Path
    """Token file on the nodes: flat binary token ids."""
    dtype: Literal["uint16", "uint32", "int32"] = "uint16"
    """Data type of a token id in the file."""


class Parallelism(Strict):
    """How the model is spread over the ranks."""

    sharding: Literal["none", "optimizer", "gradients", "full"] = "none"
    """State that is split over the copies of the model: nothing (DDP, ZeRO 0), the optimizer's state (ZeRO 1), also the
    gradients (ZeRO 2), also the parameters (ZeRO 3, FSDP).
    """
    tensor: PositiveInt = 1
    """Number of ranks that share each layer's matrices."""
    pipeline: PositiveInt = 1
    """Number of stages that the layers are divided into."""
    virtual_pipeline: PositiveInt = 1
    """Number of chunks of layers per stage, for the interleaved schedule."""
    context: PositiveInt = 1
    """Number of ranks that share each sequence in all layers."""
    expert: PositiveInt = 1
    """Number of ranks that share the experts of each layer, each of which is whole on its rank."""
    sequence: bool = False
    """Tensor-parallel ranks also split the sequence where a layer has no matrices."""
    activation_checkpointing: Literal["none", "selective", "full", "auto"] = "none"
    """Activations that the backward pass recomputes: none, of the attention, or of each block. With `auto`
    none if they fit the GPU by the estimate of the plan, and then micro batches are joined up to 16,384 tokens while
    these fit, too; else those of each block.
    """

    @property
    def model_parallel_size(self) -> int:
        """Ranks that train on one micro batch together."""
        return self.tensor * self.pipeline * self.context

    @property
    def expert_shares(self) -> int:
        """Ranks that share the experts of a layer: those of `expert`, or without these those of `tensor`."""
        return self.expert if self.expert > 1 else self.tensor


class Preparation(Strict):
    """Something that has to be there before the run, made by hand once: it is checked, never made, by a run."""

    name: Name
    """Name of this item in the list of what a run needs."""
    path: str | None = None
    """File, folder or pattern that must exist on the first node; `**` stands for any folders."""
    count: PositiveInt | None = None
    """Smallest number of files that the pattern must match; absent, one."""
    min_bytes: PositiveInt | None = None
    """Smallest size of each match, in bytes; for a folder, of its files together."""
    check: str | None = None
    """Shell command that must succeed in the engine's environment; give a path, a check, or both."""
    make: str
    """Command that makes it, shown to people and never run."""
    why: str = ""
    """Reason why the run needs it."""

    @model_validator(mode="after")
    def _something_to_look_at(self) -> Preparation:
        if self.path is None and self.check is None:
            raise ValueError("give a path, a check, or both")
        if self.path is None and (self.count or self.min_bytes):
            raise ValueError("count and min_bytes are about a path: give one")
        return self


class WarmUp(Strict):
    """The named rule that selects the judged steps: `skip_first` drops the first `steps` of them."""

    rule: Literal["skip_first"] = "skip_first"
    """Rule for the judged steps: `skip_first` judges all but the first `warm_up.steps`."""
    steps: Annotated[int, Field(ge=1)] = 5
    """Number of first steps that are not judged; must be less than the recipe's `steps`."""


class Deadlines(Strict):
    """Deadlines after which a run without progress is ended and named."""

    startup_s: PositiveFloat | None = 900.0
    """Seconds from launch to the first step of a run; null for a framework that may log no step."""
    hang_factor: PositiveFloat = 20.0
    """Multiple of the median step time without a step, after which the run hangs; never before `hang_floor_s`."""
    hang_floor_s: PositiveFloat = 60.0
    """Shortest time without a step, in seconds, after which a run may count as hanging."""
    pause_s: PositiveFloat = 1800.0
    """Longest pause, in seconds, of a process whose stack shows that it compiles or handles a checkpoint."""

    @property
    def meeting_s(self) -> float:
        """How long ranks wait for one another: as long as they may take to start, or an hour."""
        return 3600.0 if self.startup_s is None else self.startup_s


class Recipe(Strict):
    """One training benchmark, complete."""

    name: Name
    """Key of the recipe in `recipes`; set by the loader, not written."""
    description: str = ""
    """Description for people."""
    source: str = ""
    """Document that publishes the configuration."""
    engine: str
    """Name of the engine; another package or a `conftest.py` may bring further ones."""
    options: Mapping[str, Any] = {}
    """Options of this engine, by its own keys."""
    nodes: PositiveInt = 1
    """Number of nodes that the recipe was published for."""
    gpus_per_node: Annotated[int, Field(ge=0)] = 8
    """Number of GPUs per node that the recipe was published for."""
    model: ModelShape
    """Shape of the model."""
    parallelism: Parallelism = Parallelism()
    """Distribution of the model over the ranks."""
    sequence_length: PositiveInt
    """Tokens per sequence."""
    global_batch_size: PositiveInt | None = None
    """Number of sequences per optimizer step over all ranks."""
    gradient_accumulation_steps: PositiveInt | None = None
    """Number of micro batches per step of one copy of the model, instead of `global_batch_size`: the batch grows with
    the ranks."""
    micro_batch_size: PositiveInt
    """Number of sequences per forward pass of one copy of the model; the rest of the batch is accumulated."""
    precision: Precision = "bf16"
    """Precision of the matrix products; all but `fp32` need GPUs. With `fp8` (a scale for each tensor) and `mxfp8` (one
    for 32 values), the layers' products are in 8 bits and the rest in bf16; with `nvfp4`, they are in 4 bits.
    """
    compile: bool = True
    """On GPUs, engines `torch` and `deepspeed` (without sharding `full`) compile each block with `torch.compile`, and
    `megatron_core` fuses bias, dropout and residual.
    """
    optimizer: Optimizer
    """Optimizer and learning rate."""
    data: Annotated[SyntheticTokens | TokenFile, Field(discriminator="kind")] = SyntheticTokens()
    """Source of the tokens."""
    steps: PositiveInt
    """Number of optimizer steps."""
    end: Literal["steps", "time_limit", "target"] = "steps"
    """Intended end of the run; `time_limit` for one that is meant to be cut off, `target` for one that ends itself
    where its loss is low enough.
    """
    warm_up: WarmUp = WarmUp()
    """Steps that are left out of the judgement."""
    time_limit: MinutesField
    """Wall-clock limit of one run."""
    deadlines: Deadlines = Deadlines()
    """Deadlines of a run without progress."""
    statistic_of_record: str = "throughput"
    """Statistic that the source reports, by its own rule; batches are evaluated by it."""
    prepare: tuple[Preparation, ...] = ()
    """Things that must exist before the run."""
    scale: Scale = "full"
    """Scale of the run, set by `--scale`; not written."""
    references: tuple[Reference, ...] = ()
    """Bounds on statistics of the run; their names are unique within a recipe."""

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.steps <= self.warm_up.steps:
            raise ValueError(f"{self.steps} steps leave none to judge after {self.warm_up.steps} of warm-up")
        if self.global_batch_size is None and self.gradient_accumulation_steps is None:
            raise ValueError("give global_batch_size; or gradient_accumulation_steps, if it grows with the ranks")
        refuse_contradictions(self.references)
        return self

    def on(self, topology: Topology) -> Recipe:
        """The recipe with what depends on the number of nodes and ranks filled in: its batch, bounds per node."""
        references = tuple(reference.on(topology) for reference in self.references)
        size = self.global_batch_size
        if size is None:
            replicas = max(1, topology.world_size // self.parallelism.model_parallel_size)
            size = replicas * self.micro_batch_size * (self.gradient_accumulation_steps or 1)
        if (size, references) == (self.global_batch_size, self.references):
            return self  # of thousands of recipes, most need no second one
        return self.model_copy(update={"global_batch_size": size, "references": references})

    @property
    def samples_per_step(self) -> int:
        """Sequences of one optimizer step over all ranks; of a recipe that `on` returned."""
        if self.global_batch_size is None:
            raise ValueError(f"recipe {self.name}: its batch depends on the number of ranks; ask `on(topology)` first")
        return self.global_batch_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.samples_per_step * self.sequence_length


def load_recipes(folders: Iterable[Path], scale: Scale = "full") -> dict[str, Recipe]:
    """Read every recipe of every `*.yaml` in `folders`, by name in the order of the files.

    Raises ConfigError as `recipes_at_scales` does.
    """
    return {name: recipe for file in recipes_by_file(folders, scale).values() for name, recipe in file.items()}


def recipes_by_file(folders: Iterable[Path], scale: Scale = "full") -> dict[Path, dict[str, Recipe]]:
    """Read the recipes of each `*.yaml` in `folders` at one scale. Raises ConfigError as `recipes_at_scales` does."""
    read = recipes_at_scales(folders)
    return {path: {name: scales[scale] for name, scales in recipes.items()} for path, recipes in read.items()}


def recipes_at_scales(folders: Iterable[Path]) -> dict[Path, dict[str, dict[Scale, Recipe]]]:
    """Read the recipes of each `*.yaml` in `folders`, by name and scale.

    A file holds `recipes:`, a mapping of name to recipe, and optionally `defaults:`, laid under each of them, and
    `smoke:`, laid over each of them at `--scale smoke`. Raises ConfigError if a file or key is wrong, or two files use
    one name.
    """
    origin: dict[str, Path] = {}
    files: dict[Path, dict[str, dict[Scale, Recipe]]] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.yaml"))):
        files[path] = _recipes_of(path)
        for name in files[path]:
            if name in origin:
                raise ConfigError(f"recipe {name!r} is in both {origin[name]} and {path}; rename one")
            origin[name] = path
    return files


def _recipes_of(path: Path) -> dict[str, dict[Scale, Recipe]]:
    family = validate(RecipeFamily, read_yaml(path), str(path))
    recipes: dict[str, dict[Scale, Recipe]] = {}
    for name in family.recipes:
        laid_out = family.laid_out(name, path)
        full = validate(Recipe, laid_out["full"], in_file(path, name, "full"))
        smoke = validate(Recipe, laid_out["smoke"], in_file(path, name, "smoke")) if family.smoke else None
        recipes[name] = {"full": full, "smoke": smoke or full.model_copy(update={"scale": "smoke"})}
    return recipes


class RecipeFamily(Strict):
    """A recipe file."""

    family: str
    """Name of the family, for people."""
    recipes: dict[str, dict[str, Any]]
    """Own keys of each recipe, by its name."""
    defaults: Mapping[str, Any] = {}
    """Keys that are laid under each recipe."""
    smoke: Mapping[str, Any] = {}
    """Keys that are laid over each recipe at `--scale smoke`."""

    def laid_out(self, name: str, path: Path) -> dict[Scale, dict[str, Any]]:
        """All keys of a recipe of the file `path`, at each scale.

        Raises ConfigError if two keys exclude each other, or one is illegal in a file.
        """
        own = self.recipes[name]
        for block in (self.defaults, self.smoke, own):
            for key in sorted({*NOT_WRITTEN} & set(block)):
                raise ConfigError(f"{path}: {key}: must not be in a file: it comes from the mapping or from --scale")
        full = _lay(_lay(self.defaults, own, f"{path}: recipe {name}"), {"name": name})
        return {"full": full, "smoke": _lay(_lay(full, self.smoke, f"{path}: smoke"), {"scale": "smoke"})}


def in_file(path: Path, name: str, scale: Scale) -> str:
    """The place of a recipe, for people."""
    return f"{path}: recipe {name}{' at scale smoke' if scale == 'smoke' else ''}"


def _lay(base: Mapping[str, Any], over: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Merge, but let the one way of giving the batch size replace the other."""
    ways = {"global_batch_size", "gradient_accumulation_steps"}
    given = ways & set(over)
    if given == ways:
        raise ConfigError(f"{where}: global_batch_size and gradient_accumulation_steps: give one of them")
    return merge({key: value for key, value in base.items() if not given or key not in ways}, over)
