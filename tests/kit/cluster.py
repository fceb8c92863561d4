"""A Kubernetes cluster for tests: an API server in a thread (kmock), and a simulated cluster behind it.

    with ClusterKit(tmp_path) as kit:
        kit.add_nodes(3)
        cluster = Cluster(Access(str(kit.kubeconfig), "", "gpuval"))

As a program it serves until its input ends, for tests that measure the controller alone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import kmock

from tests.kit.api_server import RESOURCES, ApiServer, Asked, Manifest, Problem, Resource, matches
from tests.kit.simulated_cluster import (
    Fault,
    Settings,
    SimulatedCluster,
    StageEnd,
    StageRun,
    check_job,
    check_job_set,
    check_pod_security,
    new_condition,
)

__all__ = ["Asked", "ClusterKit", "Fault", "Problem", "StageEnd", "StageRun", "config_data", "secret_data"]

TOKEN = "kit-token-5f2b"
POD_SECURITY = "pod-security.kubernetes.io/enforce"
START_SECONDS = 60.0
T = TypeVar("T")


class ClusterKit:
    """One simulated cluster with its API server on a loopback port.

    `directory` takes the kubeconfig. `settings` of the simulation: stage_seconds, stage_seconds_of, pull_seconds,
    eviction_seconds, retry_seconds, grace_seconds, on_stage; they may be changed while it runs.
    """

    def __init__(
        self, directory: Path, *, namespace: str | None = "gpuval", token: str = TOKEN, **settings: Any
    ) -> None:
        self.directory, self.token = directory, token
        self.settings = Settings(**settings)
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="cluster-kit", daemon=True)
        self._up, self._stop = threading.Event(), asyncio.Event()
        self._problem: BaseException | None = None
        self.url = ""

    def __enter__(self) -> ClusterKit:
        self._thread.start()
        if not self._up.wait(START_SECONDS) or self._problem:
            raise RuntimeError("the API server for tests did not start") from self._problem
        self.kubeconfig = self.write_kubeconfig("kubeconfig", {"token": self.token})
        if self._namespace:
            self.put({"kind": "Namespace", "metadata": {"name": self._namespace}})
        self.put({"kind": "Namespace", "metadata": {"name": "kube-system"}})
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_SECONDS)
        if kind is None:
            self._raise_errors()

    def _raise_errors(self) -> None:
        if self.world.errors:
            raise RuntimeError("the simulated cluster failed") from self.world.errors.pop(0)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            self._problem = error
        finally:
            self._up.set()
            self._loop.close()

    async def _main(self) -> None:
        self.server = ApiServer()
        self.server.token = self.token
        self.server.admit = self._admit
        self.world = SimulatedCluster(self.server, self.settings)
        async with kmock.Server(self.server) as listening:
            self.url = str(listening.url).rstrip("/")
            self._up.set()
            await self._stop.wait()
            await self.world.stop()
            self.server.drop_watches()

    def _admit(self, resource: Resource, manifest: Manifest) -> None:
        if resource.kind == "Job":
            check_job(manifest)
        if resource.kind == "JobSet":
            check_job_set(manifest)
        if resource.kind == "Pod":
            namespace = self.server.storage.get("Namespace", "", manifest["metadata"]["namespace"]) or {}
            check_pod_security(manifest, (namespace["metadata"].get("labels") or {}).get(POD_SECURITY, ""))

    def do(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call something in the server's loop and return its result."""

        async def call() -> T:
            return work(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def write_kubeconfig(self, name: str, user: Mapping[str, Any]) -> Path:
        path = self.directory / name
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "kit", "cluster": {"server": self.url}}],
            "users": [{"name": "tester", "user": user}],
            "contexts": [{"name": "kit", "context": {"cluster": "kit", "user": "tester"}}],
            "current-context": "kit",
        }
        path.write_text(json.dumps(config), encoding="utf-8")
        path.chmod(0o600)
        return path

    # Nodes

    def add_nodes(self, count: int, prefix: str = "node-", **options: Any) -> list[str]:
        """Make nodes `node-001` and so on; returns their names."""
        width = max(3, len(str(count)))
        names = [f"{prefix}{number:0{width}}" for number in range(1, count + 1)]
        for name in names:
            self.add_node(name, **options)
        return names

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 8,
        resource: str = "nvidia.com/gpu",
        labels: Mapping[str, str] | None = None,
        taints: Iterable[Mapping[str, Any]] = (),
        ready: bool = True,
        unschedulable: bool = False,
        allocatable: Mapping[str, str] | None = None,
    ) -> Manifest:
        capacity = {"cpu": "192", "memory": "2113548132Ki", "ephemeral-storage": "900000000Ki", "pods": "110"}
        if gpus:
            capacity[resource] = str(gpus)
        conditions = [
            new_condition(
                "MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"
            ),
            new_condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            new_condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
            new_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
        ]
        spec: Manifest = {
            "podCIDR": "10.244.0.0/24",
            "providerID": f"kit://{name}",
            "taints": [dict(t) for t in taints],
        }
        if unschedulable:
            spec["unschedulable"] = True
        node = {
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    **(labels or {}),
                },
                "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
            },
            "spec": spec,
            "status": {
                "capacity": capacity,
                "allocatable": {**capacity, **(allocatable or {})},
                "conditions": conditions,
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": name}],
                "nodeInfo": {
                    "machineID": f"{abs(hash(name)):032x}"[:32],
                    "kernelVersion": "6.8.0-79-generic",
                    "osImage": "Ubuntu 24.04.3 LTS",
                    "containerRuntimeVersion": "containerd://1.7.28",
                    "kubeletVersion": "v1.33.4",
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                },
                "images": [{"names": [f"registry.test/image-{i}:1"], "sizeBytes": 10**9} for i in range(5)],
            },
        }
        made = self.put(node)
        if not ready:
            self.set_node(name, ready=False)
        return made

    def set_node(self, name: str, *, ready: bool | None = None, **spec: Any) -> None:
        """Change a node: `ready`, `unschedulable`, `taints`."""
        if ready is not None:
            message = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady"
            if ready:
                condition = new_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
            else:
                condition = new_condition("Ready", "False", "KubeletNotReady", message)
                spec.setdefault("taints", [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
            self.do(self.world.set_condition, name, condition)
        self.do(self.world.patch_node, name, {"spec": spec})

    def lose_node(self, name: str) -> None:
        self.do(self.world.lose_node, name)

    def delete_node(self, name: str) -> None:
        self.do(self.world.delete_node, name)

    def restore_node(self, name: str) -> None:
        self.do(self.world.restore_node, name)

    def fault(self, node: str, fault: Fault) -> None:
        self.do(lambda: self.world.faults[node].append(fault))

    def repair(self, node: str) -> None:
        """Take the faults of a node away."""
        self.do(lambda: self.world.faults.pop(node, None))

    @property
    def on_stage(self) -> Callable[[StageRun, str], StageEnd | None] | None:
        return self.settings.on_stage

    @on_stage.setter
    def on_stage(self, call: Callable[[StageRun, str], StageEnd | None] | None) -> None:
        self.settings.on_stage = call

    @property
    def stage_seconds_of(self) -> dict[str, float]:
        return self.settings.stage_seconds_of

    @property
    def most_running(self) -> int:
        """The most pods that had a node at once."""
        return self.world.most_running

    @property
    def most_pulling(self) -> int:
        """The most of them at once whose first container had not started."""
        return self.world.most_pulling

    # Objects, past the API

    def put(self, manifest: Manifest) -> Manifest:
        return self.do(self.server.storage.add, manifest["kind"], manifest)

    def get(self, kind: str, name: str, namespace: str = "gpuval") -> Manifest | None:
        return self.do(self.server.storage.get, kind, namespace, name)

    def all(self, kind: str, selector: str = "") -> list[Manifest]:
        items = self.do(lambda: list(self.server.storage.objects[kind].values()))
        return [item for item in items if matches(selector, item["metadata"].get("labels") or {})]

    def change(self, kind: str, name: str, patch: Manifest, namespace: str = "gpuval") -> None:
        item = self.get(kind, name, namespace)
        if item is None:
            raise KeyError(name)
        self.do(self.server.storage.change, kind, item, patch)

    def remove(self, kind: str, name: str, namespace: str = "gpuval") -> None:
        item = self.get(kind, name, namespace)
        if item is not None:
            self.do(self.server.delete, RESOURCES[kind], item, "Background")

    def set_log(self, pod: str, container: str, text: str, namespace: str = "gpuval") -> None:
        self.do(self.server.logs.__setitem__, (namespace, pod, container), text.encode())

    def wait(self, predicate: Callable[[], T], seconds: float = 10.0) -> T:
        """Wait until something is so; AssertionError after `seconds`."""
        ends = time.monotonic() + seconds
        while not (result := predicate()):
            self._raise_errors()
            if time.monotonic() > ends:
                raise AssertionError(f"not so after {seconds:.0f} s")
            time.sleep(0.01)
        return result

    # Requests, and trouble with the API

    @property
    def requests(self) -> list[Asked]:
        return list(self.server.asked)

    def counts(self) -> Counter[Asked]:
        return Counter(self.requests)

    def install_job_sets(self) -> None:
        self.server.served.add("jobset.x-k8s.io")

    def install_dra(self, *classes: Manifest, domains: bool = False) -> None:
        """Serve dynamic resource allocation, with these DeviceClasses; with `domains` also ComputeDomains."""
        self.server.served |= {"resource.k8s.io", *(["resource.nvidia.com"] if domains else [])}
        for item in classes:
            self.put(item)

    def forget_requests(self) -> None:
        self.do(self.server.asked.clear)

    def drop_watches(self) -> None:
        """Break the connections of all watches."""
        self.do(self.server.drop_watches)

    def compact(self) -> None:
        """Resource versions of the past are Gone."""

        def forget() -> None:
            storage = self.server.storage
            storage.version += 1
            storage.oldest = storage.version
            for changes in storage.changes.values():
                changes.clear()

        self.do(forget)

    def deny(self, verb: str, group: str, resource: str, subresource: str = "", times: int | None = None) -> None:
        self.do(self.server.denied.__setitem__, Asked(verb, group, resource, subresource), times)

    def deny_after(self, first: Asked, *denied: Asked) -> None:
        """Deny these once `first` was asked for."""
        self.allow_only(lambda asked: asked not in denied or first not in self.server.asked)

    def permit(self) -> None:
        """Take back all that was denied."""
        self.do(self.server.denied.clear)

    def allow_only(self, allowed: Callable[[Asked], bool] | None) -> None:
        """Answer 403 to each request for which `allowed` is false."""
        self.server.allowed = allowed

    def throttle(self, times: int, retry_after: float = 0) -> None:
        """Answer 429 to the next requests."""
        message = "The server has received too many requests and has asked us to try again later"
        self._answer(times, Problem(429, "TooManyRequests", message, retry_after))

    def fail(self, times: int, status: int = 503, reason: str = "ServiceUnavailable", message: str = "down") -> None:
        self._answer(times, Problem(status, reason, message))

    def _answer(self, times: int, problem: Problem) -> None:
        self.do(self.server.answers.extend, [problem] * times)

    def lose_answers(self, times: int, verb: str = "create") -> None:
        """The next requests with that verb are done, and their answers lost."""
        self.do(self.server.lost.__setitem__, verb, times)

    def down(self, seconds: float) -> None:
        """Hang up on each request for so long."""
        self.server.down_until = time.monotonic() + seconds
        self.drop_watches()


def secret_data(secret: Mapping[str, Any], key: str) -> bytes:
    """What a pod sees of a Secret's key."""
    if key in (secret.get("stringData") or {}):
        return secret["stringData"][key].encode()
    return base64.b64decode(secret["data"][key])


def config_data(config_map: Mapping[str, Any], key: str) -> bytes:
    """What a pod sees of a ConfigMap's key."""
    if key in (config_map.get("data") or {}):
        return config_map["data"][key].encode()
    return base64.b64decode(config_map["binaryData"][key])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--stage-seconds", type=float, default=0.02)
    options = parser.parse_args()
    with ClusterKit(options.directory, stage_seconds=options.stage_seconds) as kit:
        kit.add_nodes(options.nodes)
        print(json.dumps({"kubeconfig": str(kit.kubeconfig), "url": kit.url}), flush=True)
        sys.stdin.read()
        print(json.dumps({" ".join(asked): count for asked, count in kit.counts().items()}), flush=True)


if __name__ == "__main__":
    main()
