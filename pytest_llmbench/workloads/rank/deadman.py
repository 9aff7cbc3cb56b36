"""Dead man's switch: ends the ranks of a run whose owner is silent, so that they release their nodes.

The owner rewrites one file with a new counter every few seconds. A change of its content is the sign of life; file
times come from another machine's clock, so skew would be mistaken for silence or life.
"""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from pytest_llmbench.core.wire import layout
from pytest_llmbench.workloads.node.shared_files import exists_now

# A process that oversleeps by this much stood still, as its job or its machine was suspended.
_STILL_S = 3.0


def hold(
    path: str,
    ttl_s: float,
    poll_s: float = 1.0,
    on_pause: Callable[[float], None] | None = None,
    on_look: Callable[[], None] | None = None,
) -> str:
    """Block until the owner is silent or requests the end, and return the reason. Jobs that hold nodes run this.

    The owner keeps rewriting the file `path`, and a file `stop` next to it requests the end; a missing or unreadable
    file counts as unchanged. A live owner is silent for `ttl_s` at most, by this machine's monotonic clock. `on_look`
    is called at each look, `on_pause` with its length in seconds after each time in which this process stood still.
    """
    file = Path(path)
    stop = file.with_name(layout.STOP)
    seen: bytes | None = None
    changed = looking = time.monotonic()
    while not exists_now(stop):
        if on_look is not None:
            on_look()
        # Read before looking at the clock: a process that was suspended finds the owner's newer counter.
        content = _read(file)
        # A file system that stands still keeps the owner from writing, too, so the duration of a look is subtracted.
        changed += time.monotonic() - looking
        if content is not None and content != seen:
            seen, changed = content, time.monotonic()
        elif time.monotonic() - changed >= ttl_s:
            return f"its session has been silent for {ttl_s:g} s ({file})"
        before = time.monotonic()
        time.sleep(poll_s)
        looking = time.monotonic()
        longer = looking - before - poll_s
        if on_pause is not None and longer >= _STILL_S:
            on_pause(longer)
    return f"its session ended this run ({stop})"


def watch(
    path: Path,
    ttl_s: float,
    on_silent: Callable[[str], None],
    on_pause: Callable[[float], None] | None = None,
    on_look: Callable[[], None] | None = None,
) -> Thread:
    """Watch the owner from a daemon thread, which calls `on_silent` once with the reason."""
    # Thousands of ranks look at the same file: ten looks per ttl are enough, and one a second at most.
    poll_s = min(max(ttl_s / 10, 0.05), 5.0)
    thread = Thread(
        target=lambda: on_silent(hold(str(path), ttl_s, poll_s, on_pause, on_look)),
        name="llmbench-deadman",
        daemon=True,
    )
    thread.start()
    return thread


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None
