"""A Slurm cluster of real daemons: a controller and its nodes, each a container, from Debian's packages (22.05).

The variable GPUVAL_TESTS_SLURM names another Slurm: its folder, built with `--prefix=FOLDER --sysconfdir=/etc/slurm`.

The session fixture `slurm` of tests/integration/conftest.py is one with two nodes, `gpu-1` and `gpu-2`, of eight GPUs
`gpu:h200` each, in the partition `gpu`, and without jobs, drains or reservations at the begin of each test:

    def test_it(slurm):
        slurm.call("scontrol", "update", "nodename=gpu-1", "state=drain", "reason=bad fan")
        environment = {"PATH": f"{slurm.commands}{os.pathsep}{os.environ['PATH']}"}  # sbatch, squeue, scontrol ...
        slurm.execute("gpu-1", "cat", "/etc/hostname")  # past Slurm, as root
        slurm.stop("gpu-1"); slurm.start("gpu-1")  # its power
"""

import contextlib
import hashlib
import os
import re
import secrets
import time
from pathlib import Path

from tests.kit import container_fleet  # makes roles/testbed importable
from tests.kit.fleet import ROOT, until

import testbed  # isort: skip
from testbed import BASE_IMAGE, TestbedError, docker  # isort: skip

FOLDER = Path(__file__).with_name("slurm")
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
PACKAGES = ROOT / ".venv-node/lib"
INSIDE = "/opt/python"
READY_SECONDS = 60
OTHER = os.environ.get("GPUVAL_TESTS_SLURM", "")
CONFIGURATION = """\
ClusterName=test
SlurmctldHost=ctl
SlurmUser=root
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=10
KillWait=10
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=2,nohold_on_prolog_fail
NodeName={nodes} CPUs=1 RealMemory=500 Gres=gpu:h200:8 Feature=ib,rack1 State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmBed:
    """`commands` is a folder with Slurm's commands, for PATH; `gateway` is this machine as the nodes reach it."""

    def __init__(self, folder, nodes=("gpu-1", "gpu-2"), options=(), lines=""):
        """`options` of the engine are those of all machines; `lines` are added to slurm.conf."""
        container_fleet.needs_docker()
        self.options, self.lines = options, lines
        self.folder, self.nodes = Path(folder), tuple(nodes)
        self.name = f"gpuval-slurm-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"
        self.commands = self.folder / "commands"

    def __enter__(self):
        image = build_image()
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(nodes=",".join(self.nodes)) + self.lines)
        (self.folder / "gres.conf").write_text("Name=gpu Type=h200 File=/dev/gpu[0-7]\n")
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(64))
        docker("network", "create", self.name)
        try:
            self.gateway = docker(
                "network", "inspect", "--format", "{{(index .IPAM.Config 0).Gateway}}", self.name
            ).strip()
            self._run(image, "ctl", "slurmctld")
            for node in self.nodes:
                self._run(image, node, "slurmd")
            self._write_commands()
            self.wait_idle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exception):
        self.close()

    def close(self):
        docker("rm", "--force", "--volumes", *map(self.container, ("ctl", *self.nodes)), accept=(0, 1))
        docker("network", "rm", self.name, accept=(0, 1))

    def container(self, machine):
        return f"{self.name}-{machine}"

    def call(self, *command, accept=(0,)):
        """A command of Slurm; returns what it printed."""
        return docker("exec", self.container("ctl"), *command, accept=accept)

    def execute(self, machine, *command):
        return docker("exec", self.container(machine), *command)

    def jobs(self):
        """By id, the state of each job that slurmctld knows, ended ones too."""
        shown = self.call("scontrol", "show", "job", "-o")
        return {int(job): state for job, state in re.findall(r"JobId=(\d+) .*?JobState=(\w+)", shown)}

    def state(self, node):
        return re.search(r"State=(\S+)", self.call("scontrol", "show", "node", node, "-o"))[1]

    def stop(self, machine):
        docker("kill", self.container(machine))

    def start(self, machine):
        docker("start", self.container(machine))

    def wait_idle(self):
        until(lambda: all(self._is_idle(node) for node in self.nodes), "all nodes idle", READY_SECONDS)

    def reset(self):
        """No jobs, no drains, no reservations, all nodes idle."""
        for machine in ("ctl", *self.nodes):
            docker("start", self.container(machine))
        until(self._answers, "slurmctld answers", READY_SECONDS)
        self.call("scancel", "--user=root")
        for name in re.findall(r"ReservationName=(\S+)", self.call("scontrol", "show", "reservation", "-o")):
            self.call("scontrol", "delete", f"reservation={name}")
        for node in self.nodes:
            if not self._is_idle(node):
                self.call("scontrol", "update", f"nodename={node}", "state=resume", accept=(0, 1))
        self.wait_idle()

    def _answers(self):
        with contextlib.suppress(TestbedError):
            return "UP" in self.call("scontrol", "ping")
        return False

    def _is_idle(self, node):
        try:
            return self.state(node) == "IDLE"
        except TestbedError:  # slurmctld has not begun
            time.sleep(0.2)
            return False

    def _run(self, image, machine, daemon):
        places = {"slurm.conf": "/etc/slurm/slurm.conf", "gres.conf": "/etc/slurm/gres.conf"}
        places["munge.key"] = "/etc/munge/given.key"
        volumes = {str(self.folder / name): place for name, place in places.items()}
        volumes[str(PACKAGES.resolve())] = INSIDE
        if OTHER:
            volumes[OTHER] = OTHER
        mounts = [word for here, there in volumes.items() for word in ("--volume", f"{here}:{there}:ro")]
        docker(
            "run", "--detach", "--init", "--name", self.container(machine), "--hostname", machine,
            "--network", self.name, "--network-alias", machine, "--env", f"OTHER={OTHER}", *self.options, *mounts,
            image, daemon,
        )  # fmt: skip

    def _write_commands(self):
        self.commands.mkdir(exist_ok=True)
        for name in COMMANDS:
            path = self.commands / name
            command = f'exec env -u DOCKER_HOST docker exec --interactive {self.container("ctl")} {name} "$@"'
            path.write_text(f"#!/bin/sh\n{command}\n")
            path.chmod(0o755)


def build_image():
    """Make the image unless it is there; returns its name."""
    digest = hashlib.sha256(b"".join((FOLDER / name).read_bytes() for name in ("Dockerfile", "entry"))).hexdigest()[:12]
    image = f"gpuval-slurm:{digest}"
    if docker("image", "ls", "--quiet", image):
        return image
    if not docker("image", "ls", "--quiet", BASE_IMAGE):
        testbed.build_image("none")  # makes the base
    docker("build", "--quiet", "--network", "host", "--tag", image, str(FOLDER), seconds=600)
    return image


def environment(bed):
    """PATH with Slurm's commands first."""
    return {"PATH": os.pathsep.join([str(bed.commands), os.environ["PATH"]])}
