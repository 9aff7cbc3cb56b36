"""docs/reference.md and the code know the same names, defaults, units and rules."""

import datetime as dt
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from pytest_llmbench import plugin
from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.errors import ErrorKind
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import ExpectedFailure
from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Report, Severity
from pytest_llmbench.core.record.records import Metric, ProblemKind, RunRecord, SessionVerdicts, Timings, Verdict
from pytest_llmbench.core.record.series import EarlyVerdict
from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.core.wire.step_events import GpuEvent
from pytest_llmbench.engines.base import ENGINES, Engine
from pytest_llmbench.judging.cause import CauseKind
from pytest_llmbench.judging.interval.steady import steady_state
from pytest_llmbench.plugin import ours
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.collection.checks import Health
from pytest_llmbench.plugin.output.provenance import suite_facts
from pytest_llmbench.plugin.verdict import outcome
from pytest_llmbench.plugin.verdict.facts import facts_of_check, facts_of_reference, facts_of_run, place_of
from pytest_llmbench.plugin.verdict.groups import ComparedGroups
from pytest_llmbench.plugin.verdict.run import Run
from pytest_llmbench.plugin.verdict.speed import EXIT_CODE
from pytest_llmbench.reporting.ci import PROPERTIES
from pytest_llmbench.reporting.verdict import DETAILED
from pytest_llmbench.workloads.node import installed
from pytest_llmbench.workloads.node.provenance import gather
from tests.conftest import TORCH, UserFolder
from tests.docs.documents import CHECKOUT
from tests.support.shipped import shipped_recipes

TEXT = (CHECKOUT / "docs" / "reference.md").read_text(encoding="utf-8")
PACKAGE = CHECKOUT / "pytest_llmbench"


Table = dict[str, list[str]]


def tables(heading: str, text: str = TEXT) -> list[Table]:
    """The tables of a section: the cells of each row by its first one, without the code marks around it."""
    return [table for _, table in _titled(heading, text)]


def titled_tables(heading: str, text: str) -> dict[str, Table]:
    """The tables of a section by the heading of their first column."""
    return dict(_titled(heading, text))


def _titled(heading: str, text: str) -> Iterator[tuple[str, Table]]:
    for table in re.findall(r"(?:^\|.*\n)+", _section(heading, text), re.MULTILINE):
        titles, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        names = [row[0].strip("`") for row in rows]
        assert len(set(names)) == len(names), f"{heading}: a name is there twice"
        yield titles[0], dict(zip(names, rows, strict=True))


def _section(heading: str, text: str) -> str:
    """What stands under a heading, up to the next one of the same rank."""
    (found,) = re.findall(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found[1])


def only_table(heading: str) -> Table:
    (table,) = tables(heading)
    return table


def test_the_marker_and_the_fixtures_are_there() -> None:
    """Both markers with their arguments; all fixtures; what `health` offers, by its attributes."""
    table = only_table("Marker and fixtures")
    markers = {marker.partition(":")[0] for marker in (ours.RECIPE_MARKER, ours.CHECK_MARKER)}
    assert set(table) == markers | set(plugin.__all__)
    offered = set(re.findall(r"`health\.(\w+)`", _section("Marker and fixtures", TEXT)))
    found = Health(checked(Path("x")), 0)
    assert offered == {name for name in dir(found) if not name.startswith("_")} - {"properties"}


def test_every_engine_is_there() -> None:
    assert set(re.findall(r"^### (\w+)$", _section("Engines", TEXT), re.MULTILINE)) == set(ENGINES.names())


def test_every_verdict_is_there() -> None:
    assert set(only_table("Verdicts")) == {str(verdict) for verdict in Verdict}


def test_every_problem_kind_is_there() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py")))
    raised = set(re.findall(r'RunError\(\s*"([a-z_]+)"', source))
    assert raised == set(get_args(ErrorKind))
    of_records, of_errors = tables("Problem kinds")
    assert set(of_records) == set(get_args(ProblemKind))
    said = re.findall(r'"([a-z_]+)"', source)
    assert [kind for kind in of_records if said.count(kind) < 2] == [], "declared, and given to no problem"
    assert set(of_errors) == raised


def checked(tmp_path: Path) -> HealthRecord:
    """A health record of one node that is unfit, with a hint and a number."""
    finding = {"host": "n1", "kind": "k", "message": "m"}
    return HealthRecord(
        session="s", token="t", check="c", family="host", scope="node", system="local", cluster="local", hosts=("n1",),
        folder=str(tmp_path), timings=Timings(started=1.0, ended=2.0),
        report=Report(
            findings=(
                Finding(severity=Severity.REBOOT, action="a", **finding), Finding(severity=Severity.MONITOR, **finding)
            ),
            readings=(Reading(host="n1", statistic="step_time", value=1.0, unit="s"),), bounds=("a bound",),
        ),
    )  # fmt: skip


def record(tmp_path: Path) -> RunRecord:
    """A run record with one metric, of a run that is faster in its steady part."""
    return RunRecord(
        session="s", key="k", token="t", recipe=next(iter(shipped_recipes().values())),
        system="local", cluster="local", allocation="run", nodes=1, ranks=1, gpus=0, folder=str(tmp_path),
        metrics={"step_time": Metric(value=1.0, unit="s", rule="r", sense="time", amount=1.0)},
        timings=Timings(submitted=1.0, started=1.0, ended=2.0),
        steady=steady_state([0.5, 0.501] * 20),
        early=EarlyVerdict(planned=200, look=200, done=200, alpha=0.01, whole="why"), simulated="die@5",
        superseded=("job_lost: why",), as_recorded="how",
    )  # fmt: skip


def test_every_cause_is_there() -> None:
    assert set(only_table("Causes")) == set(get_args(CauseKind))


def test_every_junit_property_is_there(tmp_path: Path) -> None:
    item: Any = SimpleNamespace(user_properties=[])
    made = record(tmp_path).model_copy(update={"unconfirmed": ("a fact",), "settings": "3 settings printed"})
    run = Run(made, made.model_copy(update={"key": "k-repeat2"}))
    assert run.measured("step_time") <= Quantity("0.8 s")
    known = ExpectedFailure(reason="known", until=dt.date(2026, 12, 31))
    reference = made.recipe.references[0].model_copy(update={"xfail": known, "floor": True})
    outcome.note(item, **facts_of_run(made, 2), **facts_of_reference(reference))
    missed = Run(made)
    assert not missed.measured("step_time") <= Quantity("0.1 s")
    outcome.note_measured(item, missed)
    outcome.note_measured(item, run)
    always = {**place_of(Declared(test="a.py::b", line=1)), "verdict": "SKIP", "reason": "why", "clause": "4.10"}
    outcome.note(item, **always)
    of_case, of_suite = tables("JUnit properties")
    of_history = {"baseline", "change", "change_low", "change_high"}  # of a comparison, which has no test
    # Engine torch has `trained`, GPUs have `energy`: unit/plugin/test_provenance.py, plugin/output/test_telemetry.py.
    of_choices = {"trained", "energy"}
    of_health = facts_of_check(checked(tmp_path), 0) | Health(checked(tmp_path), 0).properties()
    noted = {name for name, _ in item.user_properties} | of_history | of_choices | of_health.keys()
    assert set(of_case) == {*PROPERTIES} <= noted

    system = SimpleNamespace(name="x")
    settings = SimpleNamespace(system=system, cluster="replay", allocation="run", scale="full", as_recorded=True)
    bench = cast("Bench", SimpleNamespace(settings=settings, session=SimpleNamespace(id="s", folder=tmp_path)))
    groups = ComparedGroups(rows=(), not_compared={"why": ["g"]})
    unfit, unjudged = {"n1": "limits: too low"}, {"why": ["k"]}
    facts = suite_facts(
        bench, "r", unfit=unfit, unjudged=unjudged, groups=groups, not_tested="n9", interrupted="Ctrl-C"
    )
    assert set(of_suite) == {*facts, *SessionVerdicts(session="s").digest}


def test_the_guide_to_engines_names_every_method() -> None:
    guide = (CHECKOUT / "docs" / "extend" / "add-an-engine.md").read_text(encoding="utf-8")
    methods = {name for name, member in vars(Engine).items() if isfunction(member) and not name.startswith("_")}
    assert set(re.findall(r"^- `(\w+)\(", guide, re.MULTILINE)) == methods


def test_every_exit_code_is_there() -> None:
    assert {int(code) for code in only_table("Exit codes")} == {
        *map(int, pytest.ExitCode),
        EXIT_CODE,
        *DETAILED.values(),
    }


def test_the_schema_version_of_a_run_record_is_there() -> None:
    assert f"JSON, schema version {RunRecord.model_fields['schema_version'].default}." in TEXT


def test_every_field_of_a_gpu_event_is_there() -> None:
    step_log = _section("Step log", TEXT)
    names = {each.name for each in fields(GpuEvent)} - {"event", "time"}
    assert {f"`{name}`" for name in names} <= set(re.findall(r"`[a-z_]+`", step_log))


def test_every_fact_of_provenance_is_there(tmp_path: Path) -> None:
    """What is found of this checkout, this Python and an image; and what takes its place where no Python answers."""
    (tmp_path / "image.sqsh").write_bytes(b"image")
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "first"]
    subprocess.run(commit, cwd=tmp_path, check=True)
    env = {**os.environ, "NCCL_DEBUG": "INFO"}
    shape: dict[str, Any] = {"nodes": 1, "ranks_per_node": 1, "device": "cpu"}
    task = CommandTask(**shape, python=sys.executable, root=str(tmp_path))
    image = CommandTask(**shape, python="no-python", image=str(tmp_path / "image.sqsh"))
    digest = CommandTask(**shape, python="no-python", image=f"a/b@sha256:{64 * '0'}")
    found = {name for each in (task, image, digest) for name in gather(each, env).facts}
    assert {"git_commit", "git_state", "image_file", "image_digest", "versions", "env.NCCL_DEBUG"} <= found
    written = {name for cell in only_table("Provenance") for name in re.split(r"`?, `?", cell)}
    stands_for = {"env.NAME" if name.startswith("env.") else name for name in found - set(installed.PACKAGES)}
    assert stands_for <= written, "a fact that the document does not name"


def test_every_file_of_a_session_is_there(user: UserFolder) -> None:
    user.recipe(**TORCH)  # the tests' own engine writes files of its own
    shape = {"gpus_per_node": 0, "steps": 8, "references": []}
    user.recipe("command", engine="megatron_lm", **shape)
    user.test(
        "import pytest\n\ndef test_it_ran(run):\n    assert run.record.steps\n\n"
        "@pytest.mark.check('limits', 'shared_folder')\ndef test_fit(health):\n    assert not health.faults\n"
    )
    system = "name: here\ncluster: local\ngpus_per_node: 0\nenvironments: {megatron_lm: {root: /, python: 'false'}}\n"
    (user.path / "here.yaml").write_text(system)
    result = user.run("--system", "here.yaml", "-o", "llmbench_report=yes", "-k", "tiny or command or fit")
    assert {name: case.outcome for name, case in result.cases.items()} == {
        "test_it_ran[tiny]": "passed", "test_it_ran[command]": "error",
        "test_fit[limits-slot0]": "passed", "test_fit[shared_folder-slot0]": "passed",
    }, result.text  # fmt: skip
    files = {path.relative_to(result.session).as_posix() for path in result.session.rglob("*") if path.is_file()}
    wild = {"<run>": "[^/]+", "<recipe>": "[^/]+", "<check>": "[^/]+", "<step>": r"\d{3}-[^/]+", "00000": r"\d{5}"}
    written = {name for cell in only_table("Session folder") for name in re.split(r"`?, `?", cell)}
    patterns = [re.sub("<[a-z]+>|00000", lambda match: wild[match[0]], name) for name in written]
    patterns = [f"{pattern}.*" if pattern.endswith("/") else pattern for pattern in patterns]
    assert {file for file in files if not any(re.fullmatch(pattern, file) for pattern in patterns)} == set()
    # A session on this machine lacks files of Slurm, xdist and batches, and of processes that stopped, hung, or caused
    # a fault.
    on_slurm = {"allocation/", "runs/<run>/bin/srun", "runs/<run>/pauses/rank-00000"}
    hanging = {
        "simulated/rank-00000",
        "asked",
        *(f"stacks/{name}" for name in ("rank-00000.txt", "rank-00000.nccl.json", "processes.txt")),
    }
    elsewhere = {
        *on_slurm,
        *(f"runs/<run>/{name}" for name in hanging),
        "plan.json",
        "batches/<recipe>.csv",
        "runs/<run>/enough.json",
        "superseded/",
        "checks/<check>/steps/<step>/logs/",  # their ranks print nothing
        "runs/<run>/record-altered.json",  # of a record that was changed
        # The session deletes these of a sane run.
        "runs/<run>/phase/rank-00000",
        "runs/<run>/earlier.json",
    }
    missing = {
        name for name, pattern in zip(written, patterns, strict=True)
        if not any(re.fullmatch(pattern, file) for file in files)
    }  # fmt: skip
    assert missing == elsewhere


def test_every_environment_variable_is_there() -> None:
    """Variables of the package, of the tools around it, and of its tests."""
    guide = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    of_tests = next(table for title, table in titled_tables("Tests", guide).items() if title == "Variable")
    marks = {"LLMBENCH_FILES", "LLMBENCH_INSTALLED"}  # words in a program's output
    own = [*PACKAGE.rglob("*.py"), *(CHECKOUT / "tools").rglob("*.sh")]
    used = set(re.findall(r"\bLLMBENCH_[A-Z_]*[A-Z]\b", "".join(path.read_text("utf-8") for path in own))) - marks
    tests = "".join(path.read_text("utf-8") for path in (CHECKOUT / "tests").rglob("*.py"))
    used |= set(re.findall(r"environ(?:\.get\(|\[)[\"'](LLMBENCH_[A-Z_]*[A-Z])\b", tests))
    systems = {f"LLMBENCH_{name.upper()}_SYSTEM" for name in ENGINES.names()}
    used = {"LLMBENCH_<ENGINE>_SYSTEM" if name in systems else name for name in used}
    assert {name for name in {**only_table("Environment"), **of_tests} if name.startswith("LLMBENCH_")} == used
