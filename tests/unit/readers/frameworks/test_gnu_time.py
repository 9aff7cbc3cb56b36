"""What `/usr/bin/time` prints, and dates around a command."""

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.engines.nemo.gnu_time import parse
from pytest_llmbench.readers.items import Failed, Total


@pytest.mark.parametrize(("words", "seconds"), [
    ("0:00.00", 0.0), ("2:51.89", 171.89), ("59:59.99", 3599.99), ("1:00:00", 3600.0), ("26:03:04", 93784.0),
])  # fmt: skip
def test_the_times(words: str, seconds: float) -> None:
    """Below an hour with hundredths, above with hours, which may be more than a day's."""
    text = f"13.39user 53.30system {words}elapsed 38%CPU (0avgtext+0avgdata 27828maxresident)k"
    assert list(parse(text)) == [Total("elapsed_s", seconds)]
    assert list(parse("gluedtext" + text)) == list(parse(text))


@given(st.integers(min_value=0, max_value=35_999_999))
def test_every_time(hundredths: int) -> None:
    seconds = hundredths / 100
    hours, minutes = int(seconds // 3600), int(seconds // 60 % 60)
    if hours:
        words, seconds = f"{hours}:{minutes:02}:{int(seconds % 60):02}", float(int(seconds))
    else:
        words = f"{minutes}:{hundredths // 100 % 60:02}.{hundredths % 100:02}"
    (total,) = parse(f"0.00user 0.00system {words}elapsed 0%CPU")
    assert isinstance(total, Total)
    assert total.value == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "name", "seconds"), [
    ("BEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 2024", "begin_training", 1712565181.0),
    ("END_TRAINING  : Mon Apr  8 09:02:25 UTC 2024", "end_training", 1712566945.0),
    ("END_TRAINING: Mon Apr  8 09:02:25 AM GMT 2024 ", "end_training", 1712566945.0),
    ("END_TRAINING: 2024-04-08T11:02:25+02:00", "end_training", 1712566945.0),
])  # fmt: skip
def test_dates(text: str, name: str, seconds: float) -> None:
    assert list(parse(text)) == [Total(name, seconds)]


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
    assert list(parse(text)) == []


def test_a_command_that_fails() -> None:
    text = "Command exited with non-zero status 1"
    assert list(parse(text)) == [Failed(text)]


def test_the_real_date() -> None:
    """What `date` of this machine prints is read."""
    said = subprocess.run(
        ["date", "-u", "-d", "@1712565181"], capture_output=True, text=True, check=True, env={"LC_ALL": "C"}
    ).stdout
    assert list(parse(f"BEGIN_TRAINING: {said.strip()}")) == [Total("begin_training", 1712565181.0)]
