"""A fleet on a Slurm cluster of real daemons: its inventory, its playbooks, what they leave."""

import yaml

from tests.kit.fleet import ROOT, Fleet
from tests.kit.gang_fleet import INSIDE, PACKAGES
from tests.kit.ports import free_port
from tests.kit.processes import end_all_below
from tests.kit.slurm_bed import environment

NODE_DIR = "/var/lib/gpuval"


class SlurmFleet(Fleet):
    """`Fleet` of the nodes that Slurm has, by an inventory with the options `source`; settings of all hosts are its
    `group_vars`."""

    def __init__(self, root, bed, expected=None, settings=None):
        super().__init__(root, settings=dict(settings or {}))
        self.bed, self.expected = bed, expected
        self.source = {}

    @property
    def variables(self):
        inherited = super().variables
        for name in ("ansible_connection", "gpuval_node_dir", "gpuval_runtime"):
            inherited.pop(name)
        (site,) = PACKAGES.glob("python3*/site-packages")
        return {
            **inherited,
            "gpuval_workload_python": "python3",
            "gpuval_environment": {
                "PYTHONPATH": f"{INSIDE}/{site.parent.name}/site-packages",
                "OMP_NUM_THREADS": "1",
            },
            "gpuval_node_dir": NODE_DIR,
            "gpuval_store_address": self.bed.gateway,
            "gpuval_store_port": self._port,
            "gpuval_sku": "cpu",
            "gpuval_gpu_count": 0,
            **self.settings,
        }

    @property
    def environment(self):
        return {**super().environment, "PATH": f"{environment(self.bed)['PATH']}:{super().environment['PATH']}"}

    _ports: int = 0

    @property
    def _port(self):
        self._ports = self._ports or free_port()
        return self._ports

    def start(self, playbook="gpuval.fleet.validate", *arguments):
        self.home.mkdir(parents=True, exist_ok=True)
        place = self.root / "inventory"
        (place / "group_vars").mkdir(parents=True, exist_ok=True)
        source = {"plugin": "gpuval.fleet.slurm_nodes", **self.source}
        source |= {"expected": self.expected} if self.expected else {}
        (place / "hosts.yml").write_text(yaml.safe_dump(source))
        (place / "group_vars/all.yml").write_text(yaml.safe_dump(self.variables))
        return self._start([playbook, "-i", str(place / "hosts.yml"), *arguments], ROOT, self.environment)

    def close(self):
        """Clean up; raises when `clean` left a job, a folder of a run on a node, or a process."""
        for playing in self._playing:
            playing.kill()
        if not self.home.exists():
            return
        done = self.play("gpuval.fleet.clean", "-e", "cleanup_all_runs=true", seconds=120)
        survivors = end_all_below(self.root)
        assert done.code == 0, done
        assert not survivors, f"processes were left after clean: {survivors}"
        assert not set(self.bed.jobs().values()) & {"PENDING", "RUNNING", "COMPLETING"}

    def left_on(self, node):
        """Files of this fleet's latest run on a node; the cluster is shared by fleets, and some leave theirs."""
        below = f"find {NODE_DIR} -mindepth 1 -path '{NODE_DIR}/{self.run_id}*'"
        return self.bed.execute(node, "sh", "-c", f"test ! -d {NODE_DIR} || {below}").split()
