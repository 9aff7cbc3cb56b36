"""Names of commands and what they print."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import Result

from pytest_llmbench.checks.base import CHECKS
from pytest_llmbench.cli.output import print_table
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.engines.base import ENGINES
from tests.conftest import TINY

Llmbench = Callable[..., Result]

BAD = """\
family: bad
defaults:
  engine: torch
  model: {layers: 1, hidden_size: 32, attention_heads: 2, vocab_size: 128, laeyrs: 3}
  optimizer: {learning_rate: 0.1}
  options: {zzz: 1}
smoke: {stpes: 3}
recipes:
  a.b:
    sequence_length: 32
    micro_batch_size: 2
    global_batch_size: 8
    steps: -8
    time_limit: "00:05:00"
"""


def test_all_names_of_each_kind_are_listed(llmbench: Llmbench) -> None:
    Path("pytest.ini").write_text("[pytest]\nllmbench_recipes = mine\naddopts = -ra --lf\n")
    Path("mine").mkdir()
    Path("mine/tiny.yaml").write_text(yaml.safe_dump({"family": "t", "recipes": {"tiny": {**TINY, "engine": "torch"}}}))
    names = {}
    for kind in ("recipes", "systems", "checks", "engines", "statistics", "references"):
        result = llmbench("list", kind, "--json")
        assert result.exit_code == 0, result.output
        names[kind] = json.loads(result.stdout)
    assert {row["recipe"] for row in names["recipes"]} == {"tiny", *load_recipes([shipped("recipes")])}
    assert len(names["systems"]) == 3 + len(list(shipped("systems").glob("*.yaml")))
    assert {row["check"] for row in names["checks"]} == set(CHECKS.names())
    assert {row["engine"] for row in names["engines"]} == set(ENGINES.names())
    assert {"throughput", "mfu"} <= {row["statistic"] for row in names["statistics"]}
    own = [row for row in names["references"] if row["of"] == "tiny"]
    assert [(row["reference"], row["bound"], row["for"]) for row in own] == [("learns", ">= 0.01 nat", "any")]
    table = llmbench("list", "recipes").stdout.splitlines()
    assert table[0].split() == ["recipe", "engine", "nodes", "gpus_per_node", "description"]
    assert any(line.startswith("tiny ") for line in table)


def test_help_and_completion_load_no_models_of_records() -> None:
    code = "import sys, pytest_llmbench.cli.app; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_name_that_is_no_kind_is_refused_with_the_legal_ones(llmbench: Llmbench) -> None:
    result = llmbench("list", "recipies")
    assert "unknown kind of names 'recipies' (did you mean 'recipes'?); legal: checks, " in str(result.exception)


def test_a_wrong_ini_file_is_said(llmbench: Llmbench) -> None:
    Path("pytest.ini").write_text("[pytest]\nllmbench_recipes = nowhere\n")
    result = llmbench("list", "recipes")
    assert "nowhere is not a folder" in str(result.exception)
    assert result.stdout == ""


def test_each_fault_of_a_file_has_its_line_and_key(llmbench: Llmbench) -> None:
    """Faults of defaults, of a recipe, of the smoke scale and of an engine's options, each once."""
    Path("bad.yaml").write_text(BAD)
    result = llmbench("validate", "bad.yaml", "--json")
    assert result.exit_code == 1
    found = {(fault["line"], fault["key"]): fault["message"] for fault in json.loads(result.stdout)}
    assert set(found) == {
        (4, "defaults.model.laeyrs"), (13, "recipes.a.b.steps"), (6, "defaults.options.zzz"), (7, "smoke.stpes"),
    }  # fmt: skip
    assert "did you mean 'layers'?" in found[4, "defaults.model.laeyrs"]
    lines = llmbench("validate", "bad.yaml").stdout.splitlines()
    assert lines[0].startswith("bad.yaml:4: defaults.model.laeyrs: unknown key 'laeyrs'")
    assert len(lines) == len(found)


@pytest.mark.parametrize(("text", "told"), [
    ("name: s\ncluster: slrum\n", "s.yaml:2: cluster: Input should be 'slurm' or 'local'"),
    ("name: s\ncluster: slurm\nvalidation: {piars: {}}\n", "s.yaml:3: validation.piars: unknown check 'piars'"),
    ("name: s\ncluster: slurm\nvalidation:\n  clock:\n    options: {zzz: 1}\n",
     "s.yaml:5: validation.clock.options.zzz:"),
    ("a: 1\na: 2\n", "key 'a' is given twice"),
    ("x: 1\n", "neither a recipe file"),
    ("recipes: {a: {name: b}}\nfamily: f\n", "name: must not be in a file"),
])  # fmt: skip
def test_a_fault_of_a_system_or_of_no_file_of_ours_is_shown(llmbench: Llmbench, text: str, told: str) -> None:
    Path("s.yaml").write_text(text)
    result = llmbench("validate", "s.yaml")
    assert result.exit_code == 1
    assert told in result.stdout


def test_what_ships_is_valid(llmbench: Llmbench) -> None:
    files = [str(path) for kind in ("recipes", "systems") for path in shipped(kind).glob("*.yaml")]
    result = llmbench("validate", *files)
    assert (result.exit_code, result.stdout) == (0, f"{len(files)} of {len(files)} files are valid\n")


def test_schemas_are_listed_with_their_files(llmbench: Llmbench) -> None:
    rows = json.loads(llmbench("list", "schemas", "--json").stdout)
    assert [row["schema"] for row in rows] == ["health-record", "recipe", "run-record", "system"]
    assert all(row["id"].startswith(f"urn:pytest-llmbench:schema:{row['schema']}:") for row in rows)
    assert all(Path(row["file"]).is_file() for row in rows)


def test_wrong_input_ends_the_program_with_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_llmbench.cli", "prune", "--keep", "1", "--run-dir", "nowhere"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere: there is no such folder; give another --run-dir\n"


TITLES = ("recipe", "metric", "before", "verdict", "reason")
ROW = ("aws_torchrun_gpt3_126m", "tokens_per_s_per_gpu", "114,000 tokens/s/gpu", "FAIL", "slower by [more] than 3 %")


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(TITLES, [ROW])
    return capsys.readouterr().out


@pytest.mark.parametrize("columns", [30, 60, 80, 100, 140, 300])
def test_nothing_is_left_out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """At 80 columns names were cut in the middle, and `verdict` with them."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown(capsys, monkeypatch, columns))
    assert max(map(len, text.splitlines())) <= columns
    assert {*" ".join(ROW).split()} <= {word.rstrip(",") for word in text.split()}


def test_terminals_have_colours_files_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    print_table(TITLES, [ROW])
    assert capsys.readouterr().out.splitlines()[1].split("  ")[0] == ROW[0]
    assert Console(force_terminal=True).color_system is not None
    assert re.search(r"\x1b\[31m\S*FAIL", shown(capsys, monkeypatch, 140))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[31m" not in shown(capsys, monkeypatch, 140)
