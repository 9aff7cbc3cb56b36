"""Engines and checks of others: sessions find them, and are told where one cannot be used."""

from pathlib import Path

import pytest

from tests.conftest import UserFolder
from tests.support.packages import CORES, COUNTING, install

ENTRIES = {
    "pytest_llmbench.engines": {"counting": "acme_counting:Counting"},
    "pytest_llmbench.checks": {"cores": "acme_cores:Cores"},
}
TESTS = """
import pytest

@pytest.mark.check("cores", "limits")
def test_fit(health):
    assert not health.faults

@pytest.mark.recipe("words")
def test_reference(run, reference):
    assert run.measured(reference.statistic) in reference
"""
CASES = {"test_fit[cores-slot0]", "test_fit[limits-slot0]", "test_reference[words-learns]"}
CONFTEST = """
import acme_cores
import acme_counting

def pytest_llmbench_engines():
    return [acme_counting.Counting()]

def pytest_llmbench_checks():
    return [acme_cores.Cores]
"""


@pytest.fixture
def site(user: UserFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on the user's PYTHONPATH; the user has a recipe for the engine of others."""
    folder = tmp_path_factory.mktemp("site")
    user.env["PYTHONPATH"] = str(folder)
    user.recipe("words", engine="counting")
    user.test(TESTS)
    return folder


def test_a_conftest_brings_engines_and_checks(user: UserFolder, site: Path) -> None:
    """The user's `conftest.py` returns both; nothing announces them."""
    install(site, "acme", {"acme_counting": COUNTING, "acme_cores": CORES}, {})
    user.test(CONFTEST, "conftest.py")
    result = user.run("--cluster", "local", code=0)
    assert {case.properties["verdict"] for case in result.cases.values()} == {"PASS"}
    assert set(result.cases) == CASES


def test_a_check_that_tells_of_other_nodes_is_an_error(user: UserFolder, site: Path) -> None:
    """Else what it found is of no node of the session, and all nodes pass."""
    other = CORES.replace("unjudged=unjudged", "unjudged={'node1.example.com': 'it has few'}")
    install(site, "acme", {"acme_counting": COUNTING, "acme_cores": other}, {})
    user.test(CONFTEST, "conftest.py")
    case = user.run("--cluster", "local", code=pytest.ExitCode.TESTS_FAILED).cases["test_fit[cores-slot0]"]
    assert case.properties["verdict"] == "ERROR"
    assert "the check tells of node1.example.com, which it was not given" in case.message


def test_recipes_and_systems_of_others_are_found(user: UserFolder, site: Path) -> None:
    (user.path / "recipes" / "words.yaml").rename(user.path / "words.yaml")
    (site / "acme" / "recipes").mkdir(parents=True)
    (user.path / "words.yaml").rename(site / "acme" / "recipes" / "words.yaml")
    (site / "acme" / "systems").mkdir()
    rack = "name: acme_rack\ndescription: racks of acme\ncluster: local\ngpus_per_node: 0\n"
    (site / "acme" / "systems" / "rack.yaml").write_text(rack)
    folders = {
        "pytest_llmbench.recipes": {"acme": "acme.recipes"},
        "pytest_llmbench.systems": {"acme": "acme.systems", "lost": "acme.lost"},
    }
    install(site, "acme", {"acme_counting": COUNTING, "acme_cores": CORES}, {**ENTRIES, **folders})
    result = user.run("--system", "acme_rack", "-k", "words", code=0)
    assert "racks of acme" in result.text
    assert "llmbench: left out: folder of systems 'lost' of acme 1.0 (acme.lost) cannot be imported" in result.text
    words = (site / "acme" / "recipes" / "words.yaml").read_text()
    (site / "acme" / "recipes" / "words.yaml").write_text(words.replace("engine: counting", "engine: uninstalled"))
    why = "folder of recipes 'acme' of acme 1.0 (acme.recipes) cannot be used: "
    refused = user.run("--system", "acme_rack")
    assert "unknown recipe 'words'" in refused.text
    assert f"{why}recipe words: unknown engine 'uninstalled'; legal: counting, " in refused.text
    user.test("def test_fit(health):\n    assert not health.faults\n")
    result = user.run("--system", "acme_rack", "-k", "limits", code=0)
    assert f"llmbench: left out: {why}" in result.text


REPORTS = """
def good(session):
    (session.folder / "acme.txt").write_text(" ".join([*session.runs, *session.checks]))
    yield f"{len(session.runs)} run of acme, {[str(each.verdict) for each in session.runs['words'].judgements]}"

def bad(session):
    raise LookupError("no ledger")
"""
HOOK = """
def pytest_llmbench_session_report(session, config):
    return [f"{session.id} in {config.rootpath}"]
"""


def test_one_report_of_others_that_breaks_stops_no_other(user: UserFolder, site: Path) -> None:
    """A package brings engine, check and reports. One that fails is named, costs no verdict, and is no success."""
    reports = {"pytest_llmbench.reports": {"bad": "acme_reports:bad", "good": "acme_reports:good"}}
    modules = {"acme_counting": COUNTING, "acme_cores": CORES, "acme_reports": REPORTS}
    install(site, "acme", modules, {**ENTRIES, **reports})
    user.test(HOOK, "conftest.py")
    result = user.run("--cluster", "local", "-n2")
    assert {case.properties["verdict"] for case in result.cases.values()} == {"PASS"}
    assert set(result.cases) == CASES
    assert "1 run of acme, ['PASS']" in result.text
    assert f"{result.session.name} in {user.path}" in result.text
    assert "report bad could not be made: LookupError: no ledger" in result.text
    assert (result.session / "acme.txt").read_text() == "words cores limits"
    assert result.returncode == pytest.ExitCode.INTERNAL_ERROR


BROKEN_STATISTIC = """
from pytest_llmbench.api import Statistic

def divide(measurement):
    raise ZeroDivisionError("no racks")

PER_RACK = Statistic(unit="s", rule="seconds per rack", compute=divide)
"""


def test_a_statistic_that_breaks_makes_its_run_an_error(user: UserFolder, site: Path) -> None:
    statistics = {"pytest_llmbench.statistics": {"per_rack": "acme_statistic:PER_RACK"}}
    modules = {"acme_counting": COUNTING, "acme_cores": CORES, "acme_statistic": BROKEN_STATISTIC}
    install(site, "acme", modules, {**ENTRIES, **statistics})
    result = user.run("--cluster", "local", "-k", "words", timeout_s=120)
    case = result.cases["test_reference[words-learns]"]
    assert case.outcome == "error"
    assert "ZeroDivisionError: no racks" in case.message


@pytest.mark.parametrize(
    ("wanted", "more"), [("cores", ()), ("words", ()), ("words", ("-n", "1")), ("cores", ("--plan",))]
)
def test_a_session_that_needs_it_is_refused(user: UserFolder, site: Path, wanted: str, more: tuple[str, ...]) -> None:
    broken = "import acme_lost\n"
    install(site, "acme", {"acme_counting": broken, "acme_cores": broken}, ENTRIES)
    result = user.run("--cluster", "local", "-k", wanted, *more, code=pytest.ExitCode.USAGE_ERROR)
    assert "of acme 1.0" in result.text
    assert "cannot be imported: ModuleNotFoundError: No module named 'acme_lost'; repair or uninstall it" in result.text
    assert "Traceback" not in result.text
    assert "INTERNALERROR" not in result.text


@pytest.mark.parametrize(("wanted", "who", "more"), [
    ("cores", "check cores", ()), ("words", "engine counting", ()), ("cores", "check cores", ("-n", "1")),
    ("words", "engine counting", ("--plan",)),
])  # fmt: skip
def test_functions_that_only_this_folder_has_are_refused_before_anything_is_submitted(
    user: UserFolder, site: Path, wanted: str, who: str, more: tuple[str, ...]
) -> None:
    """Pytest imports modules beside its conftest files; ranks on nodes do not."""
    for name, source in (("acme_counting.py", COUNTING), ("acme_cores.py", CORES), ("conftest.py", CONFTEST)):
        user.test(source, name)
    result = user.run("--cluster", "local", "-k", wanted, *more, code=pytest.ExitCode.USAGE_ERROR)
    assert f"{who}: the nodes could not import its function 'acme_{who.split()[1]}:" in result.text
    assert "ModuleNotFoundError: No module named 'acme_" in result.text
    assert "install its package on the nodes, or put it into a folder that they share" in result.text
    assert "Traceback" not in result.text
    user.env["PYTHONPATH"] = f"{site}:{user.path}"
    if not more:
        assert user.run("--cluster", "local", "-k", wanted).returncode == 0


def test_a_session_that_does_not_need_it_says_so_and_goes_on(user: UserFolder, site: Path) -> None:
    broken = "import acme_lost\n"
    install(site, "acme", {"acme_counting": broken, "acme_cores": broken}, ENTRIES)
    result = user.run("--cluster", "local", "-k", "limits", code=0)
    for what in ("engine 'counting'", "check 'cores'"):
        assert f"llmbench: left out: {what} of acme 1.0" in result.text
