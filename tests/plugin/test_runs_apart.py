"""What breaks over one run ends that run alone, and folders may have any name."""

from tests.conftest import UserFolder

# The runner breaks in an unforeseen way whenever it looks into one run's folder.
BREAKS = """
from pytest_llmbench.session import following

def read_report(folder, read=following.read_report):
    if folder.name == "bad":
        raise UnicodeDecodeError("utf-8", b"\\xff", 0, 1, "odd bytes")
    return read(folder)

following.read_report = read_report
"""


def test_what_breaks_over_one_run_does_not_end_the_others(user: UserFolder) -> None:
    """The one is an ERROR that says where we broke, and those after it are run and judged."""
    for name in ("bad", "tiny"):
        user.recipe(name)
    user.test()
    (user.path / "conftest.py").write_text(BREAKS)
    result = user.run("--cluster", "local", "-k", "bad or tiny")
    assert result.cases["test_reference[bad-learns]"].outcome == "error", result.text
    assert "odd bytes" in result.cases["test_reference[bad-learns]"].message
    assert result.record("bad")["problem"]["kind"] == "harness"
    assert result.cases["test_reference[tiny-learns]"].outcome == "passed", result.text


def test_folders_may_be_named_like_patterns(user: UserFolder) -> None:
    """Submitit replaces %j and the like in paths, and does not here."""
    user.recipe()
    user.test()
    result = user.run("--cluster", "local", "-k", "tiny", "--llmbench-run-dir", "reports/%j-%t %A%2F")
    assert result.returncode == 0, result.text
    assert [path.name for path in (user.path / "reports").iterdir()] == ["%j-%t %A%2F"]
