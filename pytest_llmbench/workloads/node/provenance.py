"""Gathers the provenance of a command's run: versions, commits, digests and environment variables, as plain text."""

import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.workloads.node import installed
from pytest_llmbench.workloads.node.machine import cpu, node_software
from pytest_llmbench.workloads.node.processes import output_of
from pytest_llmbench.workloads.node.secret_filter import disclosed, environment, in_python, is_secret, secret_values

# Most of it is for opening a container.
_VERSIONS_S = 300.0
_COMMAND_S = 30.0
_VARIABLES = (
    "CUDA_", "CUBLAS_", "CUDNN_", "DS_", "FI_", "GLOO_", "GOMP_", "HSA_", "KMP_", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "MKL_", "NCCL_", "NVIDIA_", "NVTE_", "OMPI_", "OMP_", "OPENBLAS_", "PMIX_MCA_", "PYTORCH_", "RCCL_", "SHARP_",
    "SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION",
    "TORCHINDUCTOR_", "TORCH_", "TRITON_", "UCC_", "UCX_",
)  # fmt: skip
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


class Gathered(NamedTuple):
    """Facts of a command's run before it starts, by name, and the secrets that were kept out of them."""

    facts: dict[str, str]
    secrets: frozenset[str]


def gather(task: CommandTask, env: Mapping[str, str]) -> Gathered:
    """Gather the facts of a command's run before its script starts in this environment, and its secrets.

    Facts have one line each; a variable `NAME` is the fact `env.NAME`. A source that is missing or fails is left out,
    and so is a fact with the value of a secret. If the framework's interpreter fails, `versions` gives the reason.
    """
    outside = environment(task, env)
    # The framework's interpreter takes longest, so the others run at the same time. It runs in this thread, because
    # signals end programs of the main thread.
    git, slurm = _in_thread(lambda: _git(task, env)), _in_thread(lambda: _slurm(env))
    versions, inside = _framework_versions(task, env)
    environ = inside or outside
    facts = {
        **node_software(),
        **cpu(),
        **versions,
        **git(),
        **slurm(),
        **_image(task),
        **{
            f"env.{name}": environ[name]
            for name in sorted(environ)
            if name.startswith(_VARIABLES) and not is_secret(name, task.secrets)
        },
    }
    values = secret_values(outside, task.secrets) | secret_values(inside, task.secrets)
    return Gathered(disclosed(facts, values), values)


def _in_thread(gather_facts: Callable[[], dict[str, str]]) -> Callable[[], dict[str, str]]:
    """Gather facts in another thread; the returned function waits for them."""
    results: list[dict[str, str]] = []
    thread = threading.Thread(target=lambda: results.append(gather_facts()), daemon=True)
    thread.start()

    def wait() -> dict[str, str]:
        thread.join()
        return results[0]

    return wait


def _framework_versions(task: CommandTask, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the versions that the framework's interpreter sees, and its environment variables."""
    answer = in_python(task, env, inspect.getsource(installed), _VERSIONS_S)
    for line in answer.text.splitlines():
        if line.startswith(installed.MARK):
            with suppress(ValueError):  # another process may have printed into the line
                answered: dict[str, Any] = json.loads(line.removeprefix(installed.MARK))
                return answered["versions"], answered["environ"]
    end = f"did not end within {_VERSIONS_S:g} s" if answer.code is None else f"ended with status {answer.code}"
    return {"versions": f"unknown: {task.python} {end}: {answer.last_line or 'it printed nothing'}"}, {}


def _git(task: CommandTask, env: Mapping[str, str]) -> dict[str, str]:
    """Return commit and state of the framework's checkout; empty for an untracked folder inside another checkout."""
    root = None if task.root is None else task.on_node(task.root)
    if root is None:
        return {}
    # git refuses the checkout of another user by default; the run executes its code anyway.
    git = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "--no-optional-locks", "-C", root]
    alone = {name: value for name, value in env.items() if not name.startswith("GIT_")}

    def ask(*words: str) -> str | None:
        return output_of([*git, *words], alone, _COMMAND_S, apart=True)

    if ask("rev-parse", "--verify", "--quiet", "HEAD:./") is None:
        return {}
    changed = ask("status", "--porcelain", "--untracked-files=no")
    facts = {
        "git_root": ask("rev-parse", "--show-toplevel"),
        "git_commit": ask("rev-parse", "HEAD"),
        "git_describe": ask("describe", "--tags", "--always"),
        "git_state": None if changed is None else f"changed: {len(changed.splitlines())} files" if changed else "clean",
    }
    return {name: value for name, value in facts.items() if value is not None}


def _slurm(env: Mapping[str, str]) -> dict[str, str]:
    words = output_of(["scontrol", "--version"], env, _COMMAND_S, apart=True) if "SLURM_JOB_ID" in env else None
    return {"slurm": words.split()[-1]} if words else {}  # `slurm 23.11.4`, or a distribution's name in its place


def _image(task: CommandTask) -> dict[str, str]:
    if task.image is None:
        return {}
    facts = {"image": task.image}
    if digest := _DIGEST.search(task.image):
        facts["image_digest"] = digest[1]
    elif task.image.startswith(("/", ".")) or task.image.endswith(".sqsh"):
        facts["image_file"] = _file(Path(task.image))
    return facts


def _file(path: Path) -> str:
    """Describe a file by size and time. Hashing an image of many gigabytes takes longer than many runs."""
    try:
        status = path.stat()
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    when = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
    return f"{status.st_size} bytes, changed {when}, not hashed"
