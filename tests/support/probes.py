"""What ranks of probes do in tests: answer, raise, die, hang, or say what cannot be said."""

import math
import os
import signal
import time
from typing import Any

from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog


def behave(context: RankContext, log: ProbeLog) -> dict[str, Any] | None:
    """Do what the config says for this rank; all others answer with their rank."""
    deed = context.config.get(str(context.rank))
    log.phase(f"about to {deed or 'answer'}")
    if deed == "raise":
        raise ValueError("no such luck\nat all")
    if deed == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "hang":
        time.sleep(600)
    if deed == "nothing":
        return None
    if deed == "nan":
        return {"rank": math.nan}
    return {"rank": context.rank, "pid": os.getpid()}
