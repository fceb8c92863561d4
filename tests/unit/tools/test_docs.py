"""The documentation builds as a site, strictly, with its example report, and asks no other host for anything."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_the_site_builds_and_stands_alone(tmp_path):
    program = Path(sys.executable).with_name("mkdocs")
    if not program.exists():
        pytest.skip("mkdocs is missing: make .venv/.docs")
    site = tmp_path / "site"
    done = subprocess.run(
        [program, "build", "--strict", "--site-dir", site],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for page in site.rglob("*.html"):
        if "example" not in page.parts:
            loaded = re.findall(r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="(https?:[^"]*)"', page.read_text())
            assert loaded == [], page
    start = (site / "index.html").read_text()
    for link in ("example/report.html", "images/report-light.png"):
        assert f'"{link}"' in start
        assert (site / link).is_file()
    report = (site / "example" / "report.html").read_text()
    assert "<title>FAIL: gpuval 20261121-090000-demo</title>" in report
    missing = [link for link in re.findall(r'href="(nodes/[^"]+)"', report) if not (site / "example" / link).is_file()]
    assert missing == []
