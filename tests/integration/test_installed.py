"""The collection without the repository: installed from its archive, used in a folder with an inventory alone."""

import subprocess

import pytest

from tests.kit.fleet import ANSIBLE_PLAYBOOK, NODE_PYTHON, ROOT, Fleet

COLLECTION = ROOT / "collections/ansible_collections/gpuval/fleet"
GALAXY = ANSIBLE_PLAYBOOK.with_name("ansible-galaxy")


class Stranger(Fleet):
    """A folder with `inventory` in it; the collection is where ansible-galaxy puts it, and there is no ansible.cfg."""

    @property
    def work(self):
        return self.root / "work"

    @property
    def results(self):
        return self.work / "results"

    @property
    def installed(self):
        return self.home / ".ansible/collections/ansible_collections/gpuval/fleet"

    @property
    def environment(self):
        left_out = ("ANSIBLE_CONFIG", "ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_CALLBACKS_ENABLED")
        return {name: value for name, value in super().environment.items() if name not in left_out}

    def install(self):
        """Build and install the archive. Not in the checkout: its ansible.cfg names its own collection as the place."""
        self.work.mkdir(parents=True)
        self.home.mkdir()
        self._galaxy("build", "--output-path", self.root, COLLECTION)
        self._galaxy("install", "--offline", next(self.root.glob("gpuval-fleet-*.tar.gz")))

    def _galaxy(self, *words):
        command = [GALAXY, "collection", *words]
        subprocess.run(command, cwd=self.work, env=self.environment, check=True, timeout=120, capture_output=True)

    def inventory(self, python):
        # The three lines of the README, and where a test's node keeps its files.
        (self.work / "inventory").write_text(
            'localhost ansible_connection=local ansible_python_interpreter="{{ ansible_playbook_python }}"\n'
            f"[all:vars]\ngpuval_workload_python={python}\ngpuval_node_dir={self.node_base('localhost')}\n"
        )

    def start(self, playbook="gpuval.fleet.validate", *arguments):
        return self._start([playbook, "-i", "inventory", *arguments], self.work, self.environment)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    fleet = Stranger(tmp_path_factory.mktemp("stranger"), nodes={"localhost": {}})
    fleet.install()
    try:
        yield fleet
    finally:
        fleet.close()


def test_what_comes_along(stranger):
    assert {"requirements.txt", "ansible.cfg", "jobs", "README.md"} <= {
        path.name for path in stranger.installed.iterdir()
    }


def test_what_would_end_the_run_is_found_before_it(stranger):
    stranger.inventory("/usr/bin/python3")
    done = stranger.play("gpuval.fleet.doctor", "-e", "gpuval_profil=quick", "-e", "gpuval_store_port=99999")
    assert done.code != 0, done
    assert "gpuval_profil: no such setting; is it gpuval_profile?" in done.told
    assert "gpuval_store_port 99999: must be from 1 to 65534" in done.told
    assert "training, combined_load need torch (not installed: /usr/bin/python3 -m pip install torch)" in done.told
    assert "inference needs vllm.entrypoints.openai.api_server or transformers>=5 (not installed" in done.told
    assert "none in use (the verdict is not the last line" in done.told
    assert f"cp {stranger.installed}/ansible.cfg ." in done.told
    assert not (stranger.work / ".gpuval/store/store.json").exists()


def test_a_node_without_torch_is_incomplete_and_the_remedy_is_a_playbook(stranger):
    stranger.inventory("/usr/bin/python3")
    done = stranger.play("gpuval.fleet.validate", "-e", '{"gpuval_stages": ["facts", "training"]}')
    assert done.code != 0, done
    assert "FINAL ACCEPTANCE: INCOMPLETE" in done.output
    assert "refused (no_package): stages need what this node lacks: training needs torch" in done.told
    failed = stranger.run_folder / "failed_nodes.txt"
    assert f"`ansible-playbook gpuval.fleet.validate -i inventory --limit @{failed}`" in done.told
    assert "make " not in done.output


def test_doctor_and_a_first_run(stranger):
    stranger.inventory(NODE_PYTHON)
    shipped = stranger.installed / "ansible.cfg"
    (stranger.work / "ansible.cfg").write_text(shipped.read_text())
    done = stranger.play("gpuval.fleet.doctor", "--tags", "nodes")
    assert done.code == 0, done
    assert "0 failed, 0 warning(s)" in done.output
    assert "probe: 1 of 1 node(s) reachable" in done.output
    done = stranger.play("gpuval.fleet.validate", "-e", '{"gpuval_stages": ["facts", "loading"]}')
    assert done.code == 0, done
    assert done.output.rstrip().endswith("=" * 50), "the shipped ansible.cfg shows events, and the block last"
    assert stranger.report()["nodes"][0]["verdict"] == "PASS"
