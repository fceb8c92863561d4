"""A Job's pod run for real by `podman kube play`, which takes its manifest but for some kinds of volumes.

What podman 4.3 does not take is given it in another way; nothing else of the manifest is touched:

* a Job: its template becomes a Pod
* projected volumes, and keys of a ConfigMap or Secret mounted by subPath: a folder, and a file, with the same content
* emptyDir: a folder (podman makes a named volume that all pods share)

What decides about scheduling (affinity, tolerations, extended resources) means nothing to podman.
"""

import base64
import copy
import json
import os
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.kit import host_image

PATH = "/usr/local/bin:/usr/bin:/bin"
STEP_SECONDS = 120
#: podman gives containers at most what whoever starts it has, and fixed numbers where nothing is said.
MODEST_NPROC = 32768


class PodmanPods:
    """`podman` with settings that work in a container, one image, and what was played, until `close`."""

    def __init__(self, folder):
        self.folder = folder
        self._played = []
        self.image = f"localhost/gpuval-pod-{os.getpid()}:1"
        self.environment = dict(os.environ)
        if not shutil.which("podman"):
            pytest.skip("podman is missing")
        if "CONTAINERS_CONF" not in os.environ:
            runtime = next((name for name in ("crun", "runc") if shutil.which(name)), "crun")
            limits = [f"nofile={_hard('NOFILE')}", f"nproc={_hard('NPROC', MODEST_NPROC)}"]
            settings = folder / "containers.conf"
            settings.write_text(
                f'[engine]\nruntime = "{runtime}"\n[containers]\ndefault_ulimits = {json.dumps(limits)}\n'
            )
            self.environment["CONTAINERS_CONF"] = str(settings)
        done = self.ask("info")
        if done.returncode:
            pytest.skip(f"podman does not answer: {done.stderr.strip()[-300:]}")
        archive = folder / "root.tar"
        host_image.write_root(archive)
        self.ask("import", "--change", f"ENV PATH={PATH}", str(archive), self.image, check=True)
        archive.unlink()

    def ask(self, *arguments, seconds=STEP_SECONDS, check=False):
        return subprocess.run(
            ["podman", *arguments], env=self.environment, capture_output=True, text=True, timeout=seconds, check=check
        )

    def play(self, job, objects, seconds, network=""):
        """Run the pod of a Job to its end. Returns the exit code of its main container and the podman's words.

        In a `network`, if one is given; what a cluster's name server would say is then an alias of the pod in it.
        """
        place = self.folder / job["metadata"]["name"]
        pod = as_pod(job, objects, place)
        file = self.folder / f"{pod['metadata']['name']}.json"
        file.write_text(json.dumps(pod))
        self._played.append(file)
        deadline = time.monotonic() + seconds
        options = ["--network", f"{network}:alias={pod_name(job)}"] if network else []
        done = self.ask(
            "kube", "play", *options, str(file), seconds=seconds
        )  # returns when the init containers have ended
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{_left(place)}"
        (main,) = pod["spec"]["containers"]
        name = f"{pod['metadata']['name']}-{main['name']}"
        code = self.ask("wait", name, seconds=max(1.0, deadline - time.monotonic()), check=True).stdout.strip()
        said = self.ask("logs", name)
        return int(code), said.stdout + said.stderr

    def close(self):
        for file in self._played:
            self.ask("kube", "down", str(file))
        self.ask("rmi", "--force", self.image)


def pod_name(job):
    """By which the Service of a round of gangs makes the pod known."""
    spec = job["spec"]["template"]["spec"]
    return f"{spec['hostname']}.{spec['subdomain']}.{job['metadata']['namespace']}.svc"


def _left(place):
    """What containers that are gone have left of their records."""
    return "\n".join(path.read_text()[:2000] for path in sorted((place / "state/records").glob("*.json")))


def as_pod(job, objects, folder):
    """The Pod that the Job controller would make of the Job, with its volumes as folders below `folder`."""
    template = copy.deepcopy(job["spec"]["template"])
    spec = template["spec"]
    given = {}
    for volume in spec["volumes"]:
        place = folder / volume["name"]
        if "projected" in volume:
            given[volume["name"]] = place
            _write(place, volume["projected"]["sources"], objects)
        if "projected" in volume or "emptyDir" in volume:
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o777)  # as the kubelet makes them
            for kind in ("projected", "emptyDir"):
                volume.pop(kind, None)
            volume["hostPath"] = {"path": str(place), "type": "Directory"}
    files = {}
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for mount in container["volumeMounts"]:
            path = mount.pop("subPath", None)
            if path:
                file = given[mount["name"]] / path
                mount["name"] = files.setdefault(file, f"file-{len(files)}")
    spec["volumes"] += [{"name": name, "hostPath": {"path": str(file), "type": "File"}} for file, name in files.items()]
    metadata = {**template["metadata"], "name": job["metadata"]["name"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _write(place, sources, objects):
    """What the kubelet makes of a projected volume: files that are links into a folder named after the time."""
    stamped = place / "..2026_11_20_20_00_00.1"
    stamped.mkdir(parents=True)
    (place / "..data").symlink_to(stamped.name)
    for source in sources:
        ((kind, said),) = source.items()
        (found,) = [
            item
            for item in objects
            if item["kind"].lower() == kind.lower() and item["metadata"]["name"] == said["name"]
        ]
        content = {key: text.encode() for key, text in found.get("data", {}).items()}
        if kind == "secret":
            content = {key: base64.b64decode(text) for key, text in content.items()}
        content.update({key: base64.b64decode(text) for key, text in found.get("binaryData", {}).items()})
        for item in said.get("items") or [{"key": key, "path": key} for key in content]:
            file = stamped / item["path"]
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content[item["key"]])
            file.chmod(item.get("mode", 0o444))
            top = Path(item["path"]).parts[0]
            if not (place / top).is_symlink():
                (place / top).symlink_to(f"..data/{top}")


def libraries_of(python):
    """Folders that an interpreter of this machine needs in a container: its own, its base's, the system's."""
    script = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
    done = subprocess.run([str(python), "-c", script], check=True, capture_output=True, text=True, timeout=60)
    folders = {*json.loads(done.stdout), str(Path("/usr/lib").resolve())} - {"/usr"}
    return [f"{folder}:{folder}:ro" for folder in sorted(folders)]


def _hard(name, most=None):
    _soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    if most is not None and not 0 <= hard <= most:
        hard = most
    return f"{hard}:{hard}"
