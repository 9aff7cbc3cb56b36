"""Waiting for a condition, and never for a time."""

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], timeout_s: float = 90.0) -> None:
    """Return when the condition holds; fail after the limit, which is far above what a busy machine needs."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.05)
