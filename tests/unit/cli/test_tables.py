"""The tables of all commands."""

import re
import sys

import pytest
from rich.console import Console

from pytest_llmbench.cli.output import print_table

TITLES = ("recipe", "metric", "before", "verdict", "reason")
ROW = ("aws_torchrun_gpt3_126m", "tokens_per_s_per_gpu", "114,000 tokens/s/gpu", "FAIL", "slower by [more] than 3 %")


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(TITLES, [ROW])
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [30, 60, 80, 100, 140, 300])
def test_no_word_is_cut_and_nothing_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """At 80 columns names were cut in the middle, and `verdict` with them."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(capsys, monkeypatch, columns))
    assert max(map(len, text.splitlines())) <= columns
    assert {*" ".join(ROW).split()} <= {word.rstrip(",") for word in text.split()}


def test_a_terminal_has_colours_and_a_file_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table(TITLES, [ROW])
    assert capsys.readouterr().out.splitlines()[1].split("  ")[0] == ROW[0]
    assert Console(force_terminal=True).color_system is not None
    assert re.search(r"\x1b\[31m\S*FAIL", shown(capsys, monkeypatch, 140))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in shown(capsys, monkeypatch, 140)
