#!/usr/bin/env python3
"""Lock requirements/*.txt to versions with hashes, in requirements/locked/: run by `make locks` after a change of one.

    python3 tools/lock.py

PyTorch and what comes with it are left out: which build a machine needs is its own choice (CPU, CUDA, ROCm), and that
build comes from an index of its own. tools/install.py installs the locked packages by hash first, then PyTorch.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
#: The widest first: all others follow its versions, since environments hold several of these files.
NAMES = ("development", "controller", "node", "gangs", "notebook", "docs", "release", "uv")
#: Galaxy's importer needs older versions; no other list is in its environment.
ALONE = ("release",)
#: PyTorch, and packages that only its builds for GPUs need.
UNLOCKED = re.compile(r"(?:torch|triton|cuda-[a-z0-9-]+|nvidia-(?!ml-py)[a-z0-9-]+)(?===)")
OLDEST_PYTHON = "3.11"


def main() -> int:
    (FOLDER / "locked").mkdir(exist_ok=True)
    for name in NAMES:
        target = FOLDER / "locked" / f"{name}.txt"
        first = FOLDER / "locked" / f"{NAMES[0]}.txt"
        follow = [] if target == first or name in ALONE else ["--constraints", str(first)]
        command = ["uv", "pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON]
        command += ["--generate-hashes", "--no-header", "--no-annotate", *follow, str(FOLDER / f"{name}.txt")]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            print(f"uv cannot lock requirements/{name}.txt: see above", file=sys.stderr)
            return 1
        entries = re.split(r"\n(?=\S)", done.stdout.strip())
        kept = [entry for entry in entries if not UNLOCKED.match(entry)]
        target.write_text("\n".join([f"# By tools/lock.py from requirements/{name}.txt.", *kept, ""]), encoding="utf-8")
        print(f"written: requirements/locked/{name}.txt, {len(kept)} packages", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
