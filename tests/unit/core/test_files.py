"""Files that are replaced whole, and YAML: plain mappings, and nothing taken in silence for something else."""

import grp
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core import paths
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import (
    open_regular,
    read_at_most,
    refuse_shared,
    refuse_special_files,
    replacing,
    share,
    write_text,
)
from pytest_llmbench.core.yaml_files import read_yaml

STRANGER = 54_321  # a user needs no name to own files and to run processes
# Replaces a session's folder by one of its own, with a file for a job.
ATTACK = """
import sys
from pathlib import Path
above = Path(sys.argv[1])
(above / "session").rename(above / "gone")
(above / "session").mkdir()
(above / "session" / "17_submitted.json").write_bytes(b"evil")
"""


def names(folder: Path) -> list[str]:
    """Names of everything in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_with_its_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new/folder/file"
    write_text(path, "first")
    write_text(path, "wörd\n")
    assert path.read_text(encoding="utf-8") == "wörd\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["file"]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "x" * 100_000 + "\ud800")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_failed_replacement_keeps_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="file"):
        write_text(tmp_path / "file", "new")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").is_dir()


def test_a_replacement_has_the_mode_of_what_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    with replacing(path, durable=True) as new:
        new.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)
    with pytest.raises(FileNotFoundError), replacing(path, durable=True):
        pass
    assert (path.read_text(), names(tmp_path)) == ("new", ["file"])


@pytest.fixture
def above() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder / "above"
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(("owner", "group", "mode", "why"), [
    (0, 0, 0o755, ""), (0, 0, 0o1777, ""), (0, 0, 0o775, ""), (0, STRANGER, 0o755, ""),
    (0, 0, 0o777, "can be written by every user"), (0, STRANGER, 0o775, f"can be written by group {STRANGER}"),
    (STRANGER, 0, 0o755, f"belongs to user {STRANGER}"),
])  # fmt: skip
def test_a_folder_is_refused_where_the_attack_succeeds(
    above: Path, owner: int, group: int, mode: int, why: str
) -> None:
    """Another user really replaces the folder of a session by one with a file of his own for a job."""
    session = above / "session"
    session.mkdir(parents=True, mode=0o700)
    os.chown(above, owner, group)
    above.chmod(mode)
    if why:
        with pytest.raises(ConfigError, match=f"{above} {why}, who could replace .* give a --llmbench-run-dir"):
            refuse_shared(session)
    else:
        refuse_shared(session)
    command = [sys.executable, "-c", ATTACK, str(above)]
    if not os.access(sys.executable, os.X_OK) or Path(sys.executable).resolve().is_relative_to("/root"):
        command[0] = shutil.which("python3", path="/usr/bin:/bin") or pytest.skip("no python3 for other users")
    subprocess.run(command, check=False, stderr=subprocess.DEVNULL, user=STRANGER, group=STRANGER, extra_groups=[])
    assert (session / "17_submitted.json").exists() == bool(why)


def test_a_link_of_another_user_is_refused(above: Path) -> None:
    """In a folder such as `/tmp` its owner could let the link lead elsewhere."""
    above.mkdir()
    above.chmod(0o1777)
    (above / "mine").mkdir(mode=0o700)
    (above / "link").symlink_to(above / "mine")
    refuse_shared(above / "link" / "session")
    if os.getuid() == 0:
        os.lchown(above / "link", STRANGER, STRANGER)
        with pytest.raises(ConfigError, match=f"{above / 'link'} belongs to user {STRANGER}"):
            refuse_shared(above / "link" / "session")


def test_a_fifo_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """Opening it would wait for ever."""
    os.mkfifo(fifo := tmp_path / "replay.yaml")
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(OSError, match="it is not a regular file"):
            open_regular(path)
        with pytest.raises(ConfigError, match="it is not a regular file"):
            read_at_most(path, 10)
        with pytest.raises(ConfigError, match="it is not a regular file"):
            read_yaml(path)


@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_a_folder_with_a_special_file_is_refused(tmp_path: Path, kind: str) -> None:
    """It is named, wherever it is; links to folders and links that lead nowhere are no fault."""
    (tmp_path / "runs/a").mkdir(parents=True)
    (tmp_path / "latest").symlink_to("runs")
    (tmp_path / "gone").symlink_to("nowhere")
    refuse_special_files(tmp_path)
    path = tmp_path / "runs/a/record.json"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path if kind == "fifo" else tmp_path.with_name(f"{tmp_path.name}.fifo"))
        if kind == "link":
            path.symlink_to(tmp_path.with_name(f"{tmp_path.name}.fifo"))
    with pytest.raises(ConfigError, match=rf"{path} is not a regular file"):
        refuse_special_files(tmp_path)


def test_a_group_reads_a_session_but_for_what_jobs_execute(tmp_path: Path) -> None:
    session = tmp_path / "reports" / "s"
    for name in ("record.json", "run.sh", "1_submitted.pkl", "task.json", "command.json", "logs/output.log"):
        write_text(session / "runs" / "tiny" / name, "", mode=0o600)
    outside = tmp_path / "outside"
    outside.touch(mode=0o600)
    (session / "link").symlink_to(outside)
    tmp_path.chmod(0o700)
    group = grp.getgrgid(os.getgid() or 1).gr_name
    share(session, group)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (tmp_path, *tmp_path.rglob("*"))}
    assert modes == {
        tmp_path.name: "0o700", "outside": "0o600", "link": "0o600", "reports": "0o750", "s": "0o750", "runs": "0o750",
        "tiny": "0o750", "logs": "0o750", "output.log": "0o640", "record.json": "0o640", "run.sh": "0o600",
        "1_submitted.pkl": "0o600", "task.json": "0o600", "command.json": "0o600",
    }  # fmt: skip
    assert (session / "runs").stat().st_gid == grp.getgrnam(group).gr_gid
    assert outside.stat().st_gid == os.getgid()
    with pytest.raises(ConfigError, match="group 'no-such-group' of the system is unknown on this machine"):
        share(session, "no-such-group")


def test_a_package_of_yaml_files_is_a_folder_a_module_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_yaml" / "recipes").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert paths.folder_of(import_module("acme_yaml.recipes")) == tmp_path / "acme_yaml" / "recipes"
    for other in (sys.modules["os"], "acme_yaml.recipes"):
        with pytest.raises(ConfigError, match="it is not a package; give the dotted name of a folder"):
            paths.folder_of(other)


Read = Callable[[str | bytes], dict[str, Any]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def run(text: str | bytes) -> dict[str, Any]:
        path = tmp_path / "file.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_yaml(path)

    return run


def test_a_mapping_is_read(read: Read) -> None:
    """A key that a merge brought may be overridden, the first of several counts, and an alias may be used often."""
    text = "base: &base {a: 1, b: 2}\nc: {<<: *base, b: 3}\nd: *base\ne: [x, 1.5, true]"
    base = {"a": 1, "b": 2}
    assert read(text) == {"base": base, "c": {"a": 1, "b": 3}, "d": base, "e": ["x", 1.5, True]}
    text = "x: {child: &child {<<: &base {a: 1}, a: 2}}\nparent: {<<: *child, b: 3}"
    assert read(text) == {"x": {"child": {"a": 2}}, "parent": {"a": 2, "b": 3}}
    text = "a: &a {speed: 1}\nb: &b {speed: 2, loss: 3}\nx: {<<: [*a, *b]}\ny: {<<: [*b, *a], loss: 4}"
    assert {key: value for key, value in read(text).items() if key in "xy"} == {
        "x": {"speed": 1, "loss": 3}, "y": {"speed": 2, "loss": 4},
    }  # fmt: skip
    assert read("a: &a [1, {b: 2}]\nb: [*a, *a]\nc: &c 3\nd: *c") == {
        "a": [1, {"b": 2}], "b": [[1, {"b": 2}]] * 2, "c": 3, "d": 3,
    }  # fmt: skip


def bomb(level: str) -> str:
    """Eight lines, each with nine times the one before: of a few hundred bytes, 43 million values."""
    return "".join(f"a{n}: &a{n} {level.format(', '.join([f'*a{n - 1}'] * 9))}\n" for n in range(1, 9))


@pytest.mark.parametrize(("text", "message"), [
    ("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' is given twice"),
    ("x: [{y: {a: 1, a: 1}}]", "line 1, column 16: key 'a' is given twice"),
    ("limit: 1:30:00", '1:30:00 without quotes is a number to base 60; write "1:30:00"'),
    ("x: [1:30.5]", "1:30.5 without quotes is a number to base 60"),
    ("limit: 030", '030 without quotes is a number to base 8; write "030"'),
    ("- a\n- b", "expected a mapping of keys, found list"),
    ("", "expected a mapping of keys, found NoneType"),
    ("words", "expected a mapping of keys, found str"),
    ("b:\na: [1\n", r"cannot be read: line \d, column \d: did not find .* from line 2\)$"),
    ("a: *nowhere", "cannot be read"),
    ("a: !!python/name:os.system", "cannot be read"),
    ("date: 2023-02-30", "cannot be read: day is out of range for month"),
    ("? [a]\n: b", "unhashable key"),
    ("a: !!int words", "cannot be read"),
    ("a: 1\n--- \nb: 2", "expected a single document"),
    (b"a: caf\xe9", "cannot be read"),
    (b"a: \x00", "cannot be read"),
    # The C parser of PyYAML has had a bound of its own since 6.0.4, and reads ahead.
    ("a: " + "[" * 100_000, "nested deeper than 50|exceeded maximum nesting depth"),
    ("a: " + "{b: " * 100_000, "nested deeper than 50|exceeded maximum nesting depth"),
    ("- " * 100_000, "nested deeper than 50"),
    ("a: &a {b: [*a]}", r"\*a is inside of &a: it has no end"),
    ("a0: &a0 {b: c}\n" + bomb("{{<<: [{}]}}"), "more than 100000 values, aliases included"),
    ("a0: &a0 [b]\n" + bomb("[{}]"), "more than 100000 values, aliases included"),
    ("a0: &a0 [b]\n" + "".join(f"a{each + 1}: &a{each + 1} [*a{each}]\n" for each in range(99)), "deeper than 50"),
    ("a: " + "x" * (1 << 24), "larger than 16 MiB"),
])  # fmt: skip
def test_what_is_no_plain_mapping_is_refused(read: Read, text: str | bytes, message: str) -> None:
    """Not YAML, not UTF-8, not a mapping, a key twice, a number to base 60 or 8: one error that names the file."""
    with pytest.raises(ConfigError, match=message) as error:
        read(text)
    assert "file.yaml: " in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.yaml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read") as error:
            read_yaml(path)
        assert str(error.value).startswith(f"{path}: ")


@given(st.text(alphabet="ab:- \n[]{}!&*<?|>'\"#%@,1.tn", max_size=40) | st.binary(max_size=40))
def test_any_bytes_are_a_mapping_or_refused(tmp_path_factory: pytest.TempPathFactory, content: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    try:
        data = read_yaml(path)
    except ConfigError:
        return
    assert isinstance(data, dict)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.text(max_size=6)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=6), DATA, max_size=3), st.sampled_from([None, True, False]))
def test_sound_documents_are_read_as_pyyaml_reads_them(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any], flow: bool | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "sound.yaml"
    path.write_text(yaml.safe_dump(data, default_flow_style=flow, allow_unicode=True), encoding="utf-8")
    assert repr(read_yaml(path)) == repr(yaml.safe_load(path.read_bytes()))
