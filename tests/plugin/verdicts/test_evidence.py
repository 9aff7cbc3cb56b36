"""What a session leaves as evidence: records, reports, and the numbers in forms that other tools read."""

import json
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import TINY, Result, UserFolder, known

HOST = platform.node()


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_run_leaves_all_its_evidence(user: UserFolder, distribution: str) -> None:
    """One session: what the terminal shows, what records and XML say, and what pytest-benchmark reads."""
    user.recipe()
    user.test()
    files = ("--benchmark-json=bench.json", "--junitxml=mine.xml")
    result = user.run("--cluster", "local", distribution, "-k", "tiny", *files, code=0)
    session = known(result.session)

    # The terminal: what runs where, before it does; the verdicts, after; no live line of so short a run.
    lines = result.text.splitlines()
    (header,) = [line for line in lines if line.startswith("llmbench: system local (")]
    assert header.endswith("cluster local, this machine, scale full")
    assert f"llmbench: 1 run, reports in reports/{session.name}" in lines
    assert f"llmbench: measuring on {HOST}" in lines
    table = lines[[line.strip("= ") for line in lines].index("llmbench verdicts") + 1 :][:3]
    assert table[0].split() == ["run", "nodes", "statistic", "measured", "threshold", "verdict", "reference"]
    assert re.fullmatch(r"tiny +1 +loss_drop +0\.\d+ nat +>= 0\.01 nat +PASS +learns", table[1])
    assert table[2] == f"records, scripts and logs: reports/{session.name}"

    # The run record.
    record = result.record()
    assert (record["schema_version"], record["session"]) == (1, session.name)
    assert record["token"] == f"llmbench:{session.name}"
    assert (record["key"], record["recipe"]["name"], record["recipe"]["scale"]) == ("tiny", "tiny", "full")
    assert (record["system"], record["cluster"], record["nodes"], record["ranks"]) == ("local", "local", 1, 2)
    assert record["hosts"] == [HOST]
    assert record["versions"]["torch"].startswith(version("torch"))  # a build tag may follow
    assert record["versions"]["python"] == platform.python_version()
    timings = record["timings"]
    assert timings["submitted"] <= timings["started"] <= timings["ended"]
    assert [step["step"] for step in record["steps"]] == list(range(1, TINY["steps"] + 1))
    assert {step["ranks"] for step in record["steps"]} == {2}
    assert sorted(info["rank"] for info in record["rank_info"]) == [0, 1]
    assert record["problem"] is None
    (judgement,) = record["judgements"]
    assert judgement["test"] == "test_user.py::test_reference[tiny-learns]"
    assert (judgement["verdict"], judgement["reference"], judgement["threshold"]) == ("PASS", "learns", ">= 0.01 nat")
    assert judgement["measured"] == f"{record['metrics']['loss_drop']['value']!r} nat"

    the_xml_says_what_ran(user, result)

    # Facts that find the run again, and the plan of the session.
    job = json.loads((session / "runs" / "tiny" / "job.json").read_text())
    assert {key: job[key] for key in ("session", "key", "token", "job_id", "hosts", "submitted")} == {
        "session": session.name, "key": "tiny", "token": record["token"], "job_id": record["job_id"],
        "hosts": [HOST], "submitted": timings["submitted"],
    }  # fmt: skip
    plan = json.loads((session / "session.json").read_text())
    assert [run["key"] for run in plan["runs"]] == ["tiny"]

    # pytest-benchmark: one benchmark, a round per judged step.
    (benchmark,) = json.loads((user.path / "bench.json").read_text())["benchmarks"]
    judged = [step["seconds"] for step in record["steps"] if step["step"] > TINY["warm_up"]["steps"]]
    assert (benchmark["name"], benchmark["stats"]["rounds"]) == ("tiny", len(judged))
    assert benchmark["stats"]["data"] == pytest.approx(judged)
    assert benchmark["extra_info"]["run_record"] == str(session / "runs" / "tiny" / "record.json")
    compare = [sys.executable, "-m", "pytest_benchmark", "compare", "bench.json"]
    compared = subprocess.run(compare, cwd=user.path, env=user.environment, capture_output=True, text=True, check=False)
    assert compared.returncode == 0, compared.stderr
    assert re.search(r"^tiny .* 6 +1$", compared.stdout, re.MULTILINE)


def the_xml_says_what_ran(user: UserFolder, result: Result) -> None:
    """A case says what ran where, what was measured, and against what; the suite says what its runs were made of."""
    assert (user.path / "mine.xml").read_bytes() == (result.session / "junit.xml").read_bytes()
    told = result.case.properties
    assert told.items() >= {
        "recipe": "tiny", "system": "local", "nodes": "1", "ranks": "2", "gpus": "0", "hosts": HOST, "verdict": "PASS",
        "statistic": "loss_drop", "unit": "nat", "reference": "learns", "threshold": ">= 0.01 nat",
    }.items()  # fmt: skip
    assert told["job_id"].isdigit()
    assert float(told["value"]) >= 0.01
    (suite,) = ET.parse(result.session / "junit.xml").iter("testsuite")
    (block,) = suite.findall("properties")
    facts = {each.get("name"): each.get("value") or "" for each in block}
    assert len(facts) == len(block)
    assert (facts["python"], facts["kernel"]) == (platform.python_version(), platform.release())
    assert facts["torch"].startswith(version("torch"))
    assert (facts["command"], facts["llmbench_session"]) == (result.record()["command"], result.session.name)


def test_optional_reporters_may_be_missing(user: UserFolder) -> None:
    """Without pytest-benchmark, pytest's JUnit writer and xdist, the verdicts and records are all there."""
    user.recipe()
    off = [word for plugin in ("benchmark", "junitxml", "xdist") for word in ("-p", f"no:{plugin}")]
    result = user.run("--cluster", "local", "-k", "tiny", "--llmbench-run-dir", "elsewhere/deep", *off, code=0)
    assert "Warning" not in result.text
    assert re.search(r"^tiny +1 .* PASS( .*)?$", result.text, re.MULTILINE)
    (session,) = (user.path / "elsewhere" / "deep").glob("*-*")
    assert len(json.loads((session / "runs" / "tiny" / "record.json").read_text())["judgements"]) == 1
    assert not (session / "junit.xml").exists()
    assert not (user.path / "reports").exists()
