"""The public names: all there, typed as well as importable, and none that is lost without a word."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench import api
from tests.docs.documents import CHECKOUT, DOCUMENTS

RECORDED = Path(__file__).parents[1] / "golden" / "api.txt"


def test_every_name_is_there() -> None:
    for name in api.__all__:
        assert getattr(api, name) is not None
        assert not name.startswith("_")
    with pytest.raises(AttributeError, match=r"pytest_llmbench\.api has no 'Abacus'"):
        _ = api.Abacus  # type: ignore[attr-defined]


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(api.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        (alias.asname or alias.name): (str(node.module), alias.name)
        for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }  # fmt: skip
    home = {name: f"pytest_llmbench.{module}" for name, module in api._FROM.items()}
    assert typed == {name: (module, api._ORIGINAL.get(name, name)) for name, module in home.items()}
    assert sorted(typed) == sorted(api.__all__)


def test_names_only_come() -> None:
    """A name that goes breaks the packages of others: see the docstring of the module for how it may."""
    recorded = RECORDED.read_text(encoding="utf-8").split()
    assert recorded == sorted(api.__all__), f"record new names in {RECORDED}; a name that was there stays"


@pytest.mark.parametrize(("names", "unneeded"), [
    ("RankContext, StepLog, ProbeLog", {"pytest", "submitit", "pytest_llmbench.engines.base"}),
    ("InProcess, External, HostCheck, Probe, Report, LogReader", {"pytest", "submitit"}),
], ids=["ranks", "engines and checks"])  # fmt: skip
def test_nodes_need_no_pytest_for_it(names: str, unneeded: set[str]) -> None:
    code = f"import sys; from pytest_llmbench.api import {names}; assert not {unneeded} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_import_public_names_only(name: str) -> None:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    found = re.findall(r"^\s*(?:from|import) (pytest_llmbench\.[\w.]+)", text, re.MULTILINE)
    assert set(found) <= {"pytest_llmbench.api"}


@pytest.mark.parametrize("path", sorted((CHECKOUT / "suites").rglob("test_*.py")), ids=lambda path: path.stem)
def test_our_own_suites_import_public_names_only(path: Path) -> None:
    found = re.findall(r"^\s*(?:from|import) (pytest_llmbench[\w.]*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(found) <= {"pytest_llmbench.api", "pytest_llmbench"}
