"""The log of metaseq and fairseq, and what must not be read from it."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.metaseq.log import parse
from pytest_llmbench.readers.items import (
    Completed,
    Count,
    Failed,
    Item,
    LogInterval,
    Parse,
    StepLine,
    Total,
    Unreadable,
    WorldSize,
)
from pytest_llmbench.readers.log import read_log

Read = Callable[[Parse, str], StepSeries]
Sample = Callable[[str], Path]

SAID: dict[str, object] = {
    "epoch": 1, "update": 0.01, "loss": "8.5", "ppl": "362.04", "wps": "200000", "ups": "0.38", "wpb": "524288",
    "bsz": "256", "num_updates": "10", "lr": "0.0006", "gnorm": "1.75", "clip": "100", "loss_scale": "4",
    "train_wall": "13", "cuda_gb_allocated": "10.5", "cuda_gb_free": "68.5", "wall": "40",
}  # fmt: skip


def line(*without: str, **changes: object) -> str:
    """Build the line of a step, without some names and with others changed."""
    said = {name: value for name, value in {**SAID, **changes}.items() if name not in without}
    return f"2026-11-21 02:58:48 | INFO | train_inner | {json.dumps(said)}"


def step(text: str) -> StepLine:
    (item,) = parse(text)
    assert isinstance(item, StepLine)
    return item


def test_a_step() -> None:
    """Bits become nat, GiB bytes, and a rate a duration; the rest is reported as it is named."""
    said = step(line())
    assert (said.step, said.interval, said.tokens, said.samples, said.grad_norm) == (10, None, 524288, 256, 1.75)
    assert said.seconds == 524288 / 200000
    assert said.loss is not None
    assert math.isclose(math.exp(said.loss), 362.04, rel_tol=1e-5)  # as the line's own perplexity says
    assert said.peak_memory_bytes == 10.5 * 2**30
    assert set(said.reported) == set(SAID) - {"loss", "num_updates", "gnorm"}
    assert said.reported["wps"] == 200000.0


@pytest.mark.parametrize("before", ["", "node-0 ", "[rank0] 2026-11-21 02:58:48 | INFO | "])
def test_whatever_stands_before_it(before: str) -> None:
    assert step(before + line()) == step(line())


def test_what_a_line_does_not_say() -> None:
    """The first update is not timed; on a CPU there is no memory; a number may be one, too."""
    assert step(line(wps="0")).seconds is None
    assert step(line("wps")).seconds is None
    assert (step(line("wpb")).seconds, step(line("wpb")).tokens) == (None, None)
    assert step(line("cuda_gb_allocated")).peak_memory_bytes is None
    assert step(line("loss", "gnorm")).loss is None
    assert step(line(num_updates=10, wps=200000.0)).seconds == 524288 / 200000
    assert step(line(bsz="60.5")).samples is None


def test_rounded_numbers() -> None:
    said = step(line(wpb="2.09715e+06", wps="1.23457e+06"))
    assert said.tokens == 2097150
    assert said.seconds is not None
    assert math.isclose(said.seconds, 2097152 / 1234567.8, rel_tol=1e-5)


def test_numbers_that_are_not_finite() -> None:
    said = step(line(loss="nan", gnorm="inf", ppl="inf", note="text", flag=True, list=[1]))
    assert said.loss is not None
    assert math.isnan(said.loss)
    assert said.grad_norm == math.inf
    assert not {"note", "flag", "list"} & set(said.reported)


@pytest.mark.parametrize(("text", "why"), [
    (line()[:-1], "no JSON, or cut off"), (line()[:60], "no JSON, or cut off"),
    (line() + line(), "no JSON, or cut off"), (line()[:90] + line(), "no JSON, or cut off"),
    ("x | train_inner | epoch 001:  10 / 100 loss=8.5, wps=200000", "no JSON"),
    ("x | train_inner | [1]", "no JSON object"), ("x | train_inner | " + "[" * 100_000, "no JSON"),
    ("x | train_inner | " + '{"a":' * 100_000, "no JSON"),
    (line(num_updates=0).replace(" 0,", f" {'9' * 5000},"), "no JSON"),
    (line().replace('"epoch": 1', '"wps": "1"'), "is given twice"),
    (line("num_updates"), "num_updates is 'missing'"), (line(num_updates="0"), "num_updates is '0'"),
    (line(num_updates="1.23457e+06"), "num_updates is"), (line(num_updates=True), "num_updates is a bool"),
    (line(wps="fast"), "wps is 'fast'"), (line(wps="nan"), "wps is nan"), (line(wps="-1"), "wps is -1"),
    (line(wpb="0"), "wpb is '0'"), (line(wpb="9" * 5000), "wpb is inf"), (line(bsz=None), "bsz is a NoneType"),
    (line(loss="8.5 bits"), "loss is '8.5 bits'"),
    (line(cuda_gb_allocated="1e300"), "cuda_gb_allocated is 1e[+]300"),
], ids=range(22))  # fmt: skip
def test_lines_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        parse(text)


@pytest.mark.parametrize("text", [
    line().replace("train_inner", "train"),
    '2026-11-21 02:58:48 | INFO | train | {"epoch": 1, "train_wps": "2567.8", "train_num_updates": "10"}',
    '2026-11-21 02:58:48 | INFO | valid | {"epoch": 1, "valid_wps": "10855.9", "valid_num_updates": "10"}',
    "2026-11-21 02:58:47 | ERROR | root | Failed to find the 'nvidia-smi' executable for printing GPU stats",
    "2026-11-21 02:58:47 | WARNING | x | RuntimeError: CUDA out of memory",
    "2026-11-21 02:58:47 | INFO | metaseq.cli.train | max tokens per GPU = None and batch size per GPU = 4",
    "2026-11-21 02:58:47 | INFO | metaseq.cli.train | training on 12",
    "2026-11-21 02:58:47 | INFO | metaseq.cli.train | done training in 12",
    "if line.endswith('done training in 3.0 seconds')",
    "",
])  # fmt: skip
def test_lines_that_say_nothing(text: str) -> None:
    assert list(parse(text)) == []


HEADS = [f"2026-11-21 02:58:48 | INFO | {name} | " for name in ("metaseq.cli.train", "fairseq_cli.train")]
DONE = f"{HEADS[1]}done training in 123.4 seconds"
OUT_OF_MEMORY = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(("text", "items"), [
    *((f"{head}training on 8 devices (GPUs/TPUs)", [WorldSize(8)]) for head in HEADS),
    *((f"{head}NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 2.0",
       [Count("gradient_overflows")]) for head in HEADS),
    *((f"{head}Stopping training due to num_updates: 50 >= max_update: 50", [Total("max_update", 50.0)])
      for head in HEADS),
    (f"{HEADS[0]}{{'common': {{'log_interval': 5, 'log_format': 'json'}}}}", [LogInterval(5)]),
    (f"{HEADS[1]}Namespace(adam_eps=1e-08, log_interval=5, seed=1)", [LogInterval(5)]),
    (DONE, [Completed(DONE), Total("done_training_s", 123.4)]),
    (OUT_OF_MEMORY, [Failed(OUT_OF_MEMORY)]),
])  # fmt: skip
def test_facts_of_the_run(text: str, items: list[Item]) -> None:
    assert list(parse(text)) == items


def test_skipped_updates_are_counted(read: Read) -> None:
    note = "x | INFO | metaseq.trainer | NOTE: gradient overflow detected, ignoring gradient, loss scale 1"
    series = read(parse, f"[default0]:{note}\n[default1]:{note}\n[default0]:{note}\n{line()}\n")
    assert series.totals == {"gradient_overflows": 2.0}
    assert len(series.steps) == 1


def test_a_log_of_8_v100(sample: Sample) -> None:
    """Complete, with a first update that is not timed and two that were skipped."""
    series = read_log([sample("metaseq/fairseq_fsdp_13b_8xV100_train.log")], parse)
    assert [each.step for each in series.steps] == list(range(1, 11))
    assert all(each.tokens == 131072 and each.samples == 64 and each.interval == 1 for each in series.steps)
    assert series.steps[0].seconds is None
    assert series.steps[2].seconds == 131072 / 1176.6  # with the time of the two skipped updates
    assert series.totals == {"gradient_overflows": 2.0, "max_update": 10.0, "done_training_s": 509.9}
    assert series.world_size == 8
    assert series.completed == "2021-03-08 18:12:45 | INFO | fairseq_cli.train | done training in 509.9 seconds"
    assert (series.unread, series.failure, series.restarted) == (0, None, None)


def test_a_log_of_8_a100(sample: Sample) -> None:
    """An excerpt, of a mixture of experts: with memory, and without an end."""
    series = read_log([sample("metaseq/fairseq_moe_dummy_lm_8xA100_train.log")], parse)
    assert [(each.step, each.interval) for each in series.steps] == [(10, 10), (20, 10), (30, 10)]
    assert [each.reported["wps"] for each in series.steps] == [34799.2, 34973.5, 35046.4]
    assert {each.peak_memory_bytes for each in series.steps} == {round(10.4 * 2**30)}
    assert series.totals == {"gradient_overflows": 3.0}
    assert series.completed is None


def test_a_log_of_torchrun(sample: Sample) -> None:
    series = read_log([sample("logs/metaseq_20_updates.log")], parse)
    assert [(each.step, each.interval, each.tokens, each.samples) for each in series.steps] == [
        (number, 5, 512, 8) for number in (5, 10, 15, 20)
    ]
    assert series.steps[0].loss == 8.588 * math.log(2)
    assert series.totals == {"max_update": 20.0, "done_training_s": 0.5}
    assert (series.world_size, series.unread, series.failure) == (2, 0, None)
    assert series.completed is not None
