"""Systems, found by name or file or in this machine; and from options to the shape of a run."""

import os
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster import system as systems
from pytest_llmbench.cluster.executors import JobRequest, submit_local
from pytest_llmbench.cluster.jobs import LocalJob
from pytest_llmbench.cluster.settings import Settings, check, resolve_cluster
from pytest_llmbench.cluster.system import System, gpus_here, load_system, probe_local
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import Recipe
from tests.support.shipped import shipped_recipes
from tests.support.waiting import wait_until

# Two bounds that no number can meet, of a recipe or a check.
BOUNDS = """name: mine
cluster: slurm
{}:
    - {{name: low, statistic: s, at_least: 5 s, why: w, source: s, date: 2026-01-01, applies_to: {{gpu: H200}}}}
    - {{name: high, statistic: s, at_most: 4 s, why: w, source: s, date: 2026-01-01, applies_to: {{gpu: H200}}}}
"""
# One that is expected to be missed, of a check.
EXPECTED = BOUNDS.format("validation:\n  gemm:\n   references").replace("at_most: 4", "at_most: 6")
EXPECTED = EXPECTED.replace("why", "xfail: {reason: known, until: 2026-12-31}, why")


def here(folder: Path, gpus: int = 0, **more: Any) -> JobRequest:
    """A job of one rank on this machine, whose logs are in `logs`."""
    shape = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": gpus, "time_min": 1}
    return JobRequest(name="run", folder=folder / "logs", comment="", **{**shape, **more})


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "_nvidia_smi", list)


def nvidia_smi(folder: Path, script: str) -> None:
    """Put a driver's tool on PATH that does what `script` does."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_every_shipped_system_is_found_by_its_name() -> None:
    """One per source document's hardware, each with the peak it is judged by and where that is published."""
    names = ["H200", "JUWELS_Booster", "Lambda_8xH100", "ND96amsr_A100_v4", "p4de.24xlarge"]
    for name in names:
        system = load_system(name, [shipped("systems")])
        assert (system.name, system.cluster) == (name, "slurm")
        assert system.gpu is not None
        assert system.gpu.peak_tflops["bf16"] > system.gpu.peak_tflops["fp32"]
        assert system.gpu.source


def test_two_systems_need_no_file_and_an_unknown_name_lists_the_known_ones() -> None:
    slurm = load_system("slurm", [])
    assert (slurm.cluster, slurm.gpus_per_node, slurm.gpu) == ("slurm", None, None)
    assert load_system("local", []).cluster == "local"
    with pytest.raises(
        ConfigError, match=r"unknown system 'h100'; legal: .*H200, [^;]*local[^;]*; or give a YAML file, or slurm for "
    ):
        load_system("h100", [shipped("systems")])


def test_a_file_is_read_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("name: mine\ncluster: slurm\ngpus_per_node: 4\nenv: {A: b}\nsetup: [module load cuda]\n")
    system = load_system(str(path), [])
    assert (system.name, system.gpus_per_node, system.env, system.setup) == (
        "mine", 4, {"A": "b"}, ("module load cuda",),
    )  # fmt: skip


@pytest.mark.parametrize(("text", "words"), [
    ("name: mine\ncluster: slurm\nnodez: 3\n", "nodez: unknown key 'nodez'.*legal: .*partition"),
    ("name: mine\ncluster: k8s\n", "cluster: Input should be 'slurm' or 'local'"),
    ("name: mine\ncluster: slurm\ngpus_per_node: -1\n", "gpus_per_node: .*greater than or equal to 0"),
    ("cluster: slurm\n", "name: missing"),
    ("name: mine\ncluster: slurm\ngpu: {modle: A100}\n", "gpu.modle: unknown key 'modle' .did you mean 'model'"),
    (BOUNDS.format("references:\n  small"), "references: small: references low and high cannot both hold"),
    (BOUNDS.format("validation:\n  gemm:\n   references"), "validation.gemm.references: references low and high"),
    (EXPECTED, "low: xfail is for references of recipes: leave a check out with skip"),
    ("[]\n", "expected a mapping"),
    ("name: [\n", "cannot be read"),
])  # fmt: skip
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"mine.yaml: .*{words}"):
        load_system(str(path), [])


@pytest.mark.usefixtures("no_gpu")
def test_a_machine_without_gpus_trains_on_two_cpu_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)))
    many = probe_local()
    assert (many.gpus_per_node, many.cpu_ranks_per_node, many.gpu) == (0, 2, None)
    assert many.description.startswith("16 CPUs")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert probe_local().cpu_ranks_per_node == 1


def test_gpus_are_what_the_driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peak of a known model is that of its data sheet; another's is not guessed."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    nvidia_smi(tmp_path, "echo 'NVIDIA A100-SXM4-80GB'; echo 'NVIDIA A100-SXM4-80GB'")
    local = load_system("local", [shipped("systems")])
    assert local.gpus_per_node == 2
    assert local.gpu is not None
    assert local.gpu.model == "A100-SXM4-80GB"
    nvidia_smi(tmp_path, "echo 'NVIDIA RTX 2080'")
    unknown = load_system("local", [shipped("systems")])
    assert (unknown.gpus_per_node, unknown.gpu) == (1, None)
    nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9")
    assert load_system("local", []).gpus_per_node == 0


@pytest.mark.parametrize(("visible", "named"), [("3", "3"), (" 2, 3", "2,3"), ("", ""), (None, "0,1,2,3")])
def test_ranks_here_have_the_gpus_that_their_user_left_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, named: str
) -> None:
    """Two sessions on the GPUs of one machine would otherwise both load the first of them."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    nvidia_smi(tmp_path, "for gpu in 0 1 2 3; do echo 'NVIDIA H200'; done")
    gpus = len(named.split(",")) if named else 0
    assert (probe_local().gpus_per_node, gpus_here()) == (gpus, gpus)
    (tmp_path / "shows.py").write_text("import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['SET'])\n")
    monkeypatch.chdir(tmp_path)
    controller = submit_local(here(tmp_path, gpus=gpus, setup=("export SET=up",)), "shows", "folder")
    assert controller.wait(60) == 0
    assert (tmp_path / "logs" / f"{controller.pid}_0_log.out").read_text() == f"{named} up\n"


def test_an_interruption_of_ranks_here_is_not_told_at_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Submitit's controller prints its own traceback, and Ctrl-C at a terminal reaches every process of its session."""
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.chdir(tmp_path)
    controller = submit_local(here(tmp_path), "waits", "folder")
    job = LocalJob(controller, "waits", tmp_path / "logs" / "launcher_log.err")
    wait_until((tmp_path / "logs" / f"{controller.pid}_0_log.out").exists)
    assert os.getsid(controller.pid) == controller.pid
    job.cancel()
    assert (job.last_words(), *capfd.readouterr()) == ("", "", "")
    submit_local(here(tmp_path, python="/nowhere"), "waits", "folder").wait(60)
    assert job.last_words().endswith("No such file or directory: '/nowhere'")


@pytest.mark.parametrize("model", ["NVIDIA H200 NVL 2", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"])
def test_a_peak_is_of_that_very_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """A slice has another peak than its GPU, and MFU by the wrong one would be wrong."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    nvidia_smi(tmp_path, f"echo '{model}'")
    assert load_system("local", [shipped("systems")]).gpu is None


@pytest.mark.parametrize(("numbers", "words"), [
    ("memory_gib: 80, peak_tflops: {bf16: 989.4e12}", "not the number of TFLOP/s of one GPU, .*; write 989.4$"),
    ("memory_gib: 80, peak_tflops: {bf16: 989400}", "write 989.4$"),
    ("memory_gib: 80, peak_tflops: {bf16: 0.9894}", "write 989.4$"),
    ("memory_gib: 80, peak_tflops: {bfloat16: 989.4}", "unknown precision 'bfloat16' .*legal: bf16, "),
    ("memory_gib: 81920, peak_tflops: {bf16: 989.4}", "81920 is not the number of GiB of one GPU, .*; write 80 "),
    ("memory_gib: 85899345920, peak_tflops: {bf16: 989.4}", "write 80 "),
])  # fmt: skip
def test_a_gpu_in_other_units_is_refused(tmp_path: Path, numbers: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\ncluster: slurm\ngpu: {{model: H100, source: s, {numbers}}}\n")
    with pytest.raises(ConfigError, match=words):
        load_system(str(path), [])


SLURM = System(name="eight", cluster="slurm", gpus_per_node=8)
UNKNOWN = System(name="slurm", cluster="slurm")
CPU = System(name="local", cluster="local", gpus_per_node=0, cpu_ranks_per_node=2)


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the machine that runs these tests do not change the settings."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def settings(**given: Any) -> Settings:
    """Settings of eight-GPU nodes on Slurm, but for what is given."""
    return Settings(**{"system": SLURM, "cluster": "slurm", "allocation": "run", "run_dir": Path("reports"), **given})


def recipe(name: str, scale: Any = "full") -> Recipe:
    return shipped_recipes(scale)[name]


def test_a_run_has_the_shape_and_the_time_of_its_recipe_but_for_what_is_given() -> None:
    big = settings().topology(recipe("opt175b"))
    assert (big.nodes, big.gpus_per_node, big.world_size) == (128, 8, 1024)
    assert settings().topology(recipe("opt125m")).nodes == 1
    assert settings(nodes=8).topology(recipe("opt175b")).nodes == 8
    assert settings(nodes=8, nodes_per_run=2).topology(recipe("opt175b")).nodes == 2
    assert settings(nodes_per_run=2).topology(recipe("opt175b")).nodes == 2
    assert settings(scale="smoke").topology(recipe("opt175b", "smoke")).nodes == 1
    assert settings().time_limit_min(recipe("opt125m")) == 60
    assert settings(time_min=7).time_limit_min(recipe("opt125m")) == 7


@pytest.mark.parametrize(
    ("asked", "system", "gpus"), [(None, UNKNOWN, 8), (None, CPU, 0), (4, SLURM, 4), (0, SLURM, 0), (None, SLURM, 8)]
)
def test_gpus_are_the_options_then_the_systems_then_the_recipes(asked: int | None, system: System, gpus: int) -> None:
    assert settings(system=system, gpus_per_node=asked).topology(recipe("opt125m")).gpus_per_node == gpus


def test_this_machine_is_one_node() -> None:
    """A recipe published for 128 nodes is judged impossible on the one there is, not run on 128 of it."""
    assert settings(system=CPU, cluster="local").topology(recipe("opt175b")).nodes == 1
    debug = settings(system=CPU, cluster="debug").topology(recipe("opt175b"))
    assert (debug.nodes, debug.world_size) == (1, 1)


@pytest.mark.parametrize(("asked", "system", "expected"), [
    ("auto", "H200", ("H200", None)), ("slurm", None, ("slurm", "slurm")), ("slurm", "H200", ("H200", "slurm")),
    ("local", None, ("local", "local")), ("debug", None, ("local", "debug")), ("local", "H200", ("H200", "local")),
])  # fmt: skip
def test_cluster_and_system_complement(asked: str, system: str | None, expected: tuple[str, str | None]) -> None:
    """Either alone is enough; with a system and `auto`, its file says how jobs get there."""
    assert resolve_cluster(asked, system) == expected


def test_auto_is_slurm_inside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert resolve_cluster("auto", None) == ("local", None)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert resolve_cluster("auto", None) == ("slurm", None)


@pytest.mark.parametrize(("given", "words"), [
    ({"system": CPU, "cluster": "local", "nodes": 2}, "this machine is one node"),
    ({"nodes": 2, "nodes_per_run": 3}, "--nodes-per-run 3 is more than --nodes 2"),
    ({"allocation": "session"}, "give their number with --nodes"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(settings(**given))


def test_what_can_be_meant_is_not() -> None:
    check(settings())
    check(settings(nodes=8, allocation="session", nodes_per_run=8))
    check(settings(system=CPU, cluster="local", nodes=1))
