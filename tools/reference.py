"""Writes the tables of reference.md, validation.md and cli.md that follow from the code, and the JSON Schemas.

    python tools/reference.py            writes them
    python tools/reference.py --check    exits with 1, and names each table and schema that is not what the code says

A table stands under a comment `<!-- generated: NAME -->`. Each meaning is written down once: that of a key is its entry
under `Attributes:` in the docstring of its model. That of another name is a comment next to the code that makes it,

    #: finding mig: a GPU is cut into slices

with the kind of name, the name and the meaning. A line that begins with `#:` and two blanks goes on with the last one.
A name with several comments has all of their meanings.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.main import get_command

from pytest_llmbench.checks.base import FAMILIES, Check, all_checks
from pytest_llmbench.cli.app import app
from pytest_llmbench.cluster.authoring.schemas import SCHEMAS, schema_text
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import UNITS, Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Report
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.record.telemetry import GpuTelemetry
from pytest_llmbench.core.schema import descriptions, models_in
from pytest_llmbench.engines.base import ENGINES, get_engine
from pytest_llmbench.judging.statistics import STATISTICS
from pytest_llmbench.plugin.options import FOLDERS, OPTIONS, Option
from pytest_llmbench.plugin.verdict.facts import (
    CheckFacts,
    HealthFacts,
    HistoryFacts,
    NumberFacts,
    PlaceFacts,
    ReferenceFacts,
    RunFacts,
    VerdictFacts,
)
from pytest_llmbench.session.replay import ReplayFacts

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (DOCS / "reference.md", DOCS / "validation.md", DOCS / "cli.md")
# Where the type of a key says less than its values are.
VALUES = {
    "time_limit": "Slurm time, in quotes",
    "optimizer.betas": "two numbers",
    "gpu.peak_tflops": "precision: TFLOP/s",
    "deadlines.startup_s": "x > 0, null",
    "bytes": "N ≥ 4, a multiple of 4",
    "MetaseqOptions.program": "`opt-baselines`, or `module:` and a module",
    "NemoTorchrunOptions.program": "file, or `module:` and a module",
    "script": "file under `{root}`, or `module:` and a module",
}
METAVARS = {
    "NAME|FILE": "name or YAML file",
    "NAME": "text",
    "N": "N ≥ 1",
    "gpus-per-node": "N ≥ 0",
    "retries": "N ≥ 0",
    "TIME": "Slurm time",
    "DIR": "folder",
    "SECONDS": "seconds ≥ 15",
    "SHARE": "share above 0, such as `5 %`",
    "FILE": "file",
}
# Names that begin a sentence as they are.
PROGRAMS = ("pytest ", "nvidia-smi ", "dcgmi", "openmetrics")
# Where more is written about a key or an option.
SEE = {
    "gate": "validation.md#the-gate",
    "quarantine": "validation.md#quarantine-and-drain",
    "require": "#verdicts",
    "require-verdict": "#verdicts",
    "group-tolerance": "#groups-of-nodes",
    "replay": "#replayed-logs",
    "Recipe.engine": "#engines",
    "Recipe.options": "#engines",
    "Recipe.prepare.name": "how-to/frameworks/prepare-what-a-run-needs.md",
    "Recipe.references": "#reference-keys",
    "Reference.statistic": "#statistics",
    "Reference.floor": "#verdicts",
    "System.validation.*.options": "validation.md#options",
    "System.validation.*.references": "validation.md#statistics",
    "System.validation.*.deadline_s": "validation.md#checks",
    "RunRecord.provenance": "#provenance",
    "RunRecord.failed_launches": "#launches",
    "RunRecord.telemetry": "#telemetry",
    "RunRecord.findings": "#findings",
    "Finding.kind": "#kinds-of-findings",
    "Finding.severity": "#severities",
    "Reading.statistic": "#statistics",
    "Reading.unit": "reference.md#units",
}

# Kinds of names that comments explain.
LABELS = (
    "finding", "problem", "error", "statistic", "left out", "suite property", "variable", "fault",
)  # fmt: skip

# The properties of a test of a run, and of one of a check.
OF_RUN = (HistoryFacts, RunFacts, ReferenceFacts, NumberFacts, PlaceFacts, VerdictFacts)
OF_CHECK = (HealthFacts, CheckFacts, PlaceFacts, VerdictFacts)

Row = Sequence[str]


@cache
def notes() -> dict[str, dict[str, str]]:
    """The meanings that comments give, by kind of name and name, in the order of the files."""
    found: dict[str, dict[str, str]] = {label: {} for label in LABELS}
    for path in noted_files():
        for label, name, meaning in notes_in(path.read_text(encoding="utf-8")):
            before = found[label].get(name)
            found[label][name] = f"{before}; {meaning}" if before else meaning
    return found


def notes_in(text: str) -> Iterator[tuple[str, str, str]]:
    """Each comment of a file that explains a name: kind of name, name, meaning."""
    for label, name, meaning in re.findall(rf"#: ({'|'.join(LABELS)}) (\S+): (.+(?:\n *#:  .+)*)", text):
        yield label, name, re.sub(r"\n *#: +", " ", meaning)


def noted_files() -> list[Path]:
    """Files whose comments explain names: first the package, in it first bounds and then checks as they run."""
    package = ROOT / "pytest_llmbench"
    families = [package / "checks" / family for family in FAMILIES]
    order = [package / "judging" / "references.py", *families, package, ROOT / "tools", ROOT / "tests"]
    files = [path for place in order for path in ([place] if place.is_file() else sorted(place.rglob("*.*")))]
    unread = {ROOT / "tests" / "docs", ROOT / "tools"}
    return [path for path in dict.fromkeys(files) if path.suffix in {".py", ".sh"} and path.parent not in unread]


def noted(label: str, *more: str) -> list[Row]:
    """Rows of names that comments explain: name, meaning."""
    return [(f"`{name}`", cell(text)) for each in (label, *more) for name, text in notes()[each].items()]


def statistics_of_checks() -> list[Row]:
    """Rows of the statistics of checks: a part in angle brackets stands for several."""
    rows: list[Row] = []
    for name, text in notes()["statistic"].items():
        who, _, what = name.partition(".")
        pattern = re.sub("<[a-z]+>", ".+", what)
        for check in all_checks().values():
            units = {unit for each, unit in check.statistics.items() if re.fullmatch(pattern, each)}
            if who in {check.name, check.family} and units:
                rows.append((f"`{name}`", f"`{units.pop()}`", cell(text)))
                break
        else:
            raise SystemExit(f"no check has the statistic {name} that a comment explains")
    return rows


def shared_statistics() -> list[Row]:
    """Rows of the statistics of every engine."""
    left_out = notes()["left out"]
    return [(f"`{name}`", f"`{e.unit}`", e.rule, left_out.get(name, "never")) for name, e in STATISTICS.items()]


def cell(text: str, see: str = "") -> str:
    """A meaning as a cell: with a capital, without the last point, and with a link to where more is written."""
    text = (text if text.endswith("...") else text.removesuffix(".")).replace("|", r"\|")
    more = f" ([more]({SEE[see]}))" if see in SEE else ""
    first = text[:1] if text.startswith(PROGRAMS) else text[:1].upper()
    return f"{first}{text[1:]}{more}"


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo, str]]:
    """Every key of a model, dotted, with its field and its meaning; a `*` stands for the user's own names."""
    meaning = descriptions(model)
    for name, field in model.model_fields.items():
        inner = [part for part in models_in(field.annotation) if part is not Reference]
        if not inner:
            yield f"{prefix}{name}", field, meaning.get(name, "")
        named = "*." if get_origin(field.annotation) is Mapping else ""
        for part in inner:
            yield from leaves(part, f"{prefix}{name}.{named}")


def default(field: FieldInfo) -> str:
    """A default as the tables have it."""
    value = field.default
    if value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value in ("", (), {}):
        return "empty"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def value(model: type[BaseModel], key: str, field: FieldInfo) -> str:
    """The legal values of a key in words."""
    return VALUES.get(f"{model.__name__}.{key}") or VALUES.get(key) or _value(field.annotation, field.metadata)


def _value(kind: Any, metadata: Sequence[Any]) -> str:
    if hasattr(kind, "__metadata__"):
        return _value(kind.__origin__, [*metadata, *kind.__metadata__])
    if kind in (int, float):
        flat = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
        return _range("N" if kind is int else "x", flat)
    parts = [part for part in get_args(kind) if part is not type(None)]
    if get_origin(kind) in (Union, UnionType):
        return ", ".join(_value(part, metadata) for part in parts)
    words = {
        Literal: ", ".join(f"`{part}`" if isinstance(part, str) else str(part) for part in parts),
        Mapping: "mapping" if Any in parts else f"name: {_value(parts[-1], ())}" if parts else "",
        tuple: _list_of(parts[0]) if parts else "list",
        bool: "true, false",
        Quantity: "quantity",
        Path: "path",
        date: "YYYY-MM-DD",
    }
    return words.get(get_origin(kind) or kind, "text")


def _list_of(kind: Any) -> str:
    words = {int: "list of integers", str: "list of texts", Reference: "list of references"}
    return words.get(getattr(kind, "__origin__", kind), "list")


def _range(letter: str, metadata: Sequence[Any]) -> str:
    bounds = {
        name: getattr(each, name, None) for each in metadata for name in ("gt", "ge", "lt", "le") if hasattr(each, name)
    }
    if letter == "N" and bounds.get("gt") == 0:
        bounds = {**{name: bound for name, bound in bounds.items() if name != "gt"}, "ge": 1}
    low = next(((bounds[name], sign) for name, sign in (("ge", "≤"), ("gt", "<")) if name in bounds), None)
    high = next((f" {sign} {bounds[name]:g}" for name, sign in (("le", "≤"), ("lt", "<")) if name in bounds), "")
    if low is None:
        return f"{letter}{high}" if high else {"N": "integer", "x": "number"}[letter]
    if high:
        return f"{low[0]:g} {low[1]} {letter}{high}"
    return f"{letter} {'≥' if low[1] == '≤' else '>'} {low[0]:g}"


def keys(model: type[BaseModel]) -> list[Row]:
    """Rows of the keys of a model: key, value, default, meaning."""
    rows: dict[str, Row] = {}
    for key, field, meaning in leaves(model):
        shown = value(model, key, field)
        if key in rows and shown not in rows[key][1]:  # the discriminator is in both models of a union
            rows[key] = (rows[key][0], f"{rows[key][1]}, {shown}", *rows[key][2:])
        rows.setdefault(key, (f"`{key}`", shown, default(field), cell(meaning, f"{model.__name__}.{key}")))
    return list(rows.values())


def fields(model: type[BaseModel]) -> list[Row]:
    """Rows of the keys of a record: key, meaning."""
    meaning = descriptions(model)
    return [(f"`{name}`", cell(meaning.get(name, ""), f"{model.__name__}.{name}")) for name in model.model_fields]


def facts(*kinds: type) -> list[Row]:
    """Rows of the properties of a test's report, each once."""
    meanings = {name: text for kind in kinds for name, text in descriptions(kind).items()}
    return [(f"`{name}`", cell(text)) for name, text in meanings.items()]


def options_of_checks() -> list[Row]:
    """Rows of every option of every check; an option that all checks of a family share has the family's name."""
    rows: dict[str, Row] = {}
    every = all_checks().values()
    for check in every:
        family = [other for other in every if other.family == check.family]
        for name, shown, *rest in ((key, *row) for key, row in _options(check).items()):
            shared = len(family) > 1 and all(_options(other).get(name) == (shown, *rest) for other in family)
            key = f"{check.family if shared else check.name}.{name}"
            rows.setdefault(key, (f"`{key}`", shown, *rest))
    return list(rows.values())


def _options(check: Check) -> dict[str, Row]:
    return {
        key: (value(check.options, key, field), default(field), cell(meaning))
        for key, field, meaning in leaves(check.options)
    }


def engines() -> list[Row]:
    """Rows of the engines."""
    return [(f"`{name}`", f"`{get_engine(name).kind}`", get_engine(name).proof) for name in ENGINES.names()]


def statistics(name: str) -> list[Row]:
    """Rows of an engine's own statistics."""
    return [(f"`{key}`", f"`{each.unit}`", each.rule) for key, each in get_engine(name).statistics.items()]


def checks() -> list[Row]:
    """Rows of the checks, in the order in which they run."""
    return [
        (f"`{name}`", check.family, check.scope, f"{check.deadline_s:g} s", check.summary)
        for name, check in all_checks().items()
    ]


def units() -> list[Row]:
    """Rows of the units."""
    return [(f"`{name}`", dimension, f"{factor:,.15g}") for name, (dimension, factor) in UNITS.items()]


def options() -> list[Row]:
    """Rows of the options of the command line."""
    return [
        (f"`{option.forms[0]}`", f"`llmbench_{option.key}`" if option.ini else "none", *_of_option(option))
        for option in OPTIONS
        if option.forms
    ]


def ini_keys() -> list[Row]:
    """Rows of the ini keys without an option."""
    rows = [(f"`llmbench_{option.key}`", *_of_option(option)) for option in OPTIONS if not option.forms]
    return [*rows, *((f"`llmbench_{kind}`", "folders", "none", meaning) for kind, meaning in FOLDERS.items())]


def _of_option(option: Option) -> Row:
    """Values, default and meaning."""
    words = METAVARS.get(option.name) or METAVARS.get(option.metavar)
    legal = words or ", ".join(f"`{word}`" for word in option.metavar.split("|") if word) or "none"
    default = option.default or ("off" if option.parse is None else "none")
    return legal, default, cell(option.help, option.name)


def _each_command(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands that can be typed, with their words."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _each_command(inner, f"{words} {name}")


def commands() -> list[Row]:
    """Every command with its first sentence."""
    return [
        (f"`{words}`", cell(_first_line(command))) for words, command in _each_command(get_command(app), "llmbench")
    ]


def _first_line(command: Any) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())


def options_of_commands() -> list[Row]:
    """Every argument and option of every command."""
    rows: list[Row] = []
    for words, command in _each_command(get_command(app), "llmbench"):
        for each in command.params:
            is_option = each.param_type_name == "option"
            flag = is_option and each.is_flag
            placeholder = (each.metavar or each.name.upper()).replace("|", ", ")
            flags = ", ".join([*each.opts, *each.secondary_opts])
            name = flags if flag else f"{flags} {placeholder}" if is_option else placeholder
            usual = "required" if each.required else "off" if flag else _usual(each.default)
            rows.append((f"`{words}`", f"`{name}`", usual, cell(each.help or "")))
    return rows


def _usual(default: Any) -> str:
    return f"`{default}`" if isinstance(default, str | int | float | Path) and default != "" else "none"


_KEYS = ("Key", "Value", "Default", "Meaning")
TABLES: dict[str, tuple[Row, Callable[[], list[Row]]]] = {
    "commands": (("Command", "Meaning"), commands),
    "options of commands": (("Command", "Argument or option", "Default", "Meaning"), options_of_commands),
    "options": (("Option", "Ini key", "Value", "Default", "Meaning"), options),
    "ini keys": (("Ini key", "Value", "Default", "Meaning"), ini_keys),
    "units": (("Unit", "Dimension", "In base units"), units),
    "engines": (("Engine", "Kind", "Proof that a run did all its work"), engines),
    "recipe keys": (_KEYS, lambda: keys(Recipe)),
    "reference keys": (_KEYS, lambda: keys(Reference)),
    "system keys": (_KEYS, lambda: keys(System)),
    "replay keys": (_KEYS, lambda: keys(ReplayFacts)),
    "run record": (("Key", "Meaning"), lambda: fields(RunRecord)),
    "telemetry": (("Field", "Meaning"), lambda: fields(GpuTelemetry)),
    "health record": (("Key", "Meaning"), lambda: fields(HealthRecord)),
    "report": (("Key of `report`", "Meaning"), lambda: fields(Report)),
    "finding": (("Key of a finding", "Meaning"), lambda: fields(Finding)),
    "reading": (("Key of a reading", "Meaning"), lambda: fields(Reading)),
    "statistics": (("Statistic", "Unit", "Rule", "Left out"), shared_statistics),
    "statistics of checks": (("Statistic", "Unit", "Meaning"), statistics_of_checks),
    "kinds of findings": (("Kind", "Meaning"), lambda: noted("finding")),
    "problem kinds": (("Kind", "Meaning"), lambda: sorted(noted("problem"))),
    "simulated faults": (("Fault", "Meaning"), lambda: sorted(noted("fault"))),
    "kinds of errors": (("Kind", "Meaning"), lambda: sorted(noted("error"))),
    "properties of a run": (
        ("Property", "Meaning"),
        lambda: facts(*OF_RUN),
    ),
    "properties of a check": (
        ("Property of a check", "Meaning"),
        lambda: facts(*OF_CHECK),
    ),
    "properties of the suite": (("Property", "Meaning"), lambda: noted("suite property")),
    "environment": (("Variable", "Meaning"), lambda: noted("variable")),
    "checks": (("Check", "Family", "Scope", "Deadline", "Question"), checks),
    "options of checks": (("Option", "Value", "Default", "Meaning"), options_of_checks),
    **{
        f"options of {name}": (
            ("Option", "Value", "Default", "Meaning"),
            lambda name=name: keys(get_engine(name).options),
        )
        for name in ENGINES.names()
    },
    **{
        f"statistics of {name}": (("Statistic", "Unit", "Rule"), lambda name=name: statistics(name))
        for name in ENGINES.names()
    },
}


def table(name: str) -> str:
    """A table as Markdown."""
    titles, rows = TABLES[name]
    lines = [titles, ["---"] * len(titles), *rows()]
    return (
        "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("---|---", "---|---")
    )


def written(text: str) -> tuple[str, list[str]]:
    """The text with every generated table written again, and the names of those that were not what the code says."""
    stale: list[str] = []

    def replace(found: re.Match[str]) -> str:
        name = found[1]
        fresh = table(name)
        if fresh != found[2]:
            stale.append(name)
        return f"<!-- generated: {name} -->\n{fresh}"

    return re.sub(r"<!-- generated: ([\w ]+) -->\n((?:\|.*\n)*)", replace, text), stale


def main() -> int:
    """Write the tables, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is stale")
    check = parser.parse_args().check
    wrong = 0
    for page in PAGES:
        text, stale = written(page.read_text(encoding="utf-8"))
        for name in stale:
            wrong += 1
            print(f"docs/{page.name}: the table `{name}` is not what the code says: run python tools/reference.py")
        if not check:
            page.write_text(text, encoding="utf-8")
    for kind in SCHEMAS:
        path, fresh = shipped("schemas") / f"{kind}.json", schema_text(kind)
        if not path.exists() or path.read_text(encoding="utf-8") != fresh:
            wrong += 1
            print(f"suites/schemas/{path.name}: not what the code says: run python tools/reference.py")
        if not check:
            path.write_text(fresh, encoding="utf-8")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
