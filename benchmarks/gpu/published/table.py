"""The table of `at_one_node.py`: every number that was measured, and beside it what the documents and others have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.training.records import Line, Record, read_record
from pytest_llmbench.core.record.curves import Curve, size_name

TRAININGS = ("azure", "scaling", "lambda", "slice")
COLLECTIVES = ("all_reduce", "collectives")
# Sizes of collectives that have a row; the records have all.
_LARGEST_SIZES = 4
_HEAD = ("| What | GPUs | Measured | Beside it | Ratio |", "|---|---|---|---|---|")
_MULTICAST = (
    "NVLink multicast is off in all that is measured here (NCCL_NVLS_ENABLE=0), in nccl-tests as well. Azure's numbers "
    "are of 16 GiB, and do not say whether it was on."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A number that somebody else has: samples/s or words/s of a training, GB/s of a collective."""

    value: float
    whose: str


_AZURE = Known(value=200_000, whose="at least 200,000 words/s on 8 × A100-80GB (Azure cyclecloud-llm, opt-175b)")
ASKED = {
    **dict.fromkeys(("azure125m", "azure125m_mp1", "azure125m_mp2"), _AZURE),
    "opt350m_sft": Known(
        value=600, whose="at least 600 samples/s (Lambda's document, its example: a reward model on two nodes)"
    ),
}
# Azure/azurehpc-health-checks @ 0e0a1ac2, of all_reduce_perf on a node of 8 H200.
HEALTH = (
    Known(value=431, whose="431 GB/s, Azure's configuration file for 8 × H200, at 16 GiB"),
    Known(value=480, whose="480 GB/s, its README, at 16 GiB"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table; its ratio is what was measured by what stands beside it."""

    what: str
    gpus: int
    measured: str
    beside: str = ""
    ratio: float | None = None

    def __str__(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.3g}"
        return f"| {self.what} | {self.gpus} | {self.measured} | {self.beside} | {ratio} |"


def markdown(folder: Path, facts: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines of the table of all records that are in a folder, below the facts that they share."""
    yield "# What the published documents ran, at the scale of one node"
    yield ""
    yield "; ".join(f"{name} {value}" for name, value in facts.items())
    yield ""
    yield from _HEAD
    for stage in TRAININGS:
        if (path := folder / f"{stage}.json").exists():
            yield from map(str, trained(read_record(path)))
    for stage in COLLECTIVES:
        if (path := folder / f"{stage}.json").exists():
            yield from map(str, communicated(json.loads(path.read_bytes())))
    yield ""
    yield _MULTICAST


def trained(record: Record) -> Iterator[Row]:
    """Yield the rows of a record of `engines.py`: each line, once for everything that stands beside it."""
    for line in record.table:
        smoke = record.recipes[f"{line.row} {line.variant} {line.gpus}"].get("scale") == "smoke"
        beside: list[tuple[str, float | None]] = [] if line.error is not None else [*_beside(line, smoke=smoke)]
        for text, ratio in beside or [("", None)]:
            what = f"`{line.row}` `{line.variant}`"
            yield Row(what=what, gpus=line.gpus, measured=_measured(line), beside=text, ratio=ratio)


def _measured(line: Line) -> str:
    if line.error is not None:
        return f"ERROR: {' '.join(line.error.split())[:200]}".replace("|", "\\|")
    rate, tflops = _rate(line), line.tflops_per_gpu
    said = "no rate" if rate is None else f"{rate:,.1f} samples/s" if _in_samples(line) else f"{rate:,.0f} words/s"
    work = [] if tflops is None else [f"{tflops:.1f} TFLOP/s/gpu" if tflops >= 0.1 else f"{tflops:.1e} TFLOP/s/gpu"]
    wrong = [] if line.disagreement is None else [f"DISAGREES: {line.disagreement}"]
    return ", ".join([said, *work, *wrong])


def _beside(line: Line, *, smoke: bool) -> Iterator[tuple[str, float]]:
    rate, asked = _rate(line), ASKED.get(line.row)
    if rate is not None and asked is not None and not smoke:
        yield asked.whose, rate / asked.value
    if line.published is not None:
        yield f"{line.published.samples_per_s:g} samples/s on {line.published.machine} (Lambda)", line.published.ratio
    if line.scaling is not None:
        yield f"{line.gpus} × the rate of one GPU", line.scaling


def _in_samples(line: Line) -> bool:
    return line.variant == "deepspeed"


def _rate(line: Line) -> float | None:
    spread = line.samples_per_s if _in_samples(line) else line.tokens_per_s
    return None if spread is None else spread.median


def communicated(document: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of a record of `collectives.py`: the largest sizes, the lowest ratio, and wrong values."""
    gpus, every = document["gpus"], document["rows"]
    for name, curves in document["ours"].items():
        rows = [row for row in every if row["collective"] == name]
        sizes = sorted({row["size"] for row in rows})[-_LARGEST_SIZES:]
        for row in (row for row in rows if row["size"] in sizes):
            yield from _of_size(row, gpus, largest=row["size"] == sizes[-1] and document["device"] == "cuda")
        if rows:
            least = min(rows, key=lambda row: row["ratio"])
            what = f"{name}, lowest ratio of {len(rows)}, at {size_name(least['size'])}"
            yield Row(what=what, gpus=gpus, measured=_gb_s(least["ours"]), beside=_theirs(least), ratio=least["ratio"])
        if any(Curve.model_validate(curve).wrong for curve in curves):
            yield Row(what=name, gpus=gpus, measured="WRONG VALUES: none of its rates counts")


def _of_size(row: Mapping[str, Any], gpus: int, *, largest: bool) -> Iterator[Row]:
    what = f"{row['collective']} {size_name(row['size'])} {row['place'].replace('_', ' ')}"
    yield Row(what=what, gpus=gpus, measured=_gb_s(row["ours"]), beside=_theirs(row), ratio=row["ratio"])
    if largest and row["collective"] == "all_reduce":
        for known in HEALTH:
            ratio = row["ours"] / known.value
            yield Row(what=what, gpus=gpus, measured=_gb_s(row["ours"]), beside=known.whose, ratio=ratio)


def _theirs(row: Mapping[str, Any]) -> str:
    return f"{_gb_s(row['theirs'])} of nccl-tests"


def _gb_s(busbw: float) -> str:
    return f"{busbw:.4g} GB/s"
