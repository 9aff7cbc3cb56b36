"""Writes the tables of the documents that follow from the code, and the JSON Schemas.

    python tools/reference.py            writes them
    python tools/reference.py --check    exits with 1, and names each table and schema that is not what the code says

A table stands under a comment `<!-- generated: NAME -->`. Each meaning is written down once: that of a key is the
docstring under its field. That of another name is a comment next to the code that makes it,

    #: finding mig: a GPU is cut into slices

with the kind of name, the name and the meaning. A line that begins with `#:` and two blanks goes on with the last one.
A name with several comments has all of their meanings.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel
from schemas import SCHEMAS, schema_text
from typer.main import get_command

from pytest_llmbench.checks.base import FAMILIES, Check, all_checks
from pytest_llmbench.cli.app import app
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import UNITS
from pytest_llmbench.core.recipe.recipes import NOT_WRITTEN, Recipe
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.schema import descriptions, models_in
from pytest_llmbench.engines.base import ENGINES, get_engine
from pytest_llmbench.judging.statistics import STATISTICS
from pytest_llmbench.plugin.options import FOLDERS, OPTIONS, Option
from pytest_llmbench.session.replay import ReplayFacts

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (DOCS / "reference.md", DOCS / "validation.md", DOCS / "cli.md", ROOT / "CONTRIBUTING.md")
# Names that begin a sentence as they are.
PROGRAMS = ("pytest ", "nvidia-smi ", "dcgmi", "openmetrics")
# Kinds of names that comments explain.
LABELS = (
    "finding", "problem", "error", "statistic", "left out", "suite property", "property", "test variable", "variable",
    "fault",
)  # fmt: skip
# Keys of a run record that a reader of results looks for. Its JSON Schema has them all.
OF_RESULTS = (
    "hosts", "timings", "recipe", "metrics", "steady", "judgements", "problem", "findings", "unjudged", "steps",
    "times", "provenance", "made_by",
)  # fmt: skip

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


def noted(label: str) -> list[Row]:
    """Rows of names that comments explain: name, meaning."""
    return [(f"`{name}`", cell(text)) for name, text in notes()[label].items()]


def statistics_of_checks() -> list[Row]:
    """Rows of the statistics of checks: a part in angle brackets stands for several."""
    rows: list[Row] = []
    for name, text in notes()["statistic"].items():
        who, _, what = name.partition(".")
        pattern = re.sub("<[a-z]+>", ".+", what)
        checks = [check for check in all_checks().values() if who in {check.name, check.family}]
        units = {unit for check in checks for each, unit in check.statistics.items() if re.fullmatch(pattern, each)}
        if not units:
            raise SystemExit(f"no check has the statistic {name} that a comment explains")
        rows.append((f"`{name}`", f"`{units.pop()}`", cell(text)))
    return rows


def shared_statistics() -> list[Row]:
    """Rows of the statistics of every engine."""
    left_out = notes()["left out"]
    return [(f"`{name}`", f"`{e.unit}`", e.rule, left_out.get(name, "never")) for name, e in STATISTICS.items()]


def cell(text: str) -> str:
    """A meaning as a cell: with a capital and without the last point."""
    text = (text if text.endswith("...") else text.removesuffix(".")).replace("|", r"\|")
    return text if text.startswith(PROGRAMS) else f"{text[:1].upper()}{text[1:]}"


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Every key of a model, dotted, with its JSON Schema and its meaning; a `*` stands for the user's own names."""
    schema, meaning = model.model_json_schema(), descriptions(model)
    for name, field in model.model_fields.items():
        inner = [part for part in models_in(field.annotation) if part is not Reference]
        if not inner:
            yield f"{prefix}{name}", schema["properties"][name], meaning.get(name, "")
        named = "*." if get_origin(field.annotation) is Mapping else ""
        for part in inner:
            yield from leaves(part, f"{prefix}{name}.{named}")


def default(schema: Mapping[str, Any]) -> str:
    """A default as the tables have it; empty for a key without one."""
    value = schema.get("default", "required")
    if value in (None, "", [], {}):
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value)


_LIMITS = {
    "minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "multipleOf": "a multiple of",
}  # fmt: skip
_KINDS = {"boolean": "true, false", "object": "mapping", "array": "list", "string": "text"}


def legal(schema: Mapping[str, Any]) -> str:
    """The legal values of a key in words."""
    words = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if words:
        return ", ".join(f"`{word}`" if isinstance(word, str) else str(word) for word in words)
    if "examples" in schema:
        return "quantity" if "5 %" in schema["examples"] else "Slurm time"
    if "anyOf" in schema:
        return ", ".join(legal(part) for part in schema["anyOf"] if part.get("type") != "null")
    return schema["$ref"].rpartition("/")[2].lower() if "$ref" in schema else _legal_type(schema)


def _legal_type(schema: Mapping[str, Any]) -> str:
    kind = schema["type"]
    if items := schema.get("items"):
        return "list" if "anyOf" in items else f"list of {legal(items)}s"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"name: {legal(schema['additionalProperties'])}"
    if limits := [f"{sign} {schema[name]:g}" for name, sign in _LIMITS.items() if name in schema]:
        return f"{'N' if kind == 'integer' else 'x'} {', '.join(limits)}"
    return "YYYY-MM-DD" if schema.get("format") == "date" else _KINDS.get(kind, kind)


def keys(model: type[BaseModel]) -> list[Row]:
    """Rows of the keys of a model: key, value with its default, meaning."""
    schemas: dict[str, list[Mapping[str, Any]]] = defaultdict(list)  # several for what the models of a union share
    meanings: dict[str, str] = {}
    for key, schema, meaning in leaves(model):
        schemas[key].append(schema)
        meanings.setdefault(key, meaning)
    return [(f"`{key}`", values(*schemas[key]), cell(meaning)) for key, meaning in meanings.items()]


def values(*schemas: Mapping[str, Any]) -> str:
    """The legal values of a key with its default."""
    usual = default(schemas[0])
    words = ", ".join(dict.fromkeys(map(legal, schemas)))
    return f"{words}, required" if usual == "required" else f"{words} ({usual})" if usual else words


def facts(*kinds: type) -> list[Row]:
    """Rows of the fields of models or dataclasses, each once: field, meaning."""
    meanings = {name: text for kind in kinds for name, text in descriptions(kind).items()}
    return [(f"`{name}`", cell(text)) for name, text in meanings.items()]


def options_of_checks() -> list[Row]:
    """Rows of every option of every check; checks that share one share its row, under the family's name if all do."""
    owners: dict[tuple[str, Row], list[Check]] = defaultdict(list)
    for check in all_checks().values():
        for name, row in _options(check).items():
            owners[name, row].append(check)
    rows: list[Row] = []
    for (name, row), checks in owners.items():
        members = [check.name for check in all_checks().values() if check.family == checks[0].family]
        names = [check.name for check in checks]
        shared = len(members) > 1 and names == members
        rows.append((", ".join(f"`{who}.{name}`" for who in ([checks[0].family] if shared else names)), *row))
    return rows


def _options(check: Check) -> dict[str, Row]:
    """Default and meaning of each option, with its words if it takes one of a few."""
    rows: dict[str, Row] = {}
    for key, schema, meaning in leaves(check.options):
        words = f"; one of {legal(schema)}" if "enum" in str(schema) else ""
        rows[key] = (default(schema) or "none", f"{cell(meaning)}{words}")
    return rows


def engines() -> list[Row]:
    """Rows of the engines."""
    return [(f"`{name}`", f"`{get_engine(name).kind}`", get_engine(name).proof) for name in ENGINES.names()]


def options_of(name: str) -> list[Row]:
    """Rows of an engine's own options; `notes` and `arguments` are those of every command."""
    return [row for row in keys(get_engine(name).options) if row[0] not in {"`notes`", "`arguments`"}]


def statistics(name: str) -> list[Row]:
    """Rows of an engine's own statistics."""
    return [(f"`{key}`", f"`{each.unit}`", each.rule) for key, each in get_engine(name).statistics.items()]


def checks() -> list[Row]:
    """Rows of the checks, in the order in which they run; those that differ in their names alone share one."""
    names: dict[Row, list[str]] = defaultdict(list)
    for name, check in all_checks().items():
        question = check.summary.removeprefix(f"{name} ")
        names[check.family, check.scope, f"{check.deadline_s:g} s", question].append(f"`{name}`")
    return [(", ".join(alike), *row) for row, alike in names.items()]


def units() -> list[Row]:
    """Rows of the dimensions with their units, each by its size in the base unit."""
    by_dimension: dict[str, list[str]] = defaultdict(list)
    for name, (dimension, factor) in UNITS.items():
        by_dimension[dimension].append(f"`{name}`" if factor == 1 else f"`{name}` ({factor:,.15g})")
    return [(dimension, ", ".join(names)) for dimension, names in by_dimension.items()]


def options() -> list[Row]:
    """Rows of the options of the command line; those without an ini key are in bold."""
    return [
        (f"`{option.forms[0]}`" if option.ini else f"**`{option.forms[0]}`**", *_of_option(option))
        for option in OPTIONS
        if option.forms
    ]


def ini_keys() -> list[Row]:
    """Rows of the ini keys without an option."""
    rows = [(f"`llmbench_{option.key}`", *_of_option(option)) for option in OPTIONS if not option.forms]
    return [*rows, *((f"`llmbench_{kind}`", "folders", meaning) for kind, meaning in FOLDERS.items())]


def _of_option(option: Option) -> Row:
    """Values with the default, and meaning."""
    words = ", ".join(f"`{word}`" for word in option.metavar.split("|") if word) or "none"
    return f"{words} ({option.default})" if option.default else words, cell(option.help)


def commands() -> list[Row]:
    """Every command with its first sentence."""
    return [(f"`{words}`", cell(" ".join((command.help or "").partition("\n\n")[0].split())))
            for words, command in _each_command(get_command(app), "llmbench")]  # fmt: skip


def _each_command(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands that can be typed, with their words."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _each_command(inner, f"{words} {name}")


_KEYS = ("Key", "Value (default)", "Meaning")
_OPTIONS = ("Option", "Value (default)", "Meaning")
TABLES: dict[str, tuple[Row, Callable[[], list[Row]]]] = {
    "commands": (("Command", "Meaning"), commands),
    "options": (("Option", "Value (default)", "Meaning"), options),
    "ini keys": (("Ini key", "Value (default)", "Meaning"), ini_keys),
    "units": (("Dimension", "Units, with their size in the base unit"), units),
    "engines": (("Engine", "Kind", "Proof that a run did all its work"), engines),
    "recipe keys": (_KEYS, lambda: [row for row in keys(Recipe) if row[0].strip("`") not in NOT_WRITTEN]),
    "reference keys": (_KEYS, lambda: keys(Reference)),
    "system keys": (_KEYS, lambda: keys(System)),
    "replay keys": (_KEYS, lambda: keys(ReplayFacts)),
    "run record": (("Key", "Meaning"), lambda: [row for row in facts(RunRecord) if row[0].strip("`") in OF_RESULTS]),
    "statistics": (("Statistic", "Unit", "Rule", "Left out"), shared_statistics),
    "statistics of checks": (("Statistic", "Unit", "Meaning"), statistics_of_checks),
    "kinds of findings": (("Kind", "Meaning"), lambda: noted("finding")),
    "problem kinds": (("Kind", "Meaning"), lambda: sorted(noted("problem"))),
    "simulated faults": (("Fault", "Meaning"), lambda: sorted(noted("fault"))),
    "kinds of errors": (("Kind", "Meaning"), lambda: sorted(noted("error"))),
    "properties of a case": (("Property of a case", "Meaning"), lambda: noted("property")),
    "properties of the suite": (("Property", "Meaning"), lambda: noted("suite property")),
    "environment": (("Variable", "Meaning"), lambda: noted("variable")),
    "environment of tests": (("Variable", "Meaning"), lambda: noted("test variable")),
    "checks": (("Check", "Family", "Scope", "Deadline", "Question"), checks),
    "options of checks": (("Option", "Default", "Meaning"), options_of_checks),
    **{f"options of {name}": (_OPTIONS, lambda name=name: options_of(name)) for name in ENGINES.names()},
    **{
        f"statistics of {name}": (("Statistic", "Unit", "Rule"), lambda name=name: statistics(name))
        for name in ENGINES.names()
        if name != "nemo_torchrun"  # it has those of nemo_launcher
    },
}


def table(name: str) -> str:
    """A table as Markdown."""
    titles, rows = TABLES[name]
    head = f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n"
    return head + "".join(f"| {' | '.join(row)} |\n" for row in rows())


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
    """Write the tables and schemas, or compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is stale")
    check = parser.parse_args().check
    wrong = [
        *(problem for page in PAGES for problem in _page(page, write=not check)),
        *(f"suites/schemas/{kind}.json" for kind in SCHEMAS if _is_stale(kind, write=not check)),
    ]
    for problem in wrong:
        print(f"{problem} is not what the code says: run python tools/reference.py")
    return 1 if check and wrong else 0


def _page(page: Path, *, write: bool) -> Iterator[str]:
    """Yield each stale table of a page."""
    text, stale = written(page.read_text(encoding="utf-8"))
    if write:
        page.write_text(text, encoding="utf-8")
    for name in stale:
        yield f"{page.relative_to(ROOT)}: the table `{name}`"


def _is_stale(kind: str, *, write: bool) -> bool:
    path, fresh = shipped("schemas") / f"{kind}.json", schema_text(kind)
    stale = not path.exists() or path.read_text(encoding="utf-8") != fresh
    if write:
        path.write_text(fresh, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
