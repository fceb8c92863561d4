"""What the documentation names is there: variables, make targets, files, documents that follow their schemas."""

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

ROOT = Path(__file__).resolve().parents[3]
COLLECTION = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docker/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    COLLECTION / "README.md",
    ROOT / "inventories" / "kubernetes" / "README.md",
]
SETTINGS = plans.Settings(
    run_id="run-1",
    node="node-1",
    created_at="2026-11-20T20:00:00Z",
    deadline_seconds=60,
    heartbeat_seconds=10,
    runtime="host",
    sku="auto",
    gpu_count=None,
    python="python3",
    models_dir=None,
)
ROLES = sorted(path.name for path in (COLLECTION / "roles").iterdir())


def specs():
    """Every declared variable, with its role."""
    found = {}
    for role in ROLES:
        document = yaml.safe_load((COLLECTION / "roles" / role / "meta" / "argument_specs.yml").read_text())
        for entry in document["argument_specs"].values():
            found.update(entry["options"])
    return found


def blocks(page, language):
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", page.read_text(), re.DOTALL | re.MULTILINE)


def targets():
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_variable_named_is_declared(page):
    named = set(re.findall(r"\bgpuval_[a-z0-9_]+", page.read_text()))
    packages = {"gpuval_runner", "gpuval_workloads", "gpuval_node"}
    assert named - packages - set(specs()) == set()


def test_every_variable_of_the_table_is_declared_with_that_default():
    text = (ROOT / "README.md").read_text()
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \| ", text.split("## Variables")[1].split("\n## ")[0], re.MULTILINE
    )
    declared = specs()
    assert len(rows) > 20
    for names, shown in rows:
        for name in re.findall(r"`(\w+)`", names):
            assert name in declared, name
            default = declared[name].get("default")
            if default in ("", None) or isinstance(default, (list, dict)) or "{{" in str(default):
                continue
            text_of_default = str(default).lower() if isinstance(default, bool) else str(default)
            assert text_of_default in re.findall(r"[\w.-]+", shown), f"{name}: {default} is not in {shown!r}"


def test_the_inventories_set_only_declared_variables():
    declared = specs()
    for path in (ROOT / "inventories").glob("*/group_vars/*.yml"):
        variables = yaml.safe_load(path.read_text())
        assert {name for name in variables if not name.startswith("ansible_")} <= set(declared), path


def test_every_make_target_named_exists_and_every_target_is_named():
    for page in PAGES:
        commands = [*blocks(page, "console"), *re.findall(r"`(make [^`]*)`", page.read_text())]
        named = set(re.findall(r"\bmake ([a-z][a-z-]*)", "\n".join(commands)))
        assert named <= targets(), page
    assert targets() <= set(re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]*)(?:#[\w-]*)?\)", page.read_text()):
        assert not link or (page.parent / link).exists(), link


def test_examples_in_the_readme_are_what_the_code_takes():
    pages = blocks(ROOT / "README.md", "yaml")
    stream, speed = (
        next(page for page in pages if f"# {name}" in page) for name in ("stream.yml", "stream_criteria.yml")
    )
    declared = yaml.safe_load(stream)
    workloads = {"facts": {"command": ["{runner}", "facts"]}, "stream": declared["stream_workload"]}
    plan = plans.build(SETTINGS, declared["gpuval_stages"], workloads)
    schemas.validate("plan", plan, what="plan")
    assert [stage["needs"] for stage in plan["stages"]] == [[], ["facts"]]
    (check,) = criteria.parse(yaml.safe_load(speed))
    assert (check.stage, check.metric) == ("stream", "stream_samples_per_second")


def test_the_example_of_criteria_is_valid():
    for block in blocks(ROOT / "docs" / "criteria.md", "yaml"):
        assert len(criteria.parse(yaml.safe_load(block))) == 2


def test_the_table_of_a_workload_has_every_key_and_its_default():
    text = (ROOT / "docs" / "architecture.md").read_text().split("## Adding a workload")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", text, re.MULTILINE))
    assert set(rows) == {"command", "workload", *plans.STAGE_DEFAULTS}
    for name, default in plans.STAGE_DEFAULTS.items():
        if isinstance(default, (int, str)):
            assert str(default) == rows[name].strip("`").replace(",", "")


def test_the_times_of_the_profiles_are_those_of_the_roles():
    text = (ROOT / "README.md").read_text()
    for role in ("diagnostics", "training", "inference"):
        defaults = yaml.safe_load((COLLECTION / "roles" / role / "defaults" / "main.yml").read_text())
        declared = dict(re.findall(r"'(\w+)': (\d+)", defaults[f"{role}_seconds"]))
        for profile, seconds in declared.items():
            (row,) = re.findall(rf"^\| `{profile}`.*$", text, re.MULTILINE)
            assert f"{int(seconds):,} s" in row
