"""What is fuzzed: each way on which bytes that others wrote come in, with samples and the errors that it may raise."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.fuzz import documents, nodes
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.engines.deepspeed_chat import eval_batch
from pytest_llmbench.engines.megatron_lm import events as megatron_events
from pytest_llmbench.engines.nemo import gnu_time
from pytest_llmbench.engines.nemo import log as nemo_log
from pytest_llmbench.readers.log import READERS, last_step, last_words, read_log
from pytest_llmbench.readers.steps import progress
from pytest_llmbench.readers.steps.gpu_window import read_telemetry
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.readers.steps.times import read_times
from tests.support.samples import DATA, SAMPLES

_NUMBERS_OF_STEP = ("seconds", "tokens", "samples", "loss", "grad_norm", "peak_memory_bytes")
_LOGS = {
    "deepspeed_chat": ("lambda/opt-350m_1_1xN_batch0001.log", "logs/deepspeed_chat_step[123].log"),
    "megatron_lm": ("logs/megatron_lm_*.log", "jsc/*_job.out.excerpt.txt",
                    "megatron/*.txt"),
    "metaseq": ("logs/metaseq*.log", "metaseq/*.log"),
    "mlperf": ("logs/mlperf_*.txt",),
    "nemo": ("nemo/output.log", "logs/nemo*.log", "nemo/*.txt"),
    "torchtitan": ("logs/torchtitan_*.log",),
}  # fmt: skip
_SIZE = 3000


@dataclass(frozen=True, kw_only=True)
class Target:
    """One way in."""

    name: str  # of the reader, or what it reads
    seeds: Sequence[bytes]  # real inputs
    read: Callable[[bytes], Any]  # reads one; raises what it may not raise
    torn: Sequence[bytes] = ()  # of these, logs of one run whose torn lines must not become numbers
    numbers: Callable[[Any], set[float]] = lambda _: set()  # the numbers in what `read` returned
    document: bool = False  # whether the samples are JSON


def targets(folder: Path) -> dict[str, Target]:
    """All of them, by name; files that are read from a folder are written to this one."""
    found = [*_logs(folder), *_others(folder), *_step_logs(folder)]
    found += [
        Target(name=name, seeds=seeds, read=read, document=name.startswith("json"))
        for name, (seeds, read) in {**nodes.readers(folder), **documents.readers(folder)}.items()
    ]
    return {each.name: each for each in found}


def samples(*patterns: str) -> list[bytes]:
    """Files of the project and public samples that are here."""
    return [
        path.read_bytes() for pattern in patterns for root in (DATA, SAMPLES) for path in sorted(root.glob(pattern))
    ]


def _logs(folder: Path) -> Iterator[Target]:
    """Every reader that is announced, whoever brings it; without samples of its own, with those of all."""
    for name in READERS.names():
        reader, path = READERS.load(name), folder / f"{name}.log"
        seeds = [_short(data, reader.needles.all) for data in samples(*_LOGS.get(name, sum(_LOGS.values(), ())))]

        def read(data: bytes, reader: Any = reader, path: Path = path) -> StepSeries:
            path.write_bytes(data)
            last_step(path, reader.dialect())
            last_words(path)
            return read_log([path], reader.dialect(), reader.claims, reader.needles)

        one_run = [data for data in seeds if not read(data).restarted]
        yield Target(name=f"log {name}", seeds=seeds, read=read, torn=one_run, numbers=_of_series)


def _others(folder: Path) -> Iterator[Target]:
    path = folder / "run.log"

    def timed(data: bytes) -> StepSeries:
        path.write_bytes(data)
        return read_log([path], gnu_time.parse)

    def evaluated(data: bytes) -> bytes:
        path.write_bytes(data)
        return eval_batch.evaluate([BatchLog(path=path, hosts=())], 900.0)

    spent = b"x\nBEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 2024\n13.39user 53.30system 2:51.89elapsed 38%CPU (0k)\n"
    yield Target(name="log gnu_time", seeds=[spent, b"END_TRAINING: Mon Apr  8 09:02:25 UTC 2024\n"], read=timed)
    rows = [_short(data, (b"Throughput", b"Epoch")) for data in samples(*_LOGS["deepspeed_chat"])]
    yield Target(name="log eval_batch", seeds=rows, read=evaluated)
    event_file = folder / "events.out.tfevents.1700000000.host.1.0"
    events = [data[:_SIZE] for data in samples("nemo/events*", "tensorboard/*")]

    def scalars(data: bytes) -> None:
        event_file.write_bytes(data)
        nemo_log.series([event_file])
        megatron_events.series([event_file])

    yield Target(name="event file", seeds=events, read=scalars)


def _step_logs(folder: Path) -> Iterator[Target]:
    run = folder / "run"
    steps, phases = run / "steps", run / "phase"
    steps.mkdir(parents=True, exist_ok=True)
    phases.mkdir(exist_ok=True)
    whole = [*samples("steps/steps/rank-*.jsonl"), _watched(folder)]

    def read(data: bytes) -> StepSeries:
        (steps / "rank-00000.jsonl").write_bytes(data)
        series = read_steps(run)
        progress.last_step(run)
        read_times(run, series.steps)
        read_telemetry(run, series.steps)
        return series

    def stands(data: bytes) -> str:
        (phases / "rank-00000").write_bytes(data)
        (phases / "rank-00001").write_bytes(b"3 forward 2")
        return progress.laggards(run)

    seeds = [data[:_SIZE] for data in whole]
    yield Target(name="step log", seeds=seeds, read=read, torn=seeds, numbers=_of_series)
    yield Target(name="phase", seeds=[b"12 backward 3", b"1 done 0"], read=stands)


@cache
def _watched(folder: Path) -> bytes:
    from tests.support.gpu_logs import samples as gpu_samples  # noqa: PLC0415 - of the tests, which a wheel lacks
    from tests.support.gpu_logs import told, write_rank  # noqa: PLC0415

    write_rank(folder / "watched", 0, 3, [told(0), *gpu_samples(3.5)], ranks=1)
    return (folder / "watched/steps/rank-00000.jsonl").read_bytes()


def _short(data: bytes, needles: Iterable[bytes]) -> bytes:
    """The beginning and the end of what a log says, so that an input is read in a moment."""
    telling = re.compile(b"|".join(map(re.escape, needles)) or b"")
    lines = [line for line in data.splitlines(keepends=True) if telling.search(line) and len(line) < _SIZE]
    head, tail = (b"".join(part) for part in (_up_to(lines), reversed([*_up_to(list(reversed(lines)))])))
    return head if head == tail else head + tail


def _up_to(lines: Sequence[bytes]) -> Iterator[bytes]:
    size = 0
    for line in lines:
        size += len(line)
        if size > _SIZE:
            return
        yield line


def _of_series(series: StepSeries) -> set[float]:
    """Numbers of a series, whatever their names are, without those that change with the lines that were read."""
    found = {value for name, value in series.totals.items() if name != "gradient_overflows"}  # it counts lines
    for step in series.steps:
        found |= {value for name in _NUMBERS_OF_STEP if (value := getattr(step, name)) is not None}
        found |= set(step.reported.values())
    return {value for value in found if not math.isnan(value)}
