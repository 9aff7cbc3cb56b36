"""The page of the report: templates, style, script and figures in one file that works offline."""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pytest_llmbench import __version__
from pytest_llmbench.core.files import PRIVATE, write_parts
from pytest_llmbench.core.quantity import counted, for_people, listed, utc
from pytest_llmbench.core.record.health import HealthRecord
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.core.text import harmless
from pytest_llmbench.reporting.html.drawing import data_of, frame_of, number, path_of, percent, shades_of
from pytest_llmbench.reporting.html.overview import RUNS, against_bounds, node_map
from pytest_llmbench.reporting.html.rows import KINDS, MEANINGS, VerdictRow, counts, interval, verdict_rows
from pytest_llmbench.reporting.html.sections import check_sections, format_json, run_sections
from pytest_llmbench.reporting.html.trend import trend_figures
from pytest_llmbench.session.folder import SessionFolder

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
# Rows that are elements of the page from the beginning: of more, a browser takes seconds.
_MOST_ROWS = 300
_LONGEST = 80  # characters of a text in a figure
# Verdicts that need somebody's attention.
_ATTENTION = ("fail", "error", "missing", "incomplete", "inconclusive")


def write_page(session: SessionFolder, path: Path, history: Path | str | None = None) -> dict[str, int]:
    """Write the report of a session into a file, with earlier sessions of a history.

    Returns the number of verdicts of each kind. Raises OSError: writing it fails.
    """
    rows, by_subject = verdict_rows(session), dict[tuple[str, str], list[VerdictRow]]()
    for row in rows:
        by_subject.setdefault((row.about, row.subject), []).append(row)
    numbers, verdicts = counts(rows), session.verdicts
    runs, nodes = [*run_sections(session, by_subject)], node_map(session.checks, rows)
    recipes = dict.fromkeys(run.recipe for run in runs if run.recipe)
    environments = dict.fromkeys(run.versions for run in runs if run.versions)
    script, style = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("report.js", "report.css"))
    parts = _template().generate(
        session=session,
        version=__version__,
        folder=quote(os.path.relpath(session.path.resolve(), path.parent.resolve())),
        # Only this script runs, and every download is refused.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=style,
        script=script,
        rows=rows,
        most_rows=_MOST_ROWS,
        counts=numbers,
        kinds=KINDS,
        meanings=MEANINGS,
        verdict=_sentence(numbers, verdicts.facts.get("interrupted", "") if verdicts is not None else ""),
        # Tests that did not apply to this machine do not count against the page as a whole.
        worst=next((kind for kind in numbers if kind != "skip"), next(iter(numbers), "missing")),
        attention=_ATTENTION,
        facts=_facts(session),
        runs=runs,
        checks=[*check_sections(session, by_subject)],
        nodes=nodes,
        of_runs=RUNS,
        bounds=against_bounds(rows, nodes),
        trend=trend_figures(history, session.id, session.runs.values()),
        environments={versions: at for at, versions in enumerate(environments, 1)},
        recipes={text: (at, json.loads(text)) for at, text in enumerate(recipes, 1)},
    )
    # It quotes logs and scripts, which are private to this user. In parts: with 10,000 runs it has 80 MB.
    write_parts(path, parts, mode=PRIVATE)
    return numbers


@cache
def _template() -> "jinja2.Template":
    import jinja2  # noqa: PLC0415 - a tenth of a second, for sessions that have something to report
    from jinja2.filters import do_mark_safe  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Control characters of records, logs and tests are removed. `Markup` is this package's own.
        finalize=lambda value: harmless(value) if type(value) is str else value,
    )
    environment.filters |= {
        # From a comment the page's script makes elements when they are looked at.
        "as_comment": lambda markup: do_mark_safe(f"<!--\n{markup.replace('--', '-&#45;')}-->"),
        "json": format_json,
        "short": lambda text: text if len(text := harmless(text)) <= _LONGEST else f"{text[:_LONGEST]}…",
        "frame": frame_of, "path": path_of, "shades": shades_of, "number": number, "percent": percent,
        "data": data_of,
        "interval": lambda metric: interval(metric.low, metric.high, metric.unit),
    }  # fmt: skip
    return environment.get_template("report.html.j2")


def _sentence(numbers: Mapping[str, int], interrupted: str) -> str:
    total, passed = sum(numbers.values()), numbers.get("pass", 0)
    ill = [f"{numbers[kind]} {KINDS[kind]}" for kind in _ATTENTION if kind in numbers]
    rest = [f"{numbers[kind]} {KINDS[kind]}" for kind in numbers if kind != "pass"]
    if not total:
        text = "No test was declared"
    elif ill:
        text = f"{listed(ill)} among {counted(total, 'verdict')}"
    elif not passed:
        text = f"Nothing was judged: {counted(total, 'test')}, none compared with a bound"
    elif rest:
        text = f"{passed} PASS; nothing failed ({listed(rest)})"
    else:
        text = f"{counted(total, 'verdict')}, all PASS" if total > 1 else "One verdict: PASS"
    return f"Interrupted by {interrupted}: {text}" if interrupted else text


def _facts(session: SessionFolder) -> dict[str, str]:
    """The facts of a session that are known."""
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
    return {name: text for name, text in facts.items() if text}
