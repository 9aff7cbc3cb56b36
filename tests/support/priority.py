"""Processor time for trainings that are judged by a share of what the processor can do, beside other tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def before_others() -> Iterator[None]:
    """Processes started here get three times the processor time of others, where we may ask for that."""
    if os.geteuid():
        yield
        return
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, usual - 5)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, usual)
