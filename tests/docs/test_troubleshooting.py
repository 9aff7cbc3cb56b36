"""The messages of docs/troubleshooting.md are those of the code."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.docs.documents import CHECKOUT

TEXT = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = re.findall(r"^### `(.+)`$", TEXT, re.MULTILINE)


@functools.cache
def messages() -> tuple[str, ...]:
    return tuple(_messages())


def _messages() -> Iterator[str]:
    """Every text of the package; what is filled in, or goes on in another text, is `...`."""
    for path in (CHECKOUT / "pytest_llmbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_message_is_one_of_the_code(symptom: str) -> None:
    words = [re.escape(part.strip()) for part in symptom.split("...") if part.strip()]
    assert any(re.search(".*".join(words), message, re.DOTALL) for message in messages()), symptom


def test_every_symptom_has_a_cause_and_a_remedy() -> None:
    entries = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
    assert len(entries) == len(SYMPTOMS) + 1  # pytest's own message
    for entry in entries:
        assert "**Cause.**" in entry, entry
        assert "**Remedy.**" in entry, entry
