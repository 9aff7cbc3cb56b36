"""The package that the guide writes, installed next to our wheel: no file of ours knows it."""

import json
from pathlib import Path

from tests.docs.documents import CHECKOUT, read_blocks
from tests.support.wheels import build, build_ours, install

GUIDE = "docs/extend/write-a-package.md"


def test_a_package_brings_one_of_each_kind_and_runs_on_two_nodes(tmp_path: Path) -> None:
    """Engine, reader, statistic, check, report, recipe and system, from a wheel in a fresh environment."""
    files = {
        block.what: block.text for block in read_blocks(GUIDE, (CHECKOUT / GUIDE).read_text()) if block.kind == "file"
    }
    source = tmp_path / "example"
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    installed = install(tmp_path, build_ours(tmp_path), build(source, tmp_path))
    (installed.folder / "test_example.py").write_text(files["test_example.py"])

    done = installed.pytest("--system", "example_cluster", "--nodes", "2")
    assert done.returncode == 0, done.stdout
    (session,) = (installed.folder / "reports").glob("*-*")
    run, check = (
        json.loads((session / kind / name / "record.json").read_text())
        for kind, name in (("runs", "tally_small"), ("checks", "modules"))
    )
    assert (run["recipe"]["engine"], run["system"], run["cluster"]) == ("tally", "example_cluster", "slurm")
    assert len(set(run["hosts"])) == 2
    assert set(check["hosts"]) == set(run["hosts"])
    assert set(check["report"]["evidence"]["modules"]) == set(run["hosts"])
    assert len(run["steps"]) == 20
    assert run["metrics"]["longest_step"]["value"] == 0.02
    table = (session / "verdicts.md").read_text().splitlines()
    assert len(table) == 2 + 3
    assert all(row.endswith("| PASS |") for row in table[2:])
    # Its code was imported from the fresh environment, and ours as well.
    where = "import llmbench_example, pytest_llmbench; print(llmbench_example.__file__, pytest_llmbench.__file__)"
    assert installed.python("-c", where).stdout.count(str(installed.environment)) == 2


def test_no_file_of_ours_knows_it() -> None:
    folders = [CHECKOUT / "pytest_llmbench", CHECKOUT / "suites"]
    texts = [path.read_text() for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".yaml"}]
    assert not [word for word in ("llmbench_example", "longest_step", "tally_small") for text in texts if word in text]
