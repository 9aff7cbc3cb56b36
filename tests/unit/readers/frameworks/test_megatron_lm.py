"""Megatron-LM's log in every version, and what must not be read from it."""

import math
import re
import statistics
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.megatron_lm.log import reader
from pytest_llmbench.readers.items import (
    Begun,
    Completed,
    Failed,
    Item,
    LogInterval,
    Parse,
    Pause,
    StepLine,
    Unreadable,
    WorldSize,
)
from pytest_llmbench.readers.log import read_log

Read = Callable[[Parse, str], StepSeries]
Sample = Callable[[str], Path]

V1 = (
    " iteration      100/  320000 | elapsed time per iteration (ms): 1503.6 | learning rate: 3.000E-06 | "
    "lm loss: 7.812500E+00 | loss scale: 131072.0 |"
)
V2 = (
    " iteration      100/  320000 | consumed samples:        51200 | elapsed time per iteration (ms): 1503.6 | "
    "learning rate: 3.000E-06 | global batch size:   512 | lm loss: 7.812500E+00 | loss scale: 131072.0 | "
    "number of skipped iterations:   2 | number of nan iterations:   0 |"
)
V2_5 = V2.replace(" number of sk", " grad norm: 1.250 | num zeros: 12.0 | params norm: 322.500 | number of sk")
CORE_0_5 = V2.replace(" | learning", " | throughput per GPU (TFLOP/s/GPU): 151.2 | learning")
CORE_0_9 = " [2024-10-01 12:00:01]" + CORE_0_5.replace("E-06", "000E-06").replace(
    " | elapsed", " | skipped samples:           16 | elapsed"
)
CORE_0_13 = CORE_0_9.replace(
    " | learning", " | energy per GPU (J/iter/GPU): 512.5 | power per GPU (W/GPU): 340.8 | learning"
)
CORE_0_16 = CORE_0_13.replace("12:00:01", "12:00:01.000250").replace(" learning rate: 3.000000E-06 |", "")
DEEPSPEED = (
    V2_5.replace(" | elapsed", " | consumed tokens:    104857600 | elapsed").replace(
        " number of skipped", " actual seqlen:  2048 | number of skipped"
    )
    + " samples per second: 340.516 | tokens per gpu per second (tgs): 10896.512 | TFLOPs: 55.25 |"
)
JSC = V2.replace("(ms): 1503.6", "(s): 1.5036") + " samples per second: 340.516 | TFLOPs: 101.54 |"
VERSIONS = {
    "v1.0": V1, "v2.0": V2, "v2.5": V2_5, "core 0.5": CORE_0_5, "core 0.9": CORE_0_9, "core 0.13": CORE_0_13,
    "core 0.16": CORE_0_16, "Megatron-DeepSpeed": DEEPSPEED, "JSC": JSC,
}  # fmt: skip


def parse(text: str) -> Iterable[Item]:
    return reader()(text)


def step(text: str) -> StepLine:
    (item,) = parse(text)
    assert isinstance(item, StepLine)
    return item


@pytest.mark.parametrize("text", VERSIONS.values(), ids=VERSIONS)
def test_every_version(text: str) -> None:
    line = step(text)
    assert (line.step, line.loss) == (100, 7.8125)
    assert line.seconds == pytest.approx(1.5036)
    assert line.samples == (None if text == V1 else 512)
    assert line.interval is None
    assert line.first_apart == (text == CORE_0_16)


def test_what_only_some_versions_say() -> None:
    assert step(V1).reported == {"learning_rate": 3e-6, "loss_scale": 131072.0}
    assert step(V2).reported == {
        "consumed_samples": 51200.0, "learning_rate": 3e-6, "loss_scale": 131072.0, "number_of_skipped_iterations": 2.0,
        "number_of_nan_iterations": 0.0,
    }  # fmt: skip
    assert step(V2_5).grad_norm == 1.25
    assert step(V2_5).reported == {**step(V2).reported, "num_zeros": 12.0, "params_norm": 322.5}
    assert step(CORE_0_5).reported["throughput_per_gpu"] == 151.2
    assert step(CORE_0_9).reported["skipped_samples"] == 16.0
    assert step(CORE_0_13).reported["energy_per_gpu"] == 512.5
    assert step(CORE_0_13).reported["power_per_gpu"] == 340.8
    assert "learning_rate" not in step(CORE_0_16).reported
    assert step(DEEPSPEED).tokens == 512 * 2048
    assert step(DEEPSPEED).reported["consumed_tokens"] == 104857600.0
    assert step(DEEPSPEED).reported["tokens_per_gpu_per_second"] == 10896.512
    assert step(JSC).reported["tflops"] == 101.54
    assert step(JSC).reported["samples_per_second"] == 340.516


def test_fields_of_versions_to_come() -> None:
    reported = step(V2 + " mtp_1 loss: 6.5E+00 | actual_toks/s: 1000 | packing_eff: 95.3% |").reported
    assert (reported["mtp_1_loss"], reported["actual_toks_s"]) == (6.5, 1000.0)
    assert "packing_eff" not in reported


def test_a_skipped_iteration_has_no_loss() -> None:
    line = step(V2_5.replace(" lm loss: 7.812500E+00 |", "").replace("norm: 1.250", "norm: nan"))
    assert line.loss is None
    assert line.grad_norm is not None
    assert math.isnan(line.grad_norm)


@pytest.mark.parametrize("name", [
    "lm-loss", "lm_loss", "LM loss", "loss", "train_loss", "loss/train", "avg loss", "mlm loss", "cross_entropy",
    "z loss: 1.0E-03 | lm_loss", "mtp_1 loss: 9.0E+00 | training loss", "loss: 1.0E+00 | lm_loss",
])  # fmt: skip
def test_the_loss_of_forks(name: str) -> None:
    assert step(V2_5.replace("lm loss", name)).loss == step(V2_5).loss


def test_of_two_other_losses_none_is_the_one() -> None:
    assert step(V2_5.replace("lm loss", "loss of a: 1.0E+00 | loss of b")).loss is None


@pytest.mark.parametrize("form", [
    r"\1/9.5", r"\1 / 9.5", r"\1 (9.5)", r"\1 (avg: 9.5)", r"\1 (9.5 avg)", r"\1 (avg 9.5)", r"\1 [avg=9.5]",
    r"\1 (~9.5)", r"\1 avg 9.5", r"\1, avg: 9.5", r"\1; mean=9.5", r"\1 {9.5}", r"\1 ± 0.5", r"\1 (+/- 0.5)",
])  # fmt: skip
def test_a_number_may_have_its_mean_beside_it(form: str) -> None:
    assert step(re.sub(r"(?<=per iteration \(ms\): )([\d.]+)", form, V2_5)).seconds == step(V2_5).seconds


@pytest.mark.parametrize("text", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize("other", [
    "[Rank 3] memory",
    "[default1]:time (ms) | forward: 3.00 | backward: 5.00 |",
    "(after 100 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0",
    " validation loss at iteration 100 | lm loss value: 4.646278E+00 | lm loss PPL: 1.041965E+02 | ",
    "2026-11-21 02:58:47 | WARNING | x | y: 3 | z",
])  # fmt: skip
def test_text_of_another_rank_behind_a_line(text: str, other: str) -> None:
    assert step(text + other) == step(text)


@pytest.mark.parametrize(("text", "why"), [
    (V2 + V2, "two iterations in one line"),
    (V2[60:], "without its iteration number"),
    (V2.replace("100/", "0/"), "step is '0'"),
    (V2.replace("100/  320000", "100/      99"), "iteration 100 of 99"),
    (V2.replace("100/", "9" * 5000 + "/"), "not a whole number"),
    (V2[:-1], "cut off"),
    (V2[: V2.index(" elapsed")], "cut off after consumed samples"),
    (V1[: V1.index(" elapsed")], "no elapsed time"),
    (CORE_0_16.replace("12:00:01", "12:0:01"), "its time cannot be read"),
    (CORE_0_9.replace("2024-10", "2024-nan"), "its time cannot be read"),
    (V2[50:] + V2, "two iterations in one line"),
    (V2 + V2[V2.index(" learning") :], "learning rate twice"),
    (V2[: V2.index(" loss scale")] + "[Rank 3] memory | a | b |", "is not a field"),
    (V2.replace("nan iterations:   0", "nan iterations:   0[Rank 3] memory"), "iterations is .* not a number"),
    (V2.replace("lm loss: 7.8", "lm [Rank 3] memory | loss: 7.8"), "is not a field"),
    (V2.replace("lm loss: 7.8", "lm loss: 7.[default0]:warning"), "lm loss is .* not a number"),
    (V2.replace("loss scale: 131072.0", "lm loss: 3.0"), "lm loss twice"),
    (V2.replace("loss scale: 131072.0", "elapsed time per iteration (s): 3.0"), "two iterations in one line"),
    (V2.replace("1503.6", "0.0"), "elapsed time per iteration .* is '0.0'"),
    (V2.replace("512 ", "0 "), "global batch size is"),
    (V2.replace("51200 ", "five "), "consumed samples is"),
])  # fmt: skip
def test_lines_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        parse(text)


@pytest.mark.parametrize("text", [
    "", "(after 10 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 |",
    "    log_string += ' elapsed time per iteration (ms): {:.1f} |'.format(",
    " iteration ............................................ 0", "UserWarning: RuntimeError: CUDA out of memory",
    "WARNING:megatron: NCCL error in: x", "  File \"train.py\", line 1, in raise RuntimeError('x')",
    "[before the start of training step] datetime:", "print_datetime('exiting program after receiving SIGTERM.')",
    "using world size: 12", "  world_size ...................................... 2",
    "  tensorboard_log_interval ........................ 1",
])  # fmt: skip
def test_lines_that_say_nothing(text: str) -> None:
    assert list(parse(text)) == []


@pytest.mark.parametrize(("text", "item"), [
    ("using world size: 16 and model-parallel size: 2 ", WorldSize(16)),
    ("using world size: 384, data-parallel-size: 6, tensor-model-parallel size: 8", WorldSize(384)),
    ("using world size: 2, data-parallel size: 1, context-parallel size: 1", WorldSize(2)),
    ("  log_interval .................................... 5", LogInterval(5)),
])  # fmt: skip
def test_facts_of_the_run(text: str, item: Item) -> None:
    assert list(parse(text)) == [item]


@pytest.mark.parametrize(("text", "kind"), [
    ("[before the start of training step] datetime: 2026-11-21 03:13:23.549861", Begun),
    ("[after training is done] datetime: 2026-11-21 03:13:26.875028 ", Completed),
    ("[exiting program at iteration 15] datetime: 2026-11-21 08:10:19 ", Completed),
    ("[exiting program after 1.0022056 minutes] datetime: 2026-11-21 08:11:33 ", Completed),
    ("[exiting program after receiving SIGTERM.] datetime: 2026-11-21 08:13:57 ", Failed),
    ("ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 0 at iteration #2", Failed),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Failed),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", Failed),
])  # fmt: skip
def test_begin_and_ends(text: str, kind: type[Begun | Completed | Failed]) -> None:
    assert list(parse(text)) == [kind(text)]


def test_one_log_has_one_unit_of_time(tmp_path: Path) -> None:
    """Lines in seconds between lines in milliseconds are of another program."""
    lines = [V2.replace("100/", f"{n}/") for n in range(1, 5)]
    lines[2] = lines[2].replace("(ms): 1503.6", "(s): 1.5036")
    (tmp_path / "a.log").write_text("\n".join([*lines, ""]))
    found = read_log([tmp_path / "a.log"], reader()).unreadable
    assert found == ("a.log:3: its time is in s, and that of earlier lines in ms",)


def test_published_lines_of_175b(sample: Sample) -> None:
    series = read_log([sample("jsc/175B_job.out.excerpt.txt")], parse)
    assert [(line.step, line.interval, line.samples) for line in series.steps] == [
        (number, 10, 96) for number in (10, 20, 30, 40, 50)
    ]
    seconds = [line.seconds for line in series.steps if line.seconds is not None]
    assert seconds == [7.2310, 5.3551, 5.6192, 5.3291, 5.3247]
    assert round(20e6 / (96 * 2048) * statistics.fmean(seconds), 2) == 587.14
    assert round(20e6 / (96 * 2048) * statistics.fmean(seconds[1:]), 2) == 550.03
    assert (series.unread, series.restarted, series.completed) == (0, None, None)


def test_published_lines_of_13b(sample: Sample) -> None:
    series = read_log([sample("jsc/13B_job.out.excerpt.txt")], parse)
    assert [line.seconds for line in series.steps] == [35.8651, 34.9991, 34.8709, 35.3346]
    assert series.unread == 1
    assert series.unreadable[0].startswith("13B_job.out.excerpt.txt:5: cut off")


def test_lines_of_two_runs_with_srun_labels(sample: Sample) -> None:
    """Three lines with a label start in the middle of a run; three without are slower, with skipped iterations."""
    text = sample("megatron/awslabs_megatron_gpt3.excerpt.txt").read_text()
    labelled = [step(line.partition(":")[2]) for line in text.splitlines() if line.strip().startswith("1:")]
    skipped = [step(line) for line in text.splitlines() if line.strip().startswith("iteration")]
    assert [(line.step, line.seconds, line.loss) for line in labelled] == [
        (25, 0.087, 10.86954), (26, 0.0865, 10.86217), (27, 0.0884, 10.87129),
    ]  # fmt: skip
    assert [(line.step, line.seconds, line.loss, line.grad_norm) for line in skipped] == [
        (1, 255.9405, None, None), (2, 243.4383, None, None), (3, 243.3444, None, None),
    ]  # fmt: skip
    assert all(line.reported["number_of_skipped_iterations"] == 1.0 for line in skipped)
    series = read_log([sample("megatron/awslabs_megatron_gpt3.excerpt.txt")], parse)
    assert [(line.step, line.interval) for line in series.steps] == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.parametrize(("name", "steps", "ranks", "seconds"), [
    ("logs/megatron_lm_one_h200.log", [1, *range(5, 45, 5)], 1, 0.6337),
    ("logs/megatron_lm_core_0.16.log", [1, 5, 10, 15, 20], 2, 0.1803),
])  # fmt: skip
def test_whole_logs(sample: Sample, name: str, steps: list[int], ranks: int, seconds: float) -> None:
    series = read_log([sample(name)], parse)
    assert [line.step for line in series.steps] == steps
    assert [line.interval for line in series.steps] == [1] + [5] * (len(steps) - 1)
    assert series.steps[-1].seconds == pytest.approx(seconds)
    assert series.world_size == ranks
    assert series.completed is not None
    assert series.completed.startswith("[after training is done] datetime: 2026-11-21")
    assert (series.unread, series.failure, series.restarted) == (0, None, None)


@pytest.mark.parametrize(("numbers", "intervals"), [
    ((1, 2, 3, 4), (1, 2, 1, 1)), ((1, 2, 4, 6), (1, 2, 2, 2)), ((1, 10, 20), (1, 10, 10)), ((10, 20), (10, 10)),
])  # fmt: skip
def test_the_first_iteration_is_said_again(read: Read, numbers: tuple[int, ...], intervals: tuple[int, ...]) -> None:
    lines = [CORE_0_16.replace("iteration      100/", f"iteration {number:8}/") for number in numbers]
    assert tuple(step.interval for step in read(parse, "\n".join([*lines, ""])).steps) == intervals


def test_in_our_own_log_the_second_line_is_the_mean_of_two() -> None:
    """The clock beside each line says so: of 4 ranks, the first step took longer than the second."""
    log = Path(__file__).parents[3] / "data" / "logs" / "megatron_lm_4_ranks.log"
    begun, _first, second = re.findall(r"2026-11-21 (\d\d:\d\d:\d\d\.\d+)", log.read_text())[:3]
    two = datetime.fromisoformat(f"2026-11-21 {second}") - datetime.fromisoformat(f"2026-11-21 {begun}")
    steps = read_log([log], parse).steps
    assert (steps[0].interval, steps[1].interval) == (1, 2)
    assert steps[1].seconds == pytest.approx(two.total_seconds() / 2, rel=0.02)


@pytest.mark.parametrize("text", [
    " validation loss at iteration 10 | lm loss value: 4.646278E+00 | lm loss PPL: 1.041965E+02 | ",
    "saving checkpoint at iteration      10 to /tmp/x in torch_dist format",
    "    save-checkpoint ................................: (1200.11, 1200.12)",
])  # fmt: skip
def test_what_takes_time_between_steps(read: Read, text: str) -> None:
    """Evaluations and checkpoints; the next line is known to come after one, and no other."""
    assert list(parse(text)) == [Pause()]
    numbered = [CORE_0_16.replace("iteration      100/", f"iteration {number:8}/") for number in (1, 2, 3, 4)]
    series = read(parse, "\n".join([*numbered[:2], text, *numbered[2:], ""]))
    assert [step.paused for step in series.steps] == [False, False, True, False]


def test_when_a_line_was_printed(read: Read) -> None:
    assert step(V2).at is None
    assert step(CORE_0_16).at == datetime.fromisoformat("2024-10-01T12:00:01.000250+00:00").timestamp()
    assert read(parse, CORE_0_16 + "\n").steps[0].at == step(CORE_0_16).at
    with pytest.raises(Unreadable, match="its time is 2024-13-01 12:00:01"):
        parse(CORE_0_9.replace("2024-10", "2024-13"))
