"""Checks that everything a run needs is prepared, before its script starts."""

import inspect
import json
import socket
from collections.abc import Iterator, Mapping

from pytest_llmbench.core.wire.driver import CommandTask, Needed, Obstacle
from pytest_llmbench.workloads.node import files
from pytest_llmbench.workloads.node.processes import ProgramResult
from pytest_llmbench.workloads.node.secret_filter import (
    contains_secret,
    environment,
    in_python,
    in_shell,
    secret_values,
)

_CHECK_S = 60.0
# For a check in a container; most of it is for opening the image.
_OPEN_S = 300.0
_MARK = "LLMBENCH_FILES "


def first_missing(task: CommandTask, env: Mapping[str, str]) -> Obstacle | None:
    """Check everything that a run needs; the message has each missing item, its purpose and the command that makes it.

    Each check gets 60 s, in a container 300 s more to open that. The problem, if any, is of kind `not_prepared`.
    """
    missing = [*_secrets(task), *(words for item in task.prepare if (words := _missing(item, task, env)))]
    if not missing:
        return None
    head = f"{socket.gethostname()} is not prepared for this run, {len(missing)} missing:"
    #: problem not_prepared: files of `prepare`, or of a secret, are missing; the message has the commands that make
    #:  them
    return Obstacle(kind="not_prepared", message="\n".join([head, *(f"- {words}" for words in missing)]))


def _secrets(task: CommandTask) -> Iterator[str]:
    for name, path in task.secrets.items():
        if words := files.wrong_with(path):
            yield f"{name}: the file that holds it: {words}"


def _missing(item: Needed, task: CommandTask, env: Mapping[str, str]) -> str:
    """Describe what one preparation lacks: its files, else what its check finds; empty if it is complete."""
    wrong = _wrong_files(item, task, env) or _failed_check(item, task, env)
    if not wrong:
        return ""
    reason = f"\n  why it matters: {item.why}" if item.why else ""
    return f"{item.name}: {wrong}{reason}\n  make it with: {item.make}"


def _wrong_files(item: Needed, task: CommandTask, env: Mapping[str, str]) -> str:
    if item.path is None:
        return ""
    path = task.on_node(item.path)
    if path is not None:
        return files.wrong_with(path, item.count, item.min_bytes)
    # The path exists only in the image, so the interpreter inside runs the same check.
    asked = f"wrong_with({item.path!r}, {item.count!r}, {item.min_bytes!r})"
    program = f"{inspect.getsource(files)}\nimport json\nprint('\\n{_MARK}' + json.dumps({asked}))\n"
    answer = in_python(task, env, program, _OPEN_S)
    for line in answer.text.splitlines():
        if line.startswith(_MARK):
            return str(json.loads(line.removeprefix(_MARK)))
    return f"{item.path} could not be checked in the container: {_ended(answer, _OPEN_S, task, env)}"


def _failed_check(item: Needed, task: CommandTask, env: Mapping[str, str]) -> str:
    if item.check is None:
        return ""
    timeout_s = _CHECK_S + (_OPEN_S if task.inside else 0)
    answer = in_shell(task, env, item.check, timeout_s)
    return "" if answer.code == 0 else f"its check {_ended(answer, timeout_s, task, env)}\n  check: {item.check}"


def _ended(answer: ProgramResult, timeout_s: float, task: CommandTask, env: Mapping[str, str]) -> str:
    end = f"did not end within {timeout_s:g} s" if answer.code is None else f"ended with status {answer.code}"
    if not answer.last_line:
        return f"{end} and printed nothing"
    # The whole output is searched, as the shown end of a line may begin in the middle of a secret.
    if contains_secret(answer.text, secret_values(environment(task, env), task.secrets)):
        return f"{end}; what it printed has a secret in it and is not shown"
    return f"{end}; its last words: {answer.last_line}"
