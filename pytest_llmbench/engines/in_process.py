"""Base class for engines that train in our own rank processes: their step logs contain everything."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Expected
from pytest_llmbench.core.record.series import Progress, StepSeries
from pytest_llmbench.core.wire import layout
from pytest_llmbench.engines.base import Engine, Place, RankTask
from pytest_llmbench.judging.statistics import judged_steps, typical_steps
from pytest_llmbench.readers.nccl import find_faults
from pytest_llmbench.readers.steps.gpu_window import read_telemetry
from pytest_llmbench.readers.steps.progress import laggards, last_step
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.readers.steps.times import read_times


class InProcess(Engine):
    """See `base.Engine`. An engine adds its name, what it needs, its entry and its `problems`."""

    entry: str  # function of every rank, `package.module:function`
    packages: Mapping[str, str] = {}  # required packages: distribution by import name
    extra: str | None = None  # the extra of pytest-llmbench that brings them, for an engine of ours
    ends_early = False  # as of `RankTask`
    kind: Literal["ranks", "command"] = "ranks"
    proof = "the end event of every rank's step log"

    def missing(self, recipe: Recipe | None = None) -> str | None:
        absent = [package for module, package in self.packages.items() if not installed(module)]
        if not absent:
            return None
        wanted = " ".join(absent) if self.extra is None else f"pytest-llmbench[{self.extra}]"
        return f"engine {self.name} needs {', '.join(absent)}: pip install '{wanted}'"

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> RankTask:
        config = recipe.model_dump(mode="json")
        return RankTask(entry=self.entry, config=config, env=self.env(recipe), ends_early=self.ends_early)

    def env(self, recipe: Recipe) -> Mapping[str, str]:
        """Return variables that the framework reads before a rank can set them."""
        return {}

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        series = read_steps(folder)
        judged = judged_steps(recipe, series.steps)
        watched, times = read_telemetry(folder, judged), read_times(folder, typical_steps(judged))
        transport = find_faults(sorted((folder / layout.NCCL).glob("*.log")))
        return series.model_copy(update={"telemetry": watched, "times": times, "transport": transport})

    def expected(self, recipe: Recipe, topology: Topology) -> Expected | None:
        return Expected()

    def progress(self, folder: Path) -> Progress | None:
        return last_step(folder)

    def laggards(self, folder: Path) -> str:
        return laggards(folder)


def installed(module: str) -> bool:
    """True if this Python finds a module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing, too
        return False
