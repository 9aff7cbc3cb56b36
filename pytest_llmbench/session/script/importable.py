"""A trial at collection: can a Python like those of the nodes import the functions that other packages run there?"""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.core.errors import ConfigError

_MARK = "llmbench-unimportable: "
_TRY = f"""
import importlib, json, sys
for entry in sys.argv[1:]:
    module, _, name = entry.partition(":")
    try:
        getattr(importlib.import_module(module), name)
    except BaseException as error:
        print("\\n{_MARK}" + json.dumps([entry, type(error).__name__ + ": " + str(error)]))
"""
_TIMEOUT_S = 120.0


def refuse_unimportable(entries: Mapping[str, str], settings: Settings) -> None:
    """See that each entry can be imported by a fresh Python, in an empty folder, with the environment of the ranks.

    An entry is `package.module:function`, by the engine or check that runs it. Nothing is tried where the ranks'
    environment is made on the nodes alone: by the system's `setup`, or with a Python that is not on this machine.

    Raises:
        ConfigError: one cannot be imported; says which, why, and what helps.
    """
    system = settings.system
    interpreter = shlex.split(system.python) if system.python is not None else [sys.executable]
    if not entries or system.setup or shutil.which(interpreter[0]) is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*interpreter, "-c", _TRY, *dict.fromkeys(entries.values())],
            cwd=folder, env=clean_environment(system.env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, check=False, timeout=_TIMEOUT_S,
        )  # fmt: skip
    marked = (line.removeprefix(_MARK) for line in done.stdout.splitlines() if line.startswith(_MARK))
    reasons: dict[str, str] = dict(map(json.loads, marked))
    for who, entry in entries.items():
        if entry in reasons:
            raise ConfigError(
                f"{who}: the nodes could not import its function {entry!r}: a fresh Python outside this folder says "
                f"{reasons[entry]}; install its package on the nodes, or put it into a folder that they share and that "
                "PYTHONPATH names"
            )
