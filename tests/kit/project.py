"""A copy of the checkout's user side."""

import os
import shutil

from tests.kit.fleet import ROOT, Fleet


class Project(Fleet):
    """A copy of the checkout's user side, over the checkout's collection: results and store lie where they fall."""

    def lay_out(self):
        shutil.copytree(ROOT / "playbooks", self.root / "playbooks", symlinks=True)
        shutil.copytree(ROOT / "inventories", self.root / "inventories")
        shutil.copy(ROOT / "ansible.cfg", self.root)
        (self.root / "collections").symlink_to(ROOT / "collections")
        (self.root / ".venv-node").symlink_to(ROOT / ".venv-node")
        self.home.mkdir()

    def start(self, playbook="gpuval.fleet.validate", *arguments, cwd="."):
        cwd = self.root / cwd
        inventory = os.path.relpath(self.root / "inventories/local", cwd)
        options = ["-e", f"gpuval_node_dir={self.node_base('localhost')}", "-e", '{"gpuval_stages": ["facts"]}']
        environment = {name: value for name, value in self.environment.items() if name != "ANSIBLE_CONFIG"}
        return self._start([playbook, "-i", inventory, *options, *arguments], cwd, environment)
