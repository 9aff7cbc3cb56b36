"""MLPerf Training: logs of submissions, each of which has a program of its own, are read and judged by `--replay`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import PositiveFloat

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.shape import DENSE
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.claims import Asks, SettingsCheck
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.engines.base import Place, Script, options_of
from pytest_llmbench.engines.external import External, check_training
from pytest_llmbench.engines.mlperf.log import READER
from pytest_llmbench.engines.overrides import Rules, Same
from pytest_llmbench.judging.memory import Footprint
from pytest_llmbench.judging.statistics import Statistic, time

_ONLY_READS = "engine mlperf reads logs, and a submission starts its own program: put its result_*.txt into a folder"


class MlperfOptions(Strict):
    """Options of this engine."""

    benchmark: str
    """Name of the benchmark, as the log has it in `submission_benchmark`."""
    target: PositiveFloat
    """Evaluated loss at which the run ends."""


class Mlperf(External):
    """See `base.Engine`."""

    name = "mlperf"
    proof = "the line `run_stop` with the status success"
    options = MlperfOptions
    reader = READER
    log_per_run = "result_*.txt"
    shapes = DENSE | {"parallelism.context"}
    statistics: Mapping[str, Statistic] = {
        "time_to_target": time(
            "from `run_start` to `run_stop`, evaluations included; the number of steps differs between runs",
            lambda m: m.totals.get("run_s"),
            of_speed=False,
        )
    }

    def missing(self, recipe: Recipe | None = None) -> str | None:
        return None if recipe is None else f"{_ONLY_READS}: --replay FOLDER"

    def problems(self, recipe: Recipe, topology: Topology) -> Iterator[str]:
        yield from ()  # `missing` refuses every launch

    def footprint(self, recipe: Recipe, topology: Topology) -> Footprint | None:
        return None

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:
        raise ConfigError(f"recipe {recipe.name}: {_ONLY_READS}, and give --replay FOLDER")

    def uncounted(self, recipe: Recipe) -> str | None:
        lora = options_of(recipe, MlperfOptions).benchmark.endswith("_lora")
        return "LoRA trains a part of the weights" if lora else None

    def asks(self, recipe: Recipe, topology: Topology) -> Asks:
        return {"context_parallel": recipe.parallelism.context}

    def compare(self, recipe: Recipe, topology: Topology, series: StepSeries) -> SettingsCheck:
        benchmark = Same(field="options.benchmark", allowed=(options_of(recipe, MlperfOptions).benchmark,))
        return Rules(same={"submission_benchmark": benchmark}).compare(series.settings)

    def read(self, folder: Path, recipe: Recipe) -> StepSeries:
        series = super().read(folder, recipe)
        return series.model_copy(update={"timed_twice": "blocks_without_a_mean" not in series.totals})

    def doubts(self, recipe: Recipe, topology: Topology, series: StepSeries) -> Iterator[str]:
        yield from check_training(self, recipe, topology, series, untrained=False)
        reached, target = series.totals.get("eval_accuracy"), options_of(recipe, MlperfOptions).target
        # The totals of a last line without its line end are left out.
        if "run_s" in series.totals and (reached is None or not reached <= target):
            yield f"it says that it succeeded with an evaluated loss of {reached}; the target is {target:g}"


ENGINE = Mlperf()
