"""docs/validation.md and the code know the same checks, options, statistics, severities and kinds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from pytest_llmbench.checks.base import FAMILIES, Check, all_checks
from pytest_llmbench.checks.dcgm import findings as dcgm_findings
from pytest_llmbench.checks.dcgm.report_items import DiagnosticOutcome
from pytest_llmbench.checks.gpu import facts as gpu
from pytest_llmbench.checks.gpu import inventory as gpu_inventory
from pytest_llmbench.checks.host import disk as host_disk
from pytest_llmbench.checks.network import tournament_findings
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.record.health import HealthRecord, Severity
from pytest_llmbench.core.schema import read_yaml
from pytest_llmbench.plugin.options import OPTIONS
from tests.docs.documents import CHECKOUT
from tests.docs.test_reference_is_complete import PACKAGE, Table, titled_tables

TEXT = (CHECKOUT / "docs" / "validation.md").read_text(encoding="utf-8")
CHECKS = all_checks()


def table(heading: str) -> Table:
    """The only table of a section."""
    (only,) = titled_tables(heading, TEXT).values()
    return only


def checks_of(name: str) -> list[Check]:
    """The check of that name, else all checks of that family."""
    found = [CHECKS[name]] if name in CHECKS else [check for check in CHECKS.values() if check.family == name]
    assert found, f"there is no check and no family {name}"
    return found


def written(heading: str) -> Iterator[tuple[str, str, list[str]]]:
    """Check, what of it, and the cells of each row of a table whose names are dotted."""
    for name, row in table(heading).items():
        who, _, what = name.partition(".")
        for check in checks_of(who):
            yield check.name, what, row


def test_every_family_has_checks_and_the_readme_counts_them() -> None:
    """The table of checks itself is made from them."""
    assert {check.family for check in CHECKS.values()} == set(FAMILIES)
    assert f"{len(CHECKS)} checks" in (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_every_statistic_is_there() -> None:
    """With its unit; `<size>` and `<precision>` stand for all that a check knows."""
    told: dict[tuple[str, str], str] = {}
    for check, statistic, row in written("Statistics"):
        pattern = statistic.replace("<size>", r"\d+(B|KiB|MiB|GiB)").replace("<precision>", r"[a-z]+\d+")
        names = [name for name in CHECKS[check].statistics if re.fullmatch(pattern, name)]
        assert names, f"{check} has no statistic {statistic}"
        told |= dict.fromkeys(((check, name) for name in names), row[1].strip("`"))
    assert told == {
        (name, statistic): unit for name, check in CHECKS.items() for statistic, unit in check.statistics.items()
    }


def test_every_severity_is_there() -> None:
    """In the order of the code, and which of them fail."""
    told = table("Severities")
    assert list(told) == [str(severity) for severity in Severity]
    assert {name: row[1] == "fails" for name, row in told.items()} == {
        str(severity): severity.fails for severity in Severity
    }


def test_every_way_of_the_gate_is_there() -> None:
    """Those that the option takes."""
    (option,) = (option for option in OPTIONS if option.name == "gate")
    assert list(table("The gate")) == option.metavar.split("|")


def test_the_schema_version_of_a_health_record_is_there() -> None:
    """It changes when a reader of the old one would misread the new one."""
    assert f"JSON, schema version {HealthRecord.model_fields['schema_version'].default}," in TEXT


# Kinds that no source line has as a text of its own, by the module that puts them together.
PUT_TOGETHER = {
    "network.tournament_findings": {kind for kind, *_ in tournament_findings.KINDS.values()},
    "network.group_bisection": {kind for kind, *_ in tournament_findings.KINDS.values()},
    "dcgm.findings": {
        dcgm_findings._finding("n1", DiagnosticOutcome(name="t", category="c", results=()), "", severity, "").kind
        for severity in Severity
    },
    "gpu.facts": set(gpu._SLOWDOWNS),
    "gpu.xid": {"xid", "sxid"},
    "network.intra_node": {"wrong_values", "failing_node"},
    "gpu.inventory": set(gpu_inventory._WHY_FAILED),
    "host.disk": {
        kind
        for kind, *_ in host_disk.wrong_with(
            "temporary",
            {"why": "read-only", "free_bytes": 0, "inodes": 100, "free_inodes": 0},
            host_disk.DiskOptions(),
        )
    },
}


def test_every_kind_of_finding_is_there() -> None:
    """Those that checks write down, those that they put together, and no other."""
    folder = PACKAGE / "checks"
    files = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in sorted(folder.rglob("*.py"))}
    del files["gpu.nvidia_smi"]  # a process has a kind, too
    files["bounds"] = PACKAGE / "judging" / "bounds.py"
    trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in files.items()}
    helpers = {module: _helpers(tree) for module, tree in trees.items()}
    found: set[str] = set()
    puzzles: set[str] = set()
    for module, tree in trees.items():
        for each in _kinds(tree, {**_imported(tree, helpers), **helpers[module]}):
            if each is None:
                puzzles.add(module)
            else:
                found.add(each)
    assert puzzles == set(PUT_TOGETHER), "a module puts kinds together in a way that this test does not know"
    assert set(table("Kinds of findings")) == found.union(*PUT_TOGETHER.values())


def _helpers(tree: ast.Module) -> dict[str, int]:
    """Functions that are given a kind, and at which place."""
    arguments = {node.name: _arguments(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return {name: told.index("kind") for name, told in arguments.items() if "kind" in told}


def _arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]


def _imported(tree: ast.Module, helpers: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Those of other modules that this one imports."""
    sources = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {source: helpers.get(str(source.module).removeprefix("pytest_llmbench.checks."), {}) for source in sources}
    return {
        name.name: known[source][name.name] for source in sources for name in source.names if name.name in known[source]
    }


def _kinds(tree: ast.Module, helpers: Mapping[str, int]) -> Iterator[str | None]:
    """Every kind that a finding is given; None for one that is no text here."""
    inside = {id(call) for node in ast.walk(tree) if _hands_on(node) for call in ast.walk(node)}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [keyword.value for keyword in call.keywords if keyword.arg == "kind"]
        if name in helpers and len(call.args) > helpers[name]:
            given.append(call.args[helpers[name]])
        for value in given:
            if not (id(call) in inside and isinstance(value, ast.Name) and value.id == "kind"):
                yield from _texts(value)


def _hands_on(node: ast.AST) -> bool:
    """Whether it is a function that hands on the kind that it was given."""
    return isinstance(node, ast.FunctionDef) and "kind" in _arguments(node)


def _texts(value: ast.expr) -> Iterator[str | None]:
    if isinstance(value, ast.IfExp):
        yield from (*_texts(value.body), *_texts(value.orelse))
    else:
        yield value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def test_a_kind_that_is_put_together_is_noticed() -> None:
    """What the scan has to find, and what it must not take for a text."""
    tree = ast.parse(
        "def fault(gpu, kind):\n    return Finding(kind=kind)\n"
        "fault(1, 'a')\nFinding(kind='b' if x else 'c')\nFinding(kind=made)\nfault(1, made)\n"
    )
    assert _helpers(tree) == {"fault": 1}
    assert sorted(each or "?" for each in _kinds(tree, _helpers(tree))) == ["?", "?", "a", "b", "c"]


def test_every_system_with_bounds_is_on_their_page() -> None:
    """A system's file that bounds what checks measure has a row that says where its numbers come from."""
    page = (CHECKOUT / "docs" / "validation-thresholds.md").read_text(encoding="utf-8")
    systems = [System.model_validate(read_yaml(path)) for path in sorted(shipped("systems").glob("*.yaml"))]
    bounded = [each.name for each in systems if any(told.references for told in each.validation.values())]
    assert bounded
    assert [name for name in bounded if f"`{name}`" not in page] == []
