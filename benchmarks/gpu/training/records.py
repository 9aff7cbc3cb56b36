"""The record of a benchmark of engines: what ran where, every launch, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.schema import Strict


class Launch(Strict):
    """One start of one variant.

    Attributes:
        row, variant, gpus: the cell of the table; on a CPU, `gpus` are ranks.
        turn: from 1; the first of a cell compiles, the others find its cache.
        ours: whether an engine of this package trained, or an alternative.
        seconds: wall clock of the launch.
        error: why it has no rate; None where it is good.
        log: where its output is kept, of a launch with an error.
        startup_s: from the launch to the end of step 1, compilation with it.
        tokens_per_s, samples_per_s: of the judged steps by their wall clock, over all GPUs.
        tflops_per_gpu: see `measuring.flops_per_token`; None where a step does not train the whole model.
        matmul_tflops_per_gpu: matrix-product rate that the ranks measured before, mean.
        peak_memory_gib: highest of any rank.
        step_seconds, losses, grad_norms: of every step that all ranks logged.
        statistics: those of pytest's run records, by name and unit, such as what the GPUs drew.
        versions: where they differ from the record's.
    """

    row: str
    variant: str
    gpus: int
    turn: int
    ours: bool
    seconds: float
    error: str | None = None
    log: str | None = None
    startup_s: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    tflops_per_gpu: float | None = None
    matmul_tflops_per_gpu: float | None = None
    peak_memory_gib: float | None = None
    step_seconds: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    statistics: Mapping[str, float] = {}
    versions: Mapping[str, str] = {}

    @property
    def cell(self) -> tuple[str, str, int]:
        """Row, variant and GPUs."""
        return self.row, self.variant, self.gpus


class Spread(Strict):
    """Some measurements of one thing."""

    median: float
    least: float
    most: float
    n: int


class Published(Strict):
    """What others have published for a cell, samples/s."""

    samples_per_s: float
    machine: str
    ratio: float


class Line(Strict):
    """What all launches of one cell say.

    Attributes:
        startup_first_s: of the first launch, with a cold cache.
        startup_warm_s: median of the others.
        agrees: whether all variants of the row and number of GPUs learn alike; None where one is alone.
        disagreement: how they do not.
        best_alternative: the fastest alternative of the row at this number of GPUs.
        ratio: of our median to that one's; None of an alternative, and where the variants do not learn alike.
        scaling: rate per GPU by that of one GPU in this record; None where a layer is shared by the GPUs.
        error: of the first launch that failed, or why there was none.
    """

    row: str
    variant: str
    gpus: int
    ours: bool
    tokens_per_s: Spread | None = None
    samples_per_s: Spread | None = None
    tflops_per_gpu: float | None = None
    matmul_tflops_per_gpu: float | None = None
    startup_first_s: float | None = None
    startup_warm_s: float | None = None
    peak_memory_gib: float | None = None
    loss_first: float | None = None
    loss_last: float | None = None
    agrees: bool | None = None
    disagreement: str | None = None
    best_alternative: str | None = None
    ratio: float | None = None
    scaling: float | None = None
    published: Published | None = None
    error: str | None = None


class Record(Strict):
    """One run of `engines.py`.

    Attributes:
        date: of its start, UTC.
        complete: whether everything that was asked for was started.
        machine: CPU, GPU, driver and the like, in words.
        versions: software of the ranks.
        source: the checkout's commit and whether it was changed; the package's version.
        recipes: what each cell trained, by `ROW VARIANT GPUS`.
        rules: how the numbers are made, in words.
    """

    schema_version: int = 1
    date: str
    command: str
    complete: bool
    seconds: float
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    source: Mapping[str, str]
    rules: Mapping[str, str]
    recipes: Mapping[str, Mapping[str, Any]]
    launches: tuple[Launch, ...]
    table: tuple[Line, ...]


def read_record(path: Path) -> Record:
    """Read a record back.

    Raises:
        ConfigError: it is not there, or no such record.
    """
    try:
        return Record.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path}: no record of engines.py: {error}") from error
