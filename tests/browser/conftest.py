import os
import sys

import pytest

from tests.kit.browser import ROOT, chromium, lacking

sys.path.insert(0, str(ROOT / "benchmarks" / "report"))

import fleet

NODES = 24


@pytest.fixture(scope="session")
def browser():
    program = chromium()
    if program is None:
        lacking("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("playwright")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield started
        started.close()


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A run of 24 nodes with a fault of each kind, and a run before it, judged by the shipped criteria."""
    return fleet.example(tmp_path_factory.mktemp("results"), NODES)
