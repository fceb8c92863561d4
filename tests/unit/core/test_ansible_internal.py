"""An ansible-core that is too old is refused in one sentence."""

import importlib
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import ansible_internal

COLLECTION = Path(ansible_internal.__file__).parents[3]


def test_an_old_ansible_core_is_told_from_what_is_needed_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ansible._internal._datatag._tags", None)  # as in 2.18
    with pytest.raises(AnsibleError, match=r"needs ansible-core 2\.19 .* of Python 3.11 or newer, pip install '"):
        importlib.reload(ansible_internal)


def test_the_version_is_that_of_the_collection_and_no_other_file_goes_past_it():
    required = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text())["requires_ansible"]
    assert required == f">={ansible_internal.OLDEST}.0"
    importing = [path.name for path in COLLECTION.rglob("*.py") if "ansible._internal" in path.read_text()]
    assert importing == ["ansible_internal.py"]
