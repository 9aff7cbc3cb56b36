"""The wheel: what `pip install` brings is enough to write a test and run a shipped recipe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

# A user's whole benchmark.
MINE = '''\
"""The smallest OPT on this machine."""

import pytest
from pytest_llmbench import Quantity


@pytest.mark.recipe("opt125m")
def test_learns(run):
    """It is quick enough to be worth anything, and it learns."""
    assert run.throughput >= Quantity("1 words/s")
    assert run.loss_drop >= Quantity("0.1 nat")
'''


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the checkout without network."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    source = tmp_path_factory.mktemp("wheel") / "source"
    left_out = shutil.ignore_patterns(".*", "reports", "__pycache__", "tests", "dist", "build")
    shutil.copytree(CHECKOUT, source, ignore=left_out)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(source.parent), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = source.parent.glob("*.whl")
    return built


def test_the_wheel_holds_what_is_needed_and_no_more(wheel: Path) -> None:
    """The package with its type marker, recipes and systems; no tests, no suites."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "pytest_llmbench/py.typed" in names
    for kind in ("recipes", "systems"):
        shipped = {path.name for path in (CHECKOUT / "suites" / kind).glob("*.yaml")}
        assert {Path(name).name for name in names if name.startswith(f"pytest_llmbench/shipped/{kind}/")} == shipped
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"pytest_llmbench"}


def test_an_installed_wheel_runs_a_shipped_recipe(wheel: Path, tmp_path: Path) -> None:
    """In an empty folder, with one test file and no ini file."""
    environment = tmp_path / "venv"
    venv.create(environment, symlinks=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Everything else comes from where the tests run, the editable install of this package excepted.
    with_editable = Path(sysconfig.get_path("purelib"))
    borrowed = tmp_path / "borrowed"
    borrowed.mkdir()
    for path in with_editable.iterdir():
        if "llmbench" not in path.name and path.suffix != ".pth":
            (borrowed / path.name).symlink_to(path)
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "test_mine.py").write_text(MINE)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHON"))}
    done = subprocess.run(
        [str(environment / "bin" / "python"), "-m", "pytest", "-p", "no:cacheprovider",
         "--scale", "smoke", "--cluster", "local", "--gpus-per-node", "0"],
        cwd=folder, env={**env, "TMPDIR": str(tmp_path)}, check=False, timeout=200,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "PASS" in done.stdout
    where = "import pytest_llmbench; print(pytest_llmbench.__file__)"
    answer = subprocess.run(
        [str(environment / "bin" / "python"), "-c", where],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.startswith(str(environment))
