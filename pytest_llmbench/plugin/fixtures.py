"""The fixtures that a test asks for: `run` and `reference` of a benchmark, `health` of the nodes.

They are made in `verdict/calls.py`: pytest imports this file in each of its sessions, also in those without us.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.core.recipe.reference import Reference
    from pytest_llmbench.plugin.collection.checks import Health
    from pytest_llmbench.plugin.verdict.run import Run


@pytest.fixture
def run(request: pytest.FixtureRequest) -> "Iterator[Run]":
    """The finished run of this test's recipe: sane and measured.

    It is run once, however many tests ask for it, or as often as `repeats` of its marker or `--llmbench-repeat` says. A
    run that cannot be judged is an error of the test, also one of several.
    """
    from pytest_llmbench.plugin.verdict import calls  # noqa: PLC0415  # heavy

    yield from calls.wait_for_run(request)


@pytest.fixture
def reference(request: pytest.FixtureRequest, run: "Run") -> "Reference":
    """One reference of this test's recipe; the test is skipped where it is not for this machine or scale."""
    from pytest_llmbench.plugin.verdict import calls  # noqa: PLC0415  # heavy

    return calls.find_reference(request, run)


@pytest.fixture
def health(request: pytest.FixtureRequest) -> "Health":
    """The result of a check for this test's node, or for all nodes together.

    A check runs once for all nodes, however many tests ask for it. A node that was not checked is skipped with the
    reason, and one that gave no answer is an error.
    """
    from pytest_llmbench.plugin.verdict import calls  # noqa: PLC0415  # heavy

    return calls.wait_for_health(request)
