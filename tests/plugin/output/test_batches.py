"""Logs of a batch that ran elsewhere: the source's own file, to the byte, and our verdicts beside it."""

import shutil

import pytest

from tests.conftest import Result, UserFolder
from tests.support.samples import sample

# The end of a log of the fork. An execution time goes with every throughput; these are rounded alike.
END = "Execution time: {seconds:.4f} seconds for 100 steps\n{first}: Throughput: {rate:.4f} samples/sec\n"


def replay(user: UserFolder, *args: str) -> Result:
    """Judge the logs of the folder `logs` as those of H100 nodes."""
    return user.run("-n0", "--replay", "logs", "--system", "Lambda_8xH100", "--gpus-per-node", "8", *args)


def test_the_published_log_gives_the_published_file(user: UserFolder) -> None:
    """The log of one node: 943.4550 samples/s, a Success and a PASS, and no share of a peak that would be wrong."""
    logs = user.path / "logs" / "chat_350m_bs24_zero0"
    logs.mkdir(parents=True)
    shutil.copy(sample("lambda/opt-350m_1_1xN_batch0001.log"), logs)
    result = replay(user, "--nodes", "1")
    assert result.returncode == 0, result.text
    made = (result.session / "batches" / "chat_350m_bs24_zero0.csv").read_bytes()
    assert made == sample("lambda/1node_1xN_opt-350m_bs24_zero0.csv").read_bytes()
    metrics = result.record("chat_350m_bs24_zero0")["metrics"]
    assert metrics["reported_throughput"]["value"] == 943.4550
    assert metrics["samples_per_s"]["value"] == pytest.approx(943.4550, rel=0.03)
    assert not {"mfu", "tflops_per_gpu", "matmul_fraction"} & set(metrics)
    assert "chat_350m_bs24_zero0: ml-512-node-001,943.455,Success | PASS" in result.text


def test_a_run_that_timed_out_fails_there_and_is_an_error_here(user: UserFolder) -> None:
    """A run that is too slow is a FAIL in both. The session fails, where the source's exit code is 0."""
    logs = user.path / "logs" / "chat_350m_bs24_zero0"
    logs.mkdir(parents=True)
    (logs / "a.log").write_text("n1 slots=8\n\nBeginning of Epoch 1/100, Total Micro Batches 116\n")
    (logs / "b.log").write_text("n2 slots=8\n\n" + END.format(seconds=24.0, first="n2", rate=800.0))
    (logs / "c.log").write_text("n3 slots=8\n\n" + END.format(seconds=21.2155, first="n3", rate=905.0))
    result = replay(user, "--nodes", "1", "-k", "lambda")
    assert result.returncode == 1, result.text
    made = (result.session / "batches" / "chat_350m_bs24_zero0.csv").read_bytes()
    assert made == b"Hostnames,Throughput (samples/sec),Status\r\nn1,-1,Fail\r\nn2,800.0,Fail\r\nn3,905.0,Success\r\n"
    name = "test_reference[chat_350m_bs24_zero0-group{}-lambda_900_per_node]"
    verdicts = [result.cases[name.format(group)].properties["verdict"] for group in (1, 2, 3)]
    assert verdicts == ["ERROR", "FAIL", "INCONCLUSIVE"]  # the third is nearer to the bound than runs are to each other
    assert "chat_350m_bs24_zero0-group2: n2,800.0,Fail | FAIL" in result.text
    assert "a run that cannot be judged is an ERROR here; there, one without a number is -1 and a Fail" in result.text
