"""Logs of MLPerf Training: what the reader makes of public ones, of made ones in each form, and of damaged ones."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.cluster.runs import Replayed
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import RunOutcome
from pytest_llmbench.core.schema import validate
from pytest_llmbench.session.replay import FACTS_FILE, find_replays, recount
from tests.support.samples import DATA
from tests.support.shipped import shipped_recipes

SYSTEM = System(name="elsewhere", cluster="slurm")
BLOCKS, LORA = (DATA / "logs" / f"mlperf_{name}.txt" for name in ("llama31_8b_mi355x", "llama2_70b_lora_b200"))
RECIPE = validate(
    Recipe,
    {
        "name": "tiny", "engine": "mlperf", "gpus_per_node": 8, "end": "target", "steps": 1000, "warm_up": {"steps": 5},
        "model": {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128}, "sequence_length": 8192,
        "global_batch_size": 8, "micro_batch_size": 1, "parallelism": {"context": 2}, "precision": "fp8",
        "options": {"benchmark": "llama2_70b_lora", "target": 0.925}, "optimizer": {"learning_rate": 1.0e-3},
        "time_limit": 5,
    },
    "here",
)  # fmt: skip


def judged(folder: Path, text: str, recipe: Recipe = RECIPE) -> RunOutcome:
    (folder / "result_0.txt").write_text(text)
    replayed = Replayed(logs=folder, nodes=1, gpus_per_node=8, ranks_per_node=8, gpu="B200")
    return recount(recipe.on(replayed.topology), replayed, SYSTEM).outcome


def kind(outcome: RunOutcome) -> str:
    return outcome.problem.kind if outcome.problem else "judged"


def line(key: str, at: float, value: Any = None, **about: Any) -> str:
    event = {"time_ms": 1_760_000_000_000 + round(1000 * at), "key": key, "value": value, "metadata": about}
    return f"0: :::MLLOG {json.dumps(event)}\n"


def made(blocks: int = 6, steps: int = 20, status: str = "success", *, old: bool = False, batch: int = 8) -> str:
    """A log with a line for every other step of a second each, and evaluations of 5 s."""
    return "".join(_lines(blocks, steps, status, old, batch))


def _lines(blocks: int, steps: int, status: str, old: bool, batch: int) -> Iterator[str]:
    yield line("submission_benchmark", 0, "llama2_70b_lora") + line("global_batch_size", 0, batch)
    yield line("run_start", 1.0)
    now, done = 1.0, 0
    for block in range(blocks):
        yield line("block_start", now, samples_count=done * batch, **({} if old else {"step": done}))
        for step in range(done + 2, done + steps + 1, 2):
            loss, count = {"train_loss": 2.0 - step / 1000, "train_step_time": 1.0}, batch * step
            about = {"step": count} if old else {"step": step - 1, "samples_count": float(count)}
            yield line("tracked_stats", now + step - done, loss, **about)
        before, now, done = done, now + steps, done + steps
        yield line("tracked_stats", now, {"throughput": float(batch)} if old else {"train_step_time": 1.0})
        yield line("block_stop", now, samples_count=(before if old else done) * batch)
        yield line("eval_start", now, samples_count=done * batch)
        now += 5.0
        yield line("eval_accuracy", now, 1.0 - 0.08 * (block + 1) / blocks, samples_count=done * batch)
    yield line("run_stop", now, samples_count=done * batch, status=status)


@pytest.mark.parametrize("old", [False, True], ids=["step from 0", "step counts samples"])
def test_the_time_of_steps_is_that_of_blocks(tmp_path: Path, old: bool) -> None:
    """Evaluations are left out, and what a line says of its last step alone does not count."""
    text = made(old=old).replace('"train_step_time": 1.0}', '"train_step_time": 0.5}', 20 if old else 0)
    outcome = judged(tmp_path, text)
    assert kind(outcome) == "judged", outcome.problem
    assert [(step.step, step.interval, step.seconds) for step in outcome.steps] == [
        (2 * n, 2, 1.0) for n in range(1, 61)
    ]
    assert {name: outcome.metrics[name].value for name in ("tokens_per_s_per_gpu", "time_to_target")} == {
        "tokens_per_s_per_gpu": 8192.0, "time_to_target": 150.0,
    }  # fmt: skip
    assert "duration" not in "".join(outcome.unconfirmed)


def test_public_logs_have_their_published_rates(tmp_path: Path) -> None:
    """AMD's, whose lines are blocks of which the first may be longer, and Dell's LoRA, with a line for ten steps."""
    outcome = judged(tmp_path, BLOCKS.read_text(), shipped_recipes()["mlperf_llama31_8b_mi"])
    assert kind(outcome) == "judged", outcome.problem
    assert {step.interval for step in outcome.steps} == {384}
    rate = outcome.metrics["tokens_per_s_per_gpu"].value
    assert rate == pytest.approx(31385, abs=1)  # 30,627 are published with evaluations included
    assert outcome.totals["run_s"] == pytest.approx(60 * 99.32, rel=0.1)  # the median of ten runs
    tuned = judged(tmp_path, LORA.read_text())
    assert tuned.metrics["step_time"].value == pytest.approx(1.11, rel=0.001)


def without(words: str, number: int = 1) -> Callable[[str], str]:
    """Leave out the last lines with these words."""

    def change(text: str) -> str:
        lines = text.splitlines(keepends=True)
        at = [place for place, one in enumerate(lines) if words in one][-number:]
        return "".join(one for place, one in enumerate(lines) if place not in at)

    return change


def later(words: str, ms: int) -> Callable[[str], str]:
    """Change the clock of the last line with these words."""

    def change(text: str) -> str:
        head, tail = text[: (at := text.rindex(words))], text[at:]
        mark = head.rindex('"time_ms": ') + 11
        return head[:mark] + str(int(head[mark : mark + 13]) + ms) + head[mark + 13 :] + tail

    return change


# Damage, and the kind of problem that it becomes.
DAMAGE: dict[str, tuple[Callable[[str], str], str]] = {
    "aborted": (lambda text: text.replace('"success"', '"aborted"'), "no_evidence_of_completion"),
    "no run_stop": (without("run_stop"), "no_evidence_of_completion"),
    "cut": (lambda text: text[: text.rindex("0: :::MLLOG", 0, text.rindex("block_start"))],
            "no_evidence_of_completion"),
    "another run": (lambda text: text + text.replace(": 17600", ": 17601"), "restarted"),
    "a second trial": (lambda text: text + text[text.index("0: ", 250) :].replace(": 17600", ": 17601"), "restarted"),
    "last lines": (without("train_loss", 3), "implausible"),
    "lines of a block": (without("train_loss", 12), "implausible"),
    "first lines": (lambda text: text.replace("train_loss", "train_lo", 3), "steps_missing"),
    "no block_start": (without("block_start"), "implausible"),
    "no block_stop": (without("block_stop"), "implausible"),
    "no eval_start": (without("eval_start"), "implausible"),
    "no block_stop at all": (without("block_stop", 6), "implausible"),
    "a block begins late": (later("block_start", 1000), "implausible"),
    "a block begins after all": (later("block_start", 300_000), "no_evidence_of_completion"),
    "a block ends early": (later("block_stop", -1000), "implausible"),
    "an older clock": (lambda text: text[:5000] + text[5000:].replace(": 17600", ": 17590"),
                       "unreadable_log no_evidence_of_completion"),
    "twice the batch": (lambda text: text.replace('"value": 8,', '"value": 16,'), "wrong_work"),
    "no batch": (lambda text: text.replace('"global_batch_size"', '"global_batch"'),
                 "unreadable_log no_evidence_of_completion"),
    "another model": (lambda text: text.replace("70b_lora", "8b"), "wrong_work"),
    "target not reached": (lambda text: text.replace('"value": 0.92,', '"value": 0.93,'), "implausible"),
    "no number": (lambda text: text.replace('"train_loss": 1', '"train_loss": NaN, "was": 1'), "not_finite"),
}  # fmt: skip


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found(tmp_path: Path, name: str, old: bool) -> None:
    damage, problem = DAMAGE[name]
    text = made(old=old)
    damaged = damage(text)
    assert damaged != text
    outcome = judged(tmp_path, damaged)
    assert kind(outcome) in problem.split(), outcome.problem


def test_copies_of_a_line_and_lines_of_others_do_no_harm(tmp_path: Path) -> None:
    lines = made().splitlines(keepends=True)
    text = "".join(f"{one}{one}NCCL INFO Channel 00\n" for one in lines).replace("\n0: ", "\n 0: ")
    assert kind(judged(tmp_path, text)) == "judged"
    assert kind(judged(tmp_path, made().rstrip())) == "judged"  # its last line has no end


def test_a_log_may_lack_means_and_evaluate_before_the_first_step(tmp_path: Path) -> None:
    """Without the second clock the durations are unconfirmed."""
    first = line("eval_start", 1.0, samples_count=0) + line("eval_accuracy", 1.0, 11.0, samples_count=0)
    begun = made().replace(line("block_start", 1.0, samples_count=0, step=0), first + line("block_start", 1.0, step=0))
    assert "duration" not in "".join(judged(tmp_path, begun).unconfirmed)
    outcome = judged(
        tmp_path, "".join(one for one in begun.splitlines(keepends=True) if "train_step" not in one or "loss" in one)
    )
    assert (kind(outcome), "duration" in "".join(outcome.unconfirmed)) == ("judged", True), outcome.problem


def found(folder: Path, log: Path, recipes: dict[str, Recipe], **facts: Any) -> dict[str, Any]:
    place = folder / "mlperf" / "one system"
    place.mkdir(parents=True)
    shutil.copy(log, place / "result_0.txt")
    shutil.copy(log, place / "result_1.txt")
    (place / FACTS_FILE).write_text(yaml.safe_dump(facts))
    settings = Settings(system=SYSTEM, cluster="replay", allocation="run", run_dir=folder)
    return {
        key: spec.replayed.provenance["recipe_found"]
        for key, spec in find_replays(folder, recipes, settings).items() if spec.replayed
    }  # fmt: skip


MLPERF = {name: recipe for name, recipe in shipped_recipes().items() if recipe.engine == "mlperf"}


@pytest.mark.parametrize(("gpu", "nodes", "recipe", "words"), [
    ("MI355X", 1, "mlperf_llama31_8b_mi", "fits mlperf_llama31_8b_mi of 24 recipes"),
    ("MI300X", 1, "mlperf_llama31_8b_mi", "it has no reference for 8 × MI300X, 1 node"),
    ("B200", 2, "mlperf_llama31_8b_nvfp4_mbs1_ga2", "fits mlperf_llama31_8b_nvfp4_mbs1_ga2 of 24 recipes"),
    ("MI355X", 2, "mlperf_llama31_8b_nvfp4_mbs1_ga2", "it has no reference for 16 × MI355X, 2 nodes"),
])  # fmt: skip
def test_the_recipe_that_fits_is_found(tmp_path: Path, gpu: str, nodes: int, recipe: str, words: str) -> None:
    """By benchmark, batch, accumulation, sequences and layout of the log, and by the GPUs of its facts."""
    runs = found(tmp_path, BLOCKS, MLPERF, gpu=gpu, nodes=nodes, gpus_per_node=8)
    assert [key.rpartition("-group")[0] for key in runs] == [recipe, recipe]
    assert all(words in said for said in runs.values()), runs


def test_what_the_log_lacks_decides_between_recipes(tmp_path: Path) -> None:
    """Two precisions of one recipe: the log has no word of it, so it is asked for."""
    text = BLOCKS.read_text().replace(
        '"gradient_accumulation_steps", "value": 2', '"gradient_accumulation_steps", "value": 1'
    )
    (tmp_path / "log").write_text(text.replace('"value": 32,', '"value": 16,'))
    with pytest.raises(ConfigError, match="fits recipes mlperf_llama31_8b_fp8_mbs2, mlperf_llama31_8b_nvfp4_mbs2: "):
        found(tmp_path / "x", tmp_path / "log", MLPERF, gpu="B200", nodes=1, gpus_per_node=8)
