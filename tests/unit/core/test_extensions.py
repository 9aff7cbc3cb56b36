"""Extensions: found by name among all that is installed, imported when asked for, and never lost without a word."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pytest

import pytest_llmbench
from pytest_llmbench.checks.base import CHECKS
from pytest_llmbench.cluster.recipes import RECIPES
from pytest_llmbench.cluster.system import SYSTEMS
from pytest_llmbench.core import extensions
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.extensions import ExtensionError, Extensions, named
from pytest_llmbench.engines.base import ENGINES
from pytest_llmbench.engines.in_process import InProcess
from pytest_llmbench.judging.statistics import SHARED, STATISTICS
from pytest_llmbench.readers.log import READERS
from pytest_llmbench.reporting.base import REPORTS
from tests.support.packages import install

GROUP = "pytest_llmbench.tools"
PACKAGE = Path(pytest_llmbench.__file__).parent


class Tool(Protocol):
    """What the extensions of these tests are."""

    name: str

    def use(self) -> str: ...


MODULE = """
class Hammer:
    name = "hammer"
    def use(self):
        return "bang"

HAMMER = Hammer()
BOTH = {"hammer": HAMMER}

class Bare:
    name = "bare"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where packages are installed: ours brings a saw."""
    monkeypatch.syspath_prepend(str(tmp_path))
    ours = {GROUP: {"saw": "saw_of_ours:Saw"}}
    saw = MODULE.replace("Hammer", "Saw").replace("hammer", "saw")
    install(tmp_path, "pytest-llmbench", {"saw_of_ours": saw}, ours)
    yield tmp_path
    for module in ("saw_of_ours", "acme_tools", "other_tools"):
        sys.modules.pop(module, None)
    extensions._entry_points.cache_clear()


def tools() -> Extensions[Tool]:
    extensions._entry_points.cache_clear()
    return Extensions("tool", "tools", named(Tool))


@pytest.mark.parametrize("value", ["acme_tools:HAMMER", "acme_tools:Hammer", "acme_tools:BOTH"])
def test_a_package_brings_a_thing_a_class_or_a_mapping(site: Path, value: str) -> None:
    """Ours stand first; names are listed without an import, and what was loaded stays the same."""
    install(site, "acme", {"acme_tools": MODULE}, {GROUP: {"hammer": value}})
    found = tools()
    assert found.names() == ["saw", "hammer"]
    assert "acme_tools" not in sys.modules
    assert found.load("hammer").use() == "bang"
    assert found.load("hammer") is found.load("hammer")
    assert found.broken() == {}


def test_a_name_that_two_packages_claim_belongs_to_neither(site: Path) -> None:
    """Both packages are named, and other names are not touched by it."""
    install(site, "acme", {"acme_tools": MODULE}, {GROUP: {"hammer": "acme_tools:HAMMER"}})
    install(site, "other", {"other_tools": MODULE}, {GROUP: {"hammer": "other_tools:HAMMER"}})
    found = tools()
    with pytest.raises(ExtensionError, match=r"'hammer' comes from both acme 1\.0 .* and other 1\.0 .*: uninstall one"):
        found.load("hammer")
    assert found.load("saw").name == "saw"
    assert list(found.broken()) == ["hammer"]


@pytest.mark.parametrize(("source", "value", "why"), [
    ("import no_such_module_here", "acme_tools:HAMMER", "cannot be imported: ModuleNotFoundError: No module named"),
    ("raise SystemExit(3)", "acme_tools:HAMMER", "cannot be imported: SystemExit: 3"),
    (MODULE, "acme_tools:ANVIL", "cannot be imported: AttributeError"),
    (MODULE, "acme_tools:Bare", "cannot be used: it has no `use`"),
    (MODULE.replace('"hammer"', '"nail"', 1), "acme_tools:HAMMER", "cannot be used: it calls itself 'nail'"),
])  # fmt: skip
def test_what_cannot_be_used_is_told_where_it_is_needed(site: Path, source: str, value: str, why: str) -> None:
    install(site, "acme", {"acme_tools": source}, {GROUP: {"hammer": value}})
    found = tools()
    assert found.load("saw").name == "saw"
    with pytest.raises(ExtensionError, match=r"tool 'hammer' of acme 1\.0") as told:
        found.load("hammer")
    assert why in str(told.value)
    assert found.broken() == {"hammer": str(told.value)}
    with pytest.raises(ConfigError, match=r"unknown tool 'axe'; legal: saw; tool 'hammer' of acme 1\.0"):
        found.load("axe")


def test_what_a_session_lends_is_found_until_it_is_taken_back(site: Path) -> None:
    class Axe:
        name = "axe"

        def use(self) -> str:
            return "chop"

    found = tools()
    found.lend(Axe)
    assert found.names() == ["saw", "axe"]
    assert found.load("axe").use() == "chop"
    with pytest.raises(ExtensionError, match=r"'axe' comes from both module .*test_extensions"):
        found.lend(Axe())
    install(site, "acme", {}, {GROUP: {"axe": "acme_tools:AXE"}})
    both = tools()
    both.lend(Axe())
    with pytest.raises(ExtensionError, match=r"comes from both acme 1\.0"):
        both.load("axe")
    found.take_back()
    with pytest.raises(ConfigError, match="unknown tool 'axe'"):
        found.load("axe")


def test_an_installation_older_than_the_code_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"announces no spoon: it is older than its code in .*; run `pip install -e "):
        Extensions[Tool]("spoon", "spoons", named(Tool)).names()


def test_what_of_ours_has_moved_asks_for_a_new_installation(site: Path) -> None:
    """An editable installation has the entry points of the day it was made."""
    (site / "saw_of_ours.py").unlink()
    with pytest.raises(ExtensionError, match=r"tool 'saw' of pytest-llmbench .* again"):
        tools().load("saw")


def test_all_that_ships_can_be_used() -> None:
    """Everything of ours is what its kind asks for, under the name that announces it."""
    kinds: tuple[Extensions[Any], ...] = (ENGINES, CHECKS, READERS, SHARED, RECIPES, SYSTEMS, REPORTS)
    for known in kinds:
        ours = [name for name in known.names() if known.is_ours(name)]
        assert ours
        assert [name for name in ours if known.load(name) is None] == []
    assert set(STATISTICS) == {name for name in SHARED.names() if SHARED.is_ours(name)}


def entries() -> Iterator[str]:
    """Texts of our code that name a function for the nodes."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from re.findall(r"^pytest_llmbench\.[\w.]+:\w+$", node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"probe", "probe_devices", "ask"}:
                texts = [str(word.value) for word in node.args if isinstance(word, ast.Constant)]
                named = [text for text in texts if re.fullmatch(r"\w+:\w+", text)]
                yield from (f"pytest_llmbench.checks.{path.parent.name}.nodes.{text}" for text in named)


def test_every_function_for_the_nodes_is_there() -> None:
    """An entry is a text: neither a type checker nor an editor that renames a function sees it."""
    found = set(entries())
    assert {engine.entry for engine in ENGINES.usable().values() if isinstance(engine, InProcess)} <= found
    assert len(found) > 10
    for entry in found:
        module, _, function = entry.partition(":")
        assert callable(getattr(import_module(module), function)), entry


def test_listing_names_imports_no_engine_and_no_check() -> None:
    code = (
        "import sys; from pytest_llmbench.engines.base import ENGINES; from pytest_llmbench.checks.base import CHECKS; "
        "told = [*ENGINES.names(), *CHECKS.names()]; assert 'torch' in told and 'limits' in told; "
        "wings = ('pytest_llmbench.engines.', 'pytest_llmbench.checks.'); "
        "found = {name.removesuffix('.base') + '.' for name in sys.modules if name.startswith(wings)}; "
        "assert found == {*wings, 'pytest_llmbench.engines.overrides.'}, found"  # rules of arguments, no engine
    )
    subprocess.run([sys.executable, "-c", code], check=True)
