"""Chromium without a screen, by the WebDriver protocol: what a page looks like, and what it says on its console."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAMS = ("chromium", "chromedriver")
_START_S, _ANSWER_S = 30.0, 60.0
FOLDER = "LLMBENCH_SCREENSHOTS"
# Widths of screens, in pixels of CSS.
DESKTOP, PHONE = 1280, 390
# None of them may reach for a network: a report is opened where there is none.
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage",
)  # fmt: skip


def missing() -> str | None:
    """The reason why no browser can be started here; None where one can."""
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"no {' and no '.join(lacking)} here: apt install chromium chromium-driver" if lacking else None


def kept(name: str, otherwise: Path) -> Path:
    """Where a picture is written: in the folder that people look at, if one is named, else in a test's own."""
    folder = Path(os.environ.get(FOLDER) or otherwise)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.png"


@dataclass
class Browser:
    """One browser window."""

    url: str  # of its session at the driver

    def open(self, path: Path) -> None:
        """Open a file, and return when it is loaded."""
        self._ask("POST", "url", {"url": path.resolve().as_uri()})

    def resize(self, width: int, height: int) -> None:
        """Show pages as a screen of this size does, also one that is narrower than any window may be."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def prefer(self, scheme: str) -> None:
        """Ask pages for their `light` or their `dark` colours."""
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self._ask("POST", "execute/sync", {"script": script, "args": list(arguments)})

    def answer(self, script: str) -> Any:
        """Run JavaScript that calls its last argument with what it finds, and return that."""
        return self._ask("POST", "execute/async", {"script": script, "args": []})

    def wait_for(self, script: str, timeout_s: float = 30.0) -> Any:
        """Wait until JavaScript returns something true, and return that."""
        end = time.monotonic() + timeout_s
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {script}; console: {self.console()}"
            time.sleep(0.05)
        return found

    def press(self, keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", "screenshot")))

    def console(self) -> list[str]:
        return [entry["message"] for entry in self._ask("POST", "se/log", {"type": "browser"})]

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self._ask("POST", "goog/cdp/execute", {"cmd": name, "params": parameters})

    def _ask(self, method: str, what: str, body: object = None) -> Any:
        return _ask(method, f"{self.url}/{what}", body)


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Start a browser with an empty profile of its own, and end it and its driver at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--log-level=OFF"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield from _session(f"http://127.0.0.1:{port}", profile)
    finally:
        driver.terminate()
        driver.wait(10)


def _session(driver: str, profile: Path) -> Iterator[Browser]:
    asked = {
        "goog:chromeOptions": {"args": [*_OPTIONS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")},
        "goog:loggingPrefs": {"browser": "ALL"},
    }
    end = time.monotonic() + _START_S
    while True:
        try:
            made = _ask("POST", f"{driver}/session", {"capabilities": {"alwaysMatch": asked}})
            break
        except urllib.error.URLError:  # the driver does not listen yet
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
    session = f"{driver}/session/{made['sessionId']}"
    try:
        yield Browser(session)
    finally:
        _ask("DELETE", session)


def _ask(method: str, url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        return json.load(answer)["value"]
