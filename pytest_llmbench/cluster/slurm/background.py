"""Background work that may take long: runs go on meanwhile."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class BackgroundCall(Future[T]):
    """The result of one function at work in a daemon thread of its own since `began`, by our clock."""

    def __init__(self, function: Callable[[], T], name: str) -> None:
        super().__init__()
        self.began = time.monotonic()
        threading.Thread(target=self._work, args=(function,), name=f"llmbench-{name}", daemon=True).start()

    def is_over(self, within_s: float | None) -> bool:
        """True if it is over; waits up to `within_s` seconds after it began, or until it is."""
        rest = None if within_s is None else max(0.0, self.began + within_s - time.monotonic())
        return not wait([self], rest).not_done

    def _work(self, function: Callable[[], T]) -> None:
        try:
            self.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the border of a thread: `result` raises it again
            self.set_exception(error)
