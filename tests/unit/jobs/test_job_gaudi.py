"""The shipped job for Gaudis chooses its software by the driver, and names the image that fits."""

import csv
import re

import pytest

from tests.kit import jobs

LINES = [line for line in (jobs.SHIPPED / "gaudi_software.csv").read_text().splitlines() if not line.startswith("#")]
TABLE = list(csv.DictReader(LINES))


def test_each_release_has_its_image_and_tag():
    releases = [row["release"] for row in TABLE]
    assert releases == sorted(set(releases))
    for row in TABLE:
        assert re.fullmatch(rf"vault\.habana\.ai/gaudi-docker/{re.escape(row['release'])}\.\d/\S+:latest", row["image"])
        assert re.fullmatch(r"v1\.\d+\.\d", row["optimum_habana"])


@pytest.mark.parametrize(
    ("driver", "plugin", "state", "told"),
    [
        ("1.22.0-61.3", "1.22.0.740", "success", "v1.19.1"),
        (
            "1.22.0-61.3",
            "1.24.1.17",
            "failure",
            "driver 1.22.0-61.3 needs Gaudi software 1.22, this image has 1.24.1.17",
        ),
        (
            "1.24.1",
            "",
            "failure",
            "this image has none: set the reference of gpuval_images.training to vault.habana.ai/",
        ),
        ("1.3.0", "", "failure", "no Gaudi software is known for driver 1.3.0"),
        ("", "", "failure", "no Gaudi software is known for driver none"),
    ],
)
def test_the_release_follows_the_driver(node, tmp_path, driver, plugin, state, told):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "hl-smi").write_text(f"#!/bin/sh\nprintf '%s\\n' {driver} {driver}\n")
    (programs / "hl-smi").chmod(0o755)
    if plugin:
        about = programs / f"habana_torch_plugin-{plugin}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: habana-torch-plugin\nVersion: {plugin}\n")
    command = f'PATH="{programs}:$PATH" PYTHONPATH="{programs}" python3 gaudi_software.py'
    for name in ("gaudi_software.py", "gaudi_software.csv"):
        (tmp_path / name).write_text((jobs.SHIPPED / name).read_text())
    files = ["gaudi_software.py", "gaudi_software.csv"]
    record, log = jobs.run(node, jobs.write(tmp_path, files=files, steps=[{"name": "work", "run": command}]))
    assert record["state"] == state
    assert told in (log if state == "success" else record["message"])
