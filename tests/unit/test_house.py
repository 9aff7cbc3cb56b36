"""The house itself: each thing has one name, and nothing grows above its ceiling."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import pytest_llmbench
from pytest_llmbench.core.wire import layout
from tests.docs.tools import load

PACKAGE = Path(pytest_llmbench.__file__).parent
CHECKOUT = Path(__file__).parents[2]


def names(tree: ast.Module) -> set[str]:
    """Names of the classes in a module, and of the types it defines by assignment."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        found |= {
            each.id for each in targets
            if isinstance(each, ast.Name) and each.id[0].isupper() and not each.id.isupper()
        }  # fmt: skip
    return found


def test_each_class_has_a_name_of_its_own() -> None:
    """Two things of one name cannot be told apart in a traceback, a search or a conversation."""
    where = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for name in names(ast.parse(path.read_text(encoding="utf-8"))):
            where[name].append(str(path.relative_to(PACKAGE)))
    assert len(where) > 300
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_nothing_is_above_its_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    """`tools/ceiling.toml` has the numbers, and who may raise them."""
    ceiling = load("ceiling")
    assert ceiling.main() == 0, capsys.readouterr().out


def test_an_area_above_its_ceiling_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One option more than allowed fails, and the table shows which number it is."""
    ceiling = load("ceiling")
    allowed = tomllib.loads((CHECKOUT / "tools" / "ceiling.toml").read_text(encoding="utf-8"))
    options = allowed["surface"]["options"]
    monkeypatch.setattr(ceiling, "lines", lambda: allowed["lines"])
    monkeypatch.setattr(ceiling, "surface", lambda: {**allowed["surface"], "options": options + 1})
    assert ceiling.main() == 1
    (above,) = (line for line in capsys.readouterr().out.splitlines() if "ABOVE" in line)
    assert above.split() == ["options", f"{options + 1}", "of", f"{options}", "ABOVE", "ITS", "CEILING"]


def test_the_oldest_dependencies_are_those_of_pyproject() -> None:
    """What is tested as the oldest is what an installation may take."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (PACKAGE.parent / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for dependency in project["dependencies"]:
        # Versions that are refused may follow: "pyyaml>=6.0.1,!=6.0.4".
        name, oldest = dependency.split(",")[0].split(">=")
        assert re.fullmatch(rf"{re.escape(oldest)}(\.0)*", pinned[name])


def test_the_folder_of_a_session_is_written_down_once() -> None:
    """A name that one side spells otherwise than the other is a file that is never found."""
    said = {name for value in vars(layout).values() for name in ((value,) if isinstance(value, str) else ())}
    names_of_layout = {name for text in said for name in text.split("/")} | set(layout.FOLDERS.values())
    files = {name for name in names_of_layout if name.endswith((".json", ".log", ".sh", ".xml"))}
    assert {"record.json", "task.json", "output.log", "run.sh"} <= files
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)
            text = node.right if isinstance(node, ast.BinOp) else node
            if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
                continue
            of_a_rank = re.match(r"rank-(\{|%|\d|\*|$)", text.value) and "\n" not in text.value
            if of_a_rank or text.value in files or (joined and text.value in names_of_layout):
                found.append(f"{path.relative_to(PACKAGE)}: {text.value}")
    assert {each for each in found if not each.startswith("core/wire/layout.py")} == set()
