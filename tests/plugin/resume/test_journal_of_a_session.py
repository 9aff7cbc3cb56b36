"""What a session writes into its journal."""

from pytest_llmbench.session.journal.journal import read_journal
from tests.conftest import TEST_REFERENCES, UserFolder


def test_a_session_that_ends(user: UserFolder) -> None:
    """Intentions come before what is done, the end comes last, and no secret of the command line is in it."""
    user.recipe()
    user.test(f"{TEST_REFERENCES}\n\ndef test_finite(run):\n    assert run.record.steps\n")
    secret = ("--override-ini=api_token=hunter22", "--override-ini=addopts=", "-k", "tiny")
    (user.path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addini('api_token', '')\n")
    result = user.run("--cluster", "local", *secret)
    assert result.returncode == 0, result.text
    events, size = read_journal(result.session / "journal")
    assert size == (result.session / "journal").stat().st_size
    assert [(event.event, event.name) for event in events] == [
        ("began", ""), ("submitting", "tiny"), ("submitted", "tiny"), ("finished", "tiny"),
        ("judged", "test_user.py::test_reference[tiny-learns]"), ("judged", "test_user.py::test_finite[tiny]"),
        ("ended", ""),
    ]  # fmt: skip
    began, submitting, submitted, *_ = events
    assert began.tests == (events[4].name, events[5].name)
    assert began.cluster == "local"
    assert began.command[-2:] == ("-k", "tiny")
    assert "hunter22" not in (result.session / "journal").read_text()
    assert submitting.plan
    assert submitted.job_id == result.record()["job_id"]
    assert {event.verdict for event in events[4:6]} == {"PASS"}


def test_a_session_that_is_interrupted_has_not_ended(user: UserFolder) -> None:
    user.recipe()
    user.test()
    user.test("def test_plain():\n    assert False\n", "test_first.py")
    result = user.run("--cluster", "local", "-x", "-k", "plain or tiny")
    events, _ = read_journal(result.session / "journal")
    assert "ended" not in {event.event for event in events}
