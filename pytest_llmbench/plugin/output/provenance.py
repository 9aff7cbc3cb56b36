"""Provenance of a session's runs, as properties of its JUnit test suite."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.core.record.records import RunRecord


def suite_properties(records: Mapping[str, RunRecord]) -> dict[str, str]:
    """The versions, provenance and command of runs, by run key.

    Returns:
        Facts that are the same in all runs under their name, the others as `name[run key]`. A run that did not get far
        enough to say anything of itself does not count as different.
    """
    facts = {key: told for key, record in records.items() if (told := _facts(record))}
    properties = {}
    for name in dict.fromkeys(name for told in facts.values() for name in told):
        values = {key: told[name] for key, told in facts.items() if name in told}
        if len(values) == len(facts) and len(set(values.values())) == 1:
            properties[name] = next(iter(values.values()))
        else:
            properties |= {f"{name}[{key}]": value for key, value in values.items()}
    return properties


def _facts(record: RunRecord) -> dict[str, str]:
    told = {**record.versions, **record.provenance}
    # Of a job of its own it names the sbatch script.
    return {**told, "command": record.command} if told and record.command else told
