"""A run's numbers computed again: the inputs of its statistics, and the comparison with what its record keeps.

Contradictions and thresholds start from a record's steps, verification and replay from the logs.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.series import EarlyVerdict, StepSeries
from pytest_llmbench.core.text import harmless
from pytest_llmbench.core.wire.foreign import REDACTED
from pytest_llmbench.judging.flops import doubt, rates_together
from pytest_llmbench.judging.statistics import Measurement, judged_steps

# Mathematical functions of another machine may round the last digit differently.
_TOLERANCE = 1e-9
# Fields whose words depend on the version that wrote them.
_WORDS = {"rule"}


def measurement_of(
    recipe: Recipe, series: StepSeries, *, gpus: int, early: EarlyVerdict | None, counts_flops: bool = True,
    peak_flops_per_s: float | None = None,
) -> Measurement:  # fmt: skip
    """Build the inputs of a run's statistics; after an early verdict the judged steps end at its last look."""
    early = early if early is not None and early.looks else None
    rates = rates_together(series.ranks)
    return Measurement(
        recipe=recipe,
        steps=series.steps,
        judged=[step for step in judged_steps(recipe, series.steps) if early is None or step.step <= early.look],
        unread=series.unread,
        early=early,
        gpus=gpus,
        totals=series.totals,
        telemetry=series.telemetry,
        counts_flops=counts_flops,
        matmul_flops_per_s=max(rates, default=None),
        matmul_doubt=doubt(rates) if rates else 1.0,
        peak_flops_per_s=peak_flops_per_s,
    )


def measurement_of_record(record: RunRecord) -> Measurement:
    """Build the inputs of a run's statistics from its record, which lacks the published peak of its GPUs."""
    series = StepSeries(
        ranks=record.rank_info, steps=record.steps, unread=len(record.unreadable), totals=record.totals,
        telemetry=record.telemetry,
    )  # fmt: skip
    return measurement_of(record.recipe, series, gpus=record.gpus, early=record.early)


def differences(where: str, kept: Any, computed: Any, *, words: bool = False, whole: bool = False) -> Iterator[str]:
    """Yield how a kept value of a record, of any type, differs from the one computed again from the logs, part by part.

    `where` names the value in the messages. With `words`, this version may have written the record, and its sentences
    are compared, too; with `whole`, it surely has, and a field that is missing is a difference.
    """
    if isinstance(kept, list | tuple) and isinstance(computed, list | tuple):
        if len(kept) != len(computed):
            yield f"{where}: the record has {len(kept)} of them, the log {len(computed)}"
        for number, (one, other) in enumerate(zip(kept, computed, strict=False), 1):
            yield from differences(f"{where}[{number}]", one, other, words=words, whole=whole)
        return
    parts, others = _parts(kept), _parts(computed)
    if parts is None or others is None:
        if not same(kept, computed):
            yield _difference(where, kept, computed)
        return
    for name in sorted((not whole and _written(kept)) or {*parts, *others}):
        if name in _WORDS and isinstance(kept, BaseModel) and not words:
            continue
        if name in parts and name in others:
            yield from differences(f"{where}.{name}", parts[name], others[name], words=words, whole=whole)
        else:
            yield _difference(f"{where}.{name}", parts.get(name, "nothing"), others.get(name, "nothing"))


def same(kept: Any, computed: Any, tolerance: float = _TOLERANCE) -> bool:
    """True if two plain values are equal, apart from a share `tolerance` of a number and from redacted secrets."""
    if isinstance(kept, bool) or isinstance(computed, bool) or kept is None or computed is None:
        return kept is computed
    if isinstance(kept, float) or isinstance(computed, float):
        if not isinstance(kept, int | float) or not isinstance(computed, int | float):
            return False
        close = math.isclose(kept, computed, rel_tol=tolerance, abs_tol=0.0)
        return close or (math.isnan(kept) and math.isnan(computed))
    if isinstance(kept, str) and isinstance(computed, str):
        computed = harmless(computed)
        if REDACTED in kept:
            return re.fullmatch(".*".join(map(re.escape, kept.split(REDACTED))), computed, re.DOTALL) is not None
    return bool(kept == computed)


def count_numbers(value: Any) -> int:
    """Count the numbers in plain data."""
    if isinstance(value, Mapping):
        return sum(count_numbers(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(count_numbers(part) for part in value)
    return int(isinstance(value, int | float) and not isinstance(value, bool))


def _parts(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value if isinstance(value, Mapping) else None


def _written(kept: Any) -> set[str]:
    """The fields that a record has; the version that wrote it may have had fewer, which are at their defaults here."""
    if isinstance(kept, BaseModel):
        return kept.model_fields_set
    of_class = fields(kept) if is_dataclass(kept) else ()
    return {field.name for field in of_class if getattr(kept, field.name) != field.default}


def _difference(where: str, kept: Any, computed: Any) -> str:
    return f"{where}: the record says {harmless(str(kept))[:200]}, the log {harmless(str(computed))[:200]}"
