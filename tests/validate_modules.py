"""Run ansible-test's validate-modules on the collection without ansible-test's own environment."""

import os
import subprocess
import sys
from pathlib import Path

import ansible_test
import yaml

ROOT = Path(__file__).resolve().parents[1]
COLLECTIONS = ROOT / "collections"
FLEET = COLLECTIONS / "ansible_collections" / "gpuval" / "fleet"
VALIDATE = Path(ansible_test.__path__[0]) / "_util" / "controller" / "sanity" / "validate-modules" / "validate.py"


def main() -> int:
    command = [sys.executable, str(VALIDATE), "--format", "plain", "--arg-spec"]
    version = yaml.safe_load((FLEET / "galaxy.yml").read_text())["version"]
    command += ["--collection", "ansible_collections/gpuval/fleet", "--collection-version", version, "plugins/modules"]
    environment = {**os.environ, "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS)}
    return subprocess.run(command, cwd=FLEET, env=environment, check=False, timeout=300).returncode


if __name__ == "__main__":
    sys.exit(main())
