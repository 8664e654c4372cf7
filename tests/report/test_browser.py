"""The page in a real browser: no complaints, nothing fetched or clipped, a control that judges."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path

import pytest

from faudit.report import control, read, write_report
from tests.report import samples
from tests.report.browser import Browser
from tests.report.test_document import hostile

VIEWS = [(1280, False), (1280, True), (390, False), (390, True)]
VERDICTS = "[...document.querySelectorAll('#moved .now .mark')].map((mark) => mark.textContent)"
CLIPPED = """
[...document.querySelectorAll('figure svg')].filter((svg) => svg.getClientRects().length)
  .flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter((text) => {
      const box = text.getBoundingClientRect();
      return box.left < frame.left - 2 || box.right > frame.right + 2
        || box.top < frame.top - 2 || box.bottom > frame.bottom + 2;
    }).map((text) => `${svg.getAttribute('aria-label').slice(0, 60)}: ${text.textContent}`);
  })
"""
CONTRAST = """
(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.endsWith(', 0)') && colour !== 'transparent') return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const seen = new Map();
  for (const element of document.querySelectorAll('p, a, th, td, small, label, .mark, .spread')) {
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) seen.set(`${element.tagName}.${element.className}`, ratio);
  }
  return [...seen];
})()
"""


def set_to(browser: Browser, name: str, value: float) -> None:
    """Type a threshold, as a reader would."""
    browser.run(
        f"(() => {{ const field = document.getElementById({json.dumps(name)});"
        f" field.value = {json.dumps(str(value))};"
        " field.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_the_page_renders_without_a_complaint_and_fetches_nothing(
    browser: Browser, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.complaints() == []
    assert {address.partition("#")[0] for address in browser.asked_for()} <= {
        "about:blank",
        page.resolve().as_uri(),
    }
    assert browser.run("document.querySelectorAll('figure svg').length") > 10


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [390, 1280])
def test_no_figure_clips_its_text(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert browser.run(CLIPPED) == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(browser: Browser, page: Path, dark: bool) -> None:
    browser.open(page, dark=dark)
    assert browser.run(CONTRAST) == []


def test_dark_is_dark(browser: Browser, page: Path) -> None:
    grounds = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        grounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(20, 24, 29)"]


# -- the control ----------------------------------------------------------------------------------


def test_the_script_judges_as_the_protocol_does(browser: Browser, page: Path) -> None:
    methods = read(samples.patchy() + samples.penalties()).methods
    browser.open(page)
    seen = set()
    for growth, factor, margin in product((2, 50, 1e4), (0.01, 10, 1e5), (-20, 2, 40)):
        for name, value in (("growth", growth), ("factor", factor), ("margin", margin)):
            set_to(browser, name, value)
        shown = browser.run(VERDICTS)
        assert shown == control.moved(methods, growth, factor, margin)
        seen.add(tuple(shown))
    assert len(seen) > 5


def test_a_moved_threshold_says_what_changed_and_can_be_put_back(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    before = browser.run(VERDICTS)
    set_to(browser, "margin", -20)
    after = browser.run(VERDICTS)
    changed = sum(a != b for a, b in zip(before, after, strict=True))
    assert changed > 0
    told = browser.run("document.getElementById('changed').textContent")
    assert told.startswith(f"{changed} of {len(before)} verdicts differ")
    assert browser.run("document.querySelectorAll('#moved tr.changed').length") == changed
    browser.run("document.querySelector('#control button').click()")
    assert browser.run(VERDICTS) == before


def test_a_slider_answers_to_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('growth').focus()")
    browser.press("Tab")
    assert browser.run("document.activeElement.id") == "growth-slide"
    browser.press("Home")
    assert browser.run("document.getElementById('growth').value") == "1"
    browser.press("ArrowRight", 30)
    assert float(browser.run("document.getElementById('growth').value")) == pytest.approx(2.0)
    browser.press("Tab")
    assert browser.run("document.activeElement.id") == "factor"


def test_nonsense_in_a_field_is_marked_and_judged_as_published(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    before = browser.run(VERDICTS)
    for value in ("", "-3", "x"):
        set_to(browser, "growth", value)  # type: ignore[arg-type]
        assert browser.run("document.getElementById('growth').ariaInvalid") == "true"
        assert browser.run(VERDICTS) == before


def test_thresholds_in_the_address_are_applied(browser: Browser, page: Path) -> None:
    browser.open(page, fragment="#margin=-20&growth=80")
    assert browser.run("document.getElementById('margin').value") == "-20"
    assert browser.run("document.getElementById('growth').value") == "80"
    assert browser.run("document.querySelectorAll('#moved tr.changed').length") > 0


# -- without eyes, without a mouse, on paper ------------------------------------------------------


def test_a_screen_reader_finds_names_for_everything(browser: Browser, page: Path) -> None:
    browser.open(page)
    nodes = [n for n in browser.send("Accessibility.getFullAXTree")["nodes"] if not n["ignored"]]
    roles = {"img", "image", "slider", "spinbutton", "button", "link", "region", "table"}
    found = [n for n in nodes if n["role"]["value"] in roles]
    nameless = [n["role"]["value"] for n in found if not n.get("name", {}).get("value", "").strip()]
    assert nameless == []
    kinds = [n["role"]["value"] for n in found]
    assert kinds.count("slider") == kinds.count("spinbutton") == 3
    pictures = [n["name"]["value"] for n in found if n["role"]["value"] in ("img", "image")]
    assert any("DFA" in told and "D2 fires" in told for told in pictures)


def test_headings_go_down_one_level_at_a_time(browser: Browser, page: Path) -> None:
    browser.open(page)
    levels = browser.run("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => +h.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_first_tab_offers_to_skip_to_the_verdicts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("Tab")
    assert browser.run("document.activeElement.textContent") == "Skip to the verdicts"
    browser.press("Enter")
    assert browser.run("location.hash") == "#verdicts"


def test_a_print_opens_what_is_folded(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.run("document.querySelectorAll('details:not([open])').length") > 0
    assert browser.printed().startswith(b"%PDF")
    assert browser.run("document.querySelectorAll('details:not([open])').length") == 0


# -- names that would like to act -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["<img src=x onerror=alert(1)>", "</script><script>alert(1)//"])
def test_a_hostile_name_does_nothing(browser: Browser, tmp_path: Path, name: str) -> None:
    page = write_report(hostile(name), tmp_path, formats=())
    browser.open(page)
    assert browser.complaints() == []
    assert browser.run("document.images.length") == 0
    assert browser.run("document.scripts.length") == 2
    assert "alert(1)" in browser.run("document.body.innerText")
