"""docs/validation.md and the code know the same checks, options, statistics, severities and kinds."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import get_args

from pytest_llmbench.checks.base import FAMILIES, Check, all_checks
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.record.health import HealthRecord, Severity
from pytest_llmbench.core.yaml_files import read_yaml
from pytest_llmbench.judging.transport import TransportKind
from pytest_llmbench.plugin.options import OPTIONS
from tests.docs.documents import CHECKOUT
from tests.docs.test_reference_is_complete import Table, titled_tables
from tests.support.kinds import CHECKS as KINDS
from tests.support.kinds import SHARED, declared, references

TEXT = (CHECKOUT / "docs" / "validation.md").read_text(encoding="utf-8")
CHECKS = all_checks()


def table(heading: str) -> Table:
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
    assert {check.family for check in CHECKS.values()} == set(FAMILIES)
    assert f"{len(CHECKS)} checks" in (CHECKOUT / "README.md").read_text(encoding="utf-8")


def test_every_statistic_is_there() -> None:
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
    told = table("Severities")
    assert list(told) == [str(severity) for severity in Severity]
    assert {name: row[1] == "fails" for name, row in told.items()} == {
        str(severity): severity.fails for severity in Severity
    }


def test_every_way_of_the_gate_is_there() -> None:
    (option,) = (option for option in OPTIONS if option.name == "gate")
    assert list(table("The gate")) == option.metavar.split("|")


def test_the_schema_version_of_a_health_record_is_there() -> None:
    assert f"JSON, schema version {HealthRecord.model_fields['schema_version'].default}," in TEXT


def test_every_kind_of_finding_is_there() -> None:
    wings = (path.name for path in KINDS.iterdir() if path.is_dir())
    own = {*chain(*map(declared, (*wings, "findings"))), *get_args(TransportKind)}
    assert set(table("Kinds of findings")) == own | SHARED | {*references()}


def test_every_system_with_bounds_is_on_their_page() -> None:
    """A system's file that bounds what checks measure has a row that says where its numbers come from."""
    page = (CHECKOUT / "docs" / "validation-thresholds.md").read_text(encoding="utf-8")
    systems = [System.model_validate(read_yaml(path)) for path in sorted(shipped("systems").glob("*.yaml"))]
    bounded = [each.name for each in systems if any(told.references for told in each.validation.values())]
    assert bounded
    assert [name for name in bounded if f"`{name}`" not in page] == []
