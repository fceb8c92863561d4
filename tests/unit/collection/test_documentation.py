"""What the documentation names exists: variables, make targets, links, anchors, documents that follow their schemas."""

import functools
import re
from pathlib import Path

import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import document as job_document
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes, launch_errors
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report.prometheus import help_texts
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

from tests.kit.class_names import PATTERNED
from tests.kit.plan_settings import SETTINGS

ROOT = Path(__file__).resolve().parents[3]
COLLECTION = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"
DOCS = ROOT / "docs"
PAGES = [
    *(
        ROOT / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "SUPPORT.md",
            "docker/README.md",
            "roles/testbed/README.md",
        )
    ),
    *sorted(DOCS.rglob("*.md")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    COLLECTION / "README.md",
    *(ROOT / "inventories" / name / "README.md" for name in ("kubernetes", "slurm")),
]
ROLES = sorted(path.name for path in (COLLECTION / "roles").iterdir())


@functools.cache
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


def test_every_variable_named_is_declared():
    known = {"gpuval_runner", "gpuval_workloads", "gpuval_node", "gpuval_health", "gpuval_burn_turns"}  # and an example
    known |= {*help_texts(), *specs()}
    named = {(str(page), name) for page in PAGES for name in re.findall(r"\bgpuval_[a-z0-9_]+", page.read_text())}
    assert {(page, name) for page, name in named if name not in known} == set()


def test_every_metric_of_prometheus_is_documented():
    page = (ROOT / "docs/outputs.md").read_text()
    assert [name for name in help_texts() if f"`{name}`" not in page] == []


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
    assert targets() <= set(re.findall(r"`make ([a-z-]+)", (DOCS / "run.md").read_text()))


@functools.cache
def anchors(page):
    """What GitHub makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_and_anchors_resolve():
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    for page, link in links:
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), (page, link)
        assert not anchor or anchor in anchors(target), (page, link)


def test_pages_that_the_collection_names_exist():
    for path in COLLECTION.rglob("*"):
        if path.suffix in {".py", ".yml", ".md", ".json"}:
            for name in set(re.findall(r"(?<![\w/-])docs/[\w/]+\.md", path.read_text())) - {
                "docs/ug1main.md"
            }:  # RVS' own
                assert (ROOT / name).exists(), f"{path}: {name}"


def test_the_places_to_look_for_a_change_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text().split("## I want to change")[1].split("\n## ")[0]
    named = [name for name in re.findall(r"`([\w./]+(?:/|\.\w+))`", text) if "<" not in name]
    folders = [COLLECTION, COLLECTION / "plugins", COLLECTION / "roles" / "training", ROOT]
    assert len(named) > 20
    missing = [name for name in named if not any((folder / name).exists() for folder in folders)]
    assert missing == []


def test_every_page_is_reachable_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.is_file():
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
    assert set(DOCS.rglob("*.md")) - seen == set()


def test_every_page_is_in_the_navigation_of_the_site():
    """`make docs` is strict: a page that is not listed ends it."""
    listed = set(re.findall(r"[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text())) - {"readme.md", "contributing.md"}
    assert listed == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_the_example_of_a_workload_is_valid():
    pages = blocks(DOCS / "stages.md", "yaml")
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


def test_the_examples_of_jobs_are_valid(tmp_path):
    (tmp_path / "train.py").touch()
    examples = blocks(DOCS / "own_work.md", "yaml")
    assert len(examples) == 2
    for number, text in enumerate(examples):
        path = tmp_path / f"{number}.yml"
        path.write_text(text)
        assert job_document.examine(path)[1] == []


def test_every_class_of_a_failure_is_in_troubleshooting():
    text = (DOCS / "troubleshooting.md").read_text()
    groups = (group for path in failure_classes.files() for group in failure_classes.read(path).items())
    classes = {row.name for name, rows in groups if name not in PATTERNED for row in rows}
    classes |= {launch_errors.runner_gone(ended)["class"] for ended in ("", "out of memory")}
    assert {name for name in classes if f"`{name}`" not in text} == set()


def test_the_examples_of_criteria_and_skus_are_valid():
    documents = [yaml.safe_load(block) for block in blocks(DOCS / "criteria.md", "yaml")]
    assert {document["schema"] for document in documents} == {"gpuval.criteria/1", "gpuval.skus/1"}
    for document in documents:
        kind = document["schema"].split(".")[1].split("/")[0]
        schemas.validate(kind, document, what="example")
        assert criteria.sku_checks(document) if kind == "skus" else criteria.parse(document)


def test_the_table_of_a_workload_has_every_key_and_its_default():
    text = (DOCS / "stages.md").read_text().split("## A workload of your own")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| ", text, re.MULTILINE))
    assert set(rows) == {"command", "workload", *plans.STAGE_DEFAULTS}
    for name, default in plans.STAGE_DEFAULTS.items():
        if isinstance(default, (int, str)):
            assert str(default) == rows[name].strip("`").replace(",", "")


def test_the_times_of_the_profiles_are_those_of_their_files():
    text = (DOCS / "run.md").read_text()
    for role in ("diagnostics", "training", "inference"):
        for profile in stages.profiles():
            seconds = stages.variables(profile)[f"{role}_seconds"]
            (row,) = re.findall(rf"^\| `{profile}`.*$", text, re.MULTILINE)
            assert f"{int(seconds):,} s" in row
    (row,) = re.findall(r"^\| on nodes without GPUs: `quick`.*$", text, re.MULTILINE)
    for seconds in stages.profiles()["quick"].cpu_settings.values():
        assert f"| {seconds} s |" in row
