"""The page of the report: templates, style, script and figures in one file that works offline."""

import base64
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench import __version__
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.files import PRIVATE, write_parts
from pytest_llmbench.core.quantity import counted, listed
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.html.rows import KINDS, MEANINGS, counts, node_map, verdict_rows
from pytest_llmbench.reporting.html.sections import Sections, format_json, utc
from pytest_llmbench.session.folder import SessionFolder

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
# Rows that are elements of the page from the beginning: of more, a browser takes seconds.
_MOST_ROWS = 300
# Verdicts that need somebody's attention.
_ATTENTION = ("fail", "error", "missing", "incomplete", "inconclusive")


def write_page(session: SessionFolder, path: Path) -> None:
    """Write the report of a session into a file.

    Raises ConfigError if plotly is missing, and OSError if writing it fails.
    """
    # It quotes logs and scripts, which are private to this user.
    write_parts(path, parts_of_page(session), mode=PRIVATE)


def parts_of_page(session: SessionFolder) -> Iterator[str]:
    """Yield the report in parts; with 10,000 runs it has 80 MB."""
    rows = verdict_rows(session)
    sections, numbers, verdicts = Sections(session, rows), counts(rows), session.verdicts
    runs, checks = sections.runs(), sections.checks()
    page_script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    plotly = _plotly() if any(map(attrgetter("figures"), (*runs, *checks))) else b""
    # The page unpacks it when the first figure is looked at.
    packed = base64.b64encode(gzip.compress(plotly, compresslevel=6, mtime=0)).decode("ascii") if plotly else ""
    facts = dict(_facts(session))
    recipes = {(name, format_json(json.loads(text))): number for (name, text), number in sections.recipes.items()}
    template = _environment().get_template("report.html.j2")
    yield from template.generate(
        title=session.id,
        version=__version__,
        policy=_policy(page_script.encode(), plotly),
        style=_markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=_markup(page_script),
        plotly=_markup(packed),
        session=session,
        rows=rows,
        most_rows=_MOST_ROWS,
        run_count=len(runs),
        counts=numbers,
        kinds=KINDS,
        meanings=MEANINGS,
        verdict=_sentence(numbers, verdicts.facts.get("interrupted", "") if verdicts is not None else ""),
        worst=next(iter(numbers), "missing"),
        notes=verdicts.notes if verdicts is not None else (),
        clauses=verdicts.clauses if verdicts is not None else (),
        facts=[*facts.items()],
        about=_subject(facts),
        simulated=sorted({record.simulated for record in session.runs.values() if record.simulated}),
        as_recorded={key: record.as_recorded for key, record in session.runs.items() if record.as_recorded},
        runs=runs,
        checks=checks,
        nodes=node_map(session.checks),
        environments=sections.environments,
        recipes=recipes,
        rules=sections.rules,
        contradictions=[row for row in rows if row.contradiction],
    )


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


@cache
def _plotly() -> bytes:
    """The script of plotly.js, found without importing plotly, which would take a second.

    Raises ConfigError if plotly is missing.
    """
    plotly = importlib.util.find_spec("plotly")
    for place in (plotly.submodule_search_locations if plotly is not None else None) or ():
        path = Path(place) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_bytes()
    raise ConfigError("the report needs plotly: pip install plotly")


def _policy(*scripts: bytes) -> str:
    """The page's content security policy: only these scripts run, and every download is refused."""
    hashes = (base64.b64encode(hashlib.sha256(script).digest()).decode() for script in scripts if script)
    allowed = " ".join(f"'sha256-{text}'" for text in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )


def _sentence(numbers: Mapping[str, int], interrupted: str) -> str:
    if interrupted:
        return f"Interrupted by {interrupted}: {_sentence(numbers, '')}"
    total, passed = sum(numbers.values()), numbers.get("pass", 0)
    if not total:
        return "No test was declared"
    if ill := [f"{numbers[kind]} {KINDS[kind]}" for kind in _ATTENTION if kind in numbers]:
        return f"{listed(ill)} among {counted(total, 'verdict')}"
    if passed == total:
        return f"{counted(total, 'verdict')}, all PASS" if total > 1 else "One verdict: PASS"
    return f"Nothing failed, and {total - passed} of {counted(total, 'test')} judged nothing"


def _subject(facts: Mapping[str, str]) -> str:
    """Name what was judged and when, for the first line of the page."""
    nodes = facts.get("nodes", "").partition(":")[0]
    gpus = facts.get("devices") or (f"{facts['GPUs']} GPUs" if "GPUs" in facts else "")
    parts = (
        gpus, nodes and counted(int(nodes), "node"),
        *(f"{name} {facts[name]}" for name in ("system", "scale") if name in facts), facts.get("began", ""),
    )  # fmt: skip
    return " · ".join(filter(None, parts))


def _facts(session: SessionFolder) -> Iterator[tuple[str, str]]:
    known = session.verdicts.facts if session.verdicts is not None else {}
    began = next((event for event in session.events if event.event == "began"), None)
    starts, ends, hosts = [], [], dict[str, None]()
    systems, clusters, devices, gpus = set(), set(), set(), 0
    for record in chain(session.runs.values(), session.checks.values()):  # one at a time
        starts.append(record.timings.started or record.timings.submitted)
        ends.append(record.timings.ended)
        hosts |= dict.fromkeys(record.hosts)
        systems.add(record.system)
        clusters.add(record.cluster)
        if isinstance(record, RunRecord):
            devices.add(record.device)
            gpus = max(gpus, record.gpus)
        elif isinstance(record, HealthRecord):
            gpus = max(gpus, record.gpus_per_node * len(record.hosts))
    name = listed(sorted(filter(None, devices)))
    facts = {
        "system": known.get("system") or listed(sorted(systems)),
        "cluster": known.get("cluster") or listed(sorted(clusters)),
        "scale": known.get("scale", ""),
        "devices": f"{gpus} × {name}" if gpus and name else name,
        "GPUs": str(gpus) if gpus and not name else "",
        "nodes": f"{len(hosts)}: {listed([*hosts])}" if hosts else "",
        "began": utc(began.at if began is not None else min(filter(None, starts), default=None)),
        "ended": utc(max(filter(None, ends), default=None)),
        "started on": began.host if began is not None else "",
        "command": f"pytest {' '.join(began.command)}" if began is not None else "",
        "version": f"pytest-llmbench {known['llmbench_version']}" if "llmbench_version" in known else "",
        "folder": str(session.path),
        "unfit nodes": known.get("nodes_unfit", ""),
        "nodes not tested": known.get("nodes_not_tested", ""),
    }
    yield from ((name, text) for name, text in facts.items() if text)
