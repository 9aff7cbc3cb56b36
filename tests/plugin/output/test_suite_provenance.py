"""A session's JUnit file says what its runs were made of."""

import platform
from importlib.metadata import version
from xml.etree import ElementTree as ET

from tests.conftest import UserFolder


def test_the_suite_names_what_ran(user: UserFolder) -> None:
    """Versions and commands of the runs are there beside the facts of the session, each once."""
    user.recipe()
    user.test()
    result = user.run("--cluster", "local", "-k", "tiny")
    assert result.returncode == 0, result.text
    (suite,) = ET.parse(result.session / "junit.xml").iter("testsuite")
    (block,) = suite.findall("properties")
    found = {each.get("name"): each.get("value") or "" for each in block}
    assert len(found) == len(block)
    assert (found["python"], found["kernel"]) == (platform.python_version(), platform.release())
    assert found["torch"].startswith(version("torch"))
    assert found["command"] == result.record()["command"]
    assert found["llmbench_session"] == result.session.name
