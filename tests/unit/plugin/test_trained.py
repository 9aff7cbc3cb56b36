"""The choices of a run that its ranks counted, as its record and the report of each test have them."""

from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.plugin.verdict.facts import facts_of_run
from tests.conftest import known
from tests.support.recorded import REAL

FP8 = "7 of 8 linear layers of the blocks in fp8; 1 of 8 linear layers of the blocks in bf16"


@pytest.mark.parametrize(
    ("products", "checkpointing", "trained"),
    [
        (None, "none", None),
        ({"fp8": 7, "bf16": 1}, "none", f"{FP8}; embedding and output layer in bf16"),
        (None, "auto", "recomputed: full; 4 sequences at a time"),
    ],
)
def test_what_ranks_counted_stands_in_record_and_report(
    products: dict[str, int] | None, checkpointing: Any, trained: str | None
) -> None:
    record = RunRecord.read(REAL)
    event = replace(
        known(record.rank_info[0].training), products=products, activation_checkpointing="full", micro_batch_size=4
    )
    layout = record.recipe.parallelism.model_copy(update={"activation_checkpointing": checkpointing})
    counted = record.model_copy(
        update={
            "rank_info": (record.rank_info[0].model_copy(update={"training": event}), *record.rank_info[1:]),
            "recipe": record.recipe.model_copy(update={"parallelism": layout}),
        }
    )
    assert (counted.trained, counted.work.get("trained")) == (trained, trained)
    assert facts_of_run(counted).get("trained") == trained
