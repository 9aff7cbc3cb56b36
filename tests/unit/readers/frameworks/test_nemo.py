"""NeMo's progress bar and its lines; what /usr/bin/time prints, and dates around a command."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.nemo import gnu_time
from pytest_llmbench.engines.nemo.log import parse, read_claims
from pytest_llmbench.readers.items import Completed, Failed, Item, Parse, Said, StepLine, Total, Unreadable, WorldSize
from pytest_llmbench.readers.log import read_log

BAR = "Epoch 0: 100%|████| 40/40 [00:31<00:00,  1.27it/s, v_num=, reduced_train_loss=10.90, global_step={}]"
LINE = "Training epoch 0, iteration 18/19 | lr: 0.005 | global_batch_size: 4 | global_step: 18 | {}"


def one(text: str) -> Item:
    (item,) = parse(text)
    return item


def test_the_bar_of_nemo_1(sample: Callable[[str], Path]) -> None:
    series = read_log([sample("nemo/nemo1.0_gpt3_126m_40steps_stdout_tail.txt")], parse)
    (step,) = series.steps
    assert (step.step, step.interval, step.loss, step.seconds) == (40, 1, 10.9, None)
    assert step.reported["consumed_samples"] == 9984.0
    assert series.completed == "`Trainer.fit` stopped: `max_steps=40` reached."
    assert series.failure is None


def test_the_lines_of_nemo_2(sample: Callable[[str], Path]) -> None:
    """Every step of a real run is there, with the samples of one iteration."""
    series = read_log([sample("logs/nemo_2.log")], parse)
    assert [step.step for step in series.steps] == list(range(1, 21))
    assert {step.samples for step in series.steps} == {4}
    assert (series.steps[0].loss, series.steps[-1].loss) == (4.843, 4.911)
    assert series.steps[-1].reported["consumed_samples"] == 80.0
    assert (series.world_size, series.unread) == (1, 0)
    assert series.completed == "`Trainer.fit` stopped: `max_steps=20` reached."


def test_a_log_without_steps_has_none(sample: Callable[[str], Path]) -> None:
    """NeMo 24.09 logged the set-up of its 126M run to a file, and its steps elsewhere."""
    series = read_log([sample("nemo/nemo2_gpt3_126m_nemo_log_globalrank-0.txt")], parse)
    assert (series.steps, series.unread, series.failure, series.completed) == ((), 0, None, None)


@pytest.mark.parametrize("tag", ["train_step_timing", "train_step_timing in s"])
def test_the_time_of_a_step_where_it_is_shown(tag: str) -> None:
    assert one(BAR.format(f"39.00, {tag}=0.45")) == StepLine(step=40, interval=1, seconds=0.45, loss=10.9)
    step = one(LINE.format(f"reduced_train_loss: 4.89 | {tag}: 0.36 | consumed_samples: 76"))
    assert step == StepLine(
        step=19, seconds=0.36, samples=4, loss=4.89,
        reported={"lr": 0.005, "global_batch_size": 4.0, "consumed_samples": 76.0},
    )  # fmt: skip


def test_bars_without_ends_of_lines(read: Callable[[Parse, str], StepSeries]) -> None:
    """Bars end in a carriage return, and a warning or the next bar may stand right behind one."""
    text = "\r".join(BAR.format(f"{step}.00") for step in (0, 0, 1)) + BAR.format("2.00") + "[NeMo W 2023] a warning\n"
    assert [step.step for step in read(parse, text).steps] == [1, 2, 3]


@pytest.mark.parametrize("text", [
    "Epoch 0:   0%|          | 0/40 [00:00<?, ?it/s]",
    "Validation DataLoader 0: 100%|███| 2/2 [00:00<00:00,  7.5it/s]",
    "[NeMo W 2024-09-17 15:56:52 nemo_logging:349] UserWarning: You called `self.log('global_step', ...)`",
    "Trainer was signaled to stop but the required `min_epochs=1` has not been met.",
])  # fmt: skip
def test_what_only_looks_alike_says_nothing(text: str) -> None:
    assert list(parse(text)) == []


@pytest.mark.parametrize(("text", "why"), [
    (BAR.format("1.23e+5"), "whole number"),  # rounded by the bar
    (BAR.format("nan.0"), "whole number"),
    (BAR.format("-1.00"), "whole number"),
    (BAR.format("39.00, train_step_timing=fast"), "train_step_timing"),
    (BAR.format("39.00")[:-1], "cut off"),
    ("Training epoch 0, iteration 18/19 | lr: 0.005", "whole number"),
    (LINE.format("reduced_train_loss: 4.89|"), "reduced_train_loss"),
])  # fmt: skip
def test_a_step_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        list(parse(text))


def test_losses_that_are_no_numbers_any_more() -> None:
    """NaN and infinity are read, also with the zeros that Lightning pads them with."""
    for text in (BAR.replace("10.90", "nan.0").format("1.0"), LINE.format("reduced_train_loss: nan")):
        step = one(text)
        assert isinstance(step, StepLine)
        assert step.loss is not None
        assert math.isnan(step.loss)
    assert one(LINE.format("grad_norm: -inf | reduced_train_loss: inf")) == StepLine(
        step=19, samples=4, loss=math.inf, grad_norm=-math.inf, reported={"lr": 0.005, "global_batch_size": 4.0}
    )


def test_a_mean_of_batch_sizes_is_no_batch_size() -> None:
    """NeMo 2 divides by the interval what it was not told in every step."""
    step = one("Training epoch 0, iteration 9/19 | global_batch_size: 3.6 | global_step: 9")
    assert step == StepLine(step=10, reported={"global_batch_size": 3.6})


@pytest.mark.parametrize(("text", "item"), [
    ("All distributed processes registered. Starting with 8 processes", WorldSize(8)),
    ("Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/16", WorldSize(16)),
    ("`Trainer.fit` stopped: `max_epochs=1` reached.", Completed("`Trainer.fit` stopped: `max_epochs=1` reached.")),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory.",
     Failed("torch.cuda.OutOfMemoryError: CUDA out of memory.")),
    ("srun: error: n1: task 3: Exited with exit code 1",
     Failed("srun: error: n1: task 3: Exited with exit code 1")),
])  # fmt: skip
def test_what_is_said_of_the_run(text: str, item: Item) -> None:
    assert one(text) == item


@given(step=st.integers(0, 99_999), loss=st.floats(allow_nan=False), batch=st.integers(1, 10**6))
def test_what_nemo_2_writes_is_read(step: int, loss: float, batch: int) -> None:
    text = f"Training epoch 3, iteration 7/9 | global_batch_size: {batch} | global_step: {step}"
    item = one(f"{text} | reduced_train_loss: {loss:.4}")
    assert isinstance(item, StepLine)
    assert (item.step, item.samples, item.loss) == (step + 1, batch, float(f"{loss:.4}"))


@pytest.mark.parametrize(("text", "frozen"), [("0         ", 0.0), ("77.3 K    ", 77300.0), ("1.2 B     ", 1.2e9)])
def test_parameters_that_are_not_trained(text: str, frozen: float) -> None:
    assert list(read_claims(f"{text}Non-trainable params")) == [Said("frozen_parameters", frozen)]
    assert list(read_claims(f"{text}Trainable params")) == []


@pytest.mark.parametrize(("words", "seconds"), [
    ("0:00.00", 0.0), ("2:51.89", 171.89), ("59:59.99", 3599.99), ("1:00:00", 3600.0), ("26:03:04", 93784.0),
])  # fmt: skip
def test_the_times(words: str, seconds: float) -> None:
    """Below an hour with hundredths, above with hours, which may be more than a day's."""
    text = f"13.39user 53.30system {words}elapsed 38%CPU (0avgtext+0avgdata 27828maxresident)k"
    assert list(gnu_time.parse(text)) == [Total("elapsed_s", seconds)]
    assert list(gnu_time.parse("gluedtext" + text)) == list(gnu_time.parse(text))


@given(st.integers(min_value=0, max_value=35_999_999))
def test_every_time(hundredths: int) -> None:
    seconds = hundredths / 100
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    if hours:
        words, seconds = f"{hours}:{minutes:02}:{int(seconds % 60):02}", float(int(seconds))
    else:
        words = f"{minutes}:{hundredths // 100 % 60:02}.{hundredths % 100:02}"
    (total,) = gnu_time.parse(f"0.00user 0.00system {words}elapsed 0%CPU")
    assert isinstance(total, Total)
    assert total.value == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "name", "seconds"), [
    ("BEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 2024", "begin_training", 1712565181.0),
    ("END_TRAINING  : Mon Apr  8 09:02:25 UTC 2024", "end_training", 1712566945.0),
    ("END_TRAINING: Mon Apr  8 09:02:25 AM GMT 2024 ", "end_training", 1712566945.0),
    ("END_TRAINING: 2024-04-08T11:02:25+02:00", "end_training", 1712566945.0),
])  # fmt: skip
def test_dates(text: str, name: str, seconds: float) -> None:
    assert list(gnu_time.parse(text)) == [Total(name, seconds)]


@pytest.mark.parametrize("text", [
    "", "2:51.89elapsed", "13.39user 53.30system 2:61.89elapsed", "13.39user 53.30system 1:75:00elapsed",
    "13.39user 53.30system 2:51.89", "real 2m51.890s", "BEGIN_TRAINING: ",
    "BEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 202", "BEGIN_TRAINING: Mon Apr 31 08:33:01 UTC 2024",
    "BEGIN_TRAINING: Mon Apr  8 08:33:01 IST 2024", "BEGIN_TRAINING: 2024-04-08 08:33:01",
    "+ echo 'BEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 2024'",
    "BEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 2024 " + "x" * 70000,
], ids=range(13))  # fmt: skip
def test_what_says_nothing(text: str) -> None:
    """Cut off, impossible, of an unknown time zone, or the command that prints it."""
    assert list(gnu_time.parse(text)) == []


def test_a_command_that_fails() -> None:
    text = "Command exited with non-zero status 1"
    assert list(gnu_time.parse(text)) == [Failed(text)]


def test_the_real_date() -> None:
    """What `date` of this machine prints is read."""
    said = subprocess.run(
        ["date", "-u", "-d", "@1712565181"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
    ).stdout
    assert list(gnu_time.parse(f"BEGIN_TRAINING: {said.strip()}")) == [Total("begin_training", 1712565181.0)]
