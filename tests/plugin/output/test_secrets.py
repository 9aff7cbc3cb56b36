"""A session with secrets in each place where there may be one, all that it wrote, and what `ps` showed of it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.conftest import UserFolder
from tests.support.standin import MegatronLM, iteration

PLANTED = {
    place: f"PLANTED{number}zq8Kd83hsy"
    for number, place in enumerate(
        ("system", "environment", "declared", "inherited", "proxy", "url", "bearer", "option", "variable", "command")
    )
}
# Files that a job needs to have them, and the log as the framework wrote it.
MAY_HOLD = {
    "runs/tiny/command.json": {"system", "environment"},
    "runs/tiny/run.sh": {"system", "environment"},
    "runs/tiny/logs/output.log": set(PLANTED) - {"command"},
}


def planted_in(text: bytes | str) -> set[str]:
    data = text.encode() if isinstance(text, str) else text
    return {place for place, value in PLANTED.items() if value.encode() in data}


@contextmanager
def process_list(folder: Path) -> Iterator[set[bytes]]:
    """The command lines of all processes whose environment names a folder, also of those that soon end."""
    seen: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if str(folder).encode() in (process / "environ").read_bytes():
                        seen.add((process / "cmdline").read_bytes())
                except OSError:  # it has ended, or is another user's
                    continue

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


@pytest.fixture
def secretive(user: UserFolder) -> UserFolder:
    """A user whose framework dies with every secret in its last words."""
    framework = MegatronLM(user)
    (user.path / "token").write_text(PLANTED["declared"] + "\n")
    framework.install(env={"WANDB_API_KEY": PLANTED["environment"]}, secrets={"MINE": str(user.path / "token")})
    system = user.path / "here.yaml"
    system.write_text(f"{system.read_text()}env: {{AWS_SECRET_ACCESS_KEY: {PLANTED['system']}}}\n")

    def dies(lines: list[str]) -> list[str]:
        at = iteration(lines, 12)
        last = (
            f"[rank1]: ValueError: GET https://bob:{PLANTED['url']}@host/x Authorization: Bearer {PLANTED['bearer']} "
            f"--token={PLANTED['option']} NGC_API_KEY={PLANTED['variable']} "
            + " ".join(PLANTED[place] for place in ("system", "environment", "declared", "inherited", "proxy"))
        )
        return [*lines[:at], f"[default1]:{last}", "[default1]:#exit 1"]

    framework.recipe("tiny", dies)
    user.env = {"HF_TOKEN": PLANTED["inherited"], "HTTPS_PROXY": f"http://u:{PLANTED['proxy']}@proxy:3128"}
    return user


def test_no_secret_is_told(secretive: UserFolder) -> None:
    """Terminal, records, journal, XML and list of processes are searched; files with a secret are the user's alone."""
    given = f"--junitxml={secretive.path / 'copy.xml'}", "-W", f"ignore:token={PLANTED['command']}"
    with process_list(secretive.path) as processes:
        result = secretive.run("--system=here.yaml", "-k", "tiny", "-n2", *given)
    assert any(b"--recorded" in line for line in processes), "no rank was seen"
    assert {line for line in processes if planted_in(line) - {"command"}} == set()
    assert result.case.outcome == "error"
    assert "ValueError: GET https://***@host/x Authorization: Bearer *** --token=*** NGC_API_KEY=***" in result.text
    assert planted_in(result.text) == planted_in((secretive.path / "copy.xml").read_bytes()) == set()
    ET.parse(result.session / "junit.xml")
    told = {str(path.relative_to(result.session)): path for path in result.session.rglob("*") if path.is_file()}
    assert {name: found for name, path in told.items() if (found := planted_in(path.read_bytes()))} == MAY_HOLD
    assert {oct(told[name].parent.stat().st_mode & 0o777) for name in MAY_HOLD} == {"0o700"}
    assert {oct(told[name].stat().st_mode & 0o777) for name in MAY_HOLD if "logs" not in name} == {"0o600"}


def test_a_plan_shows_no_secret(secretive: UserFolder) -> None:
    result = secretive.run("--system=here.yaml", "-k", "tiny", "-n0", "--plan")
    assert planted_in(result.text) == set()
    assert "export WANDB_API_KEY=***" in result.text
    assert f'MINE="$(<{secretive.path / "token"})" && export MINE' in result.text
