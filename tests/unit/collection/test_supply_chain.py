"""What the project fetches is pinned: packages by hash, actions of workflows by commit."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("controller", "development", "node", "gangs", "notebook", "docs", "uv")
#: The build of PyTorch is the machine's choice, and comes from an index of its own.
UNLOCKED = {"torch"}


def wanted(name):
    """The pinned packages of a file of requirements and of those that it names."""
    found = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if line.startswith("-r "):
            found |= wanted(line[3:].removesuffix(".txt"))
        elif line and not line.startswith("#"):
            package, version = line.split("==")
            found[package.lower().replace("_", "-")] = version
    return found


def locked(name):
    """Versions and hashes by package."""
    text = (ROOT / "requirements" / "locked" / f"{name}.txt").read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text.strip()) if not entry.startswith("#")]
    heads = [re.match(r"([a-z0-9.-]+)==([^\s\\]+)", entry) for entry in entries]
    return {
        head[1]: (head[2], re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)) for head, entry in zip(heads, entries)
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_package_is_locked_by_hash(name):
    """`make locks` writes them again."""
    found = locked(name)
    assert {package: found.get(package, ("absent",))[0] for package in wanted(name) if package not in UNLOCKED} == {
        package: version for package, version in wanted(name).items() if package not in UNLOCKED
    }
    assert [package for package, (_, hashes) in found.items() if not hashes] == []
    assert not UNLOCKED & found.keys()


def test_environments_of_several_files_get_one_version_of_each_package():
    everywhere = locked("development")
    for name in NAMES:
        other = {package: version for package, (version, _) in locked(name).items() if package in everywhere}
        assert other == {package: everywhere[package][0] for package in other}


def test_make_installs_by_the_one_tool_whose_packages_come_by_hash():
    """tests/unit/tools/test_install.py tries a wrong hash."""
    makefile, tool = (ROOT / "Makefile").read_text(), (ROOT / "tools/install.py").read_text()
    assert len(re.findall(r"tools/install\.py \$@", makefile)) == 1
    assert "pip install" not in makefile
    by_hash = re.findall(r'"--require-hashes",\s*"--no-deps",\s*"-r"', tool)
    assert len(by_hash) == 2  # uv, and what is locked: PyTorch alone is not


def test_actions_of_workflows_are_pinned_by_commit():
    jobs = [
        job
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
    ]
    uses = [step["uses"] for job in jobs for step in job.get("steps", ()) if "uses" in step]
    assert uses
    assert [one for one in uses if not re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", one)] == []
