"""The page of the report: templates, style, script and figures in one file that works offline."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_llmbench import __version__
from pytest_llmbench.core.files import PRIVATE, write_parts
from pytest_llmbench.core.quantity import counted, for_people, listed
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.html.drawing import draw
from pytest_llmbench.reporting.html.figures import Figure
from pytest_llmbench.reporting.html.overview import RUNS, against_bounds, node_map
from pytest_llmbench.reporting.html.rows import KINDS, MEANINGS, VerdictRow, counts, verdict_rows
from pytest_llmbench.reporting.html.sections import Sections, format_json, utc
from pytest_llmbench.session.folder import SessionFolder

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
# Rows that are elements of the page from the beginning: of more, a browser takes seconds.
_MOST_ROWS = 300
# Verdicts that need somebody's attention.
_ATTENTION = ("fail", "error", "missing", "incomplete", "inconclusive")


def write_page(session: SessionFolder, path: Path, trend: Sequence[Figure] = ()) -> None:
    """Write the report of a session into a file, with figures of earlier sessions. Raises OSError: writing it fails."""
    # It quotes logs and scripts, which are private to this user.
    write_parts(path, parts_of_page(session, path.parent, trend), mode=PRIVATE)


def parts_of_page(session: SessionFolder, place: Path, trend: Sequence[Figure] = ()) -> Iterator[str]:
    """Yield the report in parts, for a page in the folder `place`; with 10,000 runs it has 80 MB."""
    rows = verdict_rows(session)
    sections, numbers, verdicts = Sections(session, rows), counts(rows), session.verdicts
    runs, checks, nodes = sections.runs(), sections.checks(), node_map(session.checks, rows)
    page_script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    simulated: set[str] = set()
    as_recorded: dict[str, str] = {}
    facts = dict(_facts(session, simulated, as_recorded))
    recipes = {(name, format_json(json.loads(text))): number for (name, text), number in sections.recipes.items()}
    folder = quote(os.path.relpath(session.path.resolve(), place.resolve()))

    def link(inside: str) -> str:
        """A link from the page to a file of the session."""
        return f"{folder}/{quote(inside)}"

    yield from (
        _environment()
        .get_template("report.html.j2")
        .generate(
            title=session.id,
            version=__version__,
            policy=_policy(page_script.encode()),
            style=_markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
            script=_markup(page_script),
            session=session,
            rows=rows,
            most_rows=_MOST_ROWS,
            run_count=len(runs),
            counts=numbers,
            kinds=KINDS,
            meanings=MEANINGS,
            verdict=_sentence(numbers, verdicts.facts.get("interrupted", "") if verdicts is not None else ""),
            worst=_colour(numbers),
            lead=_lead(rows),
            notes=verdicts.notes if verdicts is not None else (),
            clauses=verdicts.clauses if verdicts is not None else (),
            facts=[*facts.items()],
            simulated=sorted(simulated),
            as_recorded=as_recorded,
            runs=runs,
            checks=checks,
            nodes=nodes,
            of_runs=RUNS,
            bounds=against_bounds(rows, nodes),
            trend=trend,
            draw=lambda figure, identity: _markup(draw(figure, identity)),
            link=link,
            environments=sections.environments,
            recipes=recipes,
            rules=sections.rules,
            contradictions=[row for row in rows if row.contradiction],
        )
    )


@cache
def _environment() -> "jinja2.Environment":
    import jinja2  # noqa: PLC0415 - a tenth of a second, for sessions that have something to report

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Control characters of records, logs and tests are removed. `Markup` is this package's own.
        finalize=lambda value: harmless(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters["as_comment"] = _wrap_in_comment
    return environment


def _wrap_in_comment(markup: str) -> Any:
    """A part of the page as a comment, from which the page's script makes elements when they are looked at."""
    return _markup(f"<!--\n{markup.replace('--', '-&#45;')}-->")


def _markup(text: str) -> Any:
    from jinja2.filters import do_mark_safe  # noqa: PLC0415  # a tenth of a second

    return do_mark_safe(text)  # of this package, or escaped by it


def _policy(script: bytes) -> str:
    """The page's content security policy: only this script runs, and every download is refused."""
    allowed = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{allowed}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _sentence(numbers: Mapping[str, int], interrupted: str) -> str:
    if interrupted:
        return f"Interrupted by {interrupted}: {_sentence(numbers, '')}"
    total, passed = sum(numbers.values()), numbers.get("pass", 0)
    if not total:
        return "No test was declared"
    if ill := [f"{numbers[kind]} {KINDS[kind]}" for kind in _ATTENTION if kind in numbers]:
        return f"{listed(ill)} among {counted(total, 'verdict')}"
    if not passed:
        return f"Nothing was judged: {counted(total, 'test')}, none compared with a bound"
    rest = [f"{numbers[kind]} {KINDS[kind]}" for kind in numbers if kind != "pass"]
    if not rest:
        return f"{counted(total, 'verdict')}, all PASS" if total > 1 else "One verdict: PASS"
    return f"{passed} PASS; nothing failed ({listed(rest)})"


def _colour(numbers: Mapping[str, int]) -> str:
    """The kind that the page has as a whole: tests that did not apply to this machine do not count against it."""
    return next((kind for kind in numbers if kind != "skip"), next(iter(numbers), "missing"))


def _lead(rows: Sequence[VerdictRow]) -> str:
    """The worst verdict in a sentence; empty if none needs attention."""
    row = next((row for row in rows if row.kind in _ATTENTION), None)
    if row is None:
        return ""
    reason = " ".join(row.reason.split()) or MEANINGS[row.kind]
    return f"{row.name}: {reason}{f'. Cause: {row.cause}' if row.cause else ''}"


def _facts(
    session: SessionFolder, simulated: set[str], as_recorded: dict[str, str]
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield the facts of a session; also add its simulated faults, and how runs were judged as recorded."""
    known = session.verdicts.facts if session.verdicts is not None else {}
    began = next((event for event in session.events if event.event == "began"), None)
    starts, ends, hosts = [], [], dict[str, None]()
    systems, clusters, devices, users, gpus = set(), set(), set(), set(), 0
    for record in chain(session.runs.values(), session.checks.values()):  # one at a time
        starts.append(record.timings.started or record.timings.submitted)
        ends.append(record.timings.ended)
        hosts |= dict.fromkeys(record.hosts)
        systems.add(record.system)
        clusters.add(record.cluster)
        if record.made_by is not None and record.made_by.user:
            users.add(record.made_by.user)
        if isinstance(record, RunRecord):
            devices.add(record.device)
            gpus = max(gpus, record.gpus)
            simulated |= {record.simulated} if record.simulated else set()
            as_recorded |= {record.key: record.as_recorded} if record.as_recorded else {}
        elif isinstance(record, HealthRecord):
            gpus = max(gpus, record.gpus_per_node * len(record.hosts))
    name = listed(sorted(filter(None, devices)))
    first = began.at if began is not None else min(filter(None, starts), default=None)
    last = max(filter(None, ends), default=None)
    facts = {
        "system": known.get("system") or listed(sorted(systems)),
        "cluster": known.get("cluster") or listed(sorted(clusters)),
        "scale": known.get("scale", ""),
        "GPUs": f"{gpus} × {name}" if gpus and name else str(gpus or name or "none"),
        "nodes": f"{len(hosts)}: {listed([*hosts])}" if hosts else "",
        "date": utc(first),
        "took": f"{for_people((last - first) / 60.0, 3)} min" if first and last and last > first else "",
        "by": " on ".join(filter(None, (listed(sorted(users)), began.host if began is not None else ""))),
        "command": f"pytest {' '.join(began.command)}" if began is not None else "",
        "version": f"pytest-llmbench {known['llmbench_version']}" if "llmbench_version" in known else "",
        "folder": str(session.path),
        "unfit nodes": known.get("nodes_unfit", ""),
        "nodes not tested": known.get("nodes_not_tested", ""),
    }
    yield from ((name, text) for name, text in facts.items() if text)
