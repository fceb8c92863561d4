"""The pod of a controller in a simulated cluster: the image's own program, with the files that the pod mounts."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from tests.kit.cluster import StageEnd
from tests.kit.cluster_fleet import mounted
from tests.kit.cluster_records import Records
from tests.kit.fleet import ROOT, STEP_SECONDS

ENTRYPOINT = ROOT / "docker/validate/entrypoint.py"
POD_SECONDS = 300


@dataclass
class ControllerPods(Records):
    """`on_stage` of a ClusterKit: Records for the pods of nodes, and a process for the pod of a controller.

    `kubeconfig` stands for the pod's account; `pods`: by name of the Job, what its controllers printed.
    """

    root: Path = None
    kubeconfig: Path = None
    #: The image, built, in which the container runs; empty: its program runs on this machine.
    image: str = ""
    pods: dict = field(default_factory=dict)
    processes: list = field(default_factory=list)
    code: int = -1
    _ended: dict = field(default_factory=dict)

    def __call__(self, run, moment):
        if run.container != "controller":
            return super().__call__(run, moment)
        uid = run.pod["metadata"]["uid"]
        if moment == "start":
            self._ended[uid] = self.control(run, self.root / uid)
            return None
        return self._ended[uid]

    def control(self, run, folder):
        """Run the container to its end."""
        mounted(run, folder)
        if self.image:
            return self.contained(run, folder)
        project, work = folder / "project", folder / "work"
        for path in (work, folder / "tmp"):
            path.mkdir(parents=True, exist_ok=True)
        for path in project.glob("*.json"):
            path.write_text(_here(path.read_text(), project, work))
        for path in project.glob("inventory/**/*.*"):  # no pod has the file of the user
            path.write_text(path.read_text().replace(str(self.kubeconfig), "/elsewhere/kubeconfig"))
        (container,) = run.pod["spec"]["containers"]
        name = run.job["metadata"]["name"]
        words = [_here(word, project, work) for word in container["args"]]
        environment = {item["name"]: item.get("value", name) for item in container["env"]}
        for source in container.get("envFrom", []):
            secret = self.environments[source["secretRef"]["name"]]
            environment |= secret
        environment |= {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "KUBECONFIG": str(self.kubeconfig),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "PYTHONPATH": str(ROOT / "collections"),
            "ANSIBLE_NOCOLOR": "1",
        }
        output = folder / "output"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, str(ENTRYPOINT), *words],
                cwd=work,
                env=environment,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        try:
            code = process.wait(POD_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        text = output.read_text(errors="replace")
        self.pods.setdefault(name, []).append(text)
        return StageEnd(exit_code=code, log=text)

    def contained(self, run, folder):
        """Run the image with the pod's user, rights, folders and arguments. The kubeconfig stands for its account."""
        (container,) = run.pod["spec"]["containers"]
        user = run.pod["spec"]["securityContext"]["runAsUser"]
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 0, user)
            path.chmod(0o750 if path.is_dir() else 0o440)
        account = folder / "account"
        account.write_text(self.kubeconfig.read_text())
        account.chmod(0o444)
        command = ["docker", "run", "--rm", "--network", "host", "--user", f"{user}:{user}", "--read-only"]
        command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--workdir", container["workingDir"]]
        command += ["--tmpfs", "/tmp:mode=1777", "--tmpfs", "/out:mode=1777", "-e", "ANSIBLE_NOCOLOR=1"]
        command += ["-v", f"{folder / 'project'}:/etc/gpuval:ro", "-v", f"{account}:/account:ro"]
        command += ["-e", "KUBECONFIG=/account"]
        command += [word for item in container["env"] for word in ("-e", f"{item['name']}={item['value']}")]
        done = subprocess.run(
            [*command, self.image, *container["args"]], capture_output=True, text=True, timeout=POD_SECONDS, check=False
        )
        self.pods.setdefault(run.job["metadata"]["name"], []).append(done.stdout + done.stderr)
        return StageEnd(exit_code=done.returncode, log=done.stdout)

    #: By name of a Secret that the user made, its variables.
    environments: dict = field(default_factory=dict)

    def run_again(self, job, pod, kit):
        """What another pod of the Job does, with a disk of its own."""
        kinds = {kind: {item["metadata"]["name"]: item for item in kit.all(kind)} for kind in ("Secret", "ConfigMap")}
        run = SimpleNamespace(job=job, pod=pod, secrets=kinds["Secret"], config_maps=kinds["ConfigMap"])
        self.code = self.control(run, self.root / "again").exit_code

    @property
    def output(self):
        """What the pod of `run_again` has printed by now."""
        path = self.root / "again/output"
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self):
        """The node of the last controller loses its power."""
        process = self.processes[-1]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STEP_SECONDS)


def _here(text, project, work):
    return re.sub(r"(?<![\w.])/etc/gpuval(?=/)", str(project), re.sub(r"(?<![\w.])/out(?=[/\"])", str(work), text))
