"""The framework's own shell and interpreter, as a run's script has them: after its setup, inside its container."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from pytest_llmbench.core.wire.driver import CommandTask
from pytest_llmbench.workloads.node.disclosure import read_secrets
from pytest_llmbench.workloads.node.processes import ProgramResult, ask


def in_shell(task: CommandTask, env: Mapping[str, str], lines: str, timeout_s: float) -> ProgramResult:
    """Run shell lines in the framework's environment, where the first that fails ends them."""
    return _there(task, env, f"bash -ec {shlex.quote(lines)}", timeout_s)


def in_python(task: CommandTask, env: Mapping[str, str], program: str, timeout_s: float) -> ProgramResult:
    """Run a program by the framework's interpreter."""
    return _there(task, env, f"{task.python} -c {shlex.quote(program)}", timeout_s)


def environment(task: CommandTask, env: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that the framework's setup starts from; a secret without a readable file is not."""
    return {**env, **task.env, **read_secrets(task.secrets)}


def _there(task: CommandTask, env: Mapping[str, str], command: str, timeout_s: float) -> ProgramResult:
    script = "\n".join(["set -eo pipefail", *task.setup, f"{task.inside} {command}".strip()])
    return ask(["bash", "-c", script], environment(task, env), timeout_s)
