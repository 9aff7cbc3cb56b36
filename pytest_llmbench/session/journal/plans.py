"""Digests: of what a run's numbers depend on, and of what became of it."""

import hashlib
import json
from dataclasses import asdict

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.core.record.records import Record


def digest_of_plan(run: RunSpec, settings: Settings) -> str:
    """Digest of everything that a run's numbers depend on, as far as it is known before it starts.

    Thresholds are left out, but for a run that they may end early: those of today are applied to what was measured.
    """
    system, recipe = settings.system, run.recipe
    thresholds = {"references"} if run.early is None else set()
    environment = system.environments.get(recipe.engine)
    told = {
        "recipe": recipe.model_dump(mode="json", exclude=thresholds),
        "early": run.early and run.early.model_dump(mode="json"),
        "topology": asdict(settings.topology(recipe)),
        "system": [system.name, dict(system.env), system.setup, system.srun_args, system.python],
        "environment": environment and environment.model_dump(mode="json"),
        "simulate": settings.simulate and str(settings.simulate),
        "nodes": [settings.cluster, *(settings.slurm.get(name) for name in ("partition", "constraint", "nodelist"))],
    }
    return _digest(json.dumps(told, sort_keys=True))


def digest_of_record(record: Record) -> str:
    """Digest of a record without the verdicts that it is given later."""
    return _digest(record.model_dump_json(exclude={"judgements"}))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
