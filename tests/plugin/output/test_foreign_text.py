"""What others wrote, on its way into records, reports and the terminal; who may read and change a session's files."""

import os

import pytest

from tests.conftest import Result, UserFolder
from tests.support.standin import MegatronLM, iteration, log_at_hand

DECLARED, EXPORTED, INHERITED = "declared-value-4711", "nvapi-exported-value", "hf_inherited_value"
ALL = (DECLARED, EXPORTED, INHERITED)
RAISES = """
import pytest
MINE = {obeyed!r} + "mine" + chr(7)

def test_raises(run):
    raise RuntimeError(MINE)

def test_skips(run):
    pytest.skip(MINE)

def test_fails(run):
    assert False, MINE
"""
OBEYED = "\x1b]0;owned\x07\x1b[2J\x1b[31m"
# Python imports it at its start: in ranks, PyTorch cannot be imported.
LOUD_AT_START = f"""
import os, sys

class Loud:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and "rank.main" in " ".join(sys.orig_argv):
            raise RuntimeError({OBEYED!r} + "no model for " + os.environ["HF_TOKEN"] + chr(0))

sys.meta_path.insert(0, Loud())
"""


def told(result: Result) -> dict[str, str]:
    files = [result.session / "junit.xml", result.session / "runs" / "tiny" / "record.json"]
    return {"terminal": result.text, **{path.name: path.read_text() for path in files}}


def test_what_a_framework_says_at_last_is_harmless(user: UserFolder) -> None:
    """The message is the framework's last words, without escapes and without secrets."""
    framework = MegatronLM(user)
    (user.path / "token").write_text(f"{DECLARED}\n")
    (user.path / "exports.sh").write_text(f"export NGC_API_KEY={EXPORTED}\n")
    framework.install(secrets={"MINE": str(user.path / "token")}, env_file=str(user.path / "exports.sh"))

    def dies(lines: list[str]) -> list[str]:
        at = iteration(lines, 12)
        last = f"[rank1]: ValueError: {OBEYED}no access with {', '.join(ALL)}\x07\ufffe at all"
        return [*lines[:at], f"[default1]:{last}", "[default1]:#exit 1"]

    framework.recipe("tiny", dies)
    user.env = {"HF_TOKEN": INHERITED}
    result = user.run("--system=here.yaml", "-k", "tiny", "-n0")
    assert result.case.outcome == "error"
    assert "ValueError: no access with ***, ***, ***\\x07\\ufffe at all" in result.case.message
    for where, text in told(result).items():
        assert not any(secret in text for secret in ALL), where
        assert not set("\x1b\x07\x00\ufffe") & set(text), where
    assert all(secret in (result.session / "runs/tiny/logs/output.log").read_text() for secret in ALL)


def test_what_a_rank_of_our_own_raises_is_harmless(user: UserFolder) -> None:
    user.recipe()
    (user.path / "sitecustomize.py").write_text(LOUD_AT_START)
    user.env = {"HF_TOKEN": INHERITED, "PYTHONPATH": str(user.path)}
    result = user.run("--cluster", "local", "-k", "tiny", "-n0")
    assert result.case.outcome == "error", result.text
    assert "RuntimeError: no model for ***\\x00" in result.case.message
    steps = "".join(path.read_text() for path in (result.session / "runs/tiny/steps").iterdir())
    for where, text in {**told(result), "steps": steps}.items():
        assert INHERITED not in text, where
        assert not set("\x1b\x07\x00") & set(text), where


def test_what_a_test_raises_or_skips_for_is_harmless(user: UserFolder) -> None:
    log_at_hand(user)
    user.test(RAISES.format(obeyed=OBEYED))
    result = user.run("--llmbench-replay", "logs", "-k", "tiny", "-n0")
    table = result.text.partition("llmbench verdicts")[2].partition("short test summary")[0]
    assert table.count("owned") == 0
    for name, verdict in (("test_raises", "ERROR"), ("test_skips", "SKIP"), ("test_fails", "FAIL")):
        properties = result.cases[f"{name}[tiny]"].properties
        assert (properties["verdict"], properties["reason"]) == (verdict, "mine\\x07")
    for path in ("verdicts.json", "summary.md"):
        assert not {"\x1b", "\x07"} & {*(result.session / path).read_text()}
    assert not {"\x1b", "\x07"} & {*table}
    assert "\\u001b" not in (result.session / "verdicts.json").read_text()


@pytest.mark.parametrize("umask", [0o000, 0o002])
def test_a_session_is_its_users_alone(user: UserFolder, umask: int) -> None:
    """Whatever the umask is, folders are 0700 and files that jobs execute 0600."""
    user.recipe()
    before = os.umask(umask)
    try:
        result = user.run("--cluster", "local", "-k", "tiny", "-n0")
    finally:
        os.umask(before)
    assert result.returncode == 0, result.text
    modes = {path: path.lstat().st_mode & 0o777 for path in [result.session, *result.session.rglob("*")]}
    assert {path: oct(mode) for path, mode in modes.items() if path.is_dir() and mode != 0o700} == {}
    ours = [path for path in modes if path.suffix in {".json", ".jsonl", ".sh"}]
    assert not [path for path in modes if path.suffix == ".pkl"]
    assert {path: oct(modes[path]) for path in ours if modes[path] != 0o600} == {}


def test_a_session_in_a_folder_of_everybodys_is_refused(user: UserFolder) -> None:
    user.recipe()
    shared = user.path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    result = user.run("--cluster", "local", "-k", "tiny", "-n0", f"--llmbench-run-dir={shared / 'reports'}")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{shared} can be written by every user" in result.text
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize(("distribution", "how"), [("-n0", "--forked"), ("-n2", "marker")])
def test_pytest_forked_is_refused(user: UserFolder, distribution: str, how: str) -> None:
    """A test of ours in a forked child would wait for ever, so it is an error of collection."""
    user.invite("pytest_forked")
    user.recipe()
    mark = "@pytest.mark.forked\n" if how == "marker" else ""
    user.test(f"import pytest\n\n{mark}def test_reference(run, reference): pass\n")
    given = () if how == "marker" else (how,)
    result = user.run("--cluster", "local", "-k", "tiny", distribution, *given, timeout_s=120)
    assert result.returncode != 0
    assert "pytest-forked would run this test in a child process" in result.text
    assert f"leave out {'--forked' if given else 'the marker `forked`'}" in result.text
    assert result.found is None or not (result.found / "runs").exists()


def test_other_tests_may_be_forked(user: UserFolder) -> None:
    user.invite("pytest_forked")
    user.test("def test_other(): pass\n")
    assert "1 test collected" in user.run("--forked", "-n0", "--collect-only", timeout_s=120, code=0).text
