"""Options of actions without a module of their own are documented as they are: validate-modules cannot see those."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLEET = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"
VIRTUAL = sorted(
    path.stem
    for path in (FLEET / "plugins" / "modules").glob("*.py")
    if "entirely implemented as an action plugin" in path.read_text()
)


@pytest.fixture(scope="module")
def documentation():
    command = [str(Path(sys.executable).parent / "ansible-doc"), "--json", "--type", "module"]
    command += [f"gpuval.fleet.{name}" for name in VIRTUAL]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections")}
    done = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60, cwd=ROOT)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", VIRTUAL)
def test_options_are_documented_as_they_are(name, documentation):
    action = importlib.import_module(f"ansible_collections.gpuval.fleet.plugins.action.{name}").ActionModule
    documented = documentation[f"gpuval.fleet.{name}"]["doc"].get("options", {})
    assert set(documented) == set(action.OPTIONS)
    for option, spec in action.OPTIONS.items():
        text = documented[option]
        assert text["type"] == spec["type"], option
        assert text.get("elements") == spec.get("elements"), option
        assert bool(text.get("required")) == bool(spec.get("required")), option
        assert text.get("default") == spec.get("default"), option
        assert text.get("choices") == spec.get("choices"), option
