"""Wheels, built without a network, and environments in which nothing else of this package is installed."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).parents[2]


def build_ours(folder: Path) -> Path:
    """The wheel of this package, from a copy of the checkout."""
    left_out = shutil.ignore_patterns(".*", "reports", "__pycache__", "tests", "dist", "build")
    shutil.copytree(CHECKOUT, folder / "source", ignore=left_out)
    return build(folder / "source", folder)


def build(source: Path, folder: Path) -> Path:
    """The wheel of a package; the test is skipped where nothing builds one."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    before = set(folder.glob("*.whl"))
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    (built,) = set(folder.glob("*.whl")) - before
    return built


@dataclass(frozen=True)
class Installed:
    """Wheels in an environment of their own."""

    environment: Path  # their environment
    folder: Path  # an empty one, to work in

    @property
    def packages(self) -> Path:
        return next((self.environment / "lib").glob("python*/site-packages"))

    def python(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.environment / "bin" / "python"), *args)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "PYTHON"))}
        return subprocess.run(
            command,
            cwd=self.folder, env={**clean, "TMPDIR": str(self.folder.parent)}, check=False, timeout=200,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def pytest(self, *args: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "pytest", "-p", "no:cacheprovider", *args)


def install(folder: Path, *wheels: Path) -> Installed:
    """Install wheels. Everything else comes from where the tests run, but for this package as it is there."""
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    for path in _packages_here():
        (borrowed / path.name).symlink_to(path)
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    (folder / "empty").mkdir()
    return Installed(environment=environment, folder=folder / "empty")


def _packages_here() -> list[Path]:
    """What is installed where the tests run, without this package and what only points elsewhere."""
    folders = [Path(folder) for folder in sys.path if Path(folder).name == "site-packages"]
    found = {path.name: path for folder in reversed(folders) for path in folder.iterdir()}
    return [path for name, path in found.items() if "llmbench" not in name and path.suffix != ".pth"]


def wheelhouse(folder: Path, wheel: Path) -> Path:
    """A folder with a wheel and all that it depends on, as `pip download` fills one; made of what is installed here."""
    folder.mkdir()
    shutil.copy(wheel, folder)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        wanted = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist", [])
    done: set[str] = set()
    while wanted:
        requirement = Requirement(wanted.pop())
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if needed and canonicalize_name(requirement.name) not in done:
            done.add(canonicalize_name(requirement.name))
            there = distribution(requirement.name)
            _pack(there, folder)
            wanted += there.requires or []
    return folder


def _pack(installed: Distribution, folder: Path) -> None:
    """Write a wheel of an installed package, without its scripts and what was compiled."""
    tags = Parser().parsestr(installed.read_text("WHEEL") or "").get_all("Tag", [])
    parts = zip(*(tag.split("-") for tag in tags), strict=True)  # Python, ABI and platform: each may have several names
    tag = "-".join(".".join(dict.fromkeys(part)) for part in parts)
    name = f"{canonicalize_name(installed.name).replace('-', '_')}-{installed.version}"
    files = [file for file in installed.files or () if ".." not in file.parts and file.suffix != ".pyc"]
    with zipfile.ZipFile(folder / f"{name}-{tag}.whl", "w") as archive:
        for file in files:
            if file.name != "RECORD":
                archive.write(str(file.locate()), str(file))
        (record,) = (str(file) for file in files if file.name == "RECORD" and file.parent.name.endswith(".dist-info"))
        archive.writestr(record, "".join(f"{file},,\n" for file in files))


def install_without_a_network(folder: Path, wheels: Path, *requirements: str) -> Installed:
    """Let pip install from a folder of wheels alone, into an environment that has nothing else."""
    environment = folder / "venv"
    venv.create(environment, symlinks=True)
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "PYTHON"))}
    python = str(environment / "bin" / "python")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-compile",
            "--no-index", "--find-links", str(wheels), *requirements,
        ],
        env={**clean, "PIP_CONFIG_FILE": os.devnull}, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (folder / "empty").mkdir()
    return Installed(environment=environment, folder=folder / "empty")
