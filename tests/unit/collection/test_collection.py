"""The collection as a whole: roles declare what they use, links lead somewhere, and it builds."""

import builtins
import configparser
import re
import subprocess
import sys
import tarfile
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions, stage_traits
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.step_options import StoreSettings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import coherence, criteria
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records import failure_classes
from jsonschema import Draft202012Validator

ROOT = Path(__file__).resolve().parents[3]
FLEET = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet"
ROLES = sorted(path.name for path in (FLEET / "roles").iterdir())

#: Declared without a default: absent means "not declared by the operator".
OPTIONAL = {"gpuval_gpu_count", "gpuval_nic_count", "gpuval_host_keys"}


def read(path):
    return yaml.safe_load(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_declares_its_variables_by_its_name_depends_on_no_other_and_is_linked(role):
    defaults = read(FLEET / "roles" / role / "defaults" / "main.yml") or {}
    specs = read(FLEET / "roles" / role / "meta" / "argument_specs.yml")["argument_specs"]
    options = specs["settings" if role == "gpuval" else "main"]["options"]
    assert set(options) - OPTIONAL == set(defaults)
    for name, option in options.items():
        if "default" in option:
            assert option["default"] == defaults[name], name
    assert [name for name in defaults if not name.startswith(f"{role}_")] == []
    link = ROOT / "roles" / role
    assert link.is_symlink()
    assert not link.readlink().is_absolute()
    assert (link / "meta" / "main.yml").is_file()


def test_a_stage_or_a_profile_is_named_in_no_list_of_the_product():
    """Each is found by its folder or file: a new one touches nothing else."""
    names = [*extensions.found("stages"), *extensions.found("profiles")]
    pattern = re.compile("|".join(rf"\b{name}\b" for name in names))
    files = [
        *(FLEET / "plugins").rglob("*.py"),
        *(FLEET / "playbooks").rglob("*.yml"),
        *(FLEET / "roles").glob("*/*/main.yml"),
    ]
    lists = [
        f"{path.relative_to(FLEET)}: {text}"
        for path in files
        for text in re.findall(r"[\[({][^\[\](){}]*[\])}]", path.read_text())
        if len(set(pattern.findall(text))) > 5
    ]
    assert lists == []


def test_what_a_stage_brings_stands_in_its_folder():
    """Files for all stages have no row of one stage, and no criterion names a profile."""
    stages = tuple(f"{stage}_" for stage in extensions.found("stages"))
    rows = [
        row.name for groups in map(failure_classes.read, failure_classes.COMMON) for row in sum(groups.values(), ())
    ]
    of_all = read(stage_traits.OF_ALL)
    metrics = [name for table in stage_traits.TABLES for row in of_all[table] for name in row["metrics"]]
    assert [name for name in (*rows, *metrics) if name.startswith(stages)] == []
    rules = coherence.entries_of(coherence.RULES)
    assert [rule["name"] for rule in rules if len(rule.get("stages", "**")) == 1] == []
    assert [check.name for check in criteria.load(criteria.shipped_files()) if check.applies.profile] == []


def test_a_field_of_nvidia_smi_costs_what_the_table_says():
    files = [path for path in FLEET.rglob("*.[py]*") if "row_remap_failed_count" in path.read_text(errors="ignore")]
    assert {str(path.relative_to(FLEET)) for path in files if path.suffix in (".py", ".yml")} == {
        "plugins/module_utils/hardware/gpu.py",
        "roles/facts/files/criteria.yml",
    }


LOGIC = re.compile(
    r"\{\{.*?\}\}|^ *(?:- )?(?:when|until|failed_when|changed_when|that):[^\n]*(?:\n +- [^\n]*)*",
    re.MULTILINE | re.DOTALL,
)


def test_booleans_may_be_given_as_text():
    """`-e name=true` gives text, which is no condition, and whose `false` counts as true."""
    specs = [read(path)["argument_specs"] for path in FLEET.glob("roles/*/meta/argument_specs.yml")]
    options = [one for spec in specs for entry in spec.values() for one in (entry.get("options") or {}).items()]
    switches = "|".join(sorted(name for name, option in options if option.get("type") == "bool"))
    whole, used = (
        re.compile(rf"\{{\{{ (?:{switches})(?: \| default\(\w+\))? \}}\}}"),
        rf"\b(?:{switches})\b(?! \| bool\b)",
    )
    found = [
        f"{path.relative_to(FLEET)}: {expression}"
        for folder in ("roles", "playbooks")
        for path in sorted((FLEET / folder).rglob("*.yml"))
        if path.name != "argument_specs.yml"
        for expression in LOGIC.findall(path.read_text())
        if not whole.fullmatch(expression) and re.search(used, expression)
    ]
    assert not found


def test_secrets_are_marked():
    options = read(FLEET / "roles" / "gpuval" / "meta" / "argument_specs.yml")["argument_specs"]["settings"]["options"]
    secret = {name for name in options if name.endswith(("_key", "_token", "_secrets"))} | {
        "gpuval_store",
        "gpuval_env",
    }
    secret.add("gpuval_webhook_url")  # the path of many a webhook is a token
    assert {name for name, option in options.items() if option.get("no_log")} == secret


def test_the_store_of_the_settings_has_what_the_actions_take():
    """An option that the role leaves out has its default in every command."""
    defaults = read(FLEET / "roles" / "gpuval" / "defaults" / "main.yml")
    assert set(defaults["gpuval_store"]) == {field.name for field in fields(StoreSettings)}


@pytest.mark.parametrize("package", ["node/gpuval_runner", "node/gpuval_workloads", "plugins"])
def test_docstrings_name_exceptions_that_their_package_has(package):
    text = "\n".join(path.read_text() for path in sorted((FLEET / package).rglob("*.py")))
    used = re.findall(r"^ *(?:class|from|import|    \w+,$).*|\.\w+", text, re.MULTILINE)
    known = {*dir(builtins), *re.findall(r"\w+", " ".join(used))}
    raised = re.findall(r"[Rr]aises (`*[A-Z]\w+`*(?:(?:,| and| or)\s+`*[A-Z]\w+`*)*)", text)
    assert {name for names in raised for name in re.findall(r"[A-Z]\w+", names)} - known == set()


def test_the_thin_playbooks_import_the_collections():
    names = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    assert {"prepare", "validate", "status", "report", "clean"} <= names
    for name in names:
        (entry,) = read(ROOT / "playbooks" / f"{name}.yml")
        assert entry["ansible.builtin.import_playbook"] == f"gpuval.fleet.{name}"
        assert (FLEET / "playbooks" / f"{name}.yml").is_file()


def roles_of(tasks):
    """The roles that tasks import or include, in order."""
    for task in tasks:
        for kind in ("import_role", "include_role"):
            if f"ansible.builtin.{kind}" in task:
                yield task[f"ansible.builtin.{kind}"]["name"]
        for part in ("block", "rescue", "always"):
            yield from roles_of(task.get(part, ()))


@pytest.mark.parametrize("path", sorted((FLEET / "playbooks").glob("*.yml")), ids=lambda path: path.name)
def test_every_playbook_first_sees_that_there_are_hosts_and_imports_the_settings_before_other_roles(path):
    plays = read(path)
    for play in plays:
        roles = list(roles_of(play.get("tasks", ())))
        assert roles[:1] in ([], ["gpuval.fleet.gpuval"]), play["name"]
    # A play that no host matches is skipped by Ansible, which then exits with 0.
    imported = {entry.get("ansible.builtin.import_playbook") for entry in plays}
    assert path.name == "hosts.yml" or imported & {"gpuval.fleet.hosts", "gpuval.fleet.validate"}


def test_no_role_depends_on_another():
    """Each dependency is a task more for every node, and its defaults are merged once more for every task."""
    assert [
        path for path in (FLEET / "roles").glob("*/meta/main.yml") if "dependencies" in yaml.safe_load(path.read_text())
    ] == []


@pytest.mark.parametrize("path", sorted((FLEET / "schemas").glob("*.json")), ids=lambda path: path.name)
def test_the_schemas_are_schemas(path):
    import json

    schema = json.loads(path.read_text())
    Draft202012Validator.check_schema(schema)
    name, _, version = schema["$id"].partition("/")
    assert name == f"gpuval.{path.name.removesuffix('.schema.json')}"
    assert version == "1"


def test_the_collection_builds_with_what_travels_and_nothing_else(tmp_path):
    galaxy = Path(sys.executable).parent / "ansible-galaxy"
    command = [str(galaxy), "collection", "build", "--output-path", str(tmp_path), str(FLEET)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (archive,) = tmp_path.glob("gpuval-fleet-*.tar.gz")
    with tarfile.open(archive) as tar:
        names = set(tar.getnames())
        assert tar.getmember("plugins/plugin_utils/ssh/askpass.sh").mode & 0o100, "ssh runs it"
    for wanted in ("node/gpuval_runner/__main__.py", "node/gpuval_workloads/__init__.py", "schemas/plan.schema.json"):
        assert wanted in names
    assert "playbooks/validate.yml" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_versions_agree():
    """The changelog ends with the version; while fragments wait for the next release, with one before it."""
    version, is_released = read(FLEET / "galaxy.yml")["version"], not list((FLEET / "changelogs/fragments").iterdir())
    releases = read(FLEET / "changelogs" / "changelog.yaml")["releases"]
    assert (version in releases) is is_released
    changelog = (FLEET / "CHANGELOG.md").read_text()
    assert all(f"## v{release}".replace(".", r"\.") in changelog for release in releases)
    newest = max(releases, key=numbers)
    assert numbers(version) > numbers(newest) or (is_released and version == newest)
    named = [*ROOT.glob("docker/*/Dockerfile"), ROOT / "execution-environment.yml", ROOT / "docs/install.md"]
    for path in [*named, ROOT / "SECURITY.md", FLEET / "README.md"]:
        versions = re.findall(
            r"(?:^ARG VERSION=|gpuval-fleet-|gpuval-ee:)(\d+\.\d+\.\d+)", path.read_text(), re.MULTILINE
        )
        assert {*versions} == {version}, path


def test_what_is_gone_names_the_release_without_it():
    version = read(FLEET / "galaxy.yml")["version"]
    modules = read(FLEET / "meta/runtime.yml")["plugin_routing"]["modules"]
    assert {numbers(entry["tombstone"]["removal_version"]) <= numbers(version) for entry in modules.values()} == {True}


def numbers(version):
    return [int(number) for number in version.split(".")]


def test_a_node_that_dies_while_it_is_asked_is_not_waited_for():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "ansible.cfg")
    arguments = settings["ssh_connection"]["ssh_args"].split()
    assert {"ServerAliveInterval=15", "ServerAliveCountMax=4", "ControlMaster=auto"} <= set(arguments)


def test_settings_that_cost_processor_time_for_nothing_are_not_there():
    """Compression of what is compressed, and a thousand looks a second for the end of a task of minutes."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "ansible.cfg")
    assert "-C" not in settings["ssh_connection"]["ssh_args"].split()
    assert settings["defaults"].getfloat("internal_poll_interval") == 0.03
