"""What an operator set is held against what the roles declare."""

import math
import random
import string
from pathlib import Path

import pytest
from ansible import constants
from ansible.plugins.loader import become_loader, connection_loader, shell_loader
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings

KNOWN = settings.declared()


def test_every_default_of_the_roles_is_declared():
    assert set(KNOWN.defaults) <= set(KNOWN.options)
    assert len(KNOWN.options) > 100


def test_the_defaults_themselves_are_no_change():
    assert settings.changed(KNOWN.defaults) == {}


def test_what_differs_from_its_default_is_looked_at_and_other_variables_are_not():
    values = {**KNOWN.defaults, "gpuval_retries": 0, "gpuval_gpu_count": 8, "mine": "x"}
    assert settings.changed(values) == {"gpuval_retries": 0, "gpuval_gpu_count": 8}


@pytest.mark.parametrize(("name", "value"), [("gpuval_retries", "1"), ("gpuval_force", "yes"), ("gpuval_hosts", "a:b")])
def test_text_that_stands_for_the_type_is_good(name, value):
    assert settings.problems({name: value}) == []


@pytest.mark.parametrize("value", [math.inf, -math.inf, "inf", "Infinity", math.nan, "1e400"])
@pytest.mark.parametrize(
    ("name", "problem"), [("gpuval_gang_port", "a whole number"), ("gpuval_deadline_seconds", "a number")]
)
def test_a_number_that_is_not_finite_is_wrong(name, problem, value):
    assert settings.problems({name: value}) == [f"{name} {value}: must be {problem}"]


def test_a_list_of_whole_numbers_has_no_infinite_one():
    (problem,) = settings.problems({"network_ports": [22, math.inf]})
    assert problem.startswith("network_ports [22, inf]: must be a list")


def test_a_secret_is_not_reported():
    (problem,) = settings.problems({"gpuval_s3_secret_key": {"open": "sesame"}}) or [""]
    assert "sesame" not in problem


#: Variables of Ansible and of plugins in other collections that no operator has mistyped.
REAL = (Path(__file__).parent / "data/ansible_variables.txt").read_text().split()


def test_no_variable_that_a_plugin_of_ansible_documents_is_a_mistyped_one():
    documented = set(REAL)
    for kind, loader in (("connection", connection_loader), ("become", become_loader), ("shell", shell_loader)):
        for plugin in loader.all(class_only=True):
            options = constants.config.get_configuration_definitions(kind, plugin._load_name).values()
            documented |= {variable["name"] for option in options for variable in option.get("vars") or ()}
    assert len(documented) > 180
    assert settings.unknown(documented) == {}


def mistyped(name, generator):
    """The name with a letter missing, wrong or too many, or two swapped."""
    position, letter = generator.randrange(len(name)), generator.choice(string.ascii_lowercase + "_-")
    head, tail = name[:position], name[position + 1 :]
    swapped = head + tail[:1] + name[position] + tail[1:]
    return generator.choice([head + tail, head + letter + tail, head + letter + name[position:], swapped])


def test_a_connection_variable_with_one_mistake_or_two_is_named():
    """Drawn: 20 of each kind for each variable. All 72,166 with one mistake are named; of those with two 99.4 %."""
    generator, names = random.Random(8), settings.connection_variables()
    assert {"ansible_host", "ansible_ssh_port", "ansible_become_password", "ansible_python_interpreter"} <= names
    once = {name: [mistyped(name, generator) for _ in range(20)] for name in sorted(names)}
    twice = {name: [mistyped(word, generator) for word in words] for name, words in once.items()}
    for mistakes, least in ((once, 1.0), (twice, 0.98)):
        words = {word for group in mistakes.values() for word in group} - names
        messages = settings.unknown(words)
        assert len(words) > 1000
        assert len(messages) >= least * len(words)
        assert all("Ansible reads no such variable; is it ansible_" in text for text in messages.values())


def test_variables_of_ones_own_pass():
    own = ["ansible_user_home", "ansible_rack", "hosts", "user", "port", "ansible_users"]
    assert set(settings.unknown(own)) == {"ansible_users"}
    assert settings.unknown(own, ["ansible_users"]) == {}
