"""What a log says as a whole, by a dialect made for this; a log without end takes little memory."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pytest_llmbench.core.record.series import Progress, StepSeries
from pytest_llmbench.core.wire.labels import Label
from pytest_llmbench.readers.items import (
    EVERY_LINE,
    Begun,
    Completed,
    Count,
    Failed,
    Item,
    LogInterval,
    Needles,
    StepLine,
    Total,
    Unreadable,
    WorldSize,
)
from pytest_llmbench.readers.log import last_step, last_words, log_files, read_log

Read = Callable[..., StepSeries]


def parse(text: str) -> Iterable[Item]:
    """`step 3 0.5` took 0.5 s; so did `bar 3 0.5`, so far; `first 1 0.5` is said again; the other items by name."""
    match text.split():
        case ["step", number, seconds]:
            yield StepLine(step=int(number), seconds=float(seconds))
        case ["bar", number, seconds]:
            yield StepLine(step=int(number), seconds=float(seconds), revises=True)
        case ["first", number, seconds]:
            yield StepLine(step=int(number), seconds=float(seconds), interval=1, first_apart=True)
        case ["step", *_]:
            raise Unreadable("no step")
        case ["total", name, value]:
            yield Total(name, float(value))
        case ["skipped"]:
            yield Count("skipped")
        case ["ranks" | "every" as name, number]:
            yield WorldSize(int(number)) if name == "ranks" else LogInterval(int(number))
        case ["begin" | "done" as name, *_]:
            yield Begun(text) if name == "begin" else Completed(text)
        case ["failed", *_]:
            yield Failed(text)


def intervals(series: StepSeries) -> list[tuple[int, int]]:
    """The steps' numbers and of how many they are the mean."""
    return [(step.step, step.interval) for step in series.steps]


def label(run: str = "a", host: str = "n1", launched: float = 1.5) -> Label:
    return Label(token=run, launched=launched, of=2, host=host)


@pytest.mark.parametrize("needles", [EVERY_LINE, Needles((b"step",), (b"ranks",))])
def test_labels_are_read_in_every_dialect(tmp_path: Path, needles: Needles) -> None:
    """Each once, wherever it stands in a line; what stands beside it is read without it, and a cut one is none."""
    first, second = label(), label(host="n2")
    lines = [
        str(first), f"  {first}", f"[default1]: {second}step 1 0.5", "[default1]: step 2 0.5", str(label(run="b")),
        str(first)[:-1],
    ]  # fmt: skip
    log = tmp_path / "log"
    log.write_text("\n".join([*lines, ""]))
    series = read_log([log], parse, needles=needles)
    assert series.labels == (first, second, label(run="b"))
    assert intervals(series) == [(1, 1), (2, 1)]
    assert series.unread == 0


def test_everything_that_can_be_said(read: Read) -> None:
    """The first word on a total, an end and a failure counts; a run that was completed did not fail."""
    log = "ranks 8\ntotal a 1\nstep 1 0.5\ntotal a 2\nfailed x\n failed y\n"
    assert read(parse, log).failure == "failed x"
    series = read(parse, f"{log} done 1\ndone 2\n")
    assert series.world_size == 8
    assert dict(series.totals) == {"a": 1.0}
    assert (series.failure, series.completed) == (None, "done 1")
    assert [(step.step, step.seconds) for step in series.steps] == [(1, 0.5)]
    assert series.restarted is None
    assert read(parse, "") == StepSeries()
    assert read(parse, "noise\n\n") == StepSeries()
    assert read(parse, "every 10\nevery 5\n").log_interval == 10
    assert read(parse, "every 10").log_interval is None


@pytest.mark.parametrize(("lines", "expected"), [
    (["step 1 1", "step 2 1", "step 3 1"], [(1, 1), (2, 1), (3, 1)]),
    (["step 10 1", "step 20 1"], [(10, 10), (20, 10)]),
    (["step 1 1", "step 10 1", "step 20 1"], [(1, 1), (10, 9), (20, 10)]),
    (["first 1 1", "step 10 1", "step 20 1"], [(1, 1), (10, 10), (20, 10)]),
    (["first 1 1", "step 2 1", "step 3 1"], [(1, 1), (2, 2), (3, 1)]),
    (["step 110 1", "step 120 1"], [(110, 10), (120, 10)]),
    (["step 10 1"], [(10, 10)]),
])  # fmt: skip
def test_intervals(read: Read, lines: list[str], expected: list[tuple[int, int]]) -> None:
    """A line is the mean since the line before it, also where the log starts in the middle of a run."""
    assert intervals(read(parse, "\n".join(lines) + "\n")) == expected


def test_unreadable_lines_are_counted_with_their_place_and_the_first_shown(read: Read) -> None:
    """Each is known by the step before it, that of the rank that got furthest."""
    series = read(parse, "noise\n" + "step x\n" * 1000 + "step 1 0.5\n")
    assert series.unread == 1000
    assert len(series.unreadable) == 20
    assert series.unreadable[0] == "job.out:2: no step"
    assert len(series.steps) == 1
    series = read(parse, "step x\n0: step 1 1\n1: step 1 1\n0: step 2 1\n1: step x\nstep 3 1\nstep x\nstep x\n")
    assert series.unread_after == {0: 1, 2: 1, 3: 2}
    assert series.unread == 4


def test_a_line_that_is_cut_off_says_no_number(read: Read) -> None:
    """Digits may be missing. Its words count, as they are only shown."""
    series = read(parse, "step 1 0.5\nstep 2 0.5")
    assert [step.step for step in series.steps] == [1]
    assert series.unreadable == ("job.out:2: step 2 is cut off",)
    assert read(parse, "total a 12").totals == {}
    assert read(parse, "skipped").totals == {}
    assert read(parse, "ranks 12").world_size is None
    assert read(parse, "done 12").completed == "done 12"


def test_of_ranks_that_share_a_log_the_slowest_counts(read: Read) -> None:
    """One of them may be of another, faster run, or leave out what the others wait for."""
    lines = [f"{rank}: step {n} {seconds}" for n in (1, 2) for rank, seconds in ((0, 1), (1, 3), (2, 2))]
    assert [step.seconds for step in read(parse, "\n".join([*lines, ""])).steps] == [3.0, 3.0]


def test_ranks_that_say_the_same_are_one(read: Read) -> None:
    text = "".join(f"{rank}: {line}\n" for line in ("step 1 1", "skipped", "step 2 1", "skipped") for rank in (0, 1, 2))
    series = read(parse, text + "1: step 3 1\n")
    assert intervals(series) == [(1, 1), (2, 1), (3, 1)]
    assert series.totals == {"skipped": 2.0}
    same = read(parse, "step 1 nan\nstep 2 1\nstep 1 nan\nstep 2 1\n")
    assert intervals(same) == [(1, 1), (2, 1)]
    assert (series.restarted, same.restarted) == (None, None)


def test_the_last_word_on_a_step_counts(read: Read) -> None:
    """A progress bar says a step several times."""
    series = read(parse, "bar 1 1\nbar 2 1\rbar 2 3\r\n")
    assert [step.seconds for step in series.steps] == [1.0, 3.0]
    assert series.restarted is None


def test_a_line_that_says_other_numbers_of_a_step_is_noticed(read: Read) -> None:
    """A log says a step once, or copies itself: of two numbers nobody knows which is right."""
    series = read(parse, "step 1 1\nstep 2 1\nstep 2 0.5\n")
    assert series.restarted == "job.out:3: step 2 again, with other numbers: a second run in the same log"
    assert read(parse, "step 1 1\nstep 2 1\nstep 2 1\n").restarted is None
    assert read(parse, "0: step 1 1\n1: step 1 2\n").restarted is None  # another rank's


def test_a_second_run_is_noticed_and_not_mixed_in(read: Read) -> None:
    """If it goes on where the first ended, the log repeats how many ranks it has."""
    series = read(parse, "step 1 1\nstep 2 1\nstep 1 5\nstep 2 5\nstep 3 5\n")
    assert series.restarted == "job.out:3: step 1 after step 2: a second run in the same log"
    assert [step.seconds for step in series.steps] == [1.0, 1.0]
    series = read(parse, "ranks 2\nranks 2\nstep 1 1\nranks 2\nstep 2 5\n")
    assert series.restarted == (
        "job.out:4: the number of ranks is printed again after the first step: a second run in the same log"
    )
    assert intervals(series) == [(1, 1)]
    assert read(parse, "step 1 1\nranks 2\n").restarted is None  # lines of rank 0 may come late


def test_an_attempt_of_other_ranks_before_the_first_step_is_a_second_run(read: Read) -> None:
    """The attempt has no step, and its number of ranks is not that of the training."""
    assert read(parse, "ranks 8\nranks 8\nstep 1 0.5\n").restarted is None
    assert read(parse, "ranks 8\nranks 16\nstep 1 0.5\n").restarted == (
        "job.out:2: 16 ranks after 8: a second run in the same log"
    )


def test_several_files_are_one_log(tmp_path: Path) -> None:
    """A log that was split is put together, a copy of it adds nothing, another run is noticed."""
    contents = ("ranks 2\nstep 1 1\n", "step 2 1\n", "ranks 2\nstep 1 1\nstep 2 1\n", "step 1 9\n")
    paths = [tmp_path / f"{number}.out" for number in range(4)]
    for path, content in zip(paths, contents, strict=True):
        path.write_text(content)
    series = read_log(paths[:3], parse)
    assert intervals(series) == [(1, 1), (2, 1)]
    assert series.restarted is None
    assert read_log(paths, parse).restarted == "3.out:1: step 1 after step 2: a second run in the same log"


def test_files_are_found_once_and_in_order(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "x.log").mkdir()
    for name in ("b.log", "a.log", "logs/output.log", "c.txt"):
        (tmp_path / name).touch()
    found = log_files(tmp_path, ["logs/output.log", "*.log", "a*"])
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.log", "b.log", "logs/output.log"]


@pytest.mark.parametrize("end", ["", "noise\n", "step x\n", "step 4", "step 4 0.2", "\n\n"])
def test_the_last_step_of_a_log_that_grows(tmp_path: Path, end: str) -> None:
    """The last whole one, whatever comes after it and however much before."""
    path = tmp_path / "job.out"
    path.write_text("x" * 100_000 + "\n0: step 2 1\n0: \x1b[1mstep 3 0.5\x1b[0m\n" + end)
    assert last_step(path, parse) == Progress(step=3, seconds=0.5)
    path.write_text(end)
    assert last_step(path, parse) is None


def test_the_last_words_of_a_log(tmp_path: Path) -> None:
    """The last line that is not empty, with the rank that said it, whole or not."""
    path = tmp_path / "job.out"
    assert last_words(path) == ""
    path.write_text("[rank3]:   \x1b[31mwaiting\x1b[0m \r\n\n0: \n")
    assert last_words(path) == "[rank3]: waiting"
    path.write_text("a\nb")
    assert last_words(path) == "b"


@pytest.mark.parametrize(("lines", "failure"), [
    (["ValueError: first", "KeyError: then"], "ValueError: first"),
    (["ChildFailedError: ", "ValueError: why", "KeyError: later"], "ValueError: why"),
    (["RuntimeError: [pair.cc:553] Connection closed by peer",
      "E1121 08:13:43.0 6973 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)",
      "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "],
     "E1121 08:13:43.0 6973 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9)"),
])  # fmt: skip
def test_the_failure_is_the_one_nearest_to_the_cause(read: Read, lines: list[str], failure: str) -> None:
    """Words of launchers, and of ranks whose peer is gone, are effects, whichever is printed first."""
    assert read(lambda text: [Failed(text)], "\n".join([*lines, ""])).failure == failure


FAILED = [
    "failed CUDA_ERROR_A of step", "ValueError: one", "failed CUDA_ERROR_B", "ValueError: two", "Interrupt of step",
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(FAILED)))
def test_the_failure_is_the_first_of_all_files_however_it_is_found(tmp_path: Path, first: int) -> None:
    paths = [tmp_path / "b" / "job.out", tmp_path / "a" / "job.out"]  # in this order
    for path in paths:
        path.parent.mkdir()
    paths[0].write_text("\n".join(["step 1 1", *FAILED[first : first + 2], ""]))
    paths[1].write_text("\n".join([*reversed(FAILED), ""]))
    say = Needles((b"step", b"failed"))
    series = read_log(paths, failing, needles=say)
    assert (series, series.failure) == (read_log(paths, failing), FAILED[first])
    # The words of an error that is quoted in a completed log cost nothing: nothing is read a second time.
    paths[1].write_text("\n".join([*FAILED, "step 2 1", "done in the last step", ""]))
    texts: list[str] = []

    def noting(text: str) -> Iterable[Item]:
        texts.append(text)
        return failing(text)

    completed = read_log(paths, noting, needles=say)
    assert (completed.completed, completed.failure, completed.cut_off) == ("done in the last step", None, None)
    assert not [text for text in texts if "Error" in text]


def failing(text: str) -> Iterable[Item]:
    return [Failed(text)] if "Error" in text or "Interrupt" in text else parse(text)


@pytest.mark.parametrize("needles", [EVERY_LINE, Needles((b"step",))])
def test_the_time_of_a_failure_counts_where_the_run_failed(tmp_path: Path, needles: Needles) -> None:
    log = tmp_path / "log"
    text = "ValueError: 2026-11-21 10:00:00\nstep 1 1\n[2026-11-21 11:00:00] step\n"
    log.write_text(text)
    assert read_log([log], failing, needles=needles).stamped is not None
    log.write_text(f"{text}done with the last step\n")
    assert read_log([log], failing, needles=needles).stamped is None


def test_slurms_word_on_the_time_limit_is_read_in_every_dialect(read: Read) -> None:
    line = "slurmstepd: error: *** STEP 7.{} ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***"
    series = read(parse, f"step 1 1\n0: {line.format(0)}\n{line.format(1)}\n")
    assert series.cut_off == line.format(0)
    assert len(series.steps) == 1
    assert read(parse, "step 1 1\n").cut_off is None
    assert read(parse, f"{line.format(0)}\nstep 1 1\n", Needles((b"step",))).cut_off == line.format(0)


def test_two_runs_whose_steps_different_ranks_log(read: Read) -> None:
    """The steps of each are whole by themselves, but a run begins once; a copied line is no second one."""
    first = "0: begin at 8:00\n1: step 1 1\n1: step 2 1\n"
    assert read(parse, first + "0: begin at 8:00\n0: done\n").restarted is None
    series = read(parse, first + "0: begin at 8:05\n3: step 1 0.5\n3: step 2 0.5\n3: step 3 0.5\n0: done\n")
    assert series.restarted == "job.out:4: 'begin at 8:05' after 'begin at 8:00': a second run in the same log"


def test_a_name_with_a_control_character_is_damage(read: Read) -> None:
    """Frameworks name numbers themselves; a terminal would obey what stands in the name."""

    def named(text: str) -> Iterable[Item]:
        name, number = text.split("=")
        yield StepLine(step=int(number), reported={name: 1.0})
        yield Total(name, 2.0)

    series = read(named, "lr=1\nl\x07r=2\n\x9b31mlr=3\n")
    assert ([step.step for step in series.steps], series.totals, series.unread) == ([1], {"lr": 2.0}, 2)


# Address space on top of the imports: less than the file, and less than a tenth of the size that it claims.
ROOM = 64 << 20
SIZE = 192 << 20
READ = """
import resource, sys
from pathlib import Path
from pytest_llmbench.cluster.jobs import _tail
from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.engines.deepspeed_chat import eval_batch
from pytest_llmbench.readers.log import READERS
from pytest_llmbench.readers.log import last_step, last_words, read_log
from pytest_llmbench.readers.steps.progress import last_step as last_of_steps
from pytest_llmbench.readers.steps.step_log import read_steps

folder = Path(sys.argv[1])
readers = [READERS.load(name) for name in sys.argv[3:]]
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (pages * resource.getpagesize() + int(sys.argv[2]),))
log = folder / "steps" / "rank-00000.jsonl"
for reader in readers:
    series = read_log([log], reader.dialect(), reader.claims, reader.needles)
    assert series.steps == (), series.steps
    last_step(log, reader.dialect())
    last_words(log)
eval_batch.evaluate([BatchLog(path=log, hosts=())], 1.0)
assert len(_tail(log)) <= 1 << 16
steps = read_steps(folder)
assert steps.steps == () and len(steps.unreadable) == 1
last_of_steps(folder)
"""


@pytest.mark.parametrize(("of", "reader"), [(b"", "megatron_lm"), (b"x", "metaseq"), (b"{", "nemo"), (b" ", "metaseq")])
def test_a_line_without_end_takes_little_memory(of: bytes, reader: str, tmp_path: Path) -> None:
    log = tmp_path / "steps" / "rank-00000.jsonl"
    log.parent.mkdir()
    with log.open("wb") as file:
        for _ in range(SIZE >> 20 if of else 0):
            file.write(of * (1 << 20))
        file.truncate(SIZE)
    command = [sys.executable, "-c", READ, str(tmp_path), str(ROOM), reader]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
