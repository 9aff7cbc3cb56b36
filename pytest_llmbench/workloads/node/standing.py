"""The working folder of a task: the one that relative paths of a recipe or a script begin at."""

import os
from collections.abc import Callable
from typing import Any


def run_in(folder: str, function: Callable[..., Any], *args: object) -> Any:
    """Call a function with another working directory; submitit needs its own back to write what came of it."""
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(folder)
        return function(*args)
    finally:
        os.fchdir(before)
        os.close(before)
