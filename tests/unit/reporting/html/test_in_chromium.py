"""The HTML report in a browser: it draws, filters, fits a phone, and is read in the dark."""

import base64
import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from pytest_llmbench.core.record.records import Judgement, Verdict
from pytest_llmbench.evidence.certificate import make_certificate
from pytest_llmbench.evidence.recorded import read_session
from tests.support.browser import DESKTOP, FOLDER, PHONE, Browser, browsing, kept, missing
from tests.support.recorded import (
    check_records,
    run_record,
    write_every_kind,
    write_fleet,
    write_large,
    write_page,
    write_session,
)

OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"
# All of a large session would take minutes, so of parts that are alike the first are kept. A part that the browser lays
# out only when it is seen has no place until then, and axe-core takes others for its background.
OPEN = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
KEEP_FIRST = """
for (const whole of document.querySelectorAll("section, tbody"))
  [...whole.querySelectorAll(":scope > .item, :scope > tr")].slice(6).forEach((each) => each.remove());
const titles = new Set();
for (const figure of document.querySelectorAll(".item figure")) {
  const title = figure.querySelector("h3").textContent;
  if (titles.has(title)) figure.remove();
  titles.add(title);
}
const style = document.head.appendChild(document.createElement("style"));
style.textContent = ".item { content-visibility: visible !important }";
"""
# Every rule. A question that axe-core leaves open is a finding too, but for the contrast of texts above figures.
AXE = """
const done = arguments[arguments.length - 1];
axe.run().then(({violations, incomplete}) =>
  done([...violations, ...incomplete.filter((each) => each.id !== "color-contrast")]
    .map((each) => `${each.id}: ${each.nodes[0].html.slice(0, 200)}`)));
"""
(RECORDED,) = (Path(__file__).parents[3] / "data" / "evidence").glob("2*")
AXE_PACKAGE = importlib.util.find_spec("axe_core_python")
PICTURES = bool(os.environ.get(FOLDER))
# As many as a whole validation has.
PLAIN = tuple(f"check_{number}" for number in range(30))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def passing(folder: Path) -> None:
    write_session(folder, [run_record(folder, "opt125m", 0)], [])


def validation(folder: Path) -> None:
    write_session(folder, [], check_records(folder, plain=PLAIN))


def comparison(folder: Path) -> None:
    """Two runs beside earlier ones: one is as fast as before, the other is 11 % slower."""
    runs = []
    for key, slow, verdict in (("a", 1.0, Verdict.PASS), ("b", 1.12, Verdict.FAIL)):
        run = run_record(folder, key, 0, slow=slow)
        judged = Judgement(
            test=f"history::{key}", verdict=verdict, statistic="throughput", threshold="no worse than 450100 words/s",
            measured=f"{run.metrics['throughput'].value!r} words/s", reason="throughput is lower than before",
        )  # fmt: skip
        runs.append(run.model_copy(update={"judgements": (judged,)}))
    write_session(folder, runs, [])


SESSIONS: dict[str, Callable[[Path], object]] = {
    "fail": write_every_kind, "pass": passing, "40 runs": lambda folder: write_large(folder, 40, 60),
    "validation": validation, "comparison": comparison, "64 nodes": lambda folder: write_fleet(folder, 64, PLAIN),
    "one node": lambda folder: shutil.copytree(RECORDED, folder),
}  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Writes the report of one of `SESSIONS`, or the certificate of a real session."""

    @cache
    def write(name: str) -> Path:
        folder = tmp_path_factory.mktemp("reports") / "20261124-101500-abc123"
        if name == "certificate":
            path = folder.with_name("certificate.html")
            path.write_text(make_certificate(read_session(RECORDED), "ab12" * 16), encoding="utf-8")
            return path
        SESSIONS[name](folder)
        return write_page(folder)

    return write


@pytest.fixture(scope="module")
def page(pages: Callable[[str], Path]) -> Path:
    return pages("fail")


@pytest.mark.parametrize("name", [*SESSIONS, "certificate"])
def test_it_fits_screens_and_paper(browser: Browser, pages: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Nothing is wider than a screen of 320 to 1920 pixels, and the first sheet is full."""
    page, stem = pages(name), f"report-{name.replace(' ', '-')}"
    browser.open(page)
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for width, height in ((320, 700), (PHONE, 844), (DESKTOP, 900), (1920, 1080)):
            browser.resize(width, height)
            assert browser.run(OVERFLOW) == 0, (name, width)
            if width > 320 and PICTURES:
                browser.screenshot(kept(f"{stem}-{scheme}-{width}", tmp_path))
    assert browser.console() == []
    if name == "64 nodes":
        assert page.stat().st_size < 3_000_000
        assert browser.run("return document.querySelector('.overview b.edge').textContent") == "n37"
        assert browser.run("return document.querySelector('.map').getBoundingClientRect().top < innerHeight")
        browser.resize(DESKTOP, 900)
        box = "const box = %s.getBoundingClientRect(); return [box.left, box.width]"
        left, width = browser.run(box % "document.querySelector('.overview b.edge')")
        heads = "[...document.querySelectorAll('.map thead th')].find(each => each.innerText === 'n37')"
        head, column = browser.run(box % heads)
        # The figure and the map have the same columns.
        assert 0.0 < left + width / 2 - head < column + 2.0
        # Runs and rows that a large page makes when they are asked for.
        browser.run("location.hash = '#run-opt125m-group63'")
        browser.wait_for("return document.querySelector('#run-opt125m-group63 figure details')")
        browser.run(
            "const text = document.querySelector('input[name=text]'); text.value = 'group63-'; "
            "text.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert browser.run("return document.getElementById('shown').textContent") == "2 of 2242 verdicts"
    if name in {"pass", "fail", "certificate"}:
        browser.prefer("light")
        pdf = base64.b64decode(browser.command("Page.printToPDF", printBackground=True)["data"])
        kept(stem, tmp_path).with_suffix(".pdf").write_bytes(pdf)
        assert len(re.findall(rb"/Type /Page\b", pdf)) < 16


@pytest.mark.parametrize("name", [*SESSIONS, "certificate"])
def test_axe_core_finds_nothing(browser: Browser, pages: Callable[[str], Path], name: str) -> None:
    """No rule for people who cannot see well or use no mouse is broken, in light and dark, on a desktop and a phone."""
    assert AXE_PACKAGE is not None, "pip install axe-core-python"
    browser.open(pages(name))
    browser.run(Path(str(AXE_PACKAGE.origin)).with_name("axe.min.js").read_text(encoding="utf-8"))
    browser.run(KEEP_FIRST)
    browser.run(OPEN)
    browser.wait_for(
        "return [...document.querySelectorAll('figure > details')].every((each) => each.querySelector('tr'))"
    )
    browser.run(KEEP_FIRST)
    for scheme, *widths in (("light", DESKTOP, PHONE), ("dark", PHONE, DESKTOP)):
        browser.prefer(str(scheme))
        for width in widths[:1] if name in {"40 runs", "64 nodes"} else widths:  # all of their kinds are in the others
            browser.resize(int(width), 900)
            assert browser.answer(AXE) == [], (scheme, width)


def test_it_filters_by_verdict_and_text(browser: Browser, page: Path) -> None:
    """What is left is what fits both, of verdicts and runs alike, and a screen reader hears how much that is."""
    browser.resize(1280, 900)
    browser.open(page)
    count = "return [...document.querySelectorAll('#rows tbody tr')].filter(each => !each.hidden).length"
    whole = browser.run(count)
    browser.run("document.querySelector('input[value=pass]').click()")
    assert browser.run(count) == whole - 18
    browser.run(
        "const text = document.querySelector('input[name=text]'); text.value = 'slow h200'; "
        "text.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert browser.run(count) == 1
    assert browser.run("return document.getElementById('shown').textContent") == f"1 of {whole} verdicts"
    items = "[...document.querySelectorAll('details.item[data-k]')]"
    shown = f"return {items}.filter(each => !each.hidden).map(each => each.id)"
    assert browser.run(shown) == ["run-slow"]


def test_it_works_by_keyboard(browser: Browser, page: Path) -> None:
    """The first key leads past the navigation, a link opens its run, and a figure has its numbers as a table."""
    browser.resize(1280, 900)
    browser.open(page)
    browser.press("\ue004")  # Tab
    assert browser.run("return document.activeElement.textContent") == "Skip to the verdicts"
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("\ue007")  # Enter
    assert browser.run("return document.activeElement.id") == "verdicts"
    browser.run("document.querySelector('a[href=\"#run-good\"]').focus()")
    browser.press("\ue007")
    browser.wait_for("return document.getElementById('run-good').open")
    browser.run("document.querySelector('#run-good figure summary').click()")
    browser.wait_for("return document.querySelector('#run-good figure tbody')")
    numbers = browser.run("return document.querySelector('#run-good figure .wide').innerText")
    assert re.search(r"^1\s+2\.\d+", numbers, re.MULTILINE)


def test_a_table_sorts_by_the_title_that_is_pressed(browser: Browser, page: Path) -> None:
    """Margins are numbers, those that are missing come last, and a second press turns the order round."""
    browser.resize(1280, 900)
    browser.open(page)
    margins = (
        "return [...document.querySelectorAll('#rows tbody tr')].map(each => each.cells[6].textContent).slice(0, 3)"
    )
    press = "document.querySelectorAll('#rows .sort')[6].click()"
    assert browser.run(f"{press}; {margins}") == ["-10.6 %", "+0.0 %", "—"]
    assert browser.run(f"{press}; {margins}") == ["+0.0 %", "-10.6 %", "—"]
    assert browser.run("return document.querySelector('#rows [aria-sort]').getAttribute('aria-sort')") == "descending"
