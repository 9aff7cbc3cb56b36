"""`--replay`: logs that were made elsewhere are judged by the same rules, and nothing runs."""

import grp
import html
import json
import os
import re
import shutil
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.session.agreement import Agreement
from pytest_llmbench.session.replay import differences_of_logs
from tests.conftest import ASLEEP, Result, UserFolder, pid_of_rank, steps_logged
from tests.support.samples import sample
from tests.support.standin import LOGS, RECIPE, MegatronLM

END = "[after training is done]"
LIMIT = "slurmstepd: error: *** {} CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
JUWELS = ("--system", "JUWELS_Booster")


@pytest.fixture
def replay(user: UserFolder) -> Path:
    """The folder of the logs, in a user's folder with the recipe `tiny` that its own logs are of."""
    user.recipe(**RECIPE)
    (user.path / "logs" / "tiny").mkdir(parents=True)
    return user.path / "logs"


@pytest.fixture
def judge(user: UserFolder, replay: Path) -> Callable[..., Result]:
    return lambda *args: user.run_here(f"--replay={replay}", *args)


def ours(log: str = "megatron_lm_2_ranks.log") -> str:
    return (LOGS / log).read_text()


def facts(folder: Path, **said: Any) -> None:
    (folder / "replay.yaml").write_text(yaml.safe_dump(said))


def verdicts(result: Result) -> dict[str, str]:
    found = (re.sub(r".*\[(.*)\]", r"\1", name) for name in result.cases)
    return dict(zip(found, (case.properties["verdict"] for case in result.cases.values()), strict=True))


@pytest.mark.parametrize("distribution", ["-n0", "-n2"])
def test_a_log_is_judged_and_nothing_runs(user: UserFolder, replay: Path, distribution: str) -> None:
    """One log in a folder, and a declared shape: a verdict, with a record that says where it is from."""
    (replay / "tiny" / "job.out").write_text(ours())
    facts(replay / "tiny", ranks_per_node=2, hosts=["a1"], wall_s=100, source="a run of our own")
    result = user.run("--replay", "logs", distribution, code=0)
    record = result.record()
    assert verdicts(result) == {"tiny-learns": "PASS"}
    assert (record["replayed"], record["cluster"], record["hosts"]) == (str(replay / "tiny"), "replay", ["a1"])
    assert record["provenance"] == {"replayed_from": "a run of our own"}
    assert len(record["steps"]) == 30
    assert record["job_id"] is None
    assert sorted(path.name for path in (result.session / "runs" / "tiny").iterdir()) == ["record.json"]


def test_a_replay_is_compared_with_its_plan_and_untouched_logs(replay: Path, judge: Callable[..., Result]) -> None:
    (log := replay / "tiny" / "job.out").write_text(ours())
    facts(replay / "tiny", ranks_per_node=2, hosts=["a1"], wall_s=100)
    result = judge()
    record, agreement = RunRecord.read(result.session / "runs" / "tiny" / "record.json"), Agreement(result.session)
    step = record.steps[3].model_copy(update={"loss": 0.1})
    edited = record.model_copy(update={"hosts": ("b1",), "steps": (*record.steps[:3], step, *record.steps[4:])})
    assert agreement.objections(record) == differences_of_logs(agreement, record) == []
    assert "session.json: hosts: it has ('a1',), the record ('b1',)" in agreement.objections(edited)
    assert "steps[4].loss: the record says 0.1" in differences_of_logs(agreement, edited)[0]
    os.utime(log)  # it may be another one by now
    assert differences_of_logs(agreement, edited) == []


def test_a_group_of_the_system_may_read_the_session(user: UserFolder, replay: Path) -> None:
    user.test()
    (replay / "tiny" / "job.out").write_text(ours())
    facts(replay / "tiny", ranks_per_node=2, hosts=["a1"], wall_s=100)
    system = user.path / "team.yaml"
    for group, code in ((grp.getgrgid(os.getgid()).gr_name, pytest.ExitCode.OK), ("no-such-group", 4)):
        system.write_text(yaml.safe_dump({"name": "team", "cluster": "local", "group": group}))
        result = user.run_here(f"--replay={replay}", f"--system={system}", "-n0", "-k", "learns", code=code)
    assert "group 'no-such-group' of the system is unknown on this machine: name a group of yours" in result.text
    assert user.session is not None
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (user.session, *user.session.iterdir())}
    assert modes[user.session.name] == "0o750"
    assert {modes[name] for name in ("session.json", "verdict.json", "junit.xml")} == {"0o640"}


@pytest.mark.parametrize(("log", "said", "kind"), [
    (ours().partition("[default0]:" + END)[0], {"ranks_per_node": 2}, "no_evidence_of_completion"),
    (ours(), {"ranks_per_node": 1}, "wrong_ranks"),
    (ours(), {"ranks_per_node": 2, "wall_s": 1}, "implausible"),
    (ours() + ours(), {"ranks_per_node": 2}, "restarted"),
    (ours().partition("[default0]:" + END)[0] + LIMIT.format("JOB 7 ON a1"), {"ranks_per_node": 2}, "time_limit"),
    ("nothing of interest\n", {}, "no_log"),
    (None, {}, "no_log"),
], ids=["cut", "ranks", "clock", "twice", "time limit", "other log", "empty folder"])  # fmt: skip
def test_bad_logs(replay: Path, judge: Callable[..., Result], log: str | None, said: dict[str, Any], kind: str) -> None:
    if log is not None:
        (replay / "tiny" / "job.out").write_text(log)
    facts(replay / "tiny", **said)
    result = judge()
    assert verdicts(result) == {"tiny-learns": "ERROR"}
    assert f"({kind})" in result.case.message
    assert "job None" not in result.text


def test_each_group_is_a_run_of_its_own(replay: Path, judge: Callable[..., Result]) -> None:
    """A folder per group, facts for all or for one; a group without a log is an error and not left out."""
    for group, log in (("node1", ours()), ("node2", None), ("node3", ours().replace("lm loss: 5", "lm loss: 1", 1))):
        (replay / "tiny" / group).mkdir()
        if log is not None:
            (replay / "tiny" / group / "job.out").write_text(log)
    facts(replay / "tiny", ranks_per_node=2)
    facts(replay / "tiny" / "node3", ranks_per_node=2, hosts=["a3"])
    result = judge()
    assert verdicts(result) == {
        "tiny-group1-learns": "PASS", "tiny-group2-learns": "ERROR", "tiny-group3-learns": "ERROR",
    }  # fmt: skip
    assert result.record("tiny-group2")["problem"]["kind"] == "no_log"
    assert result.record("tiny-group3")["problem"]["kind"] == "loss_rises"
    assert result.record("tiny-group3")["hosts"] == ["a3"]


@pytest.mark.parametrize("word", ["JOB 123 ON jwb0001", "STEP 123.0 ON jwb0001", "STEP 123.batch ON jwb0001"])
def test_slurms_word_proves_a_cut_off(user: UserFolder, replay: Path, judge: Callable[..., Result], word: str) -> None:
    """The cut-off need not be declared if Slurm's log line says so."""
    user.recipe(**RECIPE, end="time_limit")
    cut = ours().partition("[default0]:" + END)[0]
    apart = "STEP 123.0" in word
    (replay / "tiny" / "job.out").write_text(cut if apart else cut + LIMIT.format(word))
    if apart:
        (replay / "tiny" / "job.err").write_text(f"0: {LIMIT.format(word)}")
    facts(replay / "tiny", ranks_per_node=2)
    result = judge()
    assert verdicts(result) == {"tiny-learns": "PASS"}, result.text


@pytest.mark.parametrize(("write", "said"), [
    (shutil.rmtree, "logs: no such folder"),
    (lambda logs: (logs / "tiny").rmdir(), "no logs: put those of a run into "),
    (lambda logs: (logs / "checks").mkdir(), "a session without runs: `llmbench report "),
    (lambda logs: (logs / "tinny").mkdir(), "unknown recipe 'tinny' (did you mean 'tiny'?)"),
    (lambda logs: (logs / "nlp13b").write_text("iteration"), "is a file: put it into a folder"),
    (lambda logs: (logs / "nlp13b.log").write_text("iteration"), "is a file: put it into a folder"),
    (lambda logs: (logs / "tiny" / "replay.yaml").write_text("nodes: [1"), "replay.yaml: cannot be read: "),
    (lambda logs: (logs / "tiny" / "replay.yaml").mkdir(), "replay.yaml: cannot be read: "),
    (lambda logs: (logs / "tiny" / "replay.yaml").write_text(""), "replay.yaml: expected a mapping of keys"),
    (lambda logs: facts(logs / "tiny", node=1), "replay.yaml: node: unknown key 'node' (did you mean 'nodes'?)"),
    (lambda logs: facts(logs / "tiny", nodes=2, hosts=["a"]), "replay.yaml: nodes: 2, and hosts names 1"),
    (lambda logs: facts(logs / "tiny", ended="time_limit"), "recipe tiny has to do all its steps"),
], ids=["none", "nothing", "checks", "recipe", "file", "log", "yaml", "folder", "empty", "key", "contradiction",
        "ended"])  # fmt: skip
def test_what_cannot_be_meant_is_a_usage_error(
    replay: Path, judge: Callable[..., Result], write: Callable[[Path], object], said: str
) -> None:
    write(replay)
    result = judge()
    assert result.returncode == pytest.ExitCode.USAGE_ERROR, result.text
    assert said in result.text
    assert "Traceback" not in result.text
    assert result.found is None


def test_a_session_of_ours_is_judged_again(user: UserFolder) -> None:
    """Records say how each run was made; the thresholds are today's, and an ERROR stays one."""
    user.recipe("good", steps=8)
    user.recipe("late", steps=8)
    megatron = MegatronLM(user)
    megatron.install()
    megatron.recipe("command")
    first = user.run("--system", "here.yaml", "-k", "good or late or command", code=0)
    path = first.session / "runs" / "late" / "record.json"
    record = json.loads(path.read_text())
    record["problem"] = {"kind": "hang", "message": "it hung", "log": None}
    path.write_text(json.dumps(record))
    hard = {
        "name": "hard", "statistic": "loss_drop", "at_least": "5 nat", "why": "x", "source": "y", "date": "2026-01-01",
    }  # fmt: skip
    user.recipe("good", steps=8, references=[hard])
    again = user.run_here(f"--replay={first.session}")
    assert verdicts(again) == {"command-learns": "PASS", "good-hard": "FAIL", "late-learns": "ERROR"}
    assert "(hang): it hung" in again.text
    before, after = first.record("good"), again.record("good")
    assert after["metrics"] == before["metrics"]
    assert again.record("command")["metrics"] == first.record("command")["metrics"]
    assert again.record("command")["provenance"] == first.record("command")["provenance"]
    assert [info["host"] for info in after["rank_info"]] == [info["host"] for info in before["rank_info"]]
    # And once more: the record of a replay says where the logs are.
    twice = user.run_here(f"--replay={again.session}")
    assert verdicts(twice) == verdicts(again)
    assert twice.record("good")["replayed"] == after["replayed"]
    the_recipe_of_today_decides(user, first)
    other_scale = user.run_here(f"--replay={first.session}", "--scale", "smoke", code=pytest.ExitCode.USAGE_ERROR)
    assert "run at scale full: give --scale full" in other_scale.text


def the_recipe_of_today_decides(user: UserFolder, first: Result) -> None:
    """A session of another recipe than today's is an ERROR, unless it is judged as recorded: each output says so."""
    user.recipe("good", steps=9, micro_batch_size=4)
    result = user.run_here(f"--replay={first.session}", "-k", "good")
    assert set(verdicts(result).values()) == {"ERROR"}
    assert (
        "(wrong_work): it ran another recipe than today's: micro_batch_size: the record has 2, today's" in result.text
    )
    assert "steps: the record has 8, today's recipe good 9" in result.text
    assert result.record("good")["recipe"]["steps"] == 8
    result = user.run_here(f"--replay=as-recorded:{first.session}", "-k", "good", "-o", "llmbench_report=yes")
    assert set(verdicts(result).values()) == {"PASS"}
    words = "judged as recorded, by its own recipe: micro_batch_size: the record has 2, today's recipe good 4; steps: "
    places = ("runs/good/record.json", "verdicts.json", "junit.xml", "report.html")
    for text in (result.text, *((result.session / place).read_text() for place in places)):
        assert words in html.unescape(text)
    assert "judged as recorded: " in (result.session / "summary.md").read_text()
    assert json.loads((result.session / "verdict.json").read_text())["as_recorded"] is True
    assert ET.parse(result.session / "junit.xml").find(".//property[@name='as_recorded'][@value='yes']") is not None
    (user.path / "recipes" / "good.yaml").unlink()
    result = user.run_here(f"--replay=as-recorded:{first.session}", "-k", "good", "--collect-only", "-q")
    assert "[good-learns]" in result.text
    result = user.run_here(f"--replay=as-recorded:{user.path / 'recipes'}")
    assert "records of a session have recipes" in result.text


def test_a_killed_session_is_judged_by_what_its_runs_left(user: UserFolder) -> None:
    """Each declared run is a case: without a record a whole step log is judged; half of one, or none, is an error."""
    user.recipe("a_whole")
    user.recipe("b_half", steps=100_000, options=ASLEEP)
    user.recipe("c_none")
    args = ("--cluster", "local", "-k", "a_whole or b_half or c_none", "-o", "llmbench_max_runs=1")
    process = user.start(*args)
    killed = user.wait_for(lambda session: session if steps_logged(session, "b_half") > 1 else None)
    process.kill()
    os.kill(pid_of_rank(killed, "b_half", 0), signal.SIGKILL)
    process.communicate()
    for run in ("a_whole", "b_half"):
        (killed / "runs" / run / "record.json").unlink(missing_ok=True)
    again = user.run_here(f"--replay={killed}", code=1)
    assert verdicts(again) == {"a_whole-learns": "PASS", "b_half-learns": "ERROR", "c_none-learns": "ERROR"}
    problems = {run: again.record(run)["problem"] for run in ("a_whole", "b_half", "c_none")}
    assert problems["a_whole"] is None
    assert problems["b_half"]["kind"] == "no_evidence_of_completion"
    assert problems["c_none"]["kind"] == "session_ended"
    assert "killed before it wrote this run's record" in again.record("a_whole")["provenance"]["recovered"]
    twice = user.run_here(f"--replay={again.session}")
    assert verdicts(twice) == verdicts(again)


def test_a_session_whose_plan_is_lost_is_refused(user: UserFolder) -> None:
    """Without the list of its runs, a run that left nothing would be missing unnoticed; a key may lead elsewhere."""
    user.recipe()
    first = user.run("--cluster", "local", "-k", "tiny")
    plan = first.session / "session.json"
    told = plan.read_text()
    elsewhere = re.sub(r'("key": ?)"tiny"', r'\1"../../tiny"', told)
    assert elsewhere != told
    for damaged in (elsewhere, told[:-20], None):
        plan.unlink()
        if damaged is not None:
            plan.write_text(damaged)
        again = user.run_here(f"--replay={first.session}", code=pytest.ExitCode.USAGE_ERROR)
        assert "It lists the runs that this session declared" in again.text


def test_a_plan_of_a_replay_says_what_would_be_read(replay: Path, judge: Callable[..., Result]) -> None:
    (replay / "tiny" / "job.out").write_text(ours())
    result = judge("--plan")
    assert result.returncode == 0, result.text
    assert f"replayed from {replay / 'tiny'}" in result.text
    assert "CANNOT RUN" not in result.text


def jsc(user: UserFolder, recipe: str, *texts: str, **said: Any) -> Result:
    user.test((shipped("recipes").parent / "training" / "test_training.py").read_text())
    folder = user.path / "logs" / recipe
    folder.mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / f"job{number}.out").write_text(text)
    if said:
        facts(folder, **said)
    return user.run_here(*JUWELS, f"--replay={user.path / 'logs'}", "--gpus-per-node", "4")


def test_jscs_lines_give_jscs_number(user: UserFolder) -> None:
    """The five published lines give 587.14 s with the warm-up line and 550.03 s without: four lines decide neither."""
    result = jsc(user, "nlp175b", sample("jsc/175B_job.out.excerpt.txt").read_text(), ended="time_limit")
    assert verdicts(result) == {
        "nlp175b-jsc_560s": "INCONCLUSIVE",
        "nlp175b-jsc_560s_without_warm_up": "INCONCLUSIVE",
        "nlp175b-loss_falls": "PASS",
    }
    metrics = result.record("nlp175b")["metrics"]
    assert metrics["time_for_20m_tokens_all_lines"]["value"] == pytest.approx(587.14, abs=0.005)
    assert metrics["time_for_20m_tokens_without_first_line"]["value"] == pytest.approx(550.03, abs=0.005)
    assert "4 judged steps are too few: train at least 5 after the warm-up" in " ".join(result.text.split())
    assert "cut_off" in result.record("nlp175b")


def test_jscs_lines_alone_prove_no_run(user: UserFolder) -> None:
    result = jsc(user, "nlp175b", sample("jsc/175B_job.out.excerpt.txt").read_text())
    assert set(verdicts(result).values()) == {"ERROR"}
    assert "(no_evidence_of_completion)" in result.text
    assert "its log gives time_for_20m_tokens_all_lines 587.1 s, which is not a verdict" in result.text
    record = result.record("nlp175b")
    assert record["metrics"] == {}
    assert record["unjudged"]["time_for_20m_tokens_all_lines"]["value"] == pytest.approx(587.14, abs=0.005)


def test_the_published_result_that_fits_judges_a_log(user: UserFolder) -> None:
    """A folder with the name of an engine: the recipe is found, and its result on these GPUs is the threshold."""
    user.test((shipped("recipes").parent / "training" / "test_training.py").read_text())
    place = user.path / "logs" / "mlperf" / "amd"
    place.mkdir(parents=True)
    shutil.copy(LOGS / "mlperf_llama31_8b_mi355x.txt", place / "result_0.txt")
    facts(place, nodes=1, gpus_per_node=8, gpu="MI355X")
    result = user.run_here(f"--replay={user.path / 'logs'}", "--gpus-per-node", "8")
    name = "mlperf_llama31_8b_mi"
    assert verdicts(result) == {f"{name}-loss_falls": "PASS", f"{name}-mi350x_8": "SKIP", f"{name}-mi355x_8": "PASS"}
    assert result.record(name)["provenance"]["recipe_found"].startswith(f"fits {name} of ")
