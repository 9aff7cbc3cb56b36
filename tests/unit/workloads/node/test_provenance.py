"""What a command's run says of itself, and what it never says: the value of a secret."""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.workloads.node import installed, provenance
from pytest_llmbench.workloads.node.secret_filter import disclosed, is_secret, secret_values

Git = Callable[..., str]


def facts(environ: Mapping[str, str] | None = None, /, **changes: Any) -> dict[str, str]:
    """The provenance of a run of this interpreter, with more in its environment."""
    task = CommandTask(**{"nodes": 1, "ranks_per_node": 1, "device": "cpu", "python": sys.executable, **changes})
    return provenance.gather(task, {**os.environ, **(environ or {})}).facts


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Run git in `checkout`, a repository of one commit."""
    root = tmp_path / "checkout"
    (root / "deep").mkdir(parents=True)

    def run(*args: str) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        argv = ["git", "-C", str(root), *who, *args]
        return subprocess.run(argv, env=clean, check=True, capture_output=True, text=True).stdout.strip()

    run("init", "--quiet")
    (root / "deep" / "train.py").write_text("1\n")
    run("add", ".")
    run("commit", "--quiet", "-m", "one")
    return run


def of_git(found: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name.startswith("git_")}


def test_the_framework_s_own_interpreter_is_asked(tmp_path: Path) -> None:
    """What its packages are is what it sees, after the setup; what that prints is not taken for an answer."""
    for name in ("megatron_core-0.9.9", "transformer_engine-1.7"):
        info = tmp_path / f"{name}.dist-info"
        info.mkdir()
        package, _, number = name.partition("-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {number}\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '1.10.1+cu113'\ncuda = '11.3'\nhip = None\n")
    found = facts(setup=(f"export PYTHONPATH={tmp_path}", "echo loaded", "echo warning >&2"))
    expected = {"python": platform.python_version(), "torch": "1.10.1+cu113", "cuda": "11.3"}
    assert {**found, **expected, "megatron-core": "0.9.9", "transformer-engine": "1.7"} == found
    assert not {"rocm", "apex", "versions"} & set(found)


def test_this_interpreter_has_what_is_installed_here() -> None:
    here = installed.installed()
    assert here["python"] == platform.python_version()
    assert here["torch"].startswith(version("torch"))
    assert here["numpy"] == version("numpy")
    assert here.items() <= facts().items()


def test_versions_are_those_that_the_import_system_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = sorted({each.metadata["Name"] for each in distributions() if each.metadata["Name"]})
    assert len(names) > 50
    for name, text in (
        ("NumPy-1.2.dist-info/METADATA", "Name: NumPy\nversion:  1.2 \n\nVersion: 9\n"),
        ("flash_attn-2.egg-info/PKG-INFO", "Name: flash-attn\nVersion: 2.0\n"),
        ("triton-3.dist-info/METADATA", "Name: triton\n\nVersion: 3\n"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("apex-0.1.dist-info/METADATA", "Name: apex\nVersion: 0.1\n")
    monkeypatch.setattr(installed, "PACKAGES", (*installed.PACKAGES, *names))
    seen = []
    for path in ([], [str(tmp_path)], [str(tmp_path), str(tmp_path / "packed.zip")]):
        with monkeypatch.context() as changed:
            changed.setattr(sys, "path", [*path, *sys.path])
            seen.append(installed.installed())
    assert [found.get("apex") for found in seen] == [None, None, "0.1"]
    assert (seen[1]["numpy"], seen[1]["flash-attn"], seen[1].get("triton")) == ("1.2 ", "2.0", None)


def test_the_program_runs_on_old_interpreters() -> None:
    """Frameworks of years ago have interpreters of their time; so do their containers."""
    pythons = sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python"))
    if not pythons:
        pytest.skip("no Python 3.8 under ~/.pyenv")
    found = facts(python=str(pythons[0]))
    assert found["python"].startswith("3.8."), found


@pytest.mark.parametrize(("changes", "words"), [
    ({"python": "/no/such/python"}, "unknown: /no/such/python ended with status 127: bash: line 2: /no/such"),
    ({"python": "echo"}, "unknown: echo ended with status 0: "),
    ({"setup": ("exit 7",)}, f"unknown: {sys.executable} ended with status 7: it printed nothing"),
])  # fmt: skip
def test_an_interpreter_that_does_not_answer_is_named(changes: dict[str, Any], words: str) -> None:
    """The rest is said all the same, the variables by what the script starts with."""
    found = facts({"NCCL_DEBUG": "INFO"}, **changes)
    assert found["versions"].startswith(words)
    assert (found["env.NCCL_DEBUG"], found["kernel"]) == ("INFO", platform.release())
    assert "python" not in found


def test_an_interpreter_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_VERSIONS_S", 0.3)
    assert facts(python="sleep 600;")["versions"].startswith("unknown: sleep 600; did not end within 0.3 s")


def test_the_checkout_is_known_by_its_commit(tmp_path: Path, git: Git) -> None:
    root = tmp_path / "checkout"
    expected = {
        "git_root": str(root), "git_commit": git("rev-parse", "HEAD"),
        "git_describe": git("rev-parse", "--short", "HEAD"), "git_state": "clean",
    }  # fmt: skip
    assert of_git(facts(root=str(root))) == expected
    assert of_git(facts(root=str(root / "deep"))) == expected
    boxed: dict[str, Any] = {"image": "i", "mounts": (f"{tmp_path}:/mounted",)}
    git("tag", "v1.0")
    assert of_git(facts(root="/mounted/checkout", **boxed)) == {**expected, "git_describe": "v1.0"}
    assert of_git(facts(root="/opt/checkout", **boxed)) == {}


def test_a_changed_checkout_is_not_its_commit(tmp_path: Path, git: Git) -> None:
    """Changes of tracked files are told, not what builds leave behind; git's own variables mean another repository."""
    git("tag", "v1.0")
    git("commit", "--quiet", "--allow-empty", "-m", "two")
    (tmp_path / "checkout" / "built.o").touch()
    env = {"GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere/index"}
    assert facts(env, root=str(tmp_path / "checkout"))["git_state"] == "clean"
    (tmp_path / "checkout" / "deep" / "train.py").write_text("2\n")
    found = facts(env, root=str(tmp_path / "checkout"))
    assert found["git_state"] == "changed: 1 files"
    assert found["git_describe"].startswith("v1.0-1-g")
    assert git("diff", "--cached") == ""


def test_what_only_lies_in_a_checkout_has_no_commit(tmp_path: Path, git: Git) -> None:
    """An installation in a folder that someone's repository does not track; no repository; no such folder."""
    (tmp_path / "checkout" / "venv").mkdir()
    (tmp_path / "bare").mkdir()
    for name in ("checkout/venv", "bare", "gone"):
        assert of_git(facts(root=str(tmp_path / name))) == {}, git("status", "--porcelain")


@pytest.mark.skipif(os.geteuid() != 0, reason="to give a file away takes root")
def test_a_checkout_of_someone_else_is_read(tmp_path: Path, git: Git) -> None:
    for path in [tmp_path / "checkout", *(tmp_path / "checkout").rglob("*")]:
        os.chown(path, 65534, 65534)
    assert facts(root=str(tmp_path / "checkout"))["git_commit"] == git("-c", "safe.directory=*", "rev-parse", "HEAD")


def test_the_node_is_known_by_its_system_software() -> None:
    """Kernel and operating system, always; the driver where there is one."""
    found = facts()
    assert found["kernel"] == platform.release()
    assert found["os"] == platform.freedesktop_os_release()["PRETTY_NAME"]
    if shutil.which("nvidia-smi") is not None:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        assert subprocess.run(query, check=True, capture_output=True, text=True).stdout.split()[0] == found["driver"]


@pytest.mark.skipif(shutil.which("scontrol") is None, reason="no Slurm is installed")
def test_slurm_is_known_inside_a_job_only() -> None:
    """The version of whoever started the run, and the name of the cluster."""
    found = facts({"SLURM_JOB_ID": "17", "SLURM_CLUSTER_NAME": "juwels"})
    said = subprocess.run(["scontrol", "--version"], check=True, capture_output=True, text=True).stdout
    assert said.split()[1:] == [found["slurm"]]
    assert (found["env.SLURM_JOB_ID"], found["env.SLURM_CLUSTER_NAME"]) == ("17", "juwels")
    if "SLURM_JOB_ID" not in os.environ:
        assert "slurm" not in facts()


@pytest.mark.parametrize("scheme", ["", "docker://"])
def test_an_image_is_known_by_its_digest(scheme: str) -> None:
    name, digest = f"{scheme}nvcr.io/nvidia/pytorch:24.05-py3", f"sha256:{'0f' * 32}"
    assert of_image(facts(image=f"{name}@{digest}")) == {"image": f"{name}@{digest}", "image_digest": digest}
    assert of_image(facts(image=name)) == {"image": name}
    assert of_image(facts(image="docker://me:pass@nvcr.io#a/b")) == {"image": "docker://nvcr.io#a/b"}


def test_an_image_file_is_known_by_size_and_time(tmp_path: Path) -> None:
    image = tmp_path / "torch.sqsh"
    image.write_bytes(b"1234")
    os.utime(image, (0, 0))
    words = "4 bytes, changed 1970-01-01T00:00:00+00:00, not hashed"
    assert of_image(facts(image=str(image))) == {"image": str(image), "image_file": words}
    assert facts(image=f"{tmp_path}/gone.sqsh")["image_file"] == "cannot be looked at: No such file or directory"


def of_image(found: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in found.items() if name.startswith("image")}


def test_variables_are_those_of_the_framework(tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.write_text('#!/bin/sh\nNCCL_VERSION=2.21.5 exec "$@"\n')
    runtime.chmod(0o755)
    env = {"NCCL_DEBUG": "WARN", "UCX_TLS": "rc,\n\tcuda", "EDITOR": "ed", "OMP_PROC_BIND": "\udcff\x1b[1m"}
    found = facts(
        env, env={"FI_PROVIDER": "efa"}, setup=("export NCCL_DEBUG=INFO",), image="i", inside=str(runtime)
    )  # fmt: skip
    expected = {"NCCL_DEBUG": "INFO", "NCCL_VERSION": "2.21.5", "FI_PROVIDER": "efa", "UCX_TLS": "rc, cuda"}
    assert {f"env.{name}": value for name, value in expected.items()}.items() <= found.items()
    assert found["env.OMP_PROC_BIND"] == "[1m"
    assert not {"env.EDITOR", "env.PATH", "env.HOME"} & set(found)


def test_secrets_are_left_out_wherever_they_turn_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("s3cr3t\n")
    env = {
        "NCCL_AUTH_TOKEN": "a-long-token", "CUDA_API_KEY": "a-long-key-1", "UCX_MINE": "s3cr3t",
        "NCCL_NET": "plugin-s3cr3t", "FI_URL": "https://host/a-long-key-1", "TORCH_HOME": "https://me:hello@host/torch",
        "TOKENIZERS_PARALLELISM": "false", "UCX_PASSWORD": "short", "OMP_DYNAMIC": "false",
    }  # fmt: skip
    found = facts(
        env, secrets={"UCX_MINE": f"{tmp_path}/file"}, image="registry/a-long-token", python="echo a-long-token"
    )
    for secret in ("a-long-token", "a-long-key-1", "s3cr3t", "hello"):
        assert secret not in str(found)
    assert (found["env.OMP_DYNAMIC"], found["env.TORCH_HOME"]) == ("false", "https://host/torch")
    assert not {"image", "versions", "env.NCCL_NET", "env.FI_URL", "env.UCX_PASSWORD"} & set(found)


def test_a_secret_of_the_setup_is_left_out() -> None:
    """The framework's environment is searched for secrets as the run's own is."""
    found = facts(setup=("export WANDB_API_KEY=0123456789abcdef NCCL_NET=0123456789abcdef NCCL_ALGO=Ring",))
    assert "0123456789abcdef" not in str(found)
    assert found["env.NCCL_ALGO"] == "Ring"


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "aws_secret_access_key", "DBPASSWORD", "MYSQL_AUTH", "GOOGLE_CREDENTIALS"]
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name, ())


def test_a_declared_secret_needs_no_such_name_and_one_of_control_characters_hides_nothing_else() -> None:
    assert is_secret("PIN", {"PIN"})
    assert not is_secret("PING", {"PIN"})
    values = secret_values({"PIN": "\x1b"}, {"PIN"})
    assert disclosed({"a": "0", "b": "\x1b[0m"}, values) == {"a": "0"}


@pytest.mark.parametrize("value", ["a long secret", "x" * 995 + "a long secret", "a\nlong\tsecret"])
def test_no_part_of_a_secret_is_left_by_what_is_cut_or_joined(value: str) -> None:
    assert disclosed({"a": value, "b": "long"}, {"a long secret"}) == {"b": "long"}


VALUES = st.text(min_size=1, max_size=20)
NAMES = st.sampled_from(["HF_TOKEN", "NCCL_KEY", "MY_PASSWORD", "AUTH", "PIN", "NCCL_DEBUG", "UCX_TLS", "PATH"])


@given(environ=st.dictionaries(NAMES, VALUES), data=st.data())
def test_no_value_of_a_secret_is_ever_disclosed(environ: dict[str, str], data: st.DataObject) -> None:
    """Alone or inside another text, declared or under a secret's name; everything else is said, in one line."""
    declared = {"PIN"}
    hidden = {
        value.strip() for name, value in environ.items()
        if value.strip() and (name in declared or (is_secret(name, declared) and len(value.strip()) >= 8))
    }  # fmt: skip
    pieces = st.lists(st.one_of(VALUES, st.sampled_from([*environ.values(), "x"])), max_size=3).map("".join)
    told = data.draw(st.dictionaries(st.text(max_size=5), pieces, max_size=5))
    found = disclosed({**told, **environ}, secret_values(environ, declared))
    for value in found.values():
        assert not any(secret in value for secret in hidden)
        assert value.isprintable()
    clean = {name for name, value in told.items() if value.isprintable() and value.isalnum()}
    assert {name for name in clean - set(environ) if not any(secret in told[name] for secret in hidden)} <= set(found)
