"""Background work that may take long: runs go on meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """One function at work in a thread of its own.

    Attributes:
        began: our clock when it began.
    """

    def __init__(self, function: Callable[[], T], name: str) -> None:
        self.began = time.monotonic()
        self._function = function
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=f"llmbench-{name}", daemon=True)
        self._thread.start()

    def done(self, within_s: float | None = 0.0) -> bool:
        """Whether it is over; waits up to `within_s` seconds after it began, or until it is."""
        if within_s is None:
            self._thread.join()
        else:
            self._thread.join(max(0.0, self.began + within_s - time.monotonic()))
        return not self._thread.is_alive()

    def result(self) -> T:
        """Its result; raises the exception that it raised. Waits for it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _work(self) -> None:
        try:
            self._result.append(self._function())
        except BaseException as error:  # noqa: BLE001 - a thread's border: whoever asks for the result is told
            self._error = error
