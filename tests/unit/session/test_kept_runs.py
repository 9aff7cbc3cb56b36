"""Records that leave the memory once their runs are judged: nothing else is ever taken for them."""

import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.records import Judgement, RunRecord, Verdict
from pytest_llmbench.core.record.series import Step
from pytest_llmbench.session.record_store import KeptRuns, RecordStore
from tests.unit.judging.conftest import small

PASSED = Judgement(test="test_it", verdict=Verdict.PASS)


@pytest.fixture
def store() -> RecordStore:
    return RecordStore(System(name="here", cluster="slurm", gpus_per_node=0))


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., RunRecord]:
    def make(key: str = "tiny", repeat: int = 1) -> RunRecord:
        return RunRecord(
            session="s", key=key, repeat=repeat, token="t", recipe=small(), system="here", cluster="slurm",
            allocation="run", nodes=1, ranks=1, gpus=0, folder=str(tmp_path / "runs" / key),
            steps=(Step(step=1, seconds=0.1, loss=math.inf), Step(step=2, seconds=1 / 3, loss=2.5)),
        )  # fmt: skip

    return make


def judged(store: RecordStore, record: RunRecord) -> Path:
    """Keep a record, and judge its run; return its file."""
    store.keep(record)
    store.add_judgements({("run", record.key): [PASSED]})
    store.let_go(record.series)
    return record.path


def test_a_judged_run_is_read_again_as_it_was(store: RecordStore, made: Callable[..., RunRecord]) -> None:
    judged(store, made())
    expected = made().model_copy(update={"judgements": (PASSED,)})
    assert store.runs["tiny"] == expected
    assert store.runs["tiny"] is not store.runs["tiny"]
    assert store.wait(RunRecord, "tiny", 0.0) == expected
    assert dict(store.runs) == dict(store.runs.items()) == {"tiny": expected}


def test_all_runs_of_a_series_leave_the_memory(store: RecordStore, made: Callable[..., RunRecord]) -> None:
    store.keep(made())
    store.let_go("tiny")
    judged(store, made("tiny-repeat2", 2))
    for key in ("tiny", "tiny-repeat2"):
        assert store.runs[key] is not store.runs[key]
    late = made("tiny-repeat3", 3)
    store.keep(late)
    assert store.runs[late.key] is not store.runs[late.key]


@pytest.mark.parametrize("damage", ["gone", "another number", "cut", "another run's"])
def test_a_changed_file_is_told_never_taken(store: RecordStore, made: Callable[..., RunRecord], damage: str) -> None:
    """The file is moved away from readers, and a test that waits for the run gets the error."""
    other, path = judged(store, made("other")), judged(store, made())
    text = path.read_text()
    damaged = {"another number": text.replace("2.5", "2.6"), "cut": text[:-20], "another run's": other.read_text()}
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(damaged[damage])
    store.runs.check_files()
    assert [*store.runs] == [record.key for record in store.runs.values()] == ["other"]
    assert store.runs.get("tiny") is None
    (note,) = store.notes
    assert note.startswith(f"the record of run tiny is lost: {path}: it ")
    assert note == store.lost["tiny"]
    assert not path.exists()
    assert path.with_name("record-altered.json").exists() == (damage != "gone")
    with pytest.raises(ConfigError, match="the record of run tiny is lost"):
        store.wait(RunRecord, "tiny", 0.0)
    store.add_judgements({("run", "tiny"): [PASSED, PASSED]})
    assert not path.exists()


def test_damage_is_found_where_a_record_is_read(store: RecordStore, made: Callable[..., RunRecord]) -> None:
    """What happens to a file after the others were looked at counts as well."""
    path = judged(store, made())
    judged(store, made("other"))
    store.runs.check_files()
    path.write_text(path.read_text().replace("2.5", "2.6"))
    assert store.runs.get("tiny") is None
    assert [*store.runs] == ["other"]
    assert [*store.lost] == ["tiny"]


def test_a_record_without_a_file_stays_in_memory(store: RecordStore, made: Callable[..., RunRecord]) -> None:
    record = made()
    Path(record.folder).parent.mkdir(parents=True)
    Path(record.folder).write_text("in the place of its folder")
    judged(store, record)
    store.runs.check_files()
    assert store.runs["tiny"] is store.runs["tiny"]
    assert record.path in store.unwritten
    assert not store.lost


def test_few_of_many_that_wait_are_in_memory(made: Callable[..., RunRecord], store: RecordStore) -> None:
    """One long run may let thousands wait for their verdict: those are read again, one without a file is not."""
    kept = KeptRuns(lambda *_: None)
    kept.keep(made("unwritten"), None)
    records = [made(f"run{number}") for number in range(100)]
    for record in records:
        kept.keep(record, store.write(record.path, record))
    assert kept["unwritten"] is kept["unwritten"]
    assert sum(kept[record.key] is record for record in records) == 63
    assert all(kept[record.key] == record for record in records)


def test_a_verdict_that_comes_later_is_in_the_file_as_well(store: RecordStore, made: Callable[..., RunRecord]) -> None:
    """A record that has its verdicts is left alone; another one is read, and written again."""
    path = judged(store, made())
    before = path.stat().st_ino
    store.add_judgements({("run", "tiny"): [PASSED]})
    assert path.stat().st_ino == before
    store.add_judgements({("run", "tiny"): [PASSED, PASSED]})
    assert RunRecord.read(path).judgements == (PASSED, PASSED)
    store.runs.check_files()
    assert store.runs["tiny"] is not store.runs["tiny"]
    assert not store.lost


def test_a_file_that_the_session_itself_replaces_was_not_changed(
    store: RecordStore, made: Callable[..., RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers in the moment between the new file and its digest wait for the digest."""
    judged(store, made())
    write, read = store.write, list[RunRecord | None]()
    reader = threading.Thread(target=lambda: read.append(store.runs.get("tiny")))

    def slow(path: Path, model: BaseModel) -> str | None:
        text = write(path, model)
        reader.start()
        reader.join(0.2)
        return text

    monkeypatch.setattr(store, "write", slow)
    store.add_judgements({("run", "tiny"): [Judgement(test="test_it", verdict=Verdict.FAIL)]})
    reader.join()
    assert store.lost == {}
    assert [record is not None and record.judgements[0].verdict for record in read] == [Verdict.FAIL]
