"""Commands in messages work where they are read: targets in a checkout, playbooks of an installed collection."""

import ast
import re
import shlex
import sys

import pytest
from ansible import context
from ansible.module_utils.common.collections import ImmutableDict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import commands

COLLECTION = commands.COLLECTION
MESSAGE = re.compile(r"(.?)\bmake ([a-z]+(?:-[a-z]+)*)((?: [A-Z]+=\S+)?)")
#: Targets without a playbook of their name.
OTHERS = {"setup", *commands.TARGETS}


@pytest.fixture
def given(monkeypatch):
    def give(*sources):
        monkeypatch.setattr(context, "CLIARGS", ImmutableDict(inventory=sources))

    return give


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `make validate` first", "run `ansible-playbook gpuval.fleet.validate -i hosts` first"),
        ("(`make window N=20`)", "(`ansible-playbook gpuval.fleet.window -i hosts -e run_window_nodes=20`)"),
        ("`make clean INVENTORY='a b'`", "`ansible-playbook gpuval.fleet.clean -i 'a b'`"),
        ("`make clean INVENTORY=a RUN=r1`", "`ansible-playbook gpuval.fleet.clean -i a -e gpuval_run_id=r1`"),
        ("`make x ARGS='--limit n1'`", "`ansible-playbook gpuval.fleet.x -i hosts --limit n1`"),
        ("`make rerun`", "`ansible-playbook gpuval.fleet.validate -i hosts --limit @results/latest/failed_nodes.txt`"),
        ("add a SKU (docs/criteria.md)", "add a SKU (https://github.com/gpuval/gpuval/blob/main/docs/criteria.md)"),
        ("`make history NODE=n1`", "`ansible-playbook gpuval.fleet.history -i hosts -e history_node=n1`"),
        ("see to it: make it work", "see to it: make it work"),
        ("Run `make install' or `make check'", "Run `make install' or `make check'"),  # words of a node
    ],
)
def test_an_installed_collection_names_playbooks(given, text, shown):
    given("hosts")
    assert commands.pasteable(text, checkout=False) == shown


def test_the_image_validate_names_the_command_that_starts_its_container_again(given, monkeypatch):
    given("/tmp/gpuval-x/machine.json")
    monkeypatch.setattr(commands, "AGAIN", "docker run ... IMAGE")
    assert commands.pasteable("`make rerun`", checkout=False) == "`docker run ... IMAGE`"
    assert commands.pasteable("`make validate RUN=r1`", checkout=False) == "`docker run ... IMAGE`"


def test_all_sources_of_an_inventory_are_named_and_a_run_names_its_own(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given(str(tmp_path / "a"), "n1,n2,")
    assert "-i a -i n1,n2," in commands.pasteable("`make status`", checkout=False)
    assert "-i its" in commands.pasteable("`make status`", "its", checkout=False)
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    assert "-i a -i b" in commands.pasteable("`make status`", "a,b", checkout=False)
    assert "-i a,n1" in commands.pasteable("`make clean INVENTORY=a,n1`", checkout=False)  # hosts
    assert "-i a -i b" in commands.pasteable("`make clean INVENTORY=a,b`", checkout=False)


def test_missing_packages_are_installed_into_the_python_that_runs_ansible():
    shown = commands.pasteable("run `make setup`", checkout=False)
    command = shlex.split(shown.strip("run `"))
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[-1] == str(commands.REQUIREMENTS)
    assert "boto3==" in commands.REQUIREMENTS.read_text()


def test_the_address_of_the_documentation_is_that_of_the_collection():
    repository = re.search(r"^documentation: (\S+)$", (COLLECTION / "galaxy.yml").read_text(), re.MULTILINE)[1]
    assert commands.DOCUMENTATION.startswith(f"{repository}/")


def test_a_checkout_names_its_targets():
    assert commands.pasteable("read docs/gate.md") == "read docs/gate.md"
    assert commands.in_checkout()
    assert commands.pasteable("`make status`") == "`make status`"
    assert commands.pasteable("`make status`", "a b") == "`make status INVENTORY='a b'`"


def test_a_checkout_names_the_inventory_of_its_command_unless_it_is_the_default(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given(str(tmp_path / commands.DEFAULT_INVENTORY))
    assert commands.pasteable("`make report RUN=r1`") == "`make report RUN=r1`"
    given(str(tmp_path / "inventories/mine"))
    assert commands.pasteable("`make report RUN=r1`") == "`make report INVENTORY=inventories/mine RUN=r1`"
    assert commands.pasteable("`make runs INVENTORY=b`") == "`make runs INVENTORY=b`"
    for text in ("run `make setup`", "a node says `make menuconfig`", "`make -C x status`"):
        assert commands.pasteable(text) == text
    (tmp_path / "a").touch()
    (tmp_path / "b c").touch()
    given(str(tmp_path / "a"), str(tmp_path / "b c"))
    assert commands.pasteable("`make status`") == "`make status INVENTORY='a,b c'`"
    monkeypatch.delitem(sys.modules, "ansible.context")
    monkeypatch.setattr(commands, "look_sources", ["inventories/mine"])
    assert commands.pasteable("`make status`") == "`make status INVENTORY=inventories/mine`"


def test_targets_with_an_inventory_are_those_of_the_makefile_that_run_a_playbook(given, tmp_path):
    given(str(tmp_path))
    recipes = dict(re.findall(r"^([a-z-]+):(.*\n(?:\t.*\n)*)", commands.MAKEFILE.read_text(), re.MULTILINE))
    playing = {name for name in recipes if re.search(r"\$\((?:PLAY|LOOK)\)|call reach", recipes[name])}
    named = {name for name in recipes if "INVENTORY=" in commands.pasteable(f"`make {name}`")}
    # no message names these two
    assert named == playing - {"notebook", "from-bundle"} - {*commands.NOT_OF_INVENTORIES}


def test_a_makefile_of_ones_own_beside_the_collections_is_no_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "MAKEFILE", tmp_path / "Makefile")
    for text in (None, "validate:\n\tansible-playbook gpuval.fleet.validate\n"):
        if text:
            commands.MAKEFILE.write_text(text)
        commands.in_checkout.cache_clear()
        assert not commands.in_checkout()
    commands.in_checkout.cache_clear()


def test_remedies_of_a_report_are_adapted_and_evidence_is_not(given, monkeypatch):
    given("hosts")
    monkeypatch.setattr(commands, "in_checkout", lambda: False)
    document = {
        "nodes": [{"reason": "`make clean`", "remedy": "`make probe`", "checks": [{"remedy": "`make report`"}]}]
    }
    commands.in_remedies(document)
    (node,) = document["nodes"]
    assert node["reason"] == "`make clean`"
    assert node["remedy"] == "`ansible-playbook gpuval.fleet.probe -i hosts`"
    assert node["checks"] == [{"remedy": "`ansible-playbook gpuval.fleet.report -i hosts`"}]


def texts():
    """Strings of the controller's code without documentation, and the lines of data that are shown."""
    for path in sorted(COLLECTION.glob("plugins/**/*.py")):
        constants, documentation = [], set()
        for one in ast.walk(ast.parse(path.read_text())):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                constants.append(one)
            elif isinstance(one, ast.Expr) or (
                isinstance(one, ast.Assign) and getattr(one.targets[0], "id", "") == "DOCUMENTATION"
            ):
                documentation.add(id(one.value))
        yield from ((path, one.value) for one in constants if id(one) not in documentation)
    for path in sorted(COLLECTION.glob("roles/*/files/criteria*.yml")):
        yield from ((path, line) for line in path.read_text().splitlines() if not line.strip().startswith("#"))


def test_messages_name_commands_that_exist_and_that_can_be_adapted():
    targets = set(re.findall(r"^([a-z-]+):", commands.MAKEFILE.read_text(), re.MULTILINE))
    found = 0
    for path, text in texts():
        if path.name in ("commands.py", "cluster.py", "next_steps.py") or "doc_fragments" in path.parts:
            continue
        for before, target, variables in MESSAGE.findall(text):
            if target in targets:
                found += 1
                assert before == "`", f"{path}: write `make {target}` between backticks"
                assert target in OTHERS or (COLLECTION / f"playbooks/{target}.yml").exists(), (path, target)
                named = variables.strip().partition("=")[0]
                assert named in {"", "INVENTORY", "ARGS", *commands.VARIABLES}, (path, variables)
    assert found > 30
