"""The HTML report in a browser: it draws, filters, fits a phone, and is read in the dark."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import DESKTOP, PHONE, Browser, browsing, kept, missing
from tests.support.recorded import broken_run, check_records, run_record, write_large, write_page, write_session

ALL_OPEN = "document.querySelectorAll('details').forEach(each => each.open = true)"
# As many columns as a whole validation has.
WIDE_MAP = """
document.querySelectorAll('.map tr').forEach((row) => {
  for (let more = 0; more < 40; more++) row.append(row.lastElementChild.cloneNode(true));
});
"""
OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"
DRAWN = "return document.querySelectorAll('.plot[data-drawn]').length"
# Contrast of each text with what is behind it, by the rule of WCAG 2; the lowest ones below 4.5.
CONTRAST = """
const parts = (color) => color.match(/[\\d.]+/g).map(Number);
const light = (color) => {
  const linear = (value) => value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = parts(color).map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (each) => {
  for (; each; each = each.parentElement) {
    const color = getComputedStyle(each).backgroundColor;
    if (parts(color)[3] !== 0) return color;
  }
};
const poor = [];
for (const each of document.querySelectorAll("body *:not(script):not(svg *)")) {
  const own = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !each.checkVisibility() || each.closest(".plot, .skip, .vh")) continue;
  const [one, two] = [light(getComputedStyle(each).color), light(behind(each))].sort((a, b) => b - a);
  if ((one + 0.05) / (two + 0.05) < 4.5) poor.push(`${each.className}: ${each.textContent.slice(0, 30)}`);
}
return poor;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if why := missing():
        pytest.skip(why)
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a session with every kind of figure."""
    folder = tmp_path_factory.mktemp("reports") / "20261124-101500-abc123"
    runs = [
        run_record(folder, "good", 0),
        run_record(folder, "slow", 1, slow=1.12),
        broken_run(folder, "dead", "it died"),
    ]
    write_session(folder, runs, check_records(folder), clauses=True)
    return write_page(folder)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_every_screen(browser: Browser, page: Path, tmp_path: Path, scheme: str, width: int) -> None:
    """Figures are drawn, nothing is wider than the screen, each text stands out, and the console has no complaint."""
    browser.resize(width, 900)
    browser.prefer(scheme)
    browser.open(page)
    browser.run(ALL_OPEN)
    browser.wait_for(f"scrollTo(0, document.querySelector('#run-slow').offsetTop); {DRAWN} >= 1")
    browser.run(WIDE_MAP)
    assert browser.run(OVERFLOW) == 0
    assert browser.run(CONTRAST) == []
    assert browser.console() == []
    picture = kept(f"report-{scheme}-{width}", tmp_path)
    browser.whole_page(picture, width)
    assert picture.stat().st_size > 20_000


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
    browser.wait_for("return document.querySelector('#run-good .plot[data-drawn]')")
    browser.run("document.querySelector('#run-good figure summary').click()")
    browser.wait_for("return document.querySelector('#run-good figure tbody')")
    numbers = browser.run("return document.querySelector('#run-good figure .wide').innerText")
    assert re.search(r"^1\s+2\.\d+", numbers, re.MULTILINE)


def test_what_is_laid_away_comes_when_it_is_asked_for(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    write_large(folder, 160, 60)
    browser.open(write_page(folder))
    browser.run("location.hash = '#run-opt125m-group159'")
    browser.wait_for("return document.querySelector('#run-opt125m-group159 .plot[data-drawn]')")
    browser.run(
        "const text = document.querySelector('input[name=text]'); text.value = 'group159-'; "
        "text.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert browser.run("return document.getElementById('shown').textContent") == "2 of 320 verdicts"
    assert browser.console() == []
