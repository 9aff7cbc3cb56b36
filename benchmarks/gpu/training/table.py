"""Prints records of `engines.py` as Markdown, as docs/measurements shows them.

python benchmarks/gpu/training/table.py RECORD.json...
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))  # run as a script, this file is in no package

from benchmarks.gpu.training.records import Line, Record, Spread, read_record
from pytest_llmbench.core.errors import ConfigError

_COLUMNS = (
    "Row", "GPUs", "Variant", "tokens/s, median (least to most, n)", "TFLOP/s/gpu", "Ratio to the best alternative",
    "Scaling", "Start-up, first / warm", "Peak memory", "Loss, first → last", "",
)  # fmt: skip
_VERSIONS = ("torch", "cuda", "nccl", "cudnn", "triton", "megatron-core", "deepspeed", "transformers", "python")


def markdown(record: Record) -> str:
    """One record: what it is of, its lines, and how its numbers are made."""
    head = [_joined(_COLUMNS), "|" + "---|" * len(_COLUMNS)]
    return "\n".join([*_facts(record), "", *head, *map(_row, record.table), "", *_remarks(record)])


def _facts(record: Record) -> Iterator[str]:
    """Yield date, machine, versions and command, in a table of two columns."""
    yield "| | |"
    yield "|---|---|"
    yield f"| Date | {record.date} |"
    said = record.machine
    gpus = f"{said['gpus']} × {said['gpu_name']}, power limit {said['gpu_power_limit']}; " if "gpus" in said else ""
    yield f"| Machine | {gpus}{said['cpu']}, {said['cpus']} cores |"
    versions = [f"{name} {record.versions[name]}" for name in _VERSIONS if name in record.versions]
    driver = said.get("gpu_driver_version", record.versions.get("driver"))
    yield f"| Versions | {', '.join([*versions, *([f'driver {driver}'] if driver else [])]) or 'not known'} |"
    yield f"| Source | {', '.join(f'{name} {value}' for name, value in record.source.items())} |"
    yield f"| Command | `{record.command}` |"


def _row(line: Line) -> str:
    cells = (
        f"`{line.row}`", str(line.gpus), f"`{line.variant}`", _rate(line.tokens_per_s), _number(line.tflops_per_gpu, 1),
        f"{line.ratio:.2f} × `{line.best_alternative}`" if line.ratio is not None else "", _number(line.scaling, 3),
        _startup(line), _number(line.peak_memory_gib, 1, " GiB"), _losses(line), "; ".join(_notes(line)),
    )  # fmt: skip
    return _joined(cells)


def _joined(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rate(spread: Spread | None) -> str:
    if spread is None:
        return "none"
    return f"{spread.median:,.0f} ({spread.least:,.0f} to {spread.most:,.0f}, {spread.n})"


def _number(value: float | None, digits: int, unit: str = "") -> str:
    """Write a number with so many digits after its point; a very small one with two that say something."""
    if value is None:
        return ""
    return f"{value:.{digits}f}{unit}" if value >= 10**-digits else f"{value:.1e}{unit}"


def _startup(line: Line) -> str:
    times = [_number(value, 0, " s") or "none" for value in (line.startup_first_s, line.startup_warm_s)]
    return "" if times == ["none", "none"] else " / ".join(times)


def _losses(line: Line) -> str:
    if line.loss_first is None or line.loss_last is None:
        return ""
    return f"{line.loss_first:.4f} → {line.loss_last:.4f}"


def _notes(line: Line) -> Iterator[str]:
    """Yield what a reader must not overlook."""
    if line.error is not None:
        yield f"ERROR: {' '.join(line.error.split())[:300]}".replace("|", "\\|")
    if line.disagreement is not None:
        yield f"DISAGREES: {line.disagreement}"
    if line.samples_per_s is not None and line.published is not None:
        published = line.published
        yield (
            f"{line.samples_per_s.median:.1f} samples/s; published are {published.samples_per_s:g} on "
            f"{published.machine}: {published.ratio:.2f} of that"
        )


def _remarks(record: Record) -> Iterator[str]:
    if not record.complete:
        yield "Cut off by its time: not everything was started as often as was asked.\n"
    for name, rule in record.rules.items():
        yield f"- `{name}`: {rule}."


def main() -> None:
    """Print every record that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    for path in parser.parse_args().records:
        print(markdown(read_record(path)), end="\n\n")


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(f"error: {error}")
