"""The model against published trainings: the table of docs/projection.md and its largest error are computed again."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import ModelShape
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.projection.layout import Layout, layout_of
from pytest_llmbench.projection.links import TrainingLinks
from pytest_llmbench.projection.memory import memory
from pytest_llmbench.projection.model import Band, Projection, project
from pytest_llmbench.projection.published import (
    CALIBRATED_ERROR,
    HIDDEN,
    MEMORY_GB_S,
    NETWORK_GBIT_S,
    SENDS_EXPOSED,
    TENSOR_EXPOSED,
    memory_gb_s,
    network_gb_s,
)
from pytest_llmbench.projection.slices import Hardware, one_slice
from tests.support.shipped import shipped_recipes

CHECKOUT = Path(__file__).parents[4]
TEXT = (CHECKOUT / "docs" / "projection.md").read_text(encoding="utf-8")
GROUPS: list[dict[str, Any]] = read_yaml(CHECKOUT / "tests" / "data" / "projection" / "published.yaml")["groups"]
SAMPLES = Path(os.environ.get("LLMBENCH_SAMPLES", CHECKOUT.parent / "shared" / "samples"))
MEMORY_GIB = {"A100-SXM4-40GB": 40, "A100-SXM4-80GB": 80, "H100 80GB HBM3": 80, "H200": 141}


@dataclass(frozen=True)
class Check:
    """One published training, predicted from another one."""

    group: str
    other_width: bool
    anchor: str
    row: str
    projection: Projection
    published: float

    @property
    def error(self) -> float:
        """Predicted by published, less 1."""
        return self.projection.tokens_per_s.likely / self.published - 1.0

    @property
    def line(self) -> str:
        """Its row of the document's table."""
        rate = self.projection.tokens_per_s
        band = f"{rate.likely:,.0f} | {rate.worst:,.0f} to {rate.best:,.0f}"
        end = f"{self.published:,.0f} | {100 * self.error:+.1f} % |"
        return f"| {self.group} | {self.anchor} → {self.row} | {band} | {end}"


def layout(group: Mapping[str, Any], row: Mapping[str, Any]) -> Layout:
    """A row's layout: the group's, with what the row changes."""
    way = {**group["layout"], **row.get("layout", {})}
    way.pop("data", None)
    copies = row["gpus"] // (way.get("tensor", 1) * way.get("pipeline", 1))
    batch = row.get("global_batch", group.get("global_batch"))
    return Layout(
        model=ModelShape(**{**group["model"], **row.get("model", {})}),
        sequence_length=row.get("sequence_length", group["sequence_length"]),
        micro_batches=batch // (copies * way["micro_batch"]) if batch else group["micro_batches"],
        data=copies,
        gpus_per_node=row.get("gpus_per_node", group["system"]["gpus_per_node"]),
        **way,
    )


def tokens_per_s(row: Mapping[str, Any], where: Layout) -> float:
    """What was published, as a rate of all GPUs."""
    if "tokens_per_s" in row:
        return float(row["tokens_per_s"])
    if "step_s" in row:
        return where.tokens_per_step / float(row["step_s"])
    flops = {"model": where.flops_per_step, "hardware": hardware_flops(where)}[row["counts"]]
    return where.tokens_per_step * where.gpus * float(row["tflops"]) * 1e12 / flops


def hardware_flops(where: Layout) -> float:
    """FLOPs of a step with all activations recomputed, as Narayanan et al. 2021 count them."""
    h, s, layers = where.model.hidden_size, where.sequence_length, where.model.layers
    return 96 * where.global_batch * s * layers * h * h * (1 + s / (6 * h) + where.model.vocab_size / (16 * layers * h))


def hardware(group: Mapping[str, Any]) -> Hardware:
    """The links and the memory of a group's machine."""
    system = group["system"]
    node, bandwidth = system.get("node_gb_s"), memory_gb_s(system["gpu"])
    assert bandwidth is not None
    links = TrainingLinks(
        node_gb_s=None if node is None else Band.exactly(node),
        network_gb_s=network_gb_s(system["network_gbit_s"]),
        tensor_exposed=TENSOR_EXPOSED,
        hidden=HIDDEN,
        sends_exposed=SENDS_EXPOSED,
    )
    return Hardware(links=links, memory_gb_s=bandwidth)


@cache
def checks() -> list[Check]:
    """Every row of the file, predicted."""
    found = []
    for group in GROUPS:
        machine, anchor = hardware(group), layout(group, group["anchor"])
        step_s = anchor.tokens_per_step / tokens_per_s(group["anchor"], anchor)
        spread = group["anchor"].get("spread", 0.0)
        measured = Band(best=step_s * (1 - spread), likely=step_s, worst=step_s * (1 + spread))
        cost = one_slice(anchor, measured, machine)
        for row in group["rows"]:
            where = layout(group, row)
            found.append(
                Check(
                    group=group["name"], other_width=group.get("other_width", False), anchor=group["anchor"]["name"],
                    row=row["name"], projection=project(where, cost.costs(where, machine)),
                    published=tokens_per_s(row, where),
                )
            )  # fmt: skip
    return found


@pytest.mark.parametrize("number", range(len(checks())))
def test_a_line_of_the_documents_table(number: int) -> None:
    """Predicted, its band, published and error are what the model says today."""
    assert checks()[number].line in TEXT.splitlines()


def test_the_document_has_no_other_lines() -> None:
    """As many as there are checks."""
    lines = [line for line in TEXT.splitlines() if " → " in line and line.endswith(" % |")]
    assert len(lines) == len(checks())


def test_the_calibrated_error_is_the_largest() -> None:
    """Of the checks at the same width, which the method is for; rounded up to a percent. The others are only shown."""
    largest = max(abs(check.error) for check in checks() if not check.other_width)
    assert largest <= CALIBRATED_ERROR < largest + 0.01
    assert f"**{100 * CALIBRATED_ERROR:.0f} %**" in TEXT
    other = max(abs(check.error) for check in checks() if check.other_width)
    assert f"{100 * other:.1f} % at other widths" in TEXT


def test_how_often_the_band_held_what_was_published() -> None:
    """The document says so, whatever it is."""
    same = [check for check in checks() if not check.other_width]
    rates = [(check.projection.tokens_per_s, check.published) for check in same]
    held = sum(rate.worst <= published <= rate.best for rate, published in rates)
    assert f"{held} of {len(same)}" in TEXT


def test_every_published_layout_fits() -> None:
    """It ran: so a model of memory that refuses it would be wrong."""
    for group in GROUPS:
        for row in (group["anchor"], *group["rows"]):
            gpu = MEMORY_GIB["H100 80GB HBM3" if "H100" in row["name"] else group["system"]["gpu"]]
            assert memory(layout(group, row)).missing(gpu) == 0.0, (group["name"], row["name"])


def test_every_group_has_its_source_in_the_document() -> None:
    """By its name, with where it was published."""
    sources = [line.partition(": ")[0] for line in TEXT.partition("Sources, all")[2].splitlines() if line[:2] == "- "]
    for group in GROUPS:
        assert group["source"]
        assert any(group["name"] in line for line in sources), group["name"]


def test_layouts_are_those_of_the_shipped_recipes() -> None:
    """Where there is a recipe of the same training."""
    recipes = shipped_recipes()
    by_name = {group["name"]: group for group in GROUPS}
    for name, recipe, nodes in (
        ("Azure 175B", "azure_gpt3_175b", 32),
        ("Azure 40B", "azure_gpt3_40b", 16),
        ("Azure 5B", "azure_gpt3_5b", 2),
        ("JSC 175B", "nlp175b", 96),
    ):
        group = by_name[name]
        own = layout_of(recipes[recipe], Topology(nodes=nodes, gpus_per_node=group["system"]["gpus_per_node"]))
        ours = layout(group, group["anchor"])
        assert str(own) == str(ours), name
        assert (own.model.hidden_size, own.precision) == (ours.model.hidden_size, ours.precision), name


def test_published_tables_are_those_of_the_shipped_systems() -> None:
    """Each GPU and each system by its own name."""
    systems = [read_yaml(path) for path in shipped("systems").glob("*.yaml")]
    assert set(NETWORK_GBIT_S) <= {system["name"] for system in systems}
    assert set(MEMORY_GB_S) <= {system["gpu"]["model"] for system in systems if "gpu" in system}
    for system in systems:
        lines = re.search(r"(\d+) × (?:HDR)?(\d+)(?: Gb/s)? .*per node", system.get("description", ""))
        if system["name"] in NETWORK_GBIT_S:
            assert lines is not None, system["name"]
            assert NETWORK_GBIT_S[system["name"]] == int(lines[1]) * int(lines[2]) / system["gpus_per_node"]


def test_numbers_are_those_of_the_samples() -> None:
    """Of Azure's and JSC's tables."""
    if not SAMPLES.is_dir():
        pytest.skip(f"no published logs in {SAMPLES}: LLMBENCH_SAMPLES names their folder")
    with (SAMPLES / "azure" / "azure_nemo_22.06_time_per_step.csv").open(encoding="utf-8") as file:
        azure = {(row["model"], int(row["nodes"])): float(row["time_per_step_s"]) for row in csv.DictReader(file)}
    for group in GROUPS:
        if re.fullmatch(r"Azure \d+B", group["name"]):
            for row in (group["anchor"], *group["rows"]):
                assert azure[group["name"].split()[1], row["gpus"] // 8] == row["step_s"]
    with (SAMPLES / "jsc" / "strong_scaling.csv").open(encoding="utf-8") as file:
        jsc = {int(row["Nodes"]): row for row in csv.DictReader(file)}
    steady, first = (next(g for g in GROUPS if g["name"] == name) for name in ("JSC 175B", "JSC 175B, first line"))
    # The same work for each GPU: the step is as much longer as the rate is smaller.
    slower = float(jsc[96]["Max_TFLOPs/GPU"]) / float(jsc[48]["Max_TFLOPs/GPU"])
    assert steady["rows"][0]["step_s"] == pytest.approx(steady["anchor"]["step_s"] * slower, abs=5e-4)
    assert first["rows"][0]["tokens_per_s"] == float(jsc[192]["Tokens/sec"])
    lines = (SAMPLES / "jsc" / "175B_job.out.excerpt.txt").read_text(encoding="utf-8")
    times = re.findall(r"elapsed time per iteration \(s\): ([\d.]+)", lines)
    assert (first["anchor"]["step_s"], steady["anchor"]["step_s"]) == (float(times[0]), float(times[-1]))
