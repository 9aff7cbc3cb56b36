"""Plain PyTorch: a decoder trained with DDP or FSDP, by `workloads.train` on every rank."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from pytest_llmbench.core.recipes import Recipe
from pytest_llmbench.core.series import StepSeries
from pytest_llmbench.core.topology import Topology
from pytest_llmbench.engines._progress import laggards, last_step
from pytest_llmbench.engines._step_log import read_steps
from pytest_llmbench.engines.base import Progress, RankTask

_ENTRY = "pytest_llmbench.workloads.train:train"
_MOST_RANKS_LISTED = 1024


class TorchEngine:
    """See `base.Engine`."""

    name = "torch"

    def missing(self) -> str | None:
        """Say how to install PyTorch where this process runs, or None when it is there."""
        if find_spec("torch") is None:
            return "engine torch needs PyTorch: pip install 'pytest-llmbench[torch]'"
        return None

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        """Yield every reason why this recipe cannot run on this topology."""
        if recipe.global_batch_size % (topology.world_size * recipe.micro_batch_size):
            yield (
                f"recipe {recipe.name}: a global batch of {recipe.global_batch_size} does not divide into "
                f"micro batches of {recipe.micro_batch_size} on {topology.world_size} ranks ({topology}); "
                f"it does on {_fitting(recipe)}"
            )
        if recipe.precision == "bf16" and topology.device == "cpu":
            yield (
                f"recipe {recipe.name} is bf16 on GPUs; this run has none: pass --scale smoke for the tiny "
                "CPU variant, or --gpus-per-node"
            )

    def task(self, recipe: Recipe, topology: Topology) -> RankTask:  # noqa: ARG002 - each rank knows its own
        """Build what each rank runs."""
        return RankTask(entry=_ENTRY, config=recipe.model_dump(mode="json"))

    def read(self, folder: Path) -> StepSeries:
        """Read what the ranks logged so far."""
        return read_steps(folder)

    def progress(self, folder: Path) -> Progress | None:
        """Read the end of rank 0's log."""
        return last_step(folder)

    def laggards(self, folder: Path) -> str:
        """Compare what the ranks say they are doing."""
        return laggards(folder)


def _fitting(recipe: Recipe) -> str:
    micro_batches, rest = divmod(recipe.global_batch_size, recipe.micro_batch_size)
    sizes = [] if rest else [size for size in range(1, _MOST_RANKS_LISTED + 1) if micro_batches % size == 0]
    return f"{', '.join(map(str, sizes))} ranks" if sizes else "no number of ranks: change a batch size"


ENGINE = TorchEngine()
