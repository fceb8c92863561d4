"""A real browser without a network, for pages that gpuval writes."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / "tests" / "data" / "axe" / "axe.min.js"
DESKTOP = {"width": 1280, "height": 1000}
VIEWS = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True, "is_mobile": True},
}


def chromium():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def lacking(what):
    if os.environ.get("GPUVAL_TESTS_NEED_BROWSER"):
        pytest.fail(f"{what} is missing, and GPUVAL_TESTS_NEED_BROWSER is set")
    pytest.skip(f"{what} is missing: apt-get install chromium, make test")


class Opened:
    """A page in a context of its own that has no network; what went wrong in it is kept."""

    def __init__(self, browser, path, **settings):
        self.context = browser.new_context(offline=True, **settings)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_timeout(200)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def violations(self):
        """What axe finds on the page."""
        self.page.evaluate(AXE.read_text())
        return self.page.evaluate(
            "axe.run().then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' | ')))"
        )
