"""A session that was recorded on one H200, at 456,479 words/s in its judged steps, to be judged again."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.record.records import RunRecord, write_model
from pytest_llmbench.session.replay import as_replayed, recount
from tests.conftest import UserFolder

RECORDED = Path(__file__).parents[1] / "data" / "h200"
ONE_H200 = """name: H200
cluster: local
gpus_per_node: 1
gpu: {model: H200, memory_gib: 141, peak_tflops: {bf16: 989.4}, source: its data sheet}
"""


def record_anew(path: Path) -> None:
    """Make the record of a run whose logs were changed agree with them."""
    record = RunRecord.read(path)
    again = recount(record.recipe, as_replayed(record, path.parent), load_system("H200", [shipped("systems")]))
    write_model(path, record.model_copy(update=dict(again.outcome)))


@pytest.fixture
def recorded(user: UserFolder) -> UserFolder:
    shutil.copytree(RECORDED, user.path / "recorded")
    return user


def one_h200(user: UserFolder, **references: Mapping[str, Any]) -> str:
    """Write the file of the system that was recorded, with references by their names; the option that chooses it."""
    usual = {"statistic": "throughput", "why": "it was measured", "source": "this test", "date": "2026-11-23"}
    made = [
        {"name": name, **usual, "applies_to": {"gpu": "H200", "gpus": 1}, **given} for name, given in references.items()
    ]
    (user.path / "one_h200.yaml").write_text(ONE_H200 + yaml.safe_dump({"references": {"opt125m": made}}))
    return "--system=one_h200.yaml"
