"""Where the frameworks of these tests are, and why a test cannot run without its own."""

import os
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
BUILD = REPOSITORY / "tools" / "frameworks" / "build.sh"


def missing(framework: str) -> str:
    """What a framework's environment lacks and the command that builds it; empty where it is whole."""
    done = subprocess.run([BUILD, framework, "--check"], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout.strip() or done.stderr.strip() or f"{BUILD} says nothing"


def built(framework: str) -> Path:
    """The folder of a framework's environment; skips the test without one, or fails it where one has to be there."""
    reason = missing(framework)
    #: test variable LLMBENCH_REQUIRE_FRAMEWORKS: frameworks, separated by blanks, whose absence is a
    #:  failure, not a skip
    if reason and framework in os.environ.get("LLMBENCH_REQUIRE_FRAMEWORKS", "").split():
        pytest.fail(f"{reason} (LLMBENCH_REQUIRE_FRAMEWORKS names it)", pytrace=False)
    if reason:
        pytest.skip(reason)
    #: test variable LLMBENCH_FRAMEWORKS: `tools/frameworks/build.sh` and the tests of frameworks: the folder of their
    #:  environments, by default `.frameworks`
    #: test variable LLMBENCH_<ENGINE>_SYSTEM: a system file of this machine with its framework
    return Path(os.environ.get("LLMBENCH_FRAMEWORKS", REPOSITORY / ".frameworks")) / framework


@pytest.fixture(scope="module")
def system_file(request: pytest.FixtureRequest) -> str:
    """The system file of the module's FRAMEWORK: what LLMBENCH_..._SYSTEM names, or what was built."""
    named: str | None = request.module.SYSTEM
    return named or str(built(request.module.FRAMEWORK) / "system.yaml")
