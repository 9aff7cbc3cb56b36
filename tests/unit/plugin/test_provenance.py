"""What a JUnit suite and its tests say of the runs behind them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.plugin.output.provenance import suite_properties
from pytest_llmbench.plugin.verdict.facts import facts_of_run
from pytest_llmbench.session.record_store import KeptRuns
from tests.conftest import known
from tests.support.recorded import REAL
from tests.support.shipped import shipped_recipes


@pytest.fixture(scope="module")
def base() -> RunRecord:
    return RunRecord(
        session="s", key="k", token="t", recipe=shipped_recipes()["opt125m"], system="local",
        cluster="local", allocation="run", nodes=1, ranks=1, gpus=0, folder=str(Path("f")),
    )  # fmt: skip


def properties(base: RunRecord, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The suite properties of runs with these keys in their records."""
    kept = KeptRuns(lambda *_: None)
    for key, told in runs.items():
        kept.keep(base.model_copy(update={**told, "key": key}), None)
    return suite_properties(kept.summaries)


def test_what_all_runs_share_is_said_once_and_the_rest_by_run(base: RunRecord) -> None:
    """A value of another run, and a variable that only one of them has, are each said with the run's key."""
    assert properties(
        base,
        {
            "a": {"versions": {"python": "3.11"}, "provenance": {"kernel": "6.1", "git_commit": "1" * 40}},
            "b": {"provenance": {"python": "3.11", "kernel": "6.1", "git_commit": "2" * 40, "env.NCCL_DEBUG": "INFO"}},
        },
    ) == {
        "python": "3.11", "kernel": "6.1", "git_commit[a]": "1" * 40, "git_commit[b]": "2" * 40,
        "env.NCCL_DEBUG[b]": "INFO",
    }  # fmt: skip


def test_a_run_that_never_started_makes_no_difference(base: RunRecord) -> None:
    told = {"provenance": {"torch": "2.13"}, "command": "sbatch runs/a/logs/submission.sh"}
    refused = {"command": "sbatch runs/b/logs/submission.sh"}
    runs: dict[str, dict[str, Any]] = {"a": told, "never": {}, "refused": refused}
    assert properties(base, runs) == {"torch": "2.13", "command": "sbatch runs/a/logs/submission.sh"}


def test_each_job_names_its_own_script(base: RunRecord) -> None:
    runs = {key: {"provenance": {"torch": "2.13"}, "command": f"sbatch {key}.sh"} for key in "ab"}
    assert properties(base, runs) == {"torch": "2.13", "command[a]": "sbatch a.sh", "command[b]": "sbatch b.sh"}


def test_a_session_without_records_says_nothing(base: RunRecord) -> None:
    assert properties(base, {}) == {}


FP8 = "7 of 8 linear layers of the blocks in fp8; 1 of 8 linear layers of the blocks in bf16"


@pytest.mark.parametrize(("products", "checkpointing", "trained"), [
    (None, "none", None),
    ({"fp8": 7, "bf16": 1}, "none", f"{FP8}; embedding and output layer in bf16"),
    (None, "auto", "recomputed: full; 4 sequences in each micro batch"),
])  # fmt: skip
def test_counts_are_recorded_and_told(products: dict[str, int] | None, checkpointing: Any, trained: str | None) -> None:
    record = RunRecord.read(REAL)
    event = replace(
        known(record.rank_info[0].training), products=products, activation_checkpointing="full", micro_batch_size=4
    )
    layout = record.recipe.parallelism.model_copy(update={"activation_checkpointing": checkpointing})
    counted = record.model_copy(update={
        "rank_info": (record.rank_info[0].model_copy(update={"training": event}), *record.rank_info[1:]),
        "recipe": record.recipe.model_copy(update={"parallelism": layout}),
    })  # fmt: skip
    assert (counted.trained, counted.work.get("trained")) == (trained, trained)
    assert facts_of_run(counted).get("trained") == trained
