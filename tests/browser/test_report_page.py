"""report.html in a real browser, without a network: it loads, says what report.json says, and anybody can read it.

With GPUVAL_REPORT_IMAGES=docs/images the screenshots of the docs are written there.
"""

import copy
import json
import os
import re
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report

from tests.browser.conftest import fleet
from tests.kit.browser import DESKTOP, VIEWS, Opened

MAX_IMAGE_BYTES = 300_000


@pytest.fixture(params=VIEWS)
def view(request):
    return request.param


@pytest.mark.quick
def test_loads_alone_and_silently(browser, results, view):
    with Opened(browser, results / "report.html", **VIEWS[view]) as opened:
        assert opened.said == []
        assert opened.asked == [(results / "report.html").as_uri()]
        assert opened.page.evaluate("document.documentElement.classList.contains('has-js')")
        wide = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
        ends = opened.page.evaluate("[...document.querySelectorAll('nav a')].map(a => a.getBoundingClientRect().right)")
        assert len(ends) >= 9
        assert max(ends) <= wide[1], "no section is out of sight in the navigation"


@pytest.mark.quick
def test_shows_the_verdict_and_the_nodes_of_the_json(browser, results):
    report = json.loads((results / "report.json").read_text())
    expected = {(node["name"], node["verdict"]) for node in report["nodes"] if node["verdict"] != "PASS"}
    assert len(expected) >= 5
    for script in (True, False):
        with Opened(browser, results / "report.html", java_script_enabled=script) as opened:
            assert opened.page.locator("h1").inner_text() == report["verdict"]
            cards = opened.page.locator("[data-node]")
            shown = {(card.get_attribute("data-node"), card.get_attribute("data-verdict")) for card in cards.all()}
            assert shown == expected
            assert all(card.is_visible() for card in cards.all())


def test_axe_finds_nothing(browser, results, view):
    with Opened(browser, results / "report.html", **VIEWS[view]) as opened:
        opened.page.locator("[data-open-figure]").first.click()
        opened.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert opened.violations() == []
        assert opened.said == []


def wait_for_node(page, pattern):
    """Until the panel shows a node of this name: the page follows its address a moment after a click."""
    page.locator("#node-panel .node-head strong").filter(has_text=re.compile(f"^{pattern}$")).wait_for()


@pytest.mark.quick
def test_each_node_can_be_opened(browser, results):
    with Opened(browser, results / "report.html") as opened:
        page, panel = opened.page, opened.page.locator("#node-panel")
        assert panel.locator(".node-head strong").inner_text() == "gpu-r01-n3"
        page.evaluate("location.hash = '#node=gpu-r02-n2'")
        wait_for_node(page, "gpu-r02-n2")
        assert panel.locator("figure.curve").count() >= 6
        assert panel.locator("figure.curve canvas").count() == panel.locator("figure.curve").count()
        page.locator("#node-next").click()
        wait_for_node(page, "gpu-r02-n3")
        links = [link.get_attribute("href") for link in panel.locator("a.file").all()]
        assert len(links) == 2 * len(fleet.STAGES)
        assert all((results / link).is_file() for link in links)
        assert opened.said == []


def test_map_and_time_line_answer_to_the_keyboard(browser, results):
    with Opened(browser, results / "report.html") as opened:
        page = opened.page
        for name, words in (("map", "gpu-r01-n3 · launch: pass"), ("lines", "gpu-r01-n3 · facts: success")):
            page.locator(f"#{name}").focus()
            page.keyboard.press("ArrowDown")
            page.wait_for_timeout(100)
            assert page.locator(f"#{name}-readout").inner_text().startswith(words)
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        wait_for_node(page, "gpu-r02-n3")
        page.locator("#map-columns").select_option("bad")
        page.locator("#map-rows").select_option("bad")
        page.wait_for_timeout(100)
        tall = page.locator("#map").bounding_box()["height"]
        page.locator("#map").hover(position={"x": 400, "y": tall - 10})
        page.wait_for_timeout(100)
        assert page.locator("#map-readout").inner_text().startswith("gpu-r03-n1")
        assert opened.said == []


@pytest.mark.quick
def test_the_first_screen_says_what_is_wrong_where_and_what_to_do(browser, results):
    report = json.loads((results / "report.json").read_text())
    with Opened(browser, results / "report.html", viewport=DESKTOP) as opened:
        page = opened.page
        words = page.locator("table.causes tr", has_text="training_crash").inner_text()
        for one in ("FAIL", "XID 79 of gpu:5", "r01", "gpu-r01-n5"):
            assert one in words, "verdict, reason, rack and node of a cause"
        assert page.locator("table.causes tbody tr").count() == len(
            {(one["verdict"], one["class"]) for one in report["nodes"] if one["verdict"] != "PASS"}
        )
        untested = page.locator("section", has=page.locator("#untested-title")).inner_text()
        assert "1 of 24 nodes ran no stage: gpu-r01-n7" in untested
        assert "loading on gpu-r01-n5: skipped: training did not succeed" in untested
        assert page.locator("#untested-title").bounding_box()["y"] < DESKTOP["height"]
        opened.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator(".command", has_text="make rerun").locator("button").click()
        page.locator("button.copy", has_text="Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == "make rerun"
        assert opened.said == []


def test_racks_show_a_figure_and_answer_to_the_keyboard(browser, results):
    with Opened(browser, results / "report.html") as opened:
        page = opened.page
        assert page.locator(".rack-name").all_inner_texts() == [
            "r01 3 of 8 not PASS", "r02 2 of 8 not PASS", "r03 1 of 8 not PASS",
        ]  # fmt: skip
        page.locator("#rack-figure").select_option(label="diagnostics_matmul_bf16_tflops (diagnostics, each gpu, h200)")
        slow = page.locator("a.tile.h0")
        assert slow.count() == 1
        assert re.match(r"gpu-r01-n3: 61\d.* TFLOP/s \(gpu:3\), -\d\.\d % from the", slow.get_attribute("aria-label"))
        assert page.locator("a.tile.none").all_inner_texts() == ["gpu-r01-n7\n\u2013"]
        page.locator("a.tile").first.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        assert page.locator("#rack-readout").inner_text().startswith("gpu-r01-n4: ")
        assert page.locator('a.tile[tabindex="0"]').count() == 1
        page.keyboard.press("Enter")
        wait_for_node(page, "gpu-r01-n4")
        page.locator("#rack-label").select_option("row")
        assert page.locator(".rack-name").all_inner_texts() == ["row-1 6 of 24 not PASS"]
        assert opened.said == []


def test_the_list_of_nodes_sorts_and_filters(browser, results):
    with Opened(browser, results / "report.html") as opened:
        page, rows = opened.page, opened.page.locator("#nodes-table tbody tr:visible")
        page.locator("#nodes-verdict").select_option("bad")
        assert page.locator("#nodes-shown").inner_text() == "6 of 24"
        page.locator("#nodes-find").fill("r02 FINGERPRINT")
        assert rows.locator("th").all_inner_texts() == ["gpu-r02-n1"]
        page.locator("#nodes-find").fill("")
        page.locator("#nodes-verdict").select_option("")
        head = page.locator("#nodes-table th", has_text="training_tokens")
        head.locator("button").click()
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        column = head.evaluate("cell => cell.cellIndex")
        values = rows.evaluate_all(f"rows => rows.map(row => row.cells[{column}].dataset.sort)")
        known = [float(value) for value in values if value]
        assert known == sorted(known)
        assert (
            rows.nth(values.index(str(int(known[0]) if known[0].is_integer() else known[0])))
            .inner_text()
            .startswith("gpu-r01-n3")
        )
        assert opened.said == []


def test_compares_with_the_run_before(browser, results):
    then = json.loads((results.parent / fleet.EARLIER_ID / "report.json").read_text())
    with Opened(browser, results / "report.html") as opened:
        page, compared = opened.page, opened.page.locator("#compared")
        words = compared.inner_text()
        assert f"With run {fleet.EARLIER_ID}" in words
        assert "gpu-r02-n1 PASS → FAIL" in words
        assert "gpu-r01-n3 PASS" not in words, "it failed in both"
        page.evaluate("location.hash = '#node=gpu-r01-n3'")
        wait_for_node(page, "gpu-r01-n3")
        row = page.locator("#node-panel tr", has_text="training_tokens_per_second").first
        (before,) = [
            metric["value"]
            for node in then["nodes"]
            for metric in node["metrics"]["training"]
            if (node["name"], metric["name"]) == ("gpu-r01-n3", "training_tokens_per_second")
        ]
        assert f"{round(before):,}" in row.inner_text().replace("\t", " ")
        assert re.search(r"-[67]\.\d %", row.inner_text()), "against the fleet"
        assert page.locator("#node-panel .stage-bar span").count() == 8
        assert opened.said == []


def test_the_bad_rack_is_named_and_statistics_can_be_ordered(browser, results):
    with Opened(browser, results / "report.html") as opened:
        page = opened.page
        assert page.locator("#analysis .group b").all_inner_texts() == ["rack r02"]
        rows = page.locator("tr.statistic")
        first = rows.first.get_attribute("data-find")
        head = page.locator("#statistics th").nth(4)
        orders = []
        for wanted in ("descending", "ascending", None):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == wanted
            orders.append(page.locator("tr.statistic td:nth-child(5)").evaluate_all("a => a.map(c => c.dataset.sort)"))
        known = [float(one) for one in orders[0] if one]
        assert known == sorted(known, reverse=True)
        assert [float(one) for one in orders[1] if one] == sorted(known)
        assert rows.first.get_attribute("data-find") == first
        page.locator("#statistic-search").fill("loading_bytes_per_second")
        assert [row.is_visible() for row in rows.all()].count(True) == 1
        page.evaluate("location.hash = '#node=gpu-r02-n2'")
        page.wait_for_timeout(200)
        assert page.locator("#node-panel .labels .part").all_inner_texts() == ["rack r02", "row row-1", "pdu 2"]
        assert opened.said == []


def test_colours_follow_the_button_and_print_is_light(browser, results):
    with Opened(browser, results / "report.html", color_scheme="dark") as opened:
        page = opened.page
        back = "getComputedStyle(document.documentElement).getPropertyValue('--back').trim()"
        dark = page.evaluate(back)
        page.locator("#theme").click()
        light = page.evaluate(back)
        assert dark != light
        page.locator("#theme").click()
        page.locator("#theme").click()
        assert page.evaluate(back) == dark
        opened_cards = page.locator("details[open]").count()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(back) == light
        assert page.locator("details[open]").count() == opened_cards, "what is folded stays folded on paper"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(back) == dark
        assert page.pdf().startswith(b"%PDF")
        assert opened.said == []


def test_hostile_texts_stay_texts(browser, results, tmp_path):
    report = report_file.unpacked(report_file.read(results / "report.json"))
    hostile = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"
    for number, node in enumerate(report["nodes"]):
        node["name"] = f"{hostile}{number}"
        node["class"] = node["id"] = hostile
        for stage in node["stages"]:
            stage["message"] = hostile
        for check in node["checks"]:
            check |= {"reason": hostile, "remedy": hostile, "part": hostile, "unit": hostile, "expected": hostile}
    page_file = tmp_path / "report.html"
    page_file.write_text(html_report(report, tmp_path))
    with Opened(browser, page_file) as opened:
        opened.page.locator("#node-next").click()
        opened.page.locator(".causes a.node").first.click()
        wait_for_node(opened.page, "</script>.*")
        assert opened.page.locator("img").count() == 0
        assert opened.said == []
        assert len(opened.asked) == 1


def test_the_page_of_a_large_fleet_folds(browser, results, tmp_path):
    """Three hundred nodes, a hundred of which failed in ways of their own."""
    report = report_file.unpacked(report_file.read(results / "report.json"))
    bad = next(node for node in report["nodes"] if node["verdict"] == "FAIL")
    for number in range(300):
        node = copy.deepcopy(bad if number % 3 == 0 else next(n for n in report["nodes"] if n["verdict"] == "PASS"))
        node["name"] = f"more-{number}"
        for check in node["checks"]:
            check["reason"] += f" ({number})"
        report["nodes"].append(node)
    page_file = tmp_path / "report.html"
    page_file.write_text(html_report(report, tmp_path))
    with Opened(browser, page_file, viewport=DESKTOP) as opened:
        cards = opened.page.locator("details.bad")
        assert sum(card.is_visible() for card in cards.all()) == 24
        height, versions = map(
            opened.page.evaluate,
            ("document.documentElement.scrollHeight", "document.getElementById('environment').offsetHeight"),
        )
        assert height - versions < 16_000  # versions of hardware and software take as much for one node
        assert opened.page.locator("table.nodes tbody tr").count() == len(report["nodes"])
        opened.page.locator("details.fold > summary").first.click()
        assert cards.last.is_visible()
        session = opened.context.new_cdp_session(opened.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        opened.page.reload()
        busy = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}["ThreadTime"]
        assert 0 < busy < 2, "seconds of a processor until it is there; 0.6 for a thousand nodes"
        opened.page.locator("table.nodes a").nth(30).click()
        wait_for_node(opened.page, "more-6")
        assert opened.said == []


def test_a_print_on_a4_cuts_no_table_and_no_picture(browser, results):
    with Opened(browser, results / "report.html", viewport={"width": 718, "height": 1000}) as opened:
        opened.page.emulate_media(media="print")
        cut = """[...document.querySelectorAll("table, canvas")].filter(one =>
            one.checkVisibility() && one.getBoundingClientRect().right > innerWidth).map(one => one.className)"""
        assert opened.page.evaluate(cut) == []


def test_screenshots_for_the_docs(browser, results, view, tmp_path):
    folder = Path(os.environ.get("GPUVAL_REPORT_IMAGES", tmp_path))
    with Opened(browser, results / "report.html", **VIEWS[view]) as opened:
        page = opened.page
        page.evaluate("for (const one of document.querySelectorAll('details.bad')) one.open = false")
        page.evaluate("document.querySelector('details.bad').open = true")
        if view == "dark":
            page.locator("#rack-figure").select_option(index=1)
            page.evaluate("document.getElementById('racks').scrollIntoView()")
        page.wait_for_timeout(300)
        image = folder / f"report-{view}.png"
        page.screenshot(path=image)
    assert 10_000 < image.stat().st_size < MAX_IMAGE_BYTES
