"""What holds for every dialect: whatever carries a log, its numbers are the same; and inputs that people reported."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench import engines
from pytest_llmbench.core.record.series import Step, StepSeries
from pytest_llmbench.readers.items import Item, Needles, Parse, StepLine, Unreadable
from pytest_llmbench.readers.log import read_log
from pytest_llmbench.readers.patterns import FAILURES
from tests.support.samples import middle_left_out, readable, sample

Read = Callable[..., StepSeries]
Sample = Callable[[str], Path]


def modules() -> dict[str, ModuleType]:
    """Return the modules of engines that read lines: `log` by its engine's name, others by their own."""
    found = {}
    for path in sorted(Path(engines.__path__[0]).glob("*/*.py")):
        if "\ndef parse(" in (text := path.read_text()) or "\ndef reader(" in text:
            name = path.parent.name if path.stem == "log" else path.stem
            found[name] = import_module(f"{engines.__name__}.{path.parent.name}.{path.stem}")
    return found


MODULES = modules()
DIALECTS = sorted(MODULES)


def dialect(name: str) -> Parse:
    """Return what reads one log of a module: its `reader()`, where lines are read in context, or its `parse`."""
    module = MODULES[name]
    parse: Parse = module.reader() if hasattr(module, "reader") else module.parse
    return parse


def needles(name: str) -> Needles:
    """Return what lines hold that say anything in a dialect."""
    return Needles(MODULES[name].NEEDLES)


_MEGATRON_LINE = (
    " [2026-11-21 02:45:{0:02}.116282] iteration {0:8}/      40 | consumed samples: {1:12} | elapsed time per "
    "iteration (ms): 25{0:02}.3 | throughput per GPU (TFLOP/s/GPU): 22.0 | learning rate: 2.932500E-04 | global batch "
    "size:    32 | lm loss: 1.0{0:02}240E+01 | loss scale: 1.0 | grad norm: 3.120 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
_METASEQ_LINE = (
    '2026-11-21 02:58:{0:02} | INFO | train_inner | {{"epoch": 1, "update": 0.0{0}, "loss": "8.5{0}", "wps": '
    '"240{0:02}.8", "ups": "46.7", "wpb": "512", "bsz": "8", "num_updates": "{0}", "lr": "0.004", "gnorm": "2.1"}}\n'
)
_NEMO_LINE = (
    "Training epoch 0, iteration {0}/39 | lr: 0.0001 | global_batch_size: 32 | global_step: {0} | reduced_train_loss: "
    "10.{0} | train_step_timing in s: 1.0{0} | consumed_samples: {1}\n"
)


def _log(before: str, line: str, after: str, numbers: Sequence[int]) -> str:
    return before + "".join("some words\n" + line.format(number, 32 * number) for number in numbers) + after


# Small logs in the words of each dialect. A dialect without one is tested with other texts, and with samples.
LOGS = {
    "megatron_lm": _log(
        "using world size: 2, data-parallel size: 2, context-parallel size: 1\n", _MEGATRON_LINE,
        "[after training is done] datetime: 2026-11-21 02:46:19.747045 \n", (1, 5, 10, 15),
    ),
    "metaseq": _log(
        "2026-11-21 02:58:47 | INFO | metaseq.cli.train | training on 2 devices (GPUs/TPUs)\n",
        _METASEQ_LINE,
        "2026-11-21 02:58:47 | INFO | metaseq.trainer | NOTE: gradient overflow detected, ignoring gradient\n"
        "2026-11-21 02:58:48 | INFO | metaseq.cli.train | done training in 0.5 seconds\n",
        (5, 10, 15, 20),
    ),
    "nemo": _log(
        "All distributed processes registered. Starting with 2 processes\n", _NEMO_LINE,
        "`Trainer.fit` stopped: `max_steps=4` reached.\n", (0, 1, 2, 3),
    ),
    "gnu_time": (
        "BEGIN_TRAINING: Mon Apr  8 08:33:01 UTC 2024\nsome words\n"
        "13.39user 53.30system 2:51.89elapsed 38%CPU (0avgtext+0avgdata 27828maxresident)k\n"
        "END_TRAINING: Mon Apr  8 09:02:25 UTC 2024\n"
    ),
}  # fmt: skip
SAMPLES = [
    ("megatron_lm", "logs/megatron_lm_core_0.16.log"), ("megatron_lm", "logs/megatron_lm_one_h200.log"),
    ("megatron_lm", "jsc/175B_job.out.excerpt.txt"), ("metaseq", "logs/metaseq_20_updates.log"),
    ("metaseq", "metaseq/fairseq_fsdp_13b_8xV100_train.log"),
    ("metaseq", "metaseq/fairseq_moe_dummy_lm_8xA100_train.log"), ("nemo", "logs/nemo_2.log"),
    ("nemo", "nemo/nemo1.0_gpt3_126m_40steps_stdout_tail.txt"),
    ("nemo", "nemo/nemo2_gpt3_126m_nemo_log_globalrank-0.txt"), ("deepspeed_chat", "logs/deepspeed_chat_step1.log"),
    ("deepspeed_chat", "logs/deepspeed_chat_step2.log"), ("deepspeed_chat", "logs/deepspeed_chat_step3.log"),
    ("deepspeed_chat", "lambda/opt-350m_1_1xN_batch0001.log"),
]  # fmt: skip
PREFIXES = [
    "node1: ", "vm-07-14: ", "titan: ", "1: ", "   1: ", "[default3]:", "[rank3]: ", "[1,0]<stdout>:", "node1: 3: ",
    "3: [default0]:[rank0]: ", "i.finetune/0 ", "ining-demo/0 [default0]:", "(RayTrainWorker pid=4711, ip=10.0.0.7) ",
    "(head, rank=0, pid=4711) ", "[2025-11-20T14:55:23+08:00] ",
]  # fmt: skip
NOISE = [
    "some words", "", "\x00\x00", "\ufffd" * 3, "RuntimeWarning: an iteration took 3 s | and more |",
    "vm:71:88 [0] NCCL INFO Channel 00/02 : 0 1", "2026-11-21 02:58:47 | WARNING | x | loss 3.0",
]  # fmt: skip
LONG = "x" * 70_000  # takes longer to read than all else
EVIL = [
    "iteration {0}/ {0} | consumed samples: {0} | elapsed time per iteration (ms): {0} | number of nan iterations: 0 |",
    '2026-11-21 02:58:47 | INFO | train_inner | {{"num_updates": {0}, "wps": {0}}}',
    '2026-11-21 02:58:47 | INFO | train_inner | {{"num_updates": "{0}", "wps": "{0}", "wpb": "{0}"}}',
    "Training epoch 0, iteration {0}/{0} | global_step: {0} | reduced_train_loss: {0}",
    "Epoch 0: 100%|#| {0}/{0} [00:31<00:00, 1.27it/s, loss={0}, global_step={0}.00]",
    "Epoch: {0}, Step: {0}, Rank: 0, loss = {0}", "Beginning of Epoch {0}/{0}, Total Micro Batches {0}",
    "using world size: {0}, data-parallel size: {0}", "{0}.0user {0}.0system {0}:{0}elapsed",
    "epoch=0/micro_step={0}/global_step={0}, RunningAvgSamplesPerSec={0}, CurrSamplesPerSec={0}",
]  # fmt: skip
COUNTS = {"gradient_overflows"}
NUMBERS = [
    "9" * 5000, "1e999", "-1", "0", "nan", "\N{ARABIC-INDIC DIGIT FIVE}", "[" * 5000, "1" + "\x00" + "2", "", "1e",
]  # fmt: skip

logs = pytest.mark.parametrize(("name", "log"), LOGS.items(), ids=LOGS)
samples = pytest.mark.parametrize(("name", "file"), readable(SAMPLES, lambda case: case[1]))


def items_of(parse: Parse, text: str) -> list[Item]:
    """Return what a line says; nothing where it is unreadable, which is the only error there may be."""
    try:
        return list(parse(text))
    except Unreadable:
        return []


def said(series: StepSeries) -> dict[str, object]:
    """Everything that a log says, but for where and how often it could not be read."""
    return series.model_dump(exclude={"unreadable", "unread", "failure"})


def numbers(series: StepSeries) -> object:
    """The steps and totals, so that they can be compared where some are NaN."""
    return repr((series.steps, sorted(series.totals.items()), series.world_size))


def merged(lists: Sequence[Sequence[str]], order: Sequence[int]) -> list[str]:
    """Take the next line of one list after the other, then what is left of each."""
    rest = [list(reversed(lines)) for lines in lists]
    taken = [rest[which % len(rest)].pop() for which in order if rest[which % len(rest)]]
    return taken + [line for lines in rest for line in reversed(lines)]


def test_every_dialect_is_found() -> None:
    assert {"gnu_time", "megatron_lm", "metaseq"} <= set(DIALECTS)
    assert set(LOGS) <= set(DIALECTS)


@logs
def test_the_logs_say_something(read: Read, name: str, log: str) -> None:
    series = read(dialect(name), log)
    assert series.unread == 0
    if name == "gnu_time":
        assert len(series.totals) == 3
    else:
        assert len(series.steps) == 4
        assert (series.world_size, series.completed is None) == (2, False)


@pytest.mark.parametrize("name", DIALECTS)
@given(text=st.one_of(st.text(), st.builds(str.format, st.sampled_from(EVIL), st.sampled_from(NUMBERS))))
def test_no_text_makes_a_dialect_fail(name: str, text: str) -> None:
    assert all(item.step >= 1 for item in items_of(dialect(name), text) if isinstance(item, StepLine))


@logs
@given(data=st.data())
def test_no_damage_makes_a_dialect_fail(name: str, log: str, data: st.DataObject) -> None:
    line = data.draw(st.sampled_from(log.splitlines()))
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, len(line))] * 2)))
    piece = data.draw(
        st.one_of(st.just(line[first:last] * 2), st.just(""), st.sampled_from(NUMBERS), st.text(max_size=5))
    )
    items_of(dialect(name), line[:first] + piece + line[last:])


@pytest.mark.parametrize("name", DIALECTS)
@given(content=st.binary(max_size=500))
def test_no_bytes_make_reading_fail(read: Read, name: str, content: bytes) -> None:
    lines = LOGS.get(name, "").encode().splitlines(keepends=True)
    read(dialect(name), content.join(lines) + content)


@logs
def test_prefixes_change_nothing(read: Read, name: str, log: str) -> None:
    plain = said(read(dialect(name), log))
    lines = log.splitlines()
    for prefix in PREFIXES:
        for form in ("{}{}\n", "{}{}\r\n", "\x1b[32m{}\x1b[1m{}\x1b[0m\n", "\r\x1b[2K{}{}\r"):
            assert said(read(dialect(name), "".join(form.format(prefix, line) for line in lines))) == plain, prefix


@samples
def test_prefixes_change_nothing_in_samples(read: Read, sample: Sample, name: str, file: str) -> None:
    log = middle_left_out(sample(file).read_bytes()).decode(errors="replace")
    plain = numbers(read(dialect(name), log))
    # The parts of a progress bar are lines of their own; they all get the prefix, as there is no terminal.
    lines = log.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for prefix in PREFIXES[SAMPLES.index((name, file)) % 3 :: 3]:
        assert numbers(read(dialect(name), "\n".join(f"{prefix}{line}" for line in lines))) == plain, prefix
    assert numbers(read(dialect(name), "\r\n".join(lines))) == plain


@pytest.mark.parametrize("name", LOGS)
@given(content=st.binary(max_size=200), number=st.sampled_from(NUMBERS), evil=st.sampled_from(EVIL))
def test_lines_without_a_needle_say_nothing(read: Read, name: str, content: bytes, number: str, evil: str) -> None:
    """A log says the same when lines that hold none of the dialect's needles are not read."""
    log = LOGS[name].encode() + content + b"\n" + evil.format(number).encode() + b"\n" + content
    assert numbers(read(dialect(name), log, needles(name))) == numbers(read(dialect(name), log))


@samples
def test_lines_of_samples_without_a_needle_say_nothing(read: Read, sample: Sample, name: str, file: str) -> None:
    content = sample(file).read_bytes()
    assert repr(read(dialect(name), content, needles(name))) == repr(read(dialect(name), content))


# Messages of programs that fail, with words and times that dialects look for.
FAILING = [
    b"RuntimeError: CUDA error", b"[rank1]: ValueError: 2026-11-21 02:58:47 is too late",
    b"srun: error: n1: task 0: Exited with exit code 1",
    b"slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2026-11-21T02:58:47 DUE TO TIME LIMIT ***",
    b"n1: Segmentation fault (core dumped)", b"[2026-11-21 02:58:47] Segmentation fault in iteration 3/ 40",
    b"E1121 02:58:47.1 12 torch/distributed/elastic/multiprocessing/api.py:1] failed",
    b"[exiting program after receiving SIGTERM] datetime: 2026-11-21 02:46:19",
    b"[2026-11-21 10:00:00,123] [INFO] [launch.py:321:sigkill_handler] x exits with return code = -11",
    b"KeyboardInterrupt",
]  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
@given(failing=st.lists(
    st.tuples(st.integers(0, 5000), st.sampled_from(FAILING), st.sampled_from([b"\n", b"\r\n", b""])),
    max_size=6,
), completed=st.booleans())  # fmt: skip
def test_words_of_failures_may_be_searched_for_afterwards(
    read: Read, name: str, failing: list[tuple[int, bytes, bytes]], *, completed: bool
) -> None:
    """A log says the same when they are searched for from its start, wherever they stand."""
    log = LOGS[name].encode()
    log = log if completed else log[: log.rstrip(b"\n").rfind(b"\n") + 1]
    for place, line, end in failing:
        log = log[: place % len(log)] + line + end + log[place % len(log) :]
    at_once = Needles((*needles(name).always, *FAILURES))
    assert repr(read(dialect(name), log, needles(name))) == repr(read(dialect(name), log, at_once))


# A careless pattern takes quadratic time for these: a beginning, then very many of one character, then another end.
BEGINNINGS = [
    "", "iteration", " iteration 1/ 1", " iteration 1/ 2 | a", "elapsed time per iteration (ms): ", "BEGIN_TRAINING:",
    "[", "Epoch 0:[", "Epoch: 0, Step: 1, Rank: 0, loss = ", "epoch: 0|step: 1|a: ",
    "epoch=0/micro_step=1/global_step=1, RunningAvgSamplesPerSec=", "x | train_inner | ",
    "Training epoch 0, iteration 0/9 | global_step: 1 | lr: ", "[INFO] [config.py:1:print]   world_size ",
    "launch.py:1:sigkill_handler] exits with return code = 1", "ValueError", "E1121 1", "(a, rank=1, pid=1", "a/1",
    "1.", "(",
]  # fmt: skip
REPEATED = [" ", "0", "a", ".", ",", "=", "|", "[", "(", '"', "{", ":", "-", "a.", "a|", "Epoch 0:", "\x1b]", "\x1b["]


@pytest.mark.parametrize("name", DIALECTS)
def test_no_line_takes_long(name: str, tmp_path: Path) -> None:
    """Quadratic time would be minutes of the processor for the longest line that is read."""
    lines = [
        (begin + each * (8_000 // len(each)) + end) for begin in BEGINNINGS for each in REPEATED for end in ("", "|")
    ]
    path = tmp_path / "job.out"
    path.write_text("\n".join(lines))
    signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, 3)
    try:
        read_log([path], dialect(name))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def too_long(*_: object) -> None:
    raise TimeoutError("a line takes minutes to read")


@logs
@given(
    order=st.lists(st.integers(0, 1), max_size=40),
    noise=st.builds(list.__add__, st.lists(st.sampled_from(NOISE), max_size=20), st.sampled_from([[], [LONG]])),
    data=st.data(),
)
def test_what_stands_between_changes_nothing(
    read: Read, name: str, log: str, order: list[int], noise: list[str], data: st.DataObject
) -> None:
    plain = said(read(dialect(name), log))
    lines = log.splitlines()
    assert said(read(dialect(name), "\n".join(merged([lines, noise], order)) + "\n")) == plain
    if hasattr(MODULES[name], "reader"):
        return  # reads lines in their context
    prefixes = data.draw(st.lists(st.sampled_from(PREFIXES), min_size=2, max_size=3, unique_by=str.strip))
    copies = [[prefix + line for line in lines] for prefix in prefixes]
    order = data.draw(st.lists(st.integers(0, 2), max_size=60))
    assert said(read(dialect(name), "\n".join(merged(copies, order)) + "\n")) == plain


def assert_part_of(part: Sequence[Step], whole: Sequence[Step]) -> None:
    """Assert that steps are the first of others. Of the last of them less may be known yet."""
    assert [step.step for step in part] == [step.step for step in whole[: len(part)]]
    assert repr(part[:-1]) == repr(whole[: max(0, len(part) - 1)])
    for step, full in zip(part[-1:], whole[len(part) - 1 : len(part)], strict=True):
        for name, value in step.model_dump(exclude={"reported", "interval"}).items():
            assert value is None or repr(value) == repr(getattr(full, name))
        assert len(part) == 1 or step.interval == full.interval
        for name, value in step.reported.items():
            assert repr(value) == repr(full.reported[name])


def assert_no_other_words(part: StepSeries, whole: StepSeries) -> None:
    """Assert that the beginning of a log says nothing of the run that all of it does not say."""
    for name, value in part.totals.items():
        assert value == whole.totals[name] or (name in COUNTS and value < whole.totals[name])
    assert part.world_size in {None, whole.world_size}
    assert part.restarted in {None, whole.restarted}
    assert part.completed is None or (whole.completed or "").startswith(part.completed)


@logs
def test_a_log_that_is_cut_off_says_less_and_nothing_else(read: Read, name: str, log: str) -> None:
    whole = read(dialect(name), log)
    ended = [end for end, line in _ends(log) if any(isinstance(item, StepLine) for item in dialect(name)(line))]
    for end in range(len(log)):
        part = read(dialect(name), log[:end])
        assert len(part.steps) == sum(1 for each in ended if each <= end)
        assert repr(part.steps) == repr(whole.steps[: len(part.steps)])
        assert_no_other_words(part, whole)


def _ends(log: str) -> list[tuple[int, str]]:
    lines = log.splitlines(keepends=True)
    return [(len("".join(lines[: number + 1])), line.rstrip("\n")) for number, line in enumerate(lines)]


@samples
def test_samples_that_are_cut_off(read: Read, sample: Sample, name: str, file: str) -> None:
    content = middle_left_out(sample(file).read_bytes())
    whole = read(dialect(name), content)
    for end in Random(file).sample(range(len(content)), 12):
        part = read(dialect(name), content[:end])
        assert_part_of(part.steps, whole.steps)
        assert_no_other_words(part, whole)


ROOT = Path(__file__).parents[3]


def test_every_case_from_the_field_is_right() -> None:
    """Readers, checks of GPUs, words of Slurm, and replays; plugins that call tests again have a test of their own."""
    done = subprocess.run(
        [sys.executable, sample("field_2026_11/check.py"), ROOT], capture_output=True, text=True, check=False,
        timeout=300, cwd="/",
    )  # fmt: skip
    *cases, total = done.stdout.splitlines()
    assert [case for case in cases if not case.startswith(("right ", "not run reruns "))] == [], done.stderr
    assert total == "23 of 23 right"
