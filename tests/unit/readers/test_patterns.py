"""Numbers as frameworks print them, what makes a line unreadable, and the words of failures."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.engines.megatron_lm.log import READER
from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.lines import split_prefix
from pytest_llmbench.readers.log import read_log
from pytest_llmbench.readers.numbers import as_number, count, duration, number
from pytest_llmbench.readers.patterns import FAILURES, cut_off, failure, remoteness
from tests.support.samples import DATA


def test_failures() -> None:
    """Messages of programs, launchers, Slurm, the kernel and libraries about why a run ended."""
    for line in (DATA / "words_of_failures.txt").read_text().splitlines():
        assert failure(f"{line} \n") == line.strip(), line
        assert failure(split_prefix(line)[1]), line
        assert any(needle in line.encode() for needle in FAILURES)


def test_no_failures() -> None:
    """Lines of healthy runs: warnings, settings, and what programs do without."""
    accused = [line for line in (DATA / "words_of_healthy_runs.txt").read_text().splitlines() if failure(line)]
    assert accused == []


def test_what_a_run_survived_is_no_reason_for_its_end(tmp_path: Path) -> None:
    """Words of failure count behind the last step of their file; those of a traceback count anywhere."""
    step = " iteration {n}/ 9 | elapsed time per iteration (ms): 5.0 | lm loss: 1.0E+00 | number of nan iterations: 0 |"
    lines = [step.format(n=number) for number in (1, 2)]
    log = tmp_path / "job.out"
    for words, expected in (
        ("job crashed", "gone bad: refused"),
        ("ERROR - x", "gone bad: refused"),
        ("KeyError: x",) * 2,
    ):
        log.write_text("\n".join([lines[0], words, lines[1], "gone bad: refused", ""]))
        assert read_log([log], READER.dialect(), READER.claims, READER.needles).failure == expected


def test_the_nearer_to_the_cause_the_better() -> None:
    """A program's own words, torchrun's on who ended how, a rank whose peer is gone, a launcher's summary."""
    in_order = [
        "ValueError: x",
        "E1121 08:13:43.023000 6973 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)",
        "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19670",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    ]
    assert all(failure(words) for words in in_order)
    assert [remoteness(words) for words in in_order] == [0, 1, 2, 3]
    assert remoteness("torch.distributed.elastic.multiprocessing.api.SignalException: Process 1 got signal: 15") == 3
    assert remoteness("srun: error: n1: task 0: Killed") == 3


@pytest.mark.parametrize("what", ["JOB 123 ON n1", "STEP 123.0 ON jwb-1.x", "STEP 123.batch ON n1", "JOB 1+0 ON n1"])
def test_slurm_says_that_it_cut_a_run_off(what: str) -> None:
    line = f"slurmstepd: error: *** {what} CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***"
    assert cut_off(line) == line
    assert cut_off(f"Epoch 0: 50%|##   | 20/40 [00:31<00:31]{line}") == line
    bare = line.removeprefix("slurmstepd: ")
    assert cut_off(bare) == cut_off(f"[2026-11-26T10:00:00.1] [123.batch] {bare}") == bare  # behind a time
    assert cut_off(f"Nov 26 10:00:00 gpu01 slurmstepd[77]: {bare.replace(': ', ':  ')}") is not None
    assert cut_off(line.replace("TIME LIMIT", "NODE FAILURE")) is None
    assert cut_off(line.replace(" DUE TO TIME LIMIT", "")) is None
    assert cut_off(line[:-3]) is None
    assert cut_off(f"print({line!r})") is None


ARABIC_FIVE = "\N{ARABIC-INDIC DIGIT FIVE}"


@given(st.floats(allow_nan=False))
def test_every_float_is_read_as_it_is_printed(value: float) -> None:
    for text in (repr(value), f" {value:+.17e} ", f"{value:.17E}"):
        assert as_number(text) == value
    assert as_number(value) == value


@pytest.mark.parametrize("value", [
    "", "-", ".", "1_000", "1,5", "0x10", "1e", "1 2", "--1", "nan.1", "infinite", "5 %", ARABIC_FIVE, None, True, [1],
    {},
])  # fmt: skip
def test_what_is_no_number(value: object) -> None:
    assert as_number(value) is None
    with pytest.raises(Unreadable, match=r"loss is .*, not a number"):
        number("loss", value)


def test_numbers_beyond_a_float() -> None:
    """A text is infinite as a float; an integer of JSON cannot become one."""
    assert as_number("9" * 5000) == math.inf
    assert as_number(10**400) is None
    assert all(math.isnan(number("loss", text)) for text in ("nan", "NaN", "-nan.0"))


@pytest.mark.parametrize("value", [
    "0", "-1", "1.0", "1e3", "9" * 16, "9" * 5000, ARABIC_FIVE, "", "\x1f 8 ", 0, True, 1.0, 10**15,
], ids=lambda value: repr(value)[:20])  # fmt: skip
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(Unreadable, match=r"step is .*, not a whole number >= 1"):
        count("step", value)


def test_counts() -> None:
    assert [count("step", value) for value in ("1", "    40", "007", 12)] == [1, 40, 7, 12]


@pytest.mark.parametrize("value", ["0", "0.0", "-3", "nan", "inf", "1e999", "x"])
def test_what_is_no_duration(value: str) -> None:
    with pytest.raises(Unreadable, match=r"elapsed \(ms\) is"):
        duration("elapsed (ms)", value)
