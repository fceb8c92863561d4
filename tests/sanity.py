"""Run ansible-test's sanity tests on a copy of the collection: `python tests/sanity.py [ANSIBLE-TEST'S OPTIONS]`.

ansible-test wants the collection in a folder ansible_collections of its own, in git. It gets pip for its environments
from a server of its own: here the pip of this Python takes its place, and the packages come from pip's index.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLEET = "collections/ansible_collections/gpuval/fleet"
#: Where ansible-test 2.19 looks for pip's bootstrap first; later releases that want another one download it.
PIP = Path.home() / ".ansible/test/cache/get_pip_24_2.py"
BOOTSTRAP = """\
import subprocess, sys
left_out = ("--no-setuptools", "--no-wheel")
subprocess.check_call([sys.executable, "-m", "ensurepip", "--default-pip"])
subprocess.check_call([sys.executable, "-m", "pip", "install", *(one for one in sys.argv[1:] if one not in left_out)])
"""
#: The first two load plugins of the controller in an environment without its packages. pylint forbids `_` as a name,
#: and comparisons of types, where a bool is no int; ruff has the rest of its rules.
LEFT_OUT = ("ansible-doc", "import", "pylint")


def main() -> int:
    PIP.parent.mkdir(parents=True, exist_ok=True)
    if not PIP.exists():
        PIP.write_text(BOOTSTRAP)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with tempfile.TemporaryDirectory(prefix="gpuval-sanity-") as folder:
        copy = Path(folder) / "ansible_collections/gpuval/fleet"
        listed = subprocess.run(["git", "ls-files", "-z", FLEET], cwd=ROOT, check=True, capture_output=True, text=True)
        for path in filter(None, listed.stdout.split("\0")):
            target = copy / Path(path).relative_to(FLEET)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, target, follow_symlinks=False)
        subprocess.run(["git", "init", "-q", copy], check=True)
        subprocess.run(["git", "-C", copy, "add", "-A"], check=True)
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = ["ansible-test", "sanity", "--requirements", "--python", python, "--color", "no"]
        command += [f"--skip-test={name}" for name in LEFT_OUT] + sys.argv[1:]
        return subprocess.run(command, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
