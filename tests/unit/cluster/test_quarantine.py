"""The quarantine list."""

import threading
from pathlib import Path

import pytest

from pytest_llmbench.cluster.quarantine import add_to_quarantine, drain_command, read_quarantine, remove_bad
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "bad.txt"
    assert add_to_quarantine(path, {"n5": "gpu_xid: Xid 79\non GPU 3"}, "one") == ["n5"]
    assert add_to_quarantine(path, {"n5": "again", "n6": "dcgm"}, "two") == ["n6"]
    found = read_quarantine(path)
    assert list(found) == ["n5", "n6"]
    assert found["n5"].endswith("one: gpu_xid: Xid 79 on GPU 3")


def test_people_may_edit_it(tmp_path: Path) -> None:
    """Comments, empty lines, a reason without a hash, no newline at the end."""
    path = tmp_path / "bad.txt"
    path.write_text("# head\n\nn1 broken fan\n  n2\nn3 # loud")
    assert read_quarantine(path) == {"n1": "broken fan", "n2": "no reason given", "n3": "loud"}
    add_to_quarantine(path, {"n4": "hot"}, "s")
    assert list(read_quarantine(path)) == ["n1", "n2", "n3", "n4"]


def test_sessions_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.txt"
    threads = [threading.Thread(target=add_to_quarantine, args=(path, {f"n{i}": "x"}, f"s{i}")) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(read_quarantine(path)) == {f"n{i}" for i in range(8)}


def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_quarantine(tmp_path)
    assert read_quarantine(tmp_path / "none.txt") == {}


def settings(tmp_path: Path) -> Settings:
    return Settings(
        system=System(name="x", cluster="slurm"), cluster="slurm", allocation="session", run_dir=tmp_path,
        quarantine=tmp_path / "bad.txt",
    )  # fmt: skip


def test_commands_that_drain_nodes_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bad node gets a command for an operator; llmbench itself runs none."""
    monkeypatch.setenv("PATH", "/nonexistent")  # without scontrol
    session, bad = Session(id="s", folder=tmp_path), {"n1": "limits: low", "n2": "limits: low"}
    lines = list(remove_bad(bad, settings(tmp_path), session))
    assert lines[0].startswith("in quarantine now")
    assert [line.startswith("to drain it: scontrol update nodename=n") for line in lines[1:]] == [True, True]
    assert list(remove_bad({}, settings(tmp_path), session)) == []


def test_the_reason_of_a_drain_fits_on_a_line() -> None:
    command = drain_command("n5", "limits: a\nb " + 300 * "c", "session")
    assert command[:4] == ["scontrol", "update", "nodename=n5", "state=drain"]
    assert command[4].startswith("reason=llmbench session: limits: a b ccc")
    assert len(command[4]) < 200
