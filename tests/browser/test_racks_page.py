"""NVLink racks on the page, in a real browser."""

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.html import html_report

from tests.kit.browser import VIEWS, Opened
from tests.kit.rack_fleet import RackFleet, chassis_of


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of a rack that is whole, one with a tray of another, and one that lacks a tray."""
    fleet = RackFleet(3)
    fleet.set("r01-t03", chassis_serial=chassis_of(8))
    fleet.drop("r02-t09")
    path = tmp_path_factory.mktemp("racks") / "report.html"
    path.write_text(html_report(fleet.judged(), path.parent))
    return path


@pytest.mark.quick
def test_the_table_names_what_is_wrong_without_a_script(browser, page):
    with Opened(browser, page, java_script_enabled=False) as opened:
        rows = opened.page.locator("#racks-table tbody tr").all_inner_texts()
        assert [row.split("\t")[1].strip() for row in rows] == ["PASS", "FAIL", "INCOMPLETE"]
        assert "r01-t03 (slot 3, tray 3, host 1) has 1820123450008" in rows[1]
        assert "17 of 18" in rows[2]
        assert (
            opened.page.locator(".lead").inner_text().startswith("No node failed, but at least one NVLink rack failed")
        )
        assert not opened.page.locator("#rack-map").is_visible()


@pytest.mark.quick
@pytest.mark.parametrize("view", VIEWS)
def test_racks_group_the_map_and_fit_the_page(browser, page, view):
    with Opened(browser, page, **VIEWS[view]) as opened:
        names = opened.page.locator("#rack-map .rack-name b").all_inner_texts()
        assert names == ["r00", "r01", "r02"]
        wide = opened.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1]
        assert opened.violations() == []
        assert opened.said == []
