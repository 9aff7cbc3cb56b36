"""Unix times that stay comparable when the machine's clock is set."""

import time

# It counts on while a machine is suspended, too: ranks on other machines go on then.
_COUNTER = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class UnixClock:
    """The time of day, read from the machine once and counted on by a monotonic clock.

    All stamps of one run on one machine come from one of these, so that they differ by the time that passed.
    """

    def __init__(self) -> None:
        self._zero = time.time() - time.clock_gettime(_COUNTER)

    def now(self) -> float:
        """Unix time."""
        return self._zero + time.clock_gettime(_COUNTER)
