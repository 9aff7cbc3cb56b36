"""docs/reference.md and the code know the same names, defaults, units and rules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pytest_llmbench.cluster import conclude
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import PORTABLE_DIMENSIONS, UNITS
from pytest_llmbench.core.recipes import Recipe, load_recipes
from pytest_llmbench.core.records import SCHEMA_VERSION, Metric, RunRecord, Verdict
from pytest_llmbench.core.reference import Reference
from pytest_llmbench.engines.base import Engine
from pytest_llmbench.judging.statistics import STATISTICS
from pytest_llmbench.plugin import options, outcome, parametrize
from pytest_llmbench.plugin.measured import Run
from pytest_llmbench.plugin.supervisor import Supervisor
from tests.docs.documents import CHECKOUT

TEXT = (CHECKOUT / "docs" / "reference.md").read_text(encoding="utf-8")
PACKAGE = CHECKOUT / "pytest_llmbench"


def tables(heading: str) -> list[dict[str, list[str]]]:
    """The tables of a section: the cells of each row by its first one, without the code marks around it."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        names = [row[0].strip("`") for row in rows]
        assert len(set(names)) == len(names), f"{heading}: a name is there twice"
        found.append(dict(zip(names, rows, strict=True)))
    return found


def only_table(heading: str) -> dict[str, list[str]]:
    """The only table of a section."""
    (table,) = tables(heading)
    return table


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every key of a model with its default as the document writes it; keys of models inside it are dotted."""
    for name, field in model.model_fields.items():
        inner = [part for part in _models(field.annotation) if part is not Reference]
        if inner:
            for part in inner:
                yield from leaves(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _default(field.default)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value in ("", (), {}):
        return "empty"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_keys(heading: str, model: type[BaseModel]) -> None:
    """Compare a table of keys with a model: same names, same defaults."""
    table = only_table(heading)
    keys: dict[str, str] = {}
    for key, default in leaves(model):
        keys.setdefault(key, default)  # the discriminator is in both models of a union
    assert set(table) == set(keys)
    written = {key: row[2] for key, row in table.items() if row[2] != "set by the loader"}
    assert written == {key: keys[key] for key in written}


def test_every_option_is_there() -> None:
    """With its ini twin, the legal words and the default that its help names."""
    table = only_table("Options")
    assert set(table) == {"--plan", *(f"--{option.name}" for option in options.OPTIONS)}
    for option in options.OPTIONS:
        _, ini, value, default, meaning = table[f"--{option.name}"]
        assert ini == f"`llmbench_{option.key}`"
        if "|" in option.metavar and option.metavar.islower():
            assert value == ", ".join(f"`{word}`" for word in option.metavar.split("|"))
        stated = re.search(r"\(default: (.*)\)", option.help)
        if stated is not None and option.name not in {"time", "allocation"}:
            assert default.strip("`") == stated[1]
        assert meaning


def test_every_ini_key_is_there() -> None:
    """Those with an option and those without one are all that the plugin declares."""
    declared: list[str] = []
    group = SimpleNamespace(addoption=lambda *_, **__: None)
    parser = SimpleNamespace(getgroup=lambda *_: group, addini=lambda name, *_, **__: declared.append(name))
    options.add_options(cast("pytest.Parser", parser))
    twins = {row[1].strip("`") for row in only_table("Options").values()} - {"none"}
    assert twins | set(only_table("Ini keys without an option")) == set(declared)


def test_the_marker_and_the_fixtures_are_there() -> None:
    """The marker with its arguments; both fixtures."""
    table = only_table("Marker and fixtures")
    assert set(table) == {parametrize.MARKER.partition(":")[0], "run", "reference"}


def test_every_statistic_is_there() -> None:
    """With its unit and its rule, in the very words of reports."""
    table = only_table("Statistics")
    assert {name: (row[1].strip("`"), row[2]) for name, row in table.items()} == {
        name: (statistic.unit, statistic.rule) for name, statistic in STATISTICS.items()
    }


def test_every_unit_is_there() -> None:
    """With its dimension and its factor."""
    table = only_table("Units")
    assert {name: (row[1], float(row[2])) for name, row in table.items()} == UNITS
    assert {"fraction", "loss"} == PORTABLE_DIMENSIONS, "the sentence under the table names them"


def test_every_recipe_key_is_there() -> None:
    """With its default."""
    check_keys("Recipe keys", Recipe)


def test_every_reference_key_is_there() -> None:
    """With its default."""
    check_keys("Reference keys", Reference)


def test_every_system_key_is_there() -> None:
    """With its default; and every shipped system."""
    check_keys("System keys", System)
    (line,) = re.findall(r"^Shipped systems: (.*)\.$", TEXT, re.MULTILINE)
    files = {re.sub(r"^name: ", "", path.read_text().splitlines()[0]) for path in shipped("systems").glob("*.yaml")}
    assert set(re.findall(r"`([^`]+)`", line)) == files


def test_every_verdict_is_there() -> None:
    """There is no other."""
    assert set(only_table("Verdicts")) == {str(verdict) for verdict in Verdict}


def test_every_problem_kind_is_there() -> None:
    """Those of records, and those that ranks and tests raise."""
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    kinds = set(re.findall(r'kind="([a-z_]+)"', source))
    kinds |= {f"job_{state.lower()}" for state in conclude._JOB_ENDS}
    raised = set(re.findall(r'RunError\(\s*"([a-z_]+)"', source))
    of_records, of_errors = tables("Problem kinds")
    assert set(of_records) == kinds
    assert set(of_errors) == raised


def record(tmp_path: Path) -> RunRecord:
    """A run record with one metric."""
    return RunRecord(
        session="s", key="k", token="t", recipe=next(iter(load_recipes([shipped("recipes")]).values())),
        system="local", cluster="local", allocation="run", nodes=1, ranks=1, gpus=0, folder=str(tmp_path),
        metrics={"step_time": Metric(value=1.0, unit="s", rule="r")},
    )  # fmt: skip


def test_every_junit_property_is_there(tmp_path: Path) -> None:
    """Of a test case: what is noted of its record, reference, number and verdict. Of the suite: the session's facts."""
    item: Any = SimpleNamespace(user_properties=[])
    made = record(tmp_path)
    run = Run(made)
    run.measured("step_time")
    outcome.note_record(item, made)
    outcome.note_reference(item, made.recipe.references[0])
    outcome.note_measured(item, run)
    report: Any = SimpleNamespace(when="call", skipped=True, failed=False, longrepr=("", 0, "Skipped: why"))
    outcome.judge(item, cast("pytest.CallInfo[None]", SimpleNamespace(excinfo=None)), report)
    of_case, of_suite = tables("JUnit properties")
    assert set(of_case) == {name for name, _ in item.user_properties}

    settings = SimpleNamespace(system=SimpleNamespace(name="x"), cluster="local", allocation="run", scale="full")
    bench = SimpleNamespace(settings=settings, session=SimpleNamespace(id="s", folder=tmp_path))
    facts: Mapping[str, str] = Supervisor._facts(cast("Supervisor", SimpleNamespace(_bench=bench)))
    assert set(of_suite) == set(facts)


def test_the_guide_to_engines_names_every_method() -> None:
    """Those of the Protocol, and no other."""
    guide = (CHECKOUT / "docs" / "how-to.md").read_text(encoding="utf-8").partition("## Add an engine")[2]
    methods = {name for name, member in vars(Engine).items() if callable(member) and not name.startswith("_")}
    assert set(re.findall(r"^- `(\w+)\(", guide, re.MULTILINE)) == methods


def test_every_exit_code_is_there() -> None:
    """Pytest has no other."""
    assert {int(code) for code in only_table("Exit codes")} == {int(code) for code in pytest.ExitCode}


def test_every_key_of_a_run_record_is_there() -> None:
    """And the schema version that it is about."""
    assert set(only_table("Run record")) == set(RunRecord.model_fields)
    assert f"JSON, schema version {SCHEMA_VERSION}." in TEXT
