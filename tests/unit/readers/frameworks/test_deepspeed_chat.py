"""DeepSpeed-Chat's log: Lambda's fork and upstream, its three steps; Lambda's evaluation of a batch, to the byte."""

import csv
import io
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.engines.deepspeed_chat import eval_batch
from pytest_llmbench.engines.deepspeed_chat.log import reader
from pytest_llmbench.readers.items import Completed, Failed, Item, Parse, StepLine, Total, Unreadable, WorldSize
from pytest_llmbench.readers.log import read_log
from tests.support.samples import readable

HEAD = "[2024-07-08 05:16:14,035] [INFO]"
TIMER = f"{HEAD} [timer.py:258:stop] epoch=0/micro_step=20/global_step={{}}, RunningAvgSamplesPerSec=90.0, {{}}"
MEMORY = "CurrSamplesPerSec=96.0, MemAllocated=5.53GB, MaxMemAllocated=33.78GB"
CONFIG = f"{HEAD} [config.py:1001:print]   {{}}"
EPOCH = "Beginning of Epoch {}/3, Total Micro Batches 4"
LOSS = "Epoch: {}, Step: {}, Rank: {}, loss = {}"
SPEED = "Model Parameters: 0.331 B, Latency: {}s, TFLOPs: 1.0, Samples/sec: {}, Batch Size: 4, Sequence Length: 64"
EXIT = f"{HEAD} [launch.py:351:main] Process {{}} exits successfully."

Read = Callable[[Parse, str], StepSeries]


@pytest.mark.parametrize(
    ("log", "batch", "seconds", "throughput"), [("opt-350m", 24, 20.3507, 943.4550), ("opt-13b", 16, 175.4549, 72.9532)]
)
def test_lambdas_logs(sample: Callable[[str], Path], log: str, batch: int, seconds: float, throughput: float) -> None:
    """The headline is what its own rule gives: batches of all ranks over the time of the steps after the warm-up."""
    series = read_log([sample(f"lambda/{log}_1_1xN_batch0001.log")], reader())
    totals = series.totals
    assert (totals["execution_time_s"], totals["execution_steps"]) == (seconds, 100.0)
    assert totals["throughput_samples_per_s"] == throughput
    assert batch * 8 * 100 / seconds == pytest.approx(throughput, rel=1e-5)
    assert (totals["train_batch_size"], totals["gradient_accumulation_steps"]) == (batch * 8, 1.0)
    assert [step.step for step in series.steps] == list(range(10, 111, 10))
    assert {step.samples for step in series.steps} == {batch * 8}
    assert series.completed == f"Throughput: {throughput:.4f} samples/sec"
    assert (series.world_size, series.unread, series.failure, series.restarted) == (8, 0, None, None)


def test_the_timers_rate_is_that_of_one_step(sample: Callable[[str], Path]) -> None:
    step = read_log([sample("lambda/opt-350m_1_1xN_batch0001.log")], reader()).steps[1]
    assert (step.step, step.interval) == (20, 1)
    assert step.seconds == 192 / 945.0998702008952
    assert step.reported["RunningAvgSamplesPerSec"] == 973.2796792259268
    assert step.peak_memory_bytes == round(33.78 * 2**30)


def test_step_1_of_upstream(sample: Callable[[str], Path]) -> None:
    """Two epochs of four steps, each with its loss on rank 0 and with the time that the line after it says."""
    series = read_log([sample("logs/deepspeed_chat_step1.log")], reader())
    assert [step.step for step in series.steps] == list(range(1, 9))
    assert (series.steps[0].loss, series.steps[4].loss) == (5.795322418212891, 5.123472690582275)
    assert [step.seconds for step in series.steps][4:6] == [4 / 234.52, 4 / 274.66]
    assert series.completed == "2 of 2 processes exit successfully"
    assert (series.world_size, series.unread, series.restarted) == (2, 0, None)


def test_step_2_of_upstream(sample: Callable[[str], Path]) -> None:
    series = read_log([sample("logs/deepspeed_chat_step2.log")], reader())
    assert series.steps == ()
    assert series.completed == "2 of 2 processes exit successfully"


def test_step_3_of_upstream(sample: Callable[[str], Path]) -> None:
    """What the lines after a step say is that step's; an actor's loss is no loss per token."""
    series = read_log([sample("logs/deepspeed_chat_step3.log")], reader())
    assert [step.step for step in series.steps] == list(range(1, 8))
    first = series.steps[0]
    assert (first.seconds, first.loss) == (8 / 78.54, None)
    assert first.reported["Actor Loss"] == -0.056396484375
    assert (series.unread, series.restarted) == (0, None)


def test_step_3_on_a_gpu(sample: Callable[[str], Path]) -> None:
    """Beside an own reading of the log, by a word of each line."""
    log = sample("logs/deepspeed_chat_step3_one_h200.log")
    series, words = read_log([log], reader()), log.read_text().split()
    after = {name: float(words[words.index(name) + 1].removesuffix("s")) for name in ("time:", "Throughput:")}
    losses = [float(word.partition("|")[0]) for before, word in pairwise(words) if before.endswith("act_loss:")]
    assert [step.reported["act_loss"] for step in series.steps] == losses
    assert len(losses) == series.totals["execution_steps"] == 6
    assert after == {
        "time:": series.totals["execution_time_s"],
        "Throughput:": series.totals["throughput_samples_per_s"],
    }
    assert (series.completed, series.unread, series.failure) == ("Throughput: 1.0393 samples/sec", 0, None)


def test_step_3_of_the_fork(read: Read) -> None:
    """It writes the same in other words; the counts of its two engines are not the run's."""
    series = read(
        reader(),
        f"Beginning of Epoch 1/1, Total Generation Batches 58\n{TIMER.format(10, MEMORY)}\n"
        "n-1: epoch: 0|step: 0|ppo_ep: 1|act_loss: 0.03|cri_loss: 0.019|unsuper_loss: 0.0\n",
    )
    (step,) = series.steps
    assert (step.step, step.seconds) == (1, None)
    assert step.reported == {
        "ppo_ep": 1.0, "act_loss": 0.03, "cri_loss": 0.019, "unsuper_loss": 0.0
    }  # fmt: skip


def test_throughput_without_losses_is_counted(read: Read) -> None:
    """Each line is about the next step, also after the timer has named it."""
    lines = [EPOCH.format(1), SPEED.format(0.5, 8.0), TIMER.format(2, MEMORY), SPEED.format(0.25, 16.0)]
    lines += [SPEED.format(4.0, 1.0), EPOCH.format(2), SPEED.format(80.0, 0.05)]
    assert [(step.step, step.seconds) for step in read(reader(), "\n".join([*lines, ""])).steps] == [
        (1, 0.5), (2, 0.25), (3, 4.0), (4, 80.0)
    ]  # fmt: skip


def test_what_is_no_step_is_not_counted(read: Read) -> None:
    """Before the first epoch there is none; where gradients are accumulated only the timer counts steps."""
    assert read(reader(), f"{SPEED.format(0.5, 8.0)}\n").steps == ()
    config = CONFIG.format("gradient_accumulation_steps .. 2")
    lines = [config, EPOCH.format(1), LOSS.format(0, 0, 0, 5.0), SPEED.format(0.5, 8.0), TIMER.format(1, MEMORY), ""]
    (step,) = read(reader(), "\n".join(lines)).steps
    assert (step.step, step.loss, step.seconds) == (1, None, None)


def test_lines_of_two_ranks_glued_together(read: Read) -> None:
    """Every line's end is printed on its own, so another rank's line may come before it."""
    loss = LOSS.format(0, 0, 1, 7.0) + LOSS.format(0, 0, 0, 5.5) + SPEED.format(0.5, 8.0)
    (step,) = read(reader(), f"{EPOCH.format(1)}\n{loss}\n").steps
    assert (step.step, step.loss, step.seconds) == (1, 5.5, 0.5)


def test_a_second_run_in_the_same_log(read: Read) -> None:
    """The scripts append to their log; without any number of a step the first epoch tells."""
    first, second = ("\n".join([EPOCH.format(1), *[SPEED.format(0.5, rate)] * 2, ""]) for rate in (8.0, 9.0))
    assert read(reader(), first).restarted is None
    assert read(reader(), first + second).restarted is not None


@pytest.mark.parametrize(("lines", "completed"), [
    ([EPOCH.format(1), EXIT.format(1), EXIT.format(2)], True),
    ([EPOCH.format(1), EXIT.format(1)], False),
    ([EXIT.format(1), EXIT.format(2)], False),  # it never trained
    ([EPOCH.format(1), "saving the final model ..."], False),
    (["node-1: Throughput: 145.5760 samples/sec"], True),
    (["Throughput: nan samples/sec"], False),
])  # fmt: skip
def test_what_proves_that_a_run_is_complete(read: Read, lines: list[str], completed: bool) -> None:
    """Every rank's success after training, or the fork's last line; no half of either."""
    world = f"{HEAD} [launch.py:164:main] dist_world_size=2"
    assert (read(reader(), "\n".join([world, *lines, ""])).completed is not None) is completed


def test_ranks_that_crash_after_the_end(read: Read) -> None:
    """Real runs did: the number is whole, and what went wrong is said beside it."""
    killed = f"{HEAD} [launch.py:321:sigkill_handler] ['python3', '-u', 'main.py'] exits with return code = -11"
    series = read(reader(), f"n-1: Throughput: 72.9201 samples/sec\nn-1: {killed}\n")
    assert series.completed == "Throughput: 72.9201 samples/sec"
    assert series.failure is None
    assert series.bad_ends == ("exits with return code = -11",)


@pytest.mark.parametrize(("text", "items"), [
    ("node-1 slots=8", []),
    (f"{HEAD} [launch.py:164:main] dist_world_size=8", [WorldSize(8)]),
    (CONFIG.format("world_size ................... 8"), [WorldSize(8)]),
    (CONFIG.format("train_batch_size ............. 192"), [Total("train_batch_size", 192.0)]),
    ('    "train_batch_size": 192, ', []),
    ("Execution time: 20.3507 seconds for 100 steps", [Total("execution_time_s", 20.3507), Total("execution_steps",
                                                                                                 100.0)]),
    ("Throughput: 943.4550 samples/sec", [Total("throughput_samples_per_s", 943.455),
                                          Completed("Throughput: 943.4550 samples/sec")]),
    (LOSS.format(0, 3, 1, 5.0), []),
    (LOSS.format(0, 3, 0, 5.0), [StepLine(step=4, loss=5.0)]),
    (SPEED.format(0.5, 8.0), []),
    ("AssertionError: timer is not started", [Failed("AssertionError: timer is not started")]),
    (f"{HEAD} [logging.py:96:log_dist] [Rank 0] step=110, skipped=9, lr=[9.9e-11], mom=[(0.9, 0.95)]", []),
])  # fmt: skip
def test_a_line_by_itself(text: str, items: list[Item]) -> None:
    assert list(reader()(text)) == items


@pytest.mark.parametrize(("text", "why"), [
    (TIMER.format(20, "CurrSamplesPerSec=-1.0"), "CurrSamplesPerSec"),
    (TIMER.format(20, "CurrSampl"), "not all"),
    (TIMER.format(20, f"CurrSamplesPerSec=96.0, MemA{HEAD} [Rank 0] step=20, skipped=8"), "not all"),
    (LOSS.format(0, 3, 0, "tensor(5.0)"), "loss"),
    (LOSS.format(2, 3, 0, 5.0), "step 3 of epoch 2"),
    ("Epoch: 0 | Step: 1 | PPO Epoch: 1 | Actor Loss: - | Critic Loss: 0.3", "not all"),
])  # fmt: skip
def test_a_step_that_cannot_be_read(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        list(reader()(text))


def test_a_throughput_that_cannot_be_read_is_counted(read: Read) -> None:
    assert read(reader(), f"{EPOCH.format(1)}\n{SPEED.format('NA', 8.0)}\n").unread == 1


@given(st.lists(st.sampled_from([
    EPOCH.format(1), EPOCH.format(2), LOSS.format(0, 1, 0, 5.0), LOSS.format(1, 9, 0, "nan"), SPEED.format(0.5, 8.0),
    TIMER.format(9, MEMORY), "Beginning of Epoch 1/1, Total Generation Batches 3", "Average reward score: 1.0",
    "Epoch: 0 | Step: 1 | PPO Epoch: 1 | Actor Loss: 0.1", "Training   => Latency: 0.06s", EXIT.format(1),
    CONFIG.format("train_batch_size ............. 8"), f"{HEAD} x dist_world_size=1",
]) | st.text(max_size=60), max_size=12))  # fmt: skip
def test_no_order_of_lines_raises(lines: list[str]) -> None:
    """A log is read or refused line by line, whatever is in it and missing from it."""
    of_log = reader()
    for line in lines:
        try:
            items = list(of_log(line))
        except Unreadable:
            continue
        assert all(item.step > 0 for item in items if isinstance(item, StepLine))


HEADER = b"Hostnames,Throughput (samples/sec),Status\r\n"


def evaluate(logs: Path | list[Path], threshold: float) -> bytes:
    """The file of some logs, or of all of a folder in the order of their names."""
    paths = sorted(logs.glob("*.log")) if isinstance(logs, Path) else logs
    return eval_batch.evaluate([BatchLog(path=path, hosts=("recorded",)) for path in paths], threshold)


def write(folder: Path, content: str, name: str = "opt-350m_1_batch0001.log") -> Path:
    path = folder / name
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize(("log", "expected"), readable(
    [("opt-350m_1_1xN_batch0001.log", "1node_1xN_opt-350m_bs24_zero0.csv"),
     ("opt-13b_1_1xN_batch0001.log", "1node_1xN_opt-13b_bs16_zero0.csv")],
    lambda case: f"lambda/{case[0]}",
))  # fmt: skip
def test_real_logs_give_the_published_file(sample: Callable[[str], Path], log: str, expected: str) -> None:
    assert evaluate([sample(f"lambda/{log}")], 65.0) == sample(f"lambda/{expected}").read_bytes()


@pytest.mark.parametrize("name", readable(
    ["1xN_opt-350m_bs24_zero0", "1xN_opt-13b_bs16_zero0", "2xN_opt-350m_bs24_zero0"],
    lambda name: f"lambda/allnodes_{name}.csv",
))  # fmt: skip
def test_published_files_are_reproduced(sample: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Logs that say what the rows say give these rows again, whatever the hosts are called."""
    published = sample(f"lambda/allnodes_{name}.csv").read_bytes()
    for index, row in enumerate(list(csv.reader(io.StringIO(published.decode())))[1:]):
        hosts = "\n".join(f"{host} slots=8" for host in row[0].split(", "))
        text = f"{hosts}\n\n{row[0].split(', ')[0]}: Throughput: {float(row[1]):.4f} samples/sec\n"
        write(tmp_path, text, f"{index:04d}.log")
    assert evaluate(tmp_path, 0.0) == published


def test_a_log_without_a_throughput_fails(tmp_path: Path) -> None:
    write(tmp_path, "node-1 slots=8\nnode-2 slots=8\n\nThroughput: nan samples/sec\nThroughput: 12 samples/sec\n")
    assert evaluate(tmp_path, 0.0) == HEADER + b'"node-1, node-2",-1,Fail\r\n'


def test_the_first_throughput_counts_and_ends_the_log(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a slots=8 Throughput: 1.0 samples/sec\nb: Throughput: 2.50 samples/sec Throughput: 3.0 samples/sec\n"
        "c slots=8\nThroughput: 4.0 samples/sec\n",
    )
    assert evaluate(tmp_path, 2.0) == HEADER + b"a,2.5,Success\r\n"


@pytest.mark.parametrize(("threshold", "status"), [(943.455, b"Success"), (943.4551, b"Fail"), (float("nan"), b"Fail")])
def test_the_threshold_itself_is_enough(tmp_path: Path, threshold: float, status: bytes) -> None:
    write(tmp_path, "n slots=8\nThroughput: 943.4550 samples/sec\n")
    assert evaluate(tmp_path, threshold) == HEADER + b"n,943.455," + status + b"\r\n"


def test_carriage_returns_end_lines_and_odd_bytes_end_nothing(tmp_path: Path) -> None:
    """A log with a progress bar or with something that is no text is evaluated all the same."""
    (tmp_path / "x.log").write_bytes(b"n slots=8\r\xff\xfe 10%\rThroughput: 5.0 samples/sec\r\n")
    assert evaluate(tmp_path, 5.0) == HEADER + b"n,5.0,Success\r\n"


def test_a_run_without_a_log_has_a_row_and_unreadable_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate([tmp_path / "no.log"], 0.0) == HEADER + b"recorded,-1,Fail\r\n"
    log = write(tmp_path, "n slots=8\n")
    monkeypatch.setattr(Path, "open", lambda path, _: os.open(path / "in a file", os.O_RDONLY))
    with pytest.raises(ConfigError, match=r"cannot evaluate .*batch0001\.log: Not a directory"):
        evaluate([log], 1.0)


@given(st.lists(st.tuples(st.lists(st.from_regex(r"[!-~]{1,9}", fullmatch=True), max_size=3), st.floats(0, 1e9))))
def test_the_file_is_read_back(tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[list[str], float]]) -> None:
    folder = tmp_path_factory.mktemp("logs")
    for index, (hosts, value) in enumerate(runs):
        lines = [*(f"{host} slots=8" for host in hosts), f"Throughput: {value:.4f} samples/sec"]
        write(folder, "\n".join(lines), f"{index:03d}.log")
    content = evaluate(folder, 0.0).decode()
    assert [row[:2] for row in csv.reader(io.StringIO(content, newline=""))][1:] == [
        [", ".join(hosts), repr(float(f"{value:.4f}"))] for hosts, value in runs
    ]
