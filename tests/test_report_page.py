"""The report opened in headless Chromium: what a person clicks, sees and reads, on a desk and on a phone."""

import json
from dataclasses import replace

import pytest

from mintrl_trl.report.page import write_report
from mintrl_trl.reporting.run_folder import RunFolder

from .analyzed_runs import GRPO_SETTINGS, SETTINGS
from .browser import chromium
from .reported_runs import line, rollouts, write_reported_run

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

DESK, PHONE = (1366, 900), (390, 844)
ROWS = "return [...document.querySelectorAll('.row')].map(row => row.textContent)"
COUNT = "return document.getElementById('rollout-count').textContent"
PLACE = (
    "const {x, y, width, height} = document.querySelector(arguments[0]).getBoundingClientRect();"
    "return [x, y, width, height]"
)
AXIS = "return [...document.querySelectorAll('#chart-reward text[text-anchor=middle]')].map(text => text.textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return write_report([str(write_reported_run(tmp_path_factory.mktemp("one") / "run"))])


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    runs = [write_reported_run(folder / f"const_{seed}", settings=SETTINGS | {"seed": seed}) for seed in (0, 1)]
    runs.append(write_reported_run(folder / "grpo", settings=GRPO_SETTINGS, off_policy_share=0.08))
    return write_report(["plain=" + str(runs.pop()), *map(str, runs)], folder / "compare.html")


def is_quiet(browser, page):
    """Nothing was logged, nothing but the page asked for, and no text of a model ran."""
    assert browser.console() == []
    assert [one for one in browser.requests() if not one.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.run("return window.hacked === undefined")


def test_filters_and_the_colours_of_a_rescued_rollout(browser, page):
    browser.open(page, *DESK)
    assert browser.run(COUNT) == "120 rollouts, all that the run made."
    browser.click("[data-flag=rescued]")
    assert browser.run(COUNT).startswith("20 of 120 rollouts")
    assert all("rescued" in row for row in browser.run(ROWS))
    look = browser.run(
        "const style = (tag) => getComputedStyle(document.querySelector(`.detail .text ${tag}`));"
        "const text = (tag) => document.querySelector(`.detail .text ${tag}`).textContent;"
        "return {judge: text('ins'), green: style('ins').color, bold: style('ins').fontWeight, cut: text('del'),"
        " struck: style('del').textDecorationLine, why: text('.why')}"
    )
    assert look["judge"] == "12;" and look["cut"] == "13;" and look["why"] == "step 2: 7+5 is 12"
    assert look["green"] == "rgb(20, 122, 61)" and look["bold"] == "700" and look["struck"] == "line-through"
    browser.click("[data-flag=rescued]")
    browser.click("[data-flag=derailed]")
    assert all("derailed" in row for row in browser.run(ROWS))
    browser.click("[data-flag=no_verdict]")
    assert browser.run("return document.querySelector('.detail table').textContent").count("no verdict") == 1
    browser.click("[data-flag=no_verdict]")
    browser.run(
        "const words = document.getElementById('rollout-words'); words.value = '7 + 1?';"
        "words.dispatchEvent(new Event('input'))"
    )
    assert len(browser.run(ROWS)) == 12 and "</script><script>" in browser.run("return document.body.textContent")
    is_quiet(browser, page)


def test_the_address_of_a_rollout(browser, page):
    browser.open(page, *DESK)
    browser.click(".row:nth-child(5)")
    assert browser.run("return location.hash").startswith("#rollout-0-")
    browser.click("[data-flag=rescued]")
    browser.run("location.hash = '#rollout-0-7-3'")
    assert browser.run("return document.querySelector('.detail .text[data-rollout]').dataset.rollout") == "7-3"
    assert browser.run("return document.querySelector('.detail .tag.derailed') !== null")
    browser.run("location.hash = '#rollout-9-7-3'")  # there is no such run: nothing happens
    is_quiet(browser, page)


def test_zoom_cross_and_smoothing_of_curves(browser, page):
    browser.open(page, *DESK)
    browser.run("document.getElementById('chart-reward').scrollIntoView({block: 'center', behavior: 'instant'})")
    whole = browser.run(AXIS)
    x, y, width, height = browser.run(PLACE, "#chart-reward svg[role=img]")
    browser.drag((x + width / 2, y + height / 2), (x + width * 0.8, y + height / 2))
    assert browser.run(AXIS) != whole
    assert not browser.run("return document.querySelector('#chart-reward .tip').hidden")
    assert "update" in browser.run("return document.querySelector('#chart-reward .tip').textContent")
    browser.click("#unzoom")
    assert browser.run(AXIS) == whole
    assert browser.run("return document.querySelectorAll('#chart-off-policy .limit').length") == 1
    assert browser.run("return document.querySelectorAll('#chart-reward .raw').length") == 2
    browser.run(
        "const slider = document.querySelector('input[type=range]'); slider.value = 0;"
        "slider.dispatchEvent(new Event('input'))"
    )
    assert browser.run("return document.querySelectorAll('#chart-reward .raw').length") == 0
    is_quiet(browser, page)


def test_marks_of_an_axis_differ(browser, tmp_path):
    """Lengths that hardly differ, as of responses that all reach one line more or less."""
    run = write_reported_run(tmp_path / "run")
    lines = [line(update, lengths__control=51.95 + update % 7 / 100) for update in range(1, 41)]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"update": n} | one) + "\n" for n, one in enumerate(lines, 1))
    )
    browser.open(write_report([str(run)]), *DESK)
    marks = browser.run(
        "return [...document.querySelectorAll('#chart-length text[text-anchor=end]')].map(text => text.textContent)"
    )
    assert len(set(marks)) == len(marks) > 1


def test_runs_compared(browser, comparison):
    browser.open(comparison, *DESK)
    assert browser.run("return [...document.querySelectorAll('#legend .chip')].map(chip => chip.textContent)") == [
        *("plain", "MInTRL-Const, seed 0", "MInTRL-Const, seed 1")
    ]
    assert browser.run("return document.querySelectorAll('#chart-loss .band').length") == 1  # two seeds, one curve
    drawn = "return document.querySelectorAll('#chart-loss .mean').length"
    assert browser.run(drawn) == 2
    browser.click("#legend .chip")
    assert browser.run(drawn) == 1
    warning = browser.run("return document.querySelector('.warning').textContent")
    assert "Off-policy share above 6%" in warning and "plain" in warning
    browser.click(".warning .go button:last-child")
    assert browser.run("return document.querySelector('[data-flag=revised]').getAttribute('aria-pressed')") == "true"
    settings = browser.run(
        "return [...document.querySelectorAll('#settings-body tbody th')].map(cell => cell.textContent)"
    )
    assert "num_intervened" in settings and "learning_rate" not in settings
    is_quiet(browser, comparison)


@pytest.mark.parametrize("kind", ["page", "comparison"])
def test_a_phone(browser, kind, request):
    page = request.getfixturevalue(kind)
    browser.open(page, *PHONE, phone=True)
    assert browser.run("return document.documentElement.scrollWidth") == PHONE[0]
    visible = "return getComputedStyle(document.querySelector(arguments[0])).display !== 'none'"
    assert browser.run(visible, ".list") and not browser.run(visible, ".detail")
    browser.click(".row")
    assert browser.run(visible, ".detail") and not browser.run(visible, ".list")
    browser.click(".back")
    assert browser.run(visible, ".list") and not browser.run(visible, ".detail")
    is_quiet(browser, page)


def test_the_largest_page_opens_in_two_seconds(browser, tmp_path):
    """Five hundred updates, and as much text of rollouts as a page may hold."""
    folder = tmp_path / "run"
    names = {f"more/{number}": 0.123456 * number for number in range(60)}
    run = RunFolder(write_reported_run(folder, 1))
    for update in range(2, 501):
        run.append_metrics(update, line(update) | names)
    sample = rollouts(2)[2]
    for update in range(2, 60):
        long = replace(sample, update=update, prompt="p" * 5900)
        spans = (replace(long.spans[0], text="word " * 1190), *long.spans[1:])
        run.append_rollouts(replace(long, spans=spans, row=row, group=row // 4) for row in range(16))
    page = write_report([str(folder)], rollouts=500)
    assert page.stat().st_size > 5e6
    taken = []
    for _ in range(3):  # other programs may hold up one of them
        browser.open(page, *DESK)
        taken.append(browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert 0 < min(taken) < 2000
    is_quiet(browser, page)
