"""The command: one line in, a table and a document out; and what is missing or wrong is named, never filled in."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.recipe.recipes import Recipe, load_recipes
from pytest_llmbench.core.record.records import RunRecord, write_model
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.project import main

CHECKOUT = Path(__file__).parents[2]
DATA = CHECKOUT / "tests" / "data" / "projection"
SLICE, NODE = DATA / "h200_4_layers.json", DATA / "node_collectives.json"
OURS = ("nlp175b", "--system", "ND96isr_H200_v5", "--slice", str(SLICE), "--collectives", str(NODE))
COMMAND = (sys.executable, "-m", "pytest_llmbench.project")
TERMS = {"layers", "head", "sends", "bubble", "gradients", "optimizer", "jitter"}
RECIPE = """
family: slices
recipes:
  {name}:
    engine: megatron_core
    gpus_per_node: {tensor}
    model: {{layers: {layers}, hidden_size: 12288, attention_heads: 96, vocab_size: 50304}}
    parallelism: {{tensor: {tensor}, sequence: true, activation_checkpointing: selective}}
    sequence_length: 2048
    global_batch_size: 8
    micro_batch_size: 1
    precision: bf16
    optimizer: {{learning_rate: 1.0e-4}}
    steps: 12
    time_limit: "00:10:00"
"""


def slice_recipe(folder: Path, layers: int) -> Recipe:
    """A slice of 175B as a recipe of its own."""
    name = f"slice{layers}"
    (folder / f"{name}.yaml").write_text(RECIPE.format(name=name, layers=layers, tensor=8))
    return load_recipes([folder])[name]


def recorded(folder: Path, layers: int, step_s: float) -> Path:
    """The record of a run of it, with steps of so many seconds."""
    steps = tuple(Step(step=number, seconds=step_s, tokens=16384, samples=8, loss=1.0) for number in range(1, 13))
    recipe = slice_recipe(folder, layers)
    record = RunRecord(
        session="s", key=recipe.name, token="t", recipe=recipe, system="a", cluster="local", allocation="run", nodes=1,
        ranks=8, gpus=8, folder=str(folder / recipe.name), device="NVIDIA H200", steps=steps,
    )  # fmt: skip
    write_model(record.path, record)
    return record.path


def written(folder: Path, **changes: Any) -> str:
    """Our slice, with something else in it."""
    path = folder / "slice.json"
    path.write_text(json.dumps({**json.loads(SLICE.read_text("utf-8")), **changes}))
    return str(path)


def test_every_option_is_in_the_document() -> None:
    """And no other one."""
    text = (CHECKOUT / "docs" / "projection.md").read_text(encoding="utf-8")
    table = text.partition("| Option | Value | Default |")[2].partition("\n\n")[0]
    written = {name for row in table.splitlines() if row.startswith("| `") for name in re.findall("`(--[a-z-]+)`", row)}
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert set(re.findall(r"^  (--[a-z-]+) ", done.stdout, re.MULTILINE)) == written


def test_one_line_answers(tmp_path: Path) -> None:
    """As an operator would call it: nodes with an answer, nodes without, the fewest, what it rests on, a document."""
    told = tmp_path / "answer.json"
    command = [*COMMAND, *OURS, "--nodes", "8", "12", "24", "--json", str(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 nodes: refused: 96 GPUs do not divide into copies of the model: one takes 64" in done.stdout
    assert "Fewest of these nodes for at most 560 s:\n  24 by the middle" in done.stdout
    assert "Rests on:\n- slice 4 layers of 175B" in done.stdout
    assert json.loads(told.read_text())["fewest_nodes"] == {"likely": 24, "worst": 24, "calibrated": 24}


def test_a_reader_can_compute_it_again(tmp_path: Path) -> None:
    """The terms of each end add up to the step, the step makes the rate, the layer's time makes the layers' term."""
    told = tmp_path / "answer.json"
    assert main([*OURS, "--nodes", "16", "--json", str(told)]) == 0
    document = json.loads(told.read_text())
    (row,) = document["rows"]
    layout = row["layout"]
    for end, terms in row["terms_s"].items():
        assert set(terms) == {*TERMS, "step"}
        assert sum(terms[name] for name in TERMS) == pytest.approx(terms["step"]), end
    tokens = layout["global_batch"] * layout["sequence_length"]
    assert row["tokens_per_s"]["likely"] == pytest.approx(tokens / row["terms_s"]["likely"]["step"])
    assert row["seconds_for_20m_tokens"]["likely"] == pytest.approx(20e6 / row["tokens_per_s"]["likely"])
    assert row["memory_gib"]["total"] == pytest.approx(sum(v for k, v in row["memory_gib"].items() if k != "total"))
    given = document["inputs"]
    assert given["slices"][0]["layout"]["tensor"] == 4
    assert {"layer_s", "head_s", "links", "memory_gb_s", "jitter", "halving"} <= set(given)
    assert document["assumptions"]


def test_two_records_are_narrower_than_one(tmp_path: Path) -> None:
    """Records of runs of two depths, at the recipe's own split: no collectives of a node are asked for."""
    records = [str(recorded(tmp_path, layers, step_s)) for layers, step_s in ((4, 0.30), (8, 0.55))]
    widths = []
    for number, slices in enumerate((records[:1], records)):
        told = tmp_path / f"{number}.json"
        arguments = ("--system", "ND96isr_H200_v5", "--nodes", "24", "--json", str(told))
        assert main(["nlp175b", *arguments, "--slice", *slices]) == 0
        layer = json.loads(told.read_text())["inputs"]["layer_s"]
        widths.append(layer["worst"] - layer["best"])
        assert layer["likely"] == pytest.approx(0.25 / 8 / 4, rel=0.1)
    assert widths[1] < widths[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("nlp175", "--system", "H200"), "unknown recipe 'nlp175' (did you mean 'nlp175b'?)"),
        (("nlp175b", "--system", "nowhere"), "unknown system 'nowhere'"),
        (("nlp175b", "--system", "slurm"), "unknown: the GPUs of system slurm"),
        (("nlp175b", "--system", "H200", "--node-bandwidth", "340 GB/s"), "the network between the nodes"),
        (("nlp175b", "--system", "ND96isr_H200_v5"), "between 4 GPUs of one node"),
        (("nlp175b", "--system", "ND96isr_H100_v5"), "measured on H200, and the system has H100 80GB HBM3"),
        (("opt13b", "--system", "ND96isr_H200_v5"), "a slice of width 12288 with 96 heads says nothing of opt13b"),
        (("nlp175b", "--system", "a4-highgpu-8g"), "measured on H200, and the system has B200"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And there is no answer, not even in part."""
    assert main([*arguments, "--slice", str(SLICE), "--nodes", "8", "16"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert named in err


def test_an_unknown_memory_bandwidth_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a GPU that is in no table; given, it is taken."""
    mine = written(tmp_path, gpu="B200")
    arguments = ["nlp175b", "--system", "a4-highgpu-8g", "--slice", mine, "--network", "400 Gb/s", "--nodes", "24"]
    arguments += ["--collectives", str(NODE)]
    assert main(arguments) == 2
    assert "unknown: the memory bandwidth of B200; give --memory-bandwidth" in capsys.readouterr().err
    assert main([*arguments, "--memory-bandwidth", "8 TB/s"]) == 0
    assert "memory: 8000 (8000 to 8000) GB/s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "expected an object, found list"),
        ("{}", "name: missing"),
        ('{"recipe": {}}', "session: missing"),
    ],
)
def test_a_file_that_is_no_slice_is_named(
    text: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its path."""
    path = tmp_path / "slice.json"
    path.write_text(text)
    assert main(["nlp175b", "--system", "H200", "--slice", str(path), "--nodes", "8"]) == 2
    err = capsys.readouterr().err
    assert str(path) in err
    assert named in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--nodes", "0"), ("--nodes", "-8"), ("--nodes", "8.5"), ("--nodes", "²"), ("--network", "400"),
        ("--network", "0 Gb/s"), ("--network", "400 s"), ("--at-most", "560"), ("--pipeline", "0"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_meant_is_refused(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """By argparse, with the option."""
    with pytest.raises(SystemExit) as ended:
        main([*OURS, "--nodes", "8", *arguments])
    assert ended.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err


def test_a_layout_that_does_not_fit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With by how much; and where nothing has an answer, the command says so."""
    assert main([*OURS, "--nodes", "1", "--pipeline", "1"]) == 1
    out = capsys.readouterr().out
    assert "1 node: refused: tensor 8 × pipeline 1 × data 1" in out
    assert "of a GPU that has 141: " in out
    assert "none by the middle" in out
    assert "tokens/s (" not in out


def test_layouts_are_tried_and_the_fastest_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every one is in the document, refused or not, and none of them is faster than the one shown."""
    told = tmp_path / "answer.json"
    tried = ("--pipeline", "2", "4", "8", "--chunks", "1", "4", "--global-batch", "96", "--json", str(told))
    assert main([*OURS, "--nodes", "12", *tried]) == 0
    out, rows = capsys.readouterr().out, json.loads(told.read_text())["rows"]
    assert len(rows) == 6
    rates = [row["tokens_per_s"]["likely"] for row in rows if row["refused"] is None]
    assert len(rates) == 4, "a pipeline of 8 does not divide 12 nodes"
    assert f"  {max(rates):.0f} (" in out


def test_another_bound_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """In place of the recipe's own; a recipe without one is asked nothing."""
    assert main([*OURS, "--nodes", "8", "16", "24", "--at-most", "15 min"]) == 0
    assert "for at most 900 s:\n  16 by the middle" in capsys.readouterr().out
    azure = ["azure_gpt3_175b", *OURS[1:], "--nodes", "8"]
    assert main(azure) == 0
    assert "You gave no bound on the time for 20 million tokens." in capsys.readouterr().out


def test_the_shipped_h200_needs_its_network_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The system of no site says nothing of one; with it said, the answer is that of a site that has it."""
    mine = ["nlp175b", "--system", str(CHECKOUT / "suites" / "systems" / "h200.yaml"), *OURS[3:], "--nodes", "24"]
    assert read_yaml(CHECKOUT / "suites" / "systems" / "h200.yaml")["name"] == "H200"
    assert main(mine) == 2
    assert "--network" in capsys.readouterr().err
    assert main([*mine, "--network", "400 Gb/s"]) == 0
    said = capsys.readouterr().out.partition("\n")[2]
    assert main([*OURS, "--nodes", "24"]) == 0
    assert capsys.readouterr().out.partition("\n")[2] == said
