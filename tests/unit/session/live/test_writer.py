"""The snapshots that a session's process writes."""

from pathlib import Path

from pytest_llmbench.cluster.runs import Declared, Plan, RunSpec, Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import SYSTEMS, load_system
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.session.live.snapshot import LiveTask, read_snapshot
from pytest_llmbench.session.live.writer import LiveWriter
from pytest_llmbench.session.record_store import RecordStore
from tests.conftest import TINY

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
