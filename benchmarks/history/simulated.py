"""Sessions of many recipes on one healthy system, as their records would be: each run made of simulated steps."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.core.record.records import RunRecord, Timings
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.history.database import History
from pytest_llmbench.history.importing import About, Imported, add_records
from pytest_llmbench.history.rows import file_record
from pytest_llmbench.judging.statistics import STATISTICS, Measurement, judged_steps, measure

# A real run, whose recipe, machine and folder the simulated ones share.
REAL = Path(__file__).parents[2] / "tests" / "data" / "h200" / "runs" / "opt125m" / "record.json"
_DAY_S = 86_400.0
_FIRST = 1_790_000_000.0
_NUMBERS = ("throughput", "step_time")


class Fleet:
    """Recipes that run once a day.

    Attributes:
        recipes: their names.
    """

    def __init__(
        self, seed: str, recipes: int = 20, *, between: float = 0.002, within: float = 0.01, steps: int = 80
    ) -> None:
        self._rng = random.Random(seed)
        self._real = RunRecord.read(REAL)
        self._within, self._between, self._steps = within, between, steps
        self.recipes = [f"{seed}-{number:02}" for number in range(recipes)]
        self._seconds = {name: self._rng.uniform(0.2, 2.0) for name in self.recipes}
        self._seed = seed

    def session_id(self, day: int) -> str:
        """Name of the session of a day."""
        return f"session-{self._seed}-{day:04}"

    def session(self, day: int, slower: Mapping[str, float] | None = None) -> dict[str, RunRecord]:
        """The run records of a day by key, some recipes slower by a share."""
        return {name: self._run(name, day, (slower or {}).get(name, 0.0)) for name in self.recipes}

    def _run(self, name: str, day: int, slower: float) -> RunRecord:
        rng, correlation, noise = self._rng, 0.3, 0.0
        level = self._seconds[name] * (1 + slower) * (1 + rng.gauss(0, self._between))
        steps = []
        for number in range(1, self._steps + 1):
            noise = correlation * noise + rng.gauss(0, 1) * (1 - correlation**2) ** 0.5
            seconds = level * (1 + self._within * noise)
            steps.append(Step(step=number, seconds=seconds, tokens=524288, samples=256, loss=9.0 - 0.01 * number))
        recipe = self._real.recipe.model_copy(update={"name": name, "steps": self._steps})
        judged = judged_steps(recipe, steps)
        numbers = {name: STATISTICS[name] for name in _NUMBERS}
        measurement = Measurement(
            recipe=recipe, steps=steps, judged=judged, gpus=1, matmul_flops_per_s=None, peak_flops_per_s=None
        )
        began = _FIRST + day * _DAY_S
        return self._real.model_copy(
            update={
                "session": self.session_id(day), "key": name, "recipe": recipe, "steps": tuple(steps),
                "metrics": measure(measurement, numbers), "steady": measurement.steady, "judgements": (),
                "timings": Timings(submitted=began, started=began, ended=began + 100.0),
            }
        )  # fmt: skip


def keep(history: History, records: Mapping[str, RunRecord], *tags: str) -> Imported:
    """Write the records of a session as an import would."""
    imported = Imported()
    first = next(iter(records.values()))
    rows = [
        file_record(record, record.path, hashlib.sha256(record.model_dump_json().encode()).hexdigest())
        for record in records.values()
    ]
    add_records(history, first.session, rows, ended=True, about=About(tags=tags), imported=imported)
    return imported
