"""Lambda's evaluation of a batch, to the byte."""

import csv
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.engines.deepspeed_chat import eval_batch
from tests.support.samples import readable

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


def test_a_run_without_a_log_has_a_row_and_an_unreadable_one_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
