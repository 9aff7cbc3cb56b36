"""The result file of a batch, beside our own verdicts."""

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.runs import Plan, RunSpec
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.record.records import Judgement, Problem, RunRecord, Verdict
from pytest_llmbench.reporting.base import FinishedSession
from pytest_llmbench.reporting.batches import report_batches
from tests.conftest import TINY
from tests.support.shipped import shipped_recipes

NODES = 2
CHAT = shipped_recipes()["chat_350m_bs24_zero0"].on(Topology(nodes=NODES, gpus_per_node=8))
HEADER = "Hostnames,Throughput (samples/sec),Status"


def made(folder: Path, group: int, recipe: Recipe = CHAT, log: str | None = None, **changes: Any) -> RunRecord:
    """A run of a group, and its log where there is one."""
    key, hosts = f"{recipe.name}-group{group}", (f"n{2 * group - 1}", f"n{2 * group}")
    record = RunRecord(
        session="s", key=key, token="t", recipe=recipe, system="Lambda_8xH100", cluster="slurm", allocation="session",
        nodes=NODES, ranks=16, gpus=16, folder=str(folder / key), hosts=hosts,
    ).model_copy(update={"device": "NVIDIA H100 80GB HBM3", **changes})  # fmt: skip
    if log is not None:
        path = folder / key / "logs" / "output.log"
        path.parent.mkdir(parents=True)
        path.write_text("".join(f"{host} slots=8\n" for host in hosts) + "\n" + log)
    return record


def evaluated(folder: Path, *records: RunRecord) -> tuple[bytes, list[str]]:
    """Return the text of the one file, empty without a file, and the printed lines but the last."""
    specs = tuple(RunSpec(key=each.key, recipe=each.recipe, group=int(each.key[-1])) for each in records)
    runs = {record.key: record for record in records}
    lines = [*report_batches(FinishedSession(id="s", folder=folder, planned=Plan(runs=specs), runs=runs, checks={}))]
    files = [path.read_bytes() for path in folder.glob("batches/*.csv")]
    assert len(files) == bool(lines)
    return b"".join(files), lines[:-1]


def judged(verdict: Verdict, reference: str = "lambda_900_per_node") -> Judgement:
    return Judgement(test="test_reference", verdict=verdict, reference=reference)


def test_runs_are_rows_in_the_order_of_their_groups(tmp_path: Path) -> None:
    """One passes, one is too slow, one was ended, one never began: the last two are no Success there, ERROR here."""
    timed_out = Problem(kind="time_limit", message="not finished")
    records = [
        made(tmp_path, 4, device=None, problem=Problem(kind="not_prepared", message="no data"),
             judgements=(judged(Verdict.ERROR),)),
        made(tmp_path, 2, log="n3: Throughput: 1799.9999 samples/sec\n", judgements=(judged(Verdict.FAIL),)),
        made(tmp_path, 3, log="Beginning of Epoch 1/10\n", problem=timed_out, judgements=(judged(Verdict.ERROR),)),
        made(tmp_path, 1, log="n1: Throughput: 1874.1065 samples/sec\nThroughput: 1.0 samples/sec\n",
             judgements=(judged(Verdict.ERROR, "another"), judged(Verdict.PASS))),
    ]  # fmt: skip
    file, said = evaluated(tmp_path, *records)
    assert file.decode().split("\r\n") == [
        HEADER, '"n1, n2",1874.1065,Success', '"n3, n4",1799.9999,Fail', '"n5, n6",-1,Fail', '"n7, n8",-1,Fail', "",
    ]  # fmt: skip
    assert said == [
        f"chat_350m_bs24_zero0: 4 runs, success from 1,800 samples/s on; {HEADER} | verdict",
        '  chat_350m_bs24_zero0-group1: "n1, n2",1874.1065,Success | PASS',
        '  chat_350m_bs24_zero0-group2: "n3, n4",1799.9999,Fail | FAIL',
        '  chat_350m_bs24_zero0-group3: "n5, n6",-1,Fail | ERROR (time_limit)',
        '  chat_350m_bs24_zero0-group4: "n7, n8",-1,Fail | ERROR (not_prepared)',
        "  a run that cannot be judged is an ERROR here; there, one without a number is -1 and a Fail",
    ]


@pytest.mark.parametrize(
    "changes", [{"device": "NVIDIA A100-SXM4-80GB"}, {"gpus": 8}, {"device": None}], ids=["gpu", "fewer", "unknown"]
)
def test_a_bound_for_another_machine_is_said(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The evaluator knows of no machines, so its file is as it would be; who reads it is told."""
    file, said = evaluated(tmp_path, made(tmp_path, 1, log="Throughput: 2000.0 samples/sec\n", **changes))
    assert file.endswith(b'"n1, n2",2000.0,Success\r\n')
    assert "  that bound, lambda_900_per_node, is for 16 × H100 80GB HBM3, and not for these runs" in said
    assert said[-1].endswith("Success | not judged")


def test_a_bound_that_fits_comes_before_the_first(tmp_path: Path) -> None:
    """A site's own bound is for its machine, though the source's stands before it."""
    bound = Quantity("2000 samples/s")
    site = CHAT.references[0].model_copy(update={"name": "site", "applies_to": None, "at_least": bound})
    elsewhere = CHAT.model_copy(update={"references": (*CHAT.references, site)})
    _, said = evaluated(tmp_path, made(tmp_path, 1, elsewhere, log="", device="NVIDIA A10"))
    assert "success from 2,000 samples/s on" in said[0]
    assert "for these runs" not in said[1]


def test_logs_that_were_handed_in_are_found(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "opt-350m_1_2xN_batch0001.log"
    log.parent.mkdir()
    log.write_text("a slots=8\nThroughput: 5.0 samples/sec\n")
    for replayed in (log, log.parent):
        file, _ = evaluated(tmp_path, made(tmp_path, 1, replayed=str(replayed)))
        assert file.endswith(b"\r\na,5.0,Fail\r\n")


def test_there_is_no_file_without_an_evaluator_or_a_bound(tmp_path: Path, unigram: None) -> None:
    """An engine of ours has no other's evaluator, and a recipe without a bound nothing to evaluate by."""
    tiny = Recipe.model_validate({**TINY, "name": "tiny"})
    unbound = CHAT.model_copy(update={"references": ()})
    assert evaluated(tmp_path, made(tmp_path, 1, tiny), made(tmp_path, 2, unbound)) == (b"", [])
