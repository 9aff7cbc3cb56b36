"""The submission scripts: golden files, and the promise that they are what submitit hands to sbatch."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import submitit
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.checks.base import CheckSettings
from pytest_llmbench.cluster.executors import JobRequest, sbatch_script
from pytest_llmbench.cluster.runs import Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import System, load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.engines.base import get_engine
from pytest_llmbench.session.script.prepared import holder_request, hours_at_most, run_request
from tests.support.golden import assert_golden
from tests.support.shipped import shipped_recipes

GOLDEN = Path(__file__).parents[2] / "golden" / "sbatch"
SESSION = Session(id="20261121-120000-abcdef", folder=Path("/shared/reports/20261121-120000-abcdef"))
EVERY_OPTION = {
    "partition": "gpu", "account": "ml", "qos": "high", "reservation": "maintenance", "constraint": "ib&a100",
    "nodelist": "n[1-4]", "exclude": "n3", "comment": "ticket 4711",
}  # fmt: skip


def request(recipe: str, *, hold: bool = False, system: System | None = None, **given: Any) -> JobRequest:
    """The job that a session of these options asks Slurm for."""
    settings = Settings(
        **{
            "system": system or load_system("ND96amsr_A100_v4", [shipped("systems")]), "cluster": "slurm",
            "allocation": "session" if hold else "run", "run_dir": SESSION.folder.parent, **given,
        }
    )  # fmt: skip
    run = RunSpec(key=recipe, recipe=shipped_recipes(settings.scale)[recipe])
    if hold:
        return holder_request(Plan(runs=(run,)), settings, SESSION)
    driven = get_engine(run.recipe.engine).kind == "command"
    return run_request(run, settings.topology(run.recipe), settings, SESSION, driven=driven)


PREPARED = System(
    name="prepared", cluster="slurm", gpus_per_node=4, partition="slow", account="default", python="/opt/my env/python",
    setup=("module load cuda/12.4", 'export TMPDIR="/scratch/$SLURM_JOB_ID"'), srun_args=("--mpi=pmix", "--label"),
)  # fmt: skip
REQUESTS = {
    "hold_8_nodes": request("opt175b", hold=True, nodes=8), "run_1_node": request("opt125m"),
    "run_2_nodes": request("opt1.3b", nodes=2), "run_8_nodes": request("opt175b", nodes=8),
    "run_128_nodes": request("opt175b"), "run_smoke_on_cpus": request("opt125m", scale="smoke", gpus_per_node=0),
    "run_with_every_option": request("opt125m", nodes=4, time_min=95, slurm=EVERY_OPTION),
    "run_with_a_prepared_system": request("opt125m", system=PREPARED, slurm={"partition": "fast"}),
}  # fmt: skip


@pytest.mark.parametrize("name", REQUESTS)
def test_the_script_is_the_golden_one(name: str) -> None:
    """What goes to Slurm changes on purpose only. LLMBENCH_ACCEPT_GOLDEN=1 accepts what is there now."""
    # The interpreter differs from one installation to the next.
    script = sbatch_script(REQUESTS[name]).replace(sys.executable, "/venv/bin/python")
    assert_golden(GOLDEN / f"{name}.sh", script, __file__)


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(REQUESTS)


def directives(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH --")]
    pairs = [line.partition("=") for line in lines]
    assert len({name for name, _, _ in pairs}) == len(pairs), "an option is given twice"
    return {name: value for name, _, value in pairs}


def test_every_option_reaches_sbatch() -> None:
    """Each of the options is one directive, and the comment keeps the token that finds the job again."""
    found = directives(sbatch_script(REQUESTS["run_with_every_option"]))
    for name, value in EVERY_OPTION.items():
        assert value in found[name]
    assert found["comment"].strip("'") == "llmbench:20261121-120000-abcdef ticket 4711"
    assert (found["nodes"], found["time"], found["ntasks-per-node"], found["gpus-per-node"]) == ("4", "95", "8", "8")


def test_the_holder_is_one_process_and_options_override_the_system_file() -> None:
    script = sbatch_script(REQUESTS["hold_8_nodes"])
    found = directives(script)
    assert (found["nodes"], found["gpus-per-node"], found["ntasks-per-node"]) == ("8", "8", "1")
    assert not any(line.startswith("srun") for line in script.splitlines())
    found = directives(sbatch_script(REQUESTS["run_with_a_prepared_system"]))
    assert (found["partition"], found["account"]) == ("fast", "default")


WORDS = st.text("abcXYZ019_-.,[]&", min_size=1, max_size=12)
REQUEST = st.builds(
    JobRequest, name=WORDS, folder=st.just(Path("/shared/a folder/logs")), nodes=st.integers(1, 2000),
    tasks_per_node=st.integers(1, 16), gpus_per_node=st.integers(0, 16), time_min=st.integers(1, 100_000),
    comment=WORDS, slurm=st.dictionaries(st.sampled_from([*EVERY_OPTION]), WORDS),
    setup=st.lists(WORDS, max_size=3).map(tuple), srun_args=st.lists(WORDS.map("--{}".format), max_size=3).map(tuple),
    use_srun=st.booleans(), python=st.none() | st.sampled_from(["/opt/python", "/opt/my env/python"]),
)  # fmt: skip


@pytest.fixture(scope="module")
def srun_on_path(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Submitit's executor only asks whether srun is there."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "srun").touch(mode=0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield


@given(asked=REQUEST)
def test_the_plan_shows_what_submitit_submits(srun_on_path: None, asked: JobRequest) -> None:
    """`--plan` and the `--test-only` question hold the very text that submitit would submit, but for its beginning."""
    executor = submitit.SlurmExecutor(asked.folder, max_num_timeout=0, python=asked.interpreter)
    executor.update_parameters(**asked.parameters)
    command = executor._submitit_command_str.replace("submitit.core._submit", "pytest_llmbench.workloads.node.begin")
    text = executor._make_submission_file_text(command, "some-uid")
    assert sbatch_script(asked) == text


@pytest.mark.parametrize(("options", "minutes"), [
    ({"nodes": 2}, 6 + 5 + 4 + 3 + 5), ({"nodes": 2, "nodes_per_run": 1}, max(6 + 3, 5 + 4) + 5),
    ({"nodes": 4, "nodes_per_run": 1, "max_runs": 1}, 6 + 5 + 4 + 3 + 5), ({"nodes": 4, "nodes_per_run": 1}, 6 + 5),
    ({"nodes": 2, "time_min": 7}, 7),
])  # fmt: skip
def test_a_held_job_outlasts_its_runs(options: dict[str, Any], minutes: int) -> None:
    settings = Settings(
        system=System(name="any", cluster="slurm"), cluster="slurm", allocation="session",
        run_dir=SESSION.folder.parent, **options,
    )  # fmt: skip
    recipe = shipped_recipes("smoke")["opt125m"]
    runs = tuple(
        RunSpec(key=str(limit), recipe=recipe.model_copy(update={"time_limit": limit})) for limit in (6, 5, 4, 3)
    )
    assert holder_request(Plan(runs=runs), settings, SESSION).time_min == minutes


def test_a_held_job_has_time_for_its_checks() -> None:
    """The job has one limit for each family, whose checks share a measurement, and survives a dead node."""
    told = {"memory": CheckSettings(deadline_s=90.0), "storage": CheckSettings(deadline_s=300.0)}
    settings = Settings(
        system=System(name="any", cluster="slurm", gpus_per_node=0, validation=told), cluster="slurm",
        allocation="session", run_dir=SESSION.folder.parent, nodes=2,
    )  # fmt: skip
    request = holder_request(Plan(runs=(), checks=("limits", "memory", "storage")), settings, SESSION)
    assert request.time_min == 7 + 5  # 90 s and 300 s, and the 5 minutes of every held job
    assert "#SBATCH --no-kill" in sbatch_script(request)


def test_a_percent_sign_moves_no_setup() -> None:
    """Slurm replaces the sign in the job's folder; shell lines still begin where pytest stands."""
    plain = JobRequest(
        name="x", folder=Path("/shared/a b%2F%n"), nodes=1, tasks_per_node=1, gpus_per_node=0, time_min=5, comment="",
        setup=("module load cuda",),
    )  # fmt: skip
    script = sbatch_script(plain)
    lines = script.splitlines()
    at = lines.index("module load cuda")
    assert (lines[at - 1], lines[at + 1]) == (f"cd {Path.cwd()}", "cd '/shared/a b%2F%n'")
    assert "#SBATCH --chdir='/shared/a b%2F%n'" in lines
    assert "--output=%j_%t_log.out --error=%j_%t_log.err" in script
    assert plain.step_logs == ["--chdir=/shared/a b%2F%n", "--output=rank-%t.log"]
    assert plain.step_setup == (f"cd {Path.cwd()}", "module load cuda")


@pytest.mark.parametrize(("options", "hours"), [
    ({"cluster": "slurm", "allocation": "session", "nodes": 2}, 2 * 4 * (10 + 20 + 1 + 5) / 60),
    ({"cluster": "slurm", "allocation": "run"}, 4 * (10 + 20 + 1) / 60),
    ({"cluster": "slurm", "allocation": "run", "time_min": 30}, 4 * (30 + 30 + 1) / 60),
    ({"cluster": "local", "allocation": "session", "gpus_per_node": 0}, (10 + 20 + 1) / 60),
], ids=["held", "a job a run", "as --time says", "CPUs"])  # fmt: skip
def test_the_hours_that_a_session_may_take(options: dict[str, Any], hours: float) -> None:
    told = {"memory": CheckSettings(deadline_s=60.0)}
    system = System(name="any", cluster="slurm", gpus_per_node=4, validation=told)
    settings = Settings(system=system, run_dir=SESSION.folder.parent, **options)
    recipe = shipped_recipes("smoke")["opt125m"].model_copy(update={"nodes": 1, "gpus_per_node": 4})
    runs = tuple(RunSpec(key=str(limit), recipe=recipe.model_copy(update={"time_limit": limit})) for limit in (10, 20))
    assert hours_at_most(Plan(runs=runs, checks=("memory",)), settings, SESSION) == pytest.approx(hours)
