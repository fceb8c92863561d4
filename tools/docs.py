"""Hooks of mkdocs.yml: pages of the top folder as pages of the site, links to other files of the repository, and the
example report, made by the shipped judge and report from the records of a simulated fleet."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/gpuval/gpuval/blob/main"
#: Pages of the repository that the site has, too.
TOP = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md"}
NODES = 24
_LINK = re.compile(r"(\]\()([^)\s#]+)")
_EXAMPLE = """
import sys
from pathlib import Path
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
_AnsibleCollectionFinder(paths=[str(Path("collections").resolve())])._install()
sys.path.insert(0, "benchmarks/report")
import fleet
print(fleet.example(Path(sys.argv[1]), int(sys.argv[2])))
"""
_made: dict[str, Path] = {}
_kept = tempfile.TemporaryDirectory(prefix="gpuval-docs-")


def on_files(files, config):
    """Add the pages of the top folder."""
    for name, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_post_build(config):
    """Add the example report, with the logs and records that it links."""
    left_out = shutil.ignore_patterns(".*", "*.series.json")
    shutil.copytree(example(), Path(config["site_dir"]) / "example", ignore=left_out, dirs_exist_ok=True)


def example() -> Path:
    """The results of the example's run; made once, for `mkdocs serve` builds after every change."""
    if "folder" not in _made:
        command = [sys.executable, "-c", _EXAMPLE, _kept.name, str(NODES)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise PluginError(f"the example report was not made: {done.stderr[-2000:]}")
        _made["folder"] = Path(done.stdout.splitlines()[-1])
    return _made["folder"]


def on_page_markdown(markdown, page, config, files):
    """Point links at the page of the site that a file is, else at the file in the repository."""
    source = next((ROOT / name for name, made in TOP.items() if made == page.file.src_uri), None)
    source = source or ROOT / "docs" / page.file.src_uri
    up = "../" * page.file.src_uri.count("/")

    def moved(match: re.Match[str]) -> str:
        link = match[2]
        if "://" in link or link.startswith("example/"):
            return match[0]
        target = (source.parent / link).resolve()
        if not target.exists():
            raise PluginError(f"{source.relative_to(ROOT)}: no such file: {link}")
        place = target.relative_to(ROOT).as_posix()
        if place in TOP:
            return match[1] + up + TOP[place]
        return match[1] + (
            up + place[5:] if place.startswith("docs/") and target.is_file() else f"{REPOSITORY}/{place}"
        )

    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else _LINK.sub(moved, part) for number, part in enumerate(parts))
