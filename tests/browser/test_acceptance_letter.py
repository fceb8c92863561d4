"""acceptance.html in a browser and as paper: it loads alone, anybody can read it, 100 nodes fill two pages."""

import re

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.acceptance.letter import letter_html
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import report_file

from tests.kit.accepted_fleet import accepted_fleet
from tests.kit.browser import VIEWS, Opened

DIGEST = "e" * 64
PAPER = {"A4": {"width": 718, "height": 1000}, "Letter": {"width": 740, "height": 980}}
PAGE = re.compile(rb"/Type /Page\b")


@pytest.fixture(scope="module")
def report(results):
    return report_file.unpacked(report_file.read(results / "report.json"))


@pytest.fixture(scope="module")
def letter(report, tmp_path_factory):
    """The path of the letter for so many nodes."""
    folder = tmp_path_factory.mktemp("letters")

    def written(count):
        path = folder / f"{count}.html"
        if not path.exists():
            acceptance, reports = accepted_fleet(report, count)
            path.write_text(letter_html(acceptance, DIGEST, reports))
        return path

    return written


@pytest.mark.quick
@pytest.mark.parametrize("view", VIEWS)
def test_loads_alone_and_axe_finds_nothing(browser, letter, view):
    with Opened(browser, letter(100), **VIEWS[view]) as opened:
        assert opened.page.locator("h1").inner_text() == "FAIL"
        assert opened.asked == [letter(100).as_uri()]
        width, inner = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= inner
        opened.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert opened.violations() == []
        assert opened.said == []


@pytest.mark.parametrize("paper", PAPER)
@pytest.mark.parametrize(("count", "pages"), [(8, 2), (100, 2), (1000, 8)])
def test_prints_on_few_pages_in_light_colours(browser, letter, paper, count, pages):
    for scheme in ("light", "dark"):
        with Opened(browser, letter(count), viewport=PAPER[paper], color_scheme=scheme) as opened:
            pdf = opened.page.pdf(format=paper, print_background=True)
            assert 1 <= len(PAGE.findall(pdf)) <= pages
            opened.page.emulate_media(media="print")
            cut = """[...document.querySelectorAll("table, code")].filter(one =>
                one.checkVisibility() && one.getBoundingClientRect().right > innerWidth).map(one => one.outerHTML)"""
            assert opened.page.evaluate(cut) == []
            assert opened.page.evaluate("getComputedStyle(document.body).color") == "rgb(22, 32, 43)"
            assert opened.said == []


@pytest.mark.quick
def test_hostile_texts_stay_texts(browser, report, tmp_path):
    hostile = "</style><img src=x onerror=alert(1)><script>alert(2)</script>"
    acceptance, reports = accepted_fleet(report, 8)
    for node in acceptance["nodes"]:
        node |= {"name": hostile + node["name"], "reason": hostile, "next": hostile, "sku": hostile, "id": hostile}
        node |= {"labels": {"rack": hostile}, "identity": {"serial": hostile, "gpus": [{"model": hostile}]}}
    acceptance |= {"inventory": hostile, "criteria": {hostile: DIGEST}}
    for run in reports.values():
        for node in run["nodes"]:
            for check in node["checks"]:
                check |= {"expected": hostile, "source": hostile, "name": hostile}
    path = tmp_path / "acceptance.html"
    path.write_text(letter_html(acceptance, DIGEST, reports))
    with Opened(browser, path) as opened:
        assert opened.page.locator("img, script").count() == 0
        assert opened.page.locator("[data-node]").count() == 8
        assert hostile in opened.page.locator("body").inner_text()
        assert opened.said == []
