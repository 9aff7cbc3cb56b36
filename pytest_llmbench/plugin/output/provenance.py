"""Facts about a session as a whole, for its reports, and verdicts of its tests, for its records."""

import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import pytest

from pytest_llmbench import __version__
from pytest_llmbench.cluster.runs import Declared
from pytest_llmbench.core.record.records import Judgement, Verdict
from pytest_llmbench.judging.contradictions import bounds_of
from pytest_llmbench.plugin.bench import Bench
from pytest_llmbench.plugin.verdict.groups import ComparedGroups
from pytest_llmbench.session.record_store import RunSummary
from pytest_llmbench.session.signing import PytestCommand

# Of the properties of a test, those that its record has as well.
_ASIDE = (
    "statistic", "value", "unit", "low", "high", "threshold", "at_least", "at_most", "reference", "floor", "reason",
    "cause",
)  # fmt: skip


def suite_facts(
    bench: Bench,
    records: str,
    *,
    unfit: Mapping[str, str],
    unjudged: Mapping[str, Sequence[str]],
    groups: ComparedGroups,
    not_tested: str,
    interrupted: str,
) -> dict[str, str]:
    """The properties of the test suite in the XML; `unjudged` are runs without a verdict on speed, by the reason."""
    settings, session = bench.settings, bench.session
    return {
        "llmbench_version": __version__,  #: suite property llmbench_version: version of this package
        "llmbench_session": session.id,  #: suite property llmbench_session: id of the session
        "system": settings.system.name,  #: suite property system: system
        "cluster": settings.cluster,  #: suite property cluster: `slurm`, `local`, `debug` or `replay`
        "allocation": settings.allocation,  #: suite property allocation: `session` or `run`
        "scale": settings.scale,  #: suite property scale: `full` or `smoke`
        #: suite property as_recorded: `yes` if the recipes in the records of a replay decided what had to run
        **({"as_recorded": "yes"} if settings.as_recorded else {}),
        "reports": str(session.folder),  #: suite property reports: the session's folder
        #: suite property records: the session's folder, relative to where pytest was started
        "records": records,
        #: suite property nodes_unfit: nodes that must not train, each with the check and the reason
        **({"nodes_unfit": "; ".join(f"{h}: {reason}" for h, reason in unfit.items())} if unfit else {}),
        #: suite property speed_not_judged: runs without a verdict on their [speed](#verdicts), separated by commas
        **({"speed_not_judged": ", ".join(chain(*unjudged.values()))} if unjudged else {}),
        #: suite property groups_not_compared: groups that were not [compared](#groups-of-nodes), with the reason
        **({"groups_not_compared": "; ".join(groups.lines)} if groups.not_compared else {}),
        #: suite property interrupted: the signal, or `--llmbench-session-time`, that ended the session
        **({"interrupted": interrupted} if interrupted else {}),
        #: suite property nodes_not_tested: nodes that were too few for another run
        **({"nodes_not_tested": not_tested} if not_tested else {}),
    }


def suite_properties(runs: Mapping[str, RunSummary]) -> dict[str, str]:
    """The versions, provenance and command of runs: what differs between those that have any as `name[run key]`."""
    facts = {key: dict(run.facts) for key, run in runs.items() if run.facts}
    properties = {}
    for name in dict.fromkeys(name for of_run in facts.values() for name in of_run):
        values = {key: of_run[name] for key, of_run in facts.items() if name in of_run}
        if len(values) == len(facts) and len(set(values.values())) == 1:
            properties[name] = next(iter(values.values()))
        else:
            properties |= {f"{name}[{key}]": value for key, value in values.items()}
    return properties


def judgements(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Judgement]]:
    """The verdicts of tests, by what they are about: `run` or `check`, and its name."""
    verdicts: dict[tuple[str, str], list[Judgement]] = defaultdict(list)
    for row in rows:
        about = next((word for word in ("run", "check") if word in row), None)
        if about is None:
            continue  # it ended before it had a run or a check
        value, known = row.get("value"), {**row, **bounds_of(row.get("threshold"), row.get("unit"))}
        judgement = Judgement(
            test=str(row["test"]),
            verdict=Verdict(str(row["verdict"])),
            measured=row.get("measured") if value is None else f"{value!r} {row['unit']}",
            **{name: known.get(name) for name in _ASIDE},
        )
        for name in str(row.get("runs") or row[about]).split(","):
            verdicts[about, name].append(judgement)
    return verdicts


def command_of(config: pytest.Config, tests: Sequence[Declared]) -> PytestCommand:
    """The command line of this process, with the options of `PYTEST_ADDOPTS`."""
    given = config.invocation_params
    more = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    named = config.args_source == pytest.Config.ArgsSource.ARGS
    return PytestCommand(
        version=__version__, words=[*more, *map(str, given.args)], selection=config.args if named else (),
        directory=given.dir, root=config.rootpath, tests=tests,
    )  # fmt: skip
