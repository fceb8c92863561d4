"""Where results and state are, by the ansible.cfg in use."""

from pathlib import Path

import pytest
from ansible import constants
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import project_path


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        ("/srv/gpuval/ansible.cfg", "/srv/gpuval/results"),
        ("/home/you/.ansible.cfg", "/home/you/results"),
        ("/etc/ansible/ansible.cfg", "{cwd}/results"),  # of all projects of the machine
        (None, "{cwd}/results"),
    ],
)
def test_relative_paths_start_at_the_projects_ansible_cfg(monkeypatch, tmp_path, config, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "CONFIG_FILE", config)
    assert project_path("results") == Path(folder.format(cwd=tmp_path))
    assert project_path("/data/results") == Path("/data/results")
