"""Pictures of a session on disk: written, read again, torn, old, and of a process that is gone."""

import os
import socket
from pathlib import Path

import pytest

from pytest_llmbench.cluster.runs import Declared, Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.record.records import Verdict
from pytest_llmbench.session.live.snapshot import LiveSnapshot, LiveTask, Watcher, read_snapshot, worst
from pytest_llmbench.session.live.writer import LiveWriter
from pytest_llmbench.session.record_store import RecordStore
from tests.conftest import TINY

NOW = 1_000_000.0


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def put(folder: Path, **facts: object) -> Path:
    """Write a picture of a process that lives: this one."""
    folder.mkdir(exist_ok=True)
    told = {
        "session": folder.name, "host": socket.gethostname(), "pid": os.getpid(), "began": NOW, "at": NOW, "count": 0,
    }  # fmt: skip
    picture = LiveSnapshot.model_validate({**told, **facts})
    (folder / "live.json").write_text(picture.model_dump_json(exclude_defaults=True))
    return folder


def watcher(folder: Path, clock: Clock) -> Watcher:
    return Watcher(folder, clock, lambda: NOW + clock.now - 50.0)


def test_a_picture_is_read_as_it_was_written(tmp_path: Path) -> None:
    task = LiveTask(name="a", state="judged", verdict=Verdict.PASS, took_s=0.0, gpus=8)
    assert read_snapshot(put(tmp_path / "s", tasks=(task,))).tasks == (task,)


@pytest.mark.parametrize("size", [0, 1, 40, -1])
def test_a_torn_picture_is_said_and_never_shown(tmp_path: Path, size: int) -> None:
    folder, clock = put(tmp_path / "s"), Clock()
    looker, path = watcher(folder, clock), folder / "live.json"
    assert looker.look().torn == ""
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ConfigError, match="torn or damaged"):
        read_snapshot(folder)
    assert "torn or damaged" in looker.look().torn
    clock.now += 6.0
    with pytest.raises(ConfigError, match="torn or damaged"):
        looker.look()


def test_a_process_that_writes_no_more_is_silent(tmp_path: Path) -> None:
    """A picture that no other follows for 15 s is old, and the next one is a sign of life."""
    folder, clock = put(tmp_path / "s"), Clock()
    looker = watcher(folder, clock)
    clock.now += 14.0
    assert looker.look().silent_s == 0.0
    clock.now += 2.0
    assert looker.look().silent_s == 16.0
    put(folder, count=1)
    assert looker.look().silent_s == 0.0
    clock.now += 16.0
    assert looker.look().silent_s == 16.0


def test_the_clock_of_another_host_proves_nothing(tmp_path: Path) -> None:
    """A picture that looks an hour old is doubtful, until another follows it."""
    folder, clock = put(tmp_path / "s", host="elsewhere", at=NOW - 3600), Clock()
    looker = watcher(folder, clock)
    assert (looker.look().doubtful, looker.is_sure) == (True, False)
    put(folder, host="elsewhere", at=NOW - 3599, count=1)
    assert (looker.look().silent_s, looker.is_sure) == (0.0, True)


def test_a_process_that_is_gone_is_seen_sooner(tmp_path: Path) -> None:
    """On its own host, a dead process is known before three of its signs are missing."""
    folder, clock = put(tmp_path / "s", pid=2**22 + 1), Clock()
    looker = watcher(folder, clock)
    assert looker.look().doubtful
    clock.now += 7.0
    assert looker.look().silent_s == 7.0


def test_a_session_that_has_ended_is_not_silent(tmp_path: Path) -> None:
    folder = put(tmp_path / "s", word="slow", exit_code=1, at=NOW - 1e6, pid=2**22 + 1)
    sight = watcher(folder, Clock()).look()
    assert (sight.over, sight.silent_s, sight.doubtful) == (True, 0.0, False)


def test_one_bad_verdict_is_that_of_all() -> None:
    """The worst counts, and a skipped test takes nothing from one that passed."""
    assert worst([Verdict.SKIP, Verdict.PASS]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL]) is Verdict.FAIL
    assert worst([]) is None


FACTS = {"statistic": "throughput", "why": "it is fast", "source": "this test", "date": "2026-01-01"}


def test_a_run_has_the_first_bound_on_its_speed_by_its_tests(tmp_path: Path, unigram: None) -> None:
    bounds = {"elsewhere": ("9 words/s", "other"), "unused": ("8 words/s", "local"), "fast": ("2560 words/s", "local")}
    references = [
        {**FACTS, "name": name, "at_least": bound, "applies_to": {"system": system}}
        for name, (bound, system) in bounds.items()
    ]
    recipe = Recipe.model_validate({**TINY, "name": "tiny", "references": [*TINY["references"], *references]})
    system = load_system("local", list(SYSTEMS.usable().values()))
    settings = Settings(system=system, cluster="local", allocation="session", run_dir=tmp_path, gpus_per_node=0)
    tests = [Declared(test=name, run="tiny", reference=name) for name in ("learns", "elsewhere", "fast")]
    runs = (RunSpec(key="tiny", recipe=recipe), RunSpec(key="unbounded", recipe=recipe))
    store, session = RecordStore(system), Session(id="s", folder=tmp_path)
    store.tasks = {"tiny": LiveTask(name="tiny", state="running", step=3, steps=8)}
    live = LiveWriter(store, settings, session, lambda: Plan(runs=runs, tests=tuple(tests)))
    live.start()
    live.stop("pass", 0)
    bounded, unbounded = read_snapshot(tmp_path).tasks
    assert (bounded.step, bounded.bound) == (3, ">= 2,560 words/s")
    assert (unbounded.state, unbounded.bound) == ("waiting", "")
