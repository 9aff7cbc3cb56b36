"""The house itself: each thing has one name, no module imports itself by way of others, nothing outgrows its size."""

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def imported_modules() -> dict[str, set[str]]:
    """The modules of the package that each of them imports: at its top, in functions, and for types alone."""
    paths = {module_name(path): path for path in PACKAGE.rglob("*.py")}
    imports: dict[str, set[str]] = {}
    for module, path in paths.items():
        names_ = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import():
                    names_ |= {alias.name for alias in node.names}
                case ast.ImportFrom(module=str(source)):
                    names_ |= {source, *(f"{source}.{alias.name}" for alias in node.names)}
                case ast.Call(args=[ast.Constant(value=str(text)), *_]) if text.startswith("pytest_llmbench."):
                    names_.add(text)  # import_module("pytest_llmbench...")
        imports[module] = (names_ & paths.keys()) - {module, *packages_of(module)}
    return imports


def module_name(path: Path) -> str:
    """The name by which a file of the package is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def packages_of(module: str) -> set[str]:
    """The packages that a module is in: importing it imports them anyway."""
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def circles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that are in a circle: what is left when those that nothing imports, or that import nothing, go."""
    left = {module: set(others) for module, others in imports.items()}
    while True:
        imported = set().union(*left.values()) if left else set()
        inside = {module for module, others in left.items() if others and module in imported}
        if len(inside) == len(left):
            return inside
        left = {module: left[module] & inside for module in inside}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Modules that import each other, in functions or for types too, are one module in several files."""
    imports = imported_modules()
    assert len(imports) > 300
    assert "pytest_llmbench.plugin.register" in imports["pytest_llmbench.plugin.begin"]
    assert circles(imports) == set()
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": set()}) == {"b", "c"}


def test_private_names_of_pytest_are_in_one_file() -> None:
    """A new version of pytest may break that file, which has a test of its own, and no other."""
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(r"^\s*(?:from|import) _pytest|\._(?:tw|inicfg|add_stats|arg2fixturedefs)\b|\.finalize = ",
                     path.read_text(encoding="utf-8"), re.MULTILINE)
    }  # fmt: skip
    assert users == {"plugin/pytest_private.py"}


def test_nothing_is_above_its_ceiling(capsys: pytest.CaptureFixture[str]) -> None:
    ceiling = load("ceiling")
    assert ceiling.main() == 0, capsys.readouterr().out


def test_an_area_above_its_limit_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (PACKAGE.parent / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    for dependency in project["dependencies"]:
        # Versions that are refused may follow: "pyyaml>=6.0.1,!=6.0.4".
        name, oldest = dependency.split(",")[0].split(">=")
        assert re.fullmatch(rf"{re.escape(oldest)}(\.0)*", pinned[name])


# Programs of others on the nodes, which an engine's own environment brings.
OF_ENVIRONMENTS = {"apex", "lightning", "megatron", "nemo", "triton"}


def imported_at_run_time(tree: ast.AST) -> Iterator[str]:
    """Top-level names of the modules that a file imports, without those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from (name for part in node.orelse for name in imported_at_run_time(part))
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        else:
            yield from imported_at_run_time(node)


def test_every_imported_dependency_is_declared() -> None:
    """What comes only because another dependency needs it today may be gone tomorrow."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [each for name, extra in project["optional-dependencies"].items() if name != "dev" for each in extra]
    declared = {canonicalize_name(Requirement(each).name) for each in (*project["dependencies"], *extras)}
    names = {
        name
        for path in PACKAGE.rglob("*.py")
        for name in imported_at_run_time(ast.parse(path.read_text(encoding="utf-8")))
    } - sys.stdlib_module_names - OF_ENVIRONMENTS - {"pytest_llmbench"}  # fmt: skip
    assert {"pydantic", "submitit", "torch", "yaml"} <= names
    owners = packages_distributions()
    undeclared = {name for name in names if not declared & {canonicalize_name(each) for each in owners.get(name, ())}}
    assert undeclared == set()
    assert len(project["dependencies"]) <= 10


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
