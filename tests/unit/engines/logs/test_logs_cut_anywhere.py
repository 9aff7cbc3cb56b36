"""A log that was cut off anywhere is no evidence, and lines without an engine's needles say nothing of steps."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.base import Engine, Place, Script, get_engine, statistics_of
from pytest_llmbench.engines.external import External
from pytest_llmbench.judging.sanity import Evidence, first_problem
from pytest_llmbench.judging.statistics import Measurement, judged_steps, measure
from pytest_llmbench.readers.items import EVERY_LINE, Completed, Item, StepLine
from pytest_llmbench.readers.log import LogReader
from tests.support.samples import readable, sample
from tests.support.shipped import shipped_recipes

LOGS = Path(__file__).parents[3] / "data" / "logs"
RUN: dict[str, Any] = {
    "gpus_per_node": 0, "model": {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128},
    "optimizer": {"learning_rate": 1.0e-3}, "time_limit": 5,
    "references": [{"name": "any", "statistic": "loss_drop", "at_least": "-9 nat", "why": "x", "source": "y",
                    "date": "2026-01-01"}],
}  # fmt: skip
# A log of our own for each engine, what its run was, and a line that proves its end.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "megatron_lm": (
        "megatron_lm_2_ranks.log",
        {
            "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2, "steps": 30,
            "parallelism": {"tensor": 2},
        },
        "[after training is done]",
    ),
    "metaseq": (
        "metaseq_2_ranks.log",
        {"sequence_length": 128, "global_batch_size": 2, "micro_batch_size": 1, "steps": 50},
        "done training in",
    ),
}  # fmt: skip
Judge = Callable[[str], str]


@pytest.fixture(scope="module", params=CASES)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine that is known by its log and of which there is one of our own."""
    return get_engine(request.param)


@pytest.fixture(scope="module")
def judge(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Judge a log of two CPU ranks as a run is judged, without a session: PASS, FAIL, ERROR or none."""
    recipe = validate(Recipe, {"name": "run", "engine": engine.name, **RUN, **CASES[engine.name][1]}, "run")
    topology = Topology(nodes=1, gpus_per_node=0, cpu_ranks_per_node=2)
    log = tmp_path_factory.mktemp("log") / "job.out"

    def verdict(text: str) -> str:
        log.write_text(text)
        series = engine.read(log, recipe)
        doubts = tuple(engine.doubts(recipe, topology, series))
        problem = first_problem(
            Evidence(
                recipe=recipe, topology=topology, series=series, hosts=(), wall_s=None, gpu=None, kind="command",
                doubts=doubts,
            )
        )  # fmt: skip
        if problem is not None:
            return "ERROR"
        measurement = Measurement(
            recipe=recipe, steps=series.steps, judged=judged_steps(recipe, series.steps), gpus=0,
            totals=series.totals, matmul_flops_per_s=None, peak_flops_per_s=None,
        )  # fmt: skip
        return _met(recipe.references, measure(measurement, statistics_of(engine)))

    return verdict


def _met(references: Sequence[Reference], metrics: Any) -> str:
    (reference,) = references
    if reference.statistic not in metrics:
        return "ERROR"  # nothing was measured
    return "PASS" if reference.missed_by(metrics[reference.statistic].quantity) is None else "FAIL"


def whole(engine: Engine) -> str:
    return (LOGS / CASES[engine.name][0]).read_text()


def test_the_whole_log_passes(engine: Engine, judge: Judge) -> None:
    assert judge(whole(engine)) == "PASS"


def test_before_its_end_is_proved_it_is_an_error_at_every_byte(engine: Engine, judge: Judge) -> None:
    """A good log that ends before the line that proves its end has no verdict."""
    text = whole(engine)
    proved = text.index(CASES[engine.name][2])
    every = range(proved - 150, proved + 1), range(0, proved, 97)
    assert {judge(text[:end]) for ends in every for end in ends} == {"ERROR"}


def shuffled(lines: list[str], at: int) -> list[str]:
    """A part of it comes again, before its end: after that a log is whole, and what is cut off is a second one."""
    at = min(at, len(lines) - 4)
    return [*lines[: at + 1], *lines[max(0, at - 5) :]]


Corrupt = Callable[[list[str], int], list[str]]
CORRUPTIONS: dict[str, Corrupt] = {
    "drop": lambda lines, at: [line for index, line in enumerate(lines) if not at <= index < at + 3],
    "cut_lines": lambda lines, at: [
        line[: len(line) // 2] if at <= index < at + 3 else line for index, line in enumerate(lines)
    ],
    "not_finite": lambda lines, at: [
        *lines[:at], *(re.sub(r"(loss\"?: \"?)[\d.E+-]+", r"\1nan", line) for line in lines[at:])
    ],
    "other_size": lambda lines, _: [re.sub(r"(world size: |training on )2\b", r"\g<1>16", line) for line in lines],
    "endless": lambda lines, _: [line for line in lines if not re.search("after training|done training", line)],
    "shuffled": shuffled,
}  # fmt: skip


@pytest.mark.parametrize("corrupt", CORRUPTIONS.values(), ids=CORRUPTIONS)
@settings(max_examples=20)
@given(at=st.integers(0, 40), end=st.floats(0, 1))
def test_cutting_makes_no_pass_of_an_error(engine: Engine, judge: Judge, corrupt: Corrupt, at: int, end: float) -> None:
    lines = whole(engine).splitlines(keepends=True)
    text = "".join(corrupt(lines, at % len(lines)))
    if judge(text) == "ERROR":
        assert judge(text[: round(end * len(text))]) == "ERROR"


# A recipe of the engine, and a log.
WHOLE_LOGS = {
    "logs/megatron_lm_4_ranks.log": "nlp175b", "logs/metaseq_2_ranks.log": "metaseq125m",
    "nemo/output.log": "azure_gpt3_126m", "logs/megatron_lm_core_0.16.log": "nlp175b",
    "logs/megatron_lm_one_h200.log": "nlp175b", "logs/metaseq_20_updates.log": "metaseq125m",
    "logs/nemo_2.log": "azure_gpt3_126m", "nemo/nemo2_gpt3_126m_nemo_log_globalrank-0.txt": "azure_gpt3_126m",
    "logs/torchtitan_2_ranks.log": "titan_llama31_8b", "logs/deepspeed_chat_step1.log": "chat_350m_bs24_zero0",
    "lambda/opt-13b_1_1xN_batch0001.log": "chat_13b_bs16_zero0",
}  # fmt: skip
ENGINES = ("megatron_lm", "metaseq", "nemo_launcher", "nemo_torchrun", "deepspeed_chat", "torchtitan")


@pytest.mark.parametrize("file", readable(WHOLE_LOGS, str))
def test_a_log_says_the_same_by_its_needles(file: str) -> None:
    """Steps, totals, words and claims are those that are read when all lines are."""
    path = sample(file)
    recipe = shipped_recipes()[WHOLE_LOGS[file]]
    engine = get_engine(recipe.engine)
    found = engine.read(path, recipe)
    assert found.steps or found.completed or found.world_size or found.claims
    reader = dataclasses.replace(cast("External", engine).log_reader(), needles=EVERY_LINE)
    with mock.patch.object(type(engine), "reader", reader):
        assert repr(engine.read(path, recipe)) == repr(found)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_that_is_a_command_has_needles(name: str) -> None:
    needles = cast("External", get_engine(name)).log_reader().needles
    assert needles.always
    assert needles.first
    assert all(len(needle) > 3 for needle in needles.always)  # the others count up to the first step


class Beads(External):
    """An engine of somebody else, who wrote what the guide asks for."""

    name = "beads"
    proof = "the line `at rest`"
    reader = LogReader(name="beads", dialect=lambda: _parse)

    def work(self, recipe: Recipe, topology: Topology, place: Place) -> Script:  # noqa: ARG002
        return Script(commands=())


def _parse(text: str) -> Iterable[Item]:
    if text == "at rest":
        yield Completed(text)
    elif text.startswith("bead "):
        yield StepLine(step=int(text.removeprefix("bead ")), seconds=0.05)


def test_every_line_is_read_for_an_engine_without_needles(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("bead 1\nbead 2\nat rest\n", encoding="utf-8")
    found = Beads().read(log, shipped_recipes()["opt125m"])
    assert [step.step for step in found.steps] == [1, 2]
    assert found.completed
