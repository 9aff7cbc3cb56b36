"""`llmbench init` and `doctor`."""

import json
import os
import platform
import re
import resource
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import Result

from pytest_llmbench.cli.site import files
from pytest_llmbench.cli.site.probe import NEEDED_COMMANDS, Partition, SlurmFacts, partitions_in
from pytest_llmbench.cluster.system import Gpu, System
from pytest_llmbench.core.schema import validate

Llmbench = Callable[..., Result]

SINFO = """\
cpu|12|(null)
gpu*|6|gpu:h100:8(S:0-1)
gpu*|2|gpu:h100:8,shard:h100:64
mixed|2|gpu:a100:4
mixed|1|gpu:2
two|1|gpu:a100:4,gpu:v100:2
torn
"""
H100 = Gpu(model="H100 80GB HBM3", memory_gib=80, peak_tflops={"bf16": 989}, source="data sheet")


def slurm(text: str = SINFO, *, accounts: tuple[str, ...] = ()) -> SlurmFacts:
    return SlurmFacts(
        cluster="big cluster", version="24.05.1", partitions=partitions_in(text), accounts=accounts, hosts=("n1",)
    )


def test_partitions_are_read_as_sinfo_prints_them() -> None:
    assert partitions_in(SINFO) == (
        Partition(name="cpu", default=False, nodes=12, gpus=0),
        Partition(name="gpu", default=True, nodes=8, gpus=8, gres="h100"),
        Partition(name="mixed", default=False, nodes=3, gpus=None),
        Partition(name="two", default=False, nodes=1, gpus=6),
    )
    assert slurm().best == partitions_in(SINFO)[1]
    assert (
        slurm(SINFO.replace("gpu*", "gpu").replace("cpu|", "cpu*|")).best
        == partitions_in(SINFO.replace("gpu*", "gpu"))[1]
    )  # the default one has none
    assert slurm("").best is None


@pytest.mark.parametrize(("seen", "gpu"), [(H100, "H100 80GB HBM3"), (None, None)])
def test_a_system_file_has_what_slurm_tells_and_says_what_it_does_not(seen: Gpu | None, gpu: str | None) -> None:
    """The file is valid, its name is free, and the GPU model is never guessed from Slurm's word."""
    made = files._describe_slurm(slurm(accounts=("ml",)), seen, {"big-cluster"})
    system = validate(System, dict(made.keys), "made")
    assert (system.name, system.cluster, system.partition) == ("big-cluster_site", "slurm", "gpu")
    assert (system.gpus_per_node, system.account) == (8, "ml")
    assert (system.gpu.model if system.gpu else None) == gpu
    assert ("Slurm calls it h100" in " ".join(made.notes)) == (gpu is None)
    several = files._describe_slurm(slurm(accounts=("ml", "hpc")), seen, set())
    assert validate(System, dict(several.keys), "made").account is None
    assert "one of ml, hpc" in " ".join(several.notes)


def test_a_site_is_made_and_never_overwritten(llmbench: Llmbench) -> None:
    Path("site").mkdir()
    Path("site/README.md").write_text("mine")
    first = {row["file"]: row["fate"] for row in json.loads(llmbench("init", "site", "--json").stdout)}
    assert {name for name, fate in first.items() if fate != "written"} == {"README.md"}
    assert Path("site/README.md").read_text() == "mine"
    for path in (*Path("site/systems").glob("*"), *Path("site/recipes").glob("*")):
        line, *_ = path.read_text().splitlines()
        schema = path.parent / line.removeprefix("# yaml-language-server: $schema=")
        data = json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str))
        jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(data)
    before = {path: path.read_bytes() for path in Path("site").rglob("*") if path.is_file()}
    assert {row["fate"] for row in json.loads(llmbench("init", "site", "--json").stdout)} == {"kept"}
    assert {path: path.read_bytes() for path in Path("site").rglob("*") if path.is_file()} == before
    assert llmbench("validate", *map(str, Path("site").glob("*s/*.yaml"))).exit_code == 0


def test_a_site_on_a_full_disk_is_made_whole_the_next_time(llmbench: Llmbench) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    refused = llmbench("init", "--json").exception
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert isinstance(refused, OSError)
    assert "File too large: 'systems/" in str(refused)
    assert all(path.read_bytes() for path in Path().rglob("*") if path.is_file())


@pytest.mark.parametrize(("ci", "file"), [("github", ".github/workflows/llmbench.yml"), ("gitlab", ".gitlab-ci.yml")])
def test_a_ci_file_is_yaml(llmbench: Llmbench, ci: str, file: str) -> None:
    assert llmbench("init", "--ci", ci).exit_code == 0
    assert yaml.safe_load(Path(file).read_text())
    assert sum(Path(each).exists() for each in (".github", ".gitlab-ci.yml")) == 1


def test_the_ini_section_of_a_project_stays_in_force(llmbench: Llmbench) -> None:
    """A `pytest.ini` would hide it, so its owner is told the lines instead."""
    Path("pyproject.toml").write_text("[tool.pytest.ini_options]\nminversion = '9'\n")
    rows = {row["file"]: row for row in json.loads(llmbench("init", "--json").stdout)}
    assert rows["pytest.ini"]["fate"] == "left out"
    assert "llmbench_recipes = recipes" in rows["pytest.ini"]["note"]
    assert not Path("pytest.ini").exists()


def test_an_unknown_engine_is_refused_before_anything_is_written(llmbench: Llmbench) -> None:
    assert "did you mean 'torch'" in str(llmbench("init", "--engine", "trch").exception)
    assert list(Path().iterdir()) == []


def test_the_doctor_says_what_is_missing(llmbench: Llmbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that this folder needs is a fault, and one that it does not need is none."""
    monkeypatch.setenv("PATH", "/nowhere")
    result = llmbench("doctor", "--json")
    parts = {row["part"]: row for row in json.loads(result.stdout)}
    assert (parts["Python"]["state"], parts["Python"]["found"].partition(",")[0]) == ("ok", platform.python_version())
    assert (parts["Slurm"]["state"], parts["Slurm"]["needed"]) == ("missing", False)
    assert {f"engine {name}" for name in ("torch", "metaseq")} <= parts.keys()
    assert result.exit_code == int(any(row["needed"] and row["state"] != "ok" for row in parts.values()))
    Path("pytest.ini").write_text("[pytest]\nllmbench_system = H200\n")
    result = llmbench("doctor", "--json")
    parts = {row["part"]: row for row in json.loads(result.stdout)}
    assert (parts["Slurm"]["state"], parts["Slurm"]["needed"]) == ("missing", True)
    assert result.exit_code == 1
    text = llmbench("doctor").stdout
    assert re.search(r"^missing +Slurm +not on PATH.*\nrepair +Slurm +apt-get install", text, re.MULTILINE)
    assert re.search(r"^unneeded +not there +apptainer, docker, enroot, pyxis", text, re.MULTILINE)
    assert not re.search("^(missing|wrong) +docker", text, re.MULTILINE)


@pytest.mark.parametrize(("ini", "told"), [
    ("llmbench_system = nowhere", "unknown system 'nowhere'"),
    ("llmbench_run_dir = pytest.ini", "cannot be written"),
    ("llmbench_reciepes = x", "did you mean 'llmbench_recipes'?"),
    ("llmbench_exit_codes = verbose", "ini option llmbench_exit_codes: "),
])  # fmt: skip
def test_the_doctor_finds_a_folder_that_cannot_be_used(
    llmbench: Llmbench, monkeypatch: pytest.MonkeyPatch, ini: str, told: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    Path("pytest.ini").write_text(f"[pytest]\n{ini}\n")
    result = llmbench("doctor", "--json")
    assert result.exit_code == 1
    assert any(told in row["found"] for row in json.loads(result.stdout) if row["state"] == "wrong" and row["needed"])


def test_a_dead_controller_is_said_at_once(llmbench: Llmbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`scontrol ping` answers at once; any other command would try again for half a minute."""
    commands = tmp_path / "bin"
    commands.mkdir()
    asked = tmp_path / "asked"
    for name in NEEDED_COMMANDS:
        program = commands / name
        program.write_text(
            f"#!/bin/sh\necho {name} $* >> {asked}\n"
            'if [ "$1" = ping ]; then\n  echo "Slurmctld(primary) at login1 is DOWN"\n  exit 1\nfi\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    parts = {row["part"]: row for row in json.loads(llmbench("doctor", "--json").stdout)}
    assert (parts["Slurm"]["state"], parts["Slurm"]["found"]) == ("wrong", "Slurmctld(primary) at login1 is DOWN")
    assert set(asked.read_text().splitlines()) <= {"scontrol ping", "srun --help"}
