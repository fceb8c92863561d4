"""What a cluster does behind its API, simulated: scheduler, Job controller, kubelets, taint and garbage collection.

Conditions, reasons and messages are worded as Kubernetes 1.30 to 1.36 words them.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.kit.api_server import RESOURCES, ApiServer, Change, Manifest, Problem, Resource, now

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
RUN_LABEL, NODE_LABEL, ATTEMPT_LABEL = "gpuval.io/run", "gpuval.io/node", "gpuval.io/attempt"
NODE_ANNOTATION = "gpuval.io/node-name"
HOSTNAME = "kubernetes.io/hostname"

#: Waiting reason and message of a container, by kind of fault.
WAITING = {
    "image_pull": (
        "ImagePullBackOff",
        (
            'Back-off pulling image "{image}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and '
            'unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
        ),
    ),
    "invalid_image": (
        "InvalidImageName",
        'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}": invalid reference format',
    ),
    "create_container": ("CreateContainerError", "context deadline exceeded"),
    "run_container": (
        "RunContainerError",
        (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            'failed: unable to start container process: exec: "python3": executable file not found in $PATH'
        ),
    ),
}
#: Faults that strike while a container runs.
RUNNING = ("evicted", "preempted", "drained", "node_lost", "node_deleted", "deleted", "job_deleted", "hang")


@dataclass
class Fault:
    """What goes wrong on a node. `stage` "": the first; `attempt` 0: each; `times` None: always."""

    kind: str
    stage: str = ""
    attempt: int = 0
    message: str = ""
    exit_code: int = 1
    times: int | None = None


@dataclass(frozen=True)
class StageEnd:
    """How a container ends."""

    exit_code: int = 0
    log: str = ""
    termination: str = ""


@dataclass(frozen=True)
class StageRun:
    """A stage's container at work, and what is mounted in its pod."""

    node: str
    stage: str
    container: str
    attempt: int
    run: str
    job: Manifest
    pod: Manifest
    secrets: Mapping[str, Manifest]
    config_maps: Mapping[str, Manifest]


@dataclass
class Settings:
    stage_seconds: float = 0.02
    stage_seconds_of: dict[str, float] = field(default_factory=dict)
    pull_seconds: float = 0.0
    #: Until a pod of a lost node is deleted by its taint (300 s in a real cluster).
    eviction_seconds: float = 0.2
    #: Between two looks at what is missing: a Secret to mount, a place for a pod.
    retry_seconds: float = 0.1
    #: What a container told to end takes.
    grace_seconds: float = 0.0
    #: From the end of a deleted pod's containers until its kubelet has it removed.
    removal_seconds: float = 0.0
    #: Whether the scheduler names the taints that keep a pod away, as it did before Kubernetes 1.34.
    names_taints: bool = True
    on_stage: Callable[[StageRun, str], StageEnd | None] | None = None


class SimulatedCluster:
    """Carries out the Jobs in the storage of an API server. Everything runs in the server's event loop."""

    def __init__(self, server: ApiServer, settings: Settings) -> None:
        self.server, self.storage, self.settings = server, server.storage, settings
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.most_running = self.most_pulling = 0
        #: Of the simulation itself, or of a test's `on_stage`.
        self.errors: list[BaseException] = []
        self._running: set[str] = set()
        self._pulling: set[str] = set()  # uids of pods of which no container has run
        self._asked_gpus: dict[tuple[str, str], int] = {}  # by pod uid and resource
        self._allocated: dict[str, set[tuple[str, str]]] = {}  # devices by pod uid: node and device
        self._pods_of: dict[str, set[str]] = defaultdict(set)  # uids of live pods by node
        self._tasks: dict[
            str, asyncio.Task[None]
        ] = {}  # kubelet's work by pod uid, and the Job controller's by Job uid
        self._others: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(16, thread_name_prefix="stage")
        server.delete = self.delete
        self.storage.listeners.append(self._changed)

    async def stop(self) -> None:
        tasks = [*self._tasks.values(), *self._others]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # The API's side

    def delete(self, resource: Resource, item: Manifest, propagation: str) -> None:
        """Delete an object as the API server and the garbage collector do."""
        if resource.kind == "Pod" and item["metadata"]["uid"] in self._tasks:
            self._start(self._end_pod(item))
            return
        self.storage.remove(resource.kind, item)
        uid = item["metadata"]["uid"]
        if resource.kind in ("Job", "JobSet") and (task := self._tasks.pop(uid, None)):
            task.cancel()
        # batch/v1 orphans the pods of a Job that is deleted without saying what to do with them.
        if propagation != "Orphan" and not (resource.kind == "Job" and not propagation):
            self._start(self._collect(uid))

    async def _collect(self, owner: str) -> None:
        await asyncio.sleep(0.01)
        for kind in ("Pod", "Secret", "ConfigMap", "Job", "ResourceClaimTemplate"):
            for item in list(self.storage.objects[kind].values()):
                if any(ref["uid"] == owner for ref in item["metadata"].get("ownerReferences") or []):
                    self.delete(RESOURCES[kind], item, "Background")

    def _changed(self, kind: str, change: Change) -> None:
        if kind == "Job" and change.type == "ADDED":
            self._tasks[change.object["metadata"]["uid"]] = self._task(self._carry_out(change.object))
        if kind == "ComputeDomain" and change.type == "ADDED":
            self._make_channel(change.object)
        if kind == "JobSet" and change.type == "ADDED":
            self._tasks[change.object["metadata"]["uid"]] = self._task(self._job_set(change.object))

    def _make_channel(self, domain: Manifest) -> None:
        """The claim template of a ComputeDomain, as its controller makes it; here each node has a channel."""
        meta, name = domain["metadata"], domain["spec"]["channel"]["resourceClaimTemplate"]["name"]
        owner = {"apiVersion": domain["apiVersion"], "kind": "ComputeDomain", "name": meta["name"], "uid": meta["uid"]}
        template = {"name": name, "namespace": meta["namespace"], "ownerReferences": [owner]}
        self.storage.add(
            "ResourceClaimTemplate", {"metadata": template, "spec": {"spec": {"devices": {"requests": []}}}}
        )

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._note_error)
        return task

    def _note_error(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    # JobSet controller

    async def _job_set(self, job_set: Manifest) -> None:
        """Make the Jobs, and those that are deleted again; a Job that fails ends the others (maxRestarts 0)."""
        meta = job_set["metadata"]
        owner = {"apiVersion": job_set["apiVersion"], "kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}
        while True:
            spec = (self.storage.get("JobSet", *self._key(job_set)) or job_set)["spec"]
            suspend = spec.get("suspend", False)
            jobs = [self._child(meta, each, suspend, owner) for each in spec["replicatedJobs"]]
            ended = [{one["type"] for one in job.get("status", {}).get("conditions", ())} for job in jobs]
            if any("Failed" in types for types in ended):
                for job, types in zip(jobs, ended, strict=True):
                    if not types & {"Failed", "Complete"}:
                        self.delete(RESOURCES["Job"], job, "Background")
                return
            if all("Complete" in types for types in ended):
                return
            await asyncio.sleep(self.settings.retry_seconds)

    def _child(self, meta: Manifest, each: Manifest, suspend: bool, owner: Manifest) -> Manifest:
        template, labels = each["template"], {"jobset.sigs.k8s.io/jobset-name": meta["name"]}
        own, pods = template["metadata"], template["spec"]["template"]
        name = f"{meta['name']}-{each['name']}-0"
        known = self.storage.get("Job", meta["namespace"], name)
        if known is None:
            pod_meta = {**pods["metadata"], "labels": {**pods["metadata"]["labels"], **labels}}
            manifest = {
                "metadata": {
                    **own,
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": {**own["labels"], **labels},
                    "ownerReferences": [owner],
                },
                "spec": {**template["spec"], "suspend": suspend, "template": {**pods, "metadata": pod_meta}},
            }
            check_job({**manifest, "kind": "Job"})
            return self.storage.add("Job", manifest)
        if known["spec"].get("suspend", False) != suspend:
            return self.storage.change("Job", known, {"spec": {"suspend": suspend}}) or known
        return known

    # Job controller

    async def _admitted(self, job: Manifest) -> None:
        """Until nobody holds the Job back."""
        while job["spec"].get("suspend"):
            await asyncio.sleep(self.settings.retry_seconds)
            job = self.storage.get("Job", *self._key(job)) or job

    async def _carry_out(self, job: Manifest) -> None:
        await self._admitted(job)
        deadline = job["spec"].get("activeDeadlineSeconds")
        self.storage.change("Job", job, {"status": {"startTime": now(), "active": 0, "ready": 0}})
        work = asyncio.ensure_future(self._one_pod(job))
        try:
            done, _ = await asyncio.wait([work], timeout=deadline)
            if done:
                failed = work.result()
                self._finish_job(
                    job, failed and ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
                )
                return
            late = ("DeadlineExceeded", "Job was active longer than specified deadline")
            target = new_condition("FailureTarget", "True", *late)
            self.storage.change("Job", job, {"status": {"conditions": [target]}})
            for pod in self._pods(job):
                await self._end_pod(pod)
            self._finish_job(job, late)
        finally:
            work.cancel()

    async def _one_pod(self, job: Manifest) -> bool:
        """Make the pod and wait for its end. Returns whether it failed."""
        fault = None
        while fault := self._fault(job, "quota"):
            tried = f"{job['metadata']['name']}-{uuid.uuid4().hex[:5]}"
            message = fault.message or (
                f'Error creating: pods "{tried}" is forbidden: exceeded quota: gpus, '
                "requested: requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=16, "
                "limited: requests.nvidia.com/gpu=16"
            )
            self.event(job, "FailedCreate", message, "job-controller", "Warning")
            await asyncio.sleep(self.settings.retry_seconds)
        pod = self._make_pod(job)
        self.event(job, "SuccessfulCreate", f"Created pod: {pod['metadata']['name']}", "job-controller")
        self.storage.change("Job", job, {"status": {"active": 1, "terminating": 0}})
        uid = pod["metadata"]["uid"]
        self._tasks[uid] = self._task(self._kubelet(job, pod))
        while True:
            pod_now = self.storage.get("Pod", *self._key(pod))
            if pod_now is None or pod_now["metadata"]["uid"] != uid or pod_now["metadata"].get("deletionTimestamp"):
                return True
            if (phase := pod_now["status"]["phase"]) in ("Succeeded", "Failed"):
                return phase == "Failed"
            await self._next_change(uid)

    async def _next_change(self, uid: str) -> None:
        task = self._tasks.get(uid)
        if task and not task.done():
            await asyncio.wait([task], timeout=self.settings.retry_seconds * 10)
        else:
            await asyncio.sleep(self.settings.retry_seconds)

    def _finish_job(self, job: Manifest, why: tuple[str, str] | bool) -> None:
        if why:
            reason, message = why  # type: ignore[misc]
            status = {
                "failed": 1,
                "conditions": [
                    new_condition("FailureTarget", "True", reason, message),
                    new_condition("Failed", "True", reason, message),
                ],
            }
            self.event(job, reason, message, "job-controller", "Warning")
        else:
            reached = ("CompletionsReached", "Reached expected number of succeeded pods")
            status = {
                "succeeded": 1,
                "completionTime": now(),
                "conditions": [
                    new_condition("SuccessCriteriaMet", "True", *reached),
                    new_condition("Complete", "True", *reached),
                ],
            }
            self.event(job, "Completed", "Job completed", "job-controller")
        self.storage.change("Job", job, {"status": {"active": None, "ready": 0, "terminating": 0, **status}})

    def _make_pod(self, job: Manifest) -> Manifest:
        meta, template = job["metadata"], job["spec"]["template"]
        own = template.get("metadata") or {}
        return self.storage.add(
            "Pod",
            {
                "metadata": {
                    "name": f"{meta['name']}-{uuid.uuid4().hex[:5]}",
                    "namespace": meta["namespace"],
                    "labels": {
                        **(own.get("labels") or {}),
                        "batch.kubernetes.io/controller-uid": meta["uid"],
                        "batch.kubernetes.io/job-name": meta["name"],
                        "controller-uid": meta["uid"],
                        "job-name": meta["name"],
                    },
                    "annotations": own.get("annotations") or {},
                    "finalizers": ["batch.kubernetes.io/job-tracking"],
                    "ownerReferences": [
                        {
                            "apiVersion": "batch/v1",
                            "kind": "Job",
                            "name": meta["name"],
                            "uid": meta["uid"],
                            "controller": True,
                            "blockOwnerDeletion": True,
                        }
                    ],
                },
                "spec": {"schedulerName": "default-scheduler", **template["spec"]},
                "status": {"phase": "Pending", "qosClass": "Burstable"},
            },
        )

    def _pods(self, job: Manifest) -> list[Manifest]:
        uid = job["metadata"]["uid"]
        return [
            pod
            for pod in self.storage.objects["Pod"].values()
            if any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences") or [])
        ]

    # Scheduler

    async def _schedule(self, pod: Manifest, job: Manifest) -> str:
        """Returns the node of a pod, once there is one."""
        said = ""
        while True:
            fault = self._fault(job, "unschedulable", stage=None)
            node, why = ("", fault.message) if fault and fault.message else self._place(pod, bool(fault))
            if node:
                return node
            if why != said:
                said = why
                condition = new_condition("PodScheduled", "False", "Unschedulable", why)
                self.storage.change("Pod", pod, {"status": {"conditions": [condition]}})
                self.event(pod, "FailedScheduling", why, "default-scheduler", "Warning")
            await asyncio.sleep(self.settings.retry_seconds)

    def _place(self, pod: Manifest, full: bool) -> tuple[str, str]:
        nodes = self.storage.objects["Node"]
        targets = _targets(pod["spec"])
        count = len(nodes)
        claims = "" if self.settings.names_taints else " no new claims to deallocate,"
        hopeless = (
            f"{claims} preemption: 0/{count} nodes are available: {count} Preemption is not helpful for scheduling."
        )
        reasons: dict[str, int] = defaultdict(int)
        candidates = [nodes[("", name)] for name in targets if ("", name) in nodes] if targets else list(nodes.values())
        for node in candidates:
            why = "Insufficient nvidia.com/gpu" if full else self._obstacle(node, pod)
            if not why:
                return node["metadata"]["name"], ""
            reasons[why] += 1
        if count - len(candidates):
            reasons["node(s) didn't match Pod's node affinity/selector"] += count - len(candidates)
        told = ", ".join(f"{number} {why}" for why, number in sorted(reasons.items()))
        return "", f"0/{count} nodes are available: {told or 'no nodes'}.{hopeless}"

    def _obstacle(self, node: Manifest, pod: Manifest) -> str:
        spec, labels = node["spec"], node["metadata"]["labels"]
        if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
            return "node(s) didn't match Pod's node affinity/selector"
        if labels.get(HOSTNAME) in _targets(pod["spec"], "NotIn"):
            return "node(s) didn't match Pod's node affinity/selector"
        if spec.get("unschedulable"):
            return "node(s) were unschedulable"
        for taint in spec.get("taints") or []:
            if taint["effect"] != "PreferNoSchedule" and not _tolerated(taint, pod["spec"].get("tolerations") or []):
                if not self.settings.names_taints:
                    return "node(s) had untolerated taint(s)"
                return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        return self._no_devices(node, pod)

    def _no_devices(self, node: Manifest, pod: Manifest) -> str:
        """Why the node has no place for the pod's GPUs, of a device plugin or of DRA; takes devices of DRA."""
        name, requests = node["metadata"]["name"], []
        for claim in pod["spec"].get("resourceClaims") or []:
            template = self.storage.get(
                "ResourceClaimTemplate", pod["metadata"]["namespace"], claim["resourceClaimTemplateName"]
            )
            if template is None:
                return f'pod "{pod["metadata"]["name"]}": ResourceClaim not created yet'
            requests += [item["exactly"] for item in template["spec"]["spec"]["devices"]["requests"]]
        for resource in GPU_RESOURCES:
            count = _requested(pod["spec"], resource)
            by_name = (
                one
                for one in self.storage.objects["DeviceClass"].values()
                if one["spec"].get("extendedResourceName") == resource
            )
            device_class = next(by_name, None)
            if count and device_class and not int(node["status"]["allocatable"].get(resource, 0)):
                requests.append({"deviceClassName": device_class["metadata"]["name"], "count": count})
            elif count > self._free(node, resource):
                return f"Insufficient {resource}"
        taken = {device for uid in self._pods_of[name] for device in self._allocated.get(uid, ())}
        chosen: set[tuple[str, str]] = set()
        for request in requests:
            if self.storage.get("DeviceClass", "", request["deviceClassName"]) is None:
                return f"request gpus: device class {request['deviceClassName']} does not exist"
            every, usable = self._devices(name)
            count = len(every) if request.get("allocationMode") == "All" else request.get("count", 1)
            usable -= taken | chosen
            if not count or len(usable) < count:
                return "cannot allocate all claims"
            chosen |= set(sorted(usable)[:count])
        self._allocated[pod["metadata"]["uid"]] = chosen
        return ""

    def _devices(self, node: str) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """The whole GPUs that the node publishes (of the simulation's one driver, in one slice): all, and untainted."""
        devices = [
            device
            for item in self.storage.objects["ResourceSlice"].values()
            if item["spec"].get("nodeName") == node
            for device in item["spec"]["devices"]
            if device["attributes"].get("type", {}).get("string") == "gpu"
        ]
        every = {(node, device["name"]) for device in devices}
        return every, {(node, device["name"]) for device in devices if not device.get("taints")}

    def _free(self, node: Manifest, resource: str) -> int:
        name = node["metadata"]["name"]
        used = 0
        for uid in self._pods_of[name]:
            used += self._asked_gpus.get((uid, resource), 0)
        return int(node["status"]["allocatable"].get(resource, 0)) - used

    # Kubelet

    async def _kubelet(self, job: Manifest, pod: Manifest) -> None:
        node = await self._schedule(pod, job)
        uid = pod["metadata"]["uid"]
        self._pods_of[node].add(uid)
        for resource in GPU_RESOURCES:
            self._asked_gpus[(uid, resource)] = _requested(pod["spec"], resource)
        self._running.add(uid)
        self._pulling.add(uid)
        self.most_running = max(self.most_running, len(self._running))
        self.most_pulling = max(self.most_pulling, len(self._pulling))
        try:
            self.storage.change("Pod", pod, {"spec": {"nodeName": node}, "status": {"conditions": [_scheduled()]}})
            self.event(
                pod,
                "Scheduled",
                f"Successfully assigned {pod['metadata']['namespace']}/{pod['metadata']['name']} to {node}",
                "default-scheduler",
            )
            if fault := self._fault(job, "admission", stage=None):
                message = fault.message or (
                    "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8, "
                    "Available: 0, which is unexpected"
                )
                self._fail(pod, "UnexpectedAdmissionError", message)
                return
            await self._containers(job, pod, node)
        finally:
            self._pods_of[node].discard(uid)
            self._allocated.pop(uid, None)
            self._running.discard(uid)
            self._pulling.discard(uid)

    async def _containers(self, job: Manifest, pod: Manifest, node: str) -> None:
        view = _PodView(self, pod, node)
        view.tell()
        secrets, config_maps = await self._mount(pod)
        view.prepared = True
        view.tell()
        if self.settings.pull_seconds:
            self.event(pod, "Pulling", f'Pulling image "{view.specs[0].get("image", "")}"', "kubelet", where=node)
            await asyncio.sleep(self.settings.pull_seconds)
        for index, spec in enumerate(view.specs):
            stage = stage_of(spec)
            for kind, (reason, text) in WAITING.items():
                said = ""
                while fault := self._fault(job, kind, stage, first=index == 0):
                    message = fault.message or text.format(image=spec.get("image", ""))
                    now_said = "ErrImagePull" if kind == "image_pull" and not said else reason
                    if now_said != said:
                        said = now_said
                        view.wait(index, said, message)
                        self.event(pod, "Failed", f"Error: {said}", "kubelet", "Warning", where=node)
                    await asyncio.sleep(self.settings.retry_seconds)
            self._pulling.discard(pod["metadata"]["uid"])
            view.run(index)
            end = await self._run(job, view, index, stage, secrets, config_maps)
            if end is None:
                return
            view.end(index, *end)
            if end[0]:
                break
        view.finish()

    async def _run(
        self,
        job: Manifest,
        view: _PodView,
        index: int,
        stage: str,
        secrets: Mapping[str, Manifest],
        config_maps: Mapping[str, Manifest],
    ) -> tuple[int, str, str] | None:
        """Returns exit code, reason and termination message; None when the pod ended otherwise."""
        pod, loop = view.pod, asyncio.get_running_loop()
        labels = pod["metadata"].get("labels") or {}
        notes = pod["metadata"].get("annotations") or {}
        name = notes.get(NODE_ANNOTATION) or view.node
        run = StageRun(
            name,
            stage,
            view.specs[index]["name"],
            int(labels.get(ATTEMPT_LABEL, "1")),
            labels.get(RUN_LABEL, ""),
            job,
            pod,
            secrets,
            config_maps,
        )
        key = (pod["metadata"]["namespace"], pod["metadata"]["name"], run.container)
        self.server.logs.setdefault(key, b"")
        call = self.settings.on_stage
        if call:
            await loop.run_in_executor(self._threads, call, run, "start")
        await asyncio.sleep(self.settings.stage_seconds_of.get(stage, self.settings.stage_seconds))
        first = index == 0
        for kind in RUNNING:
            if fault := self._fault(job, kind, stage, first=first):
                await getattr(self, f"_{kind}")(view, fault)
                return None
        end = (await loop.run_in_executor(self._threads, call, run, "end") if call else None) or StageEnd()
        self.server.logs[key] = self.server.logs[key] + end.log.encode()
        if fault := self._fault(job, "oom", stage, first=first):
            return 137, "OOMKilled", ""
        if fault := self._fault(job, "exit", stage, first=first):
            return fault.exit_code, "Error", fault.message
        return end.exit_code, "Error" if end.exit_code else "Completed", end.termination

    async def _mount(self, pod: Manifest) -> tuple[dict[str, Manifest], dict[str, Manifest]]:
        """Wait until what the pod mounts is there, as a kubelet does."""
        namespace = pod["metadata"]["namespace"]
        said = ""
        while True:
            found: dict[str, dict[str, Manifest]] = {"Secret": {}, "ConfigMap": {}}
            missing = ""
            for volume, kind, name, keys, optional in _mounts(pod["spec"]):
                item = self.storage.get(kind, namespace, name)
                if item is None:
                    missing = missing or ("" if optional else f'{volume}" : {kind.lower()} "{name}" not found')
                    continue
                has = {**(item.get("data") or {}), **(item.get("binaryData") or {}), **(item.get("stringData") or {})}
                if absent := [key for key in keys if key not in has]:
                    what = f"{kind.lower()} references non-existent {kind.lower()} key: {absent[0]}"
                    missing = missing or f'{volume}" : {what}'
                found[kind][name] = item
            if not missing:
                return found["Secret"], found["ConfigMap"]
            if missing != said:
                said = missing
                self.event(pod, "FailedMount", f'MountVolume.SetUp failed for volume "{missing}', "kubelet", "Warning")
            await asyncio.sleep(self.settings.retry_seconds)

    # Faults of a running pod

    async def _hang(self, view: _PodView, fault: Fault) -> None:
        await asyncio.sleep(3600)

    async def _evicted(self, view: _PodView, fault: Fault) -> None:
        message = fault.message or (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. Container "
            f"{view.specs[view.current]['name']} was using 900Gi, request is 0, has larger consumption of memory. "
        )
        view.kill(137, "Error")
        self.event(view.pod, "Evicted", message, "kubelet", "Warning", where=view.node)
        condition = new_condition("DisruptionTarget", "True", "TerminationByKubelet", message)
        self._fail(view.pod, "Evicted", message, condition)

    async def _preempted(self, view: _PodView, fault: Fault) -> None:
        message = fault.message or "default-scheduler: preempting to accommodate a higher priority pod"
        self.event(
            view.pod, "Preempted", f"Preempted by pod a1b2c3 on node {view.node}", "default-scheduler", "Warning"
        )
        await self._disrupt(view, "PreemptionByScheduler", message)

    async def _drained(self, view: _PodView, fault: Fault) -> None:
        self.patch_node(view.node, {"spec": {"unschedulable": True}})
        await self._disrupt(view, "EvictionByEvictionAPI", fault.message or "Eviction API: evicting")

    async def _deleted(self, view: _PodView, fault: Fault) -> None:
        self._start(self._end_pod(view.pod))
        await asyncio.sleep(3600)

    async def _job_deleted(self, view: _PodView, fault: Fault) -> None:
        owner = view.pod["metadata"]["ownerReferences"][0]["name"]
        job = self.storage.get("Job", view.pod["metadata"]["namespace"], owner)
        if job:
            self.delete(RESOURCES["Job"], job, "Background")
        await asyncio.sleep(3600)

    async def _disrupt(self, view: _PodView, reason: str, message: str) -> None:
        view.add_condition(new_condition("DisruptionTarget", "True", reason, message))
        self._start(self._end_pod(view.pod))
        await asyncio.sleep(3600)  # until it is ended

    async def _node_lost(self, view: _PodView, fault: Fault) -> None:
        self.lose_node(view.node)
        await asyncio.sleep(3600)

    async def _node_deleted(self, view: _PodView, fault: Fault) -> None:
        self.delete_node(view.node)
        await asyncio.sleep(3600)

    def _fail(self, pod: Manifest, reason: str, message: str, condition: Manifest | None = None) -> None:
        known = self.storage.get("Pod", *self._key(pod))
        if known is None:
            return
        conditions = with_condition((known["status"].get("conditions") or []), condition) if condition else None
        status = {"phase": "Failed", "reason": reason, "message": message}
        self.storage.change("Pod", pod, {"status": {**status, **({"conditions": conditions} if conditions else {})}})

    async def _end_pod(self, pod: Manifest) -> None:
        """Delete a pod as asked: its containers get their grace, then it is gone."""
        uid = pod["metadata"]["uid"]
        known = self.storage.get("Pod", *self._key(pod))
        if known is None or known["metadata"]["uid"] != uid or known["metadata"].get("deletionTimestamp"):
            return
        stamp = {"deletionTimestamp": now(), "deletionGracePeriodSeconds": 30}
        known = self.storage.change("Pod", pod, {"metadata": stamp}) or known
        node = self.storage.get("Node", "", known["spec"].get("nodeName", ""))
        if node and not _ready(node):
            return  # nobody there to end it: it stays Terminating
        task = self._tasks.pop(uid, None)
        if task:
            task.cancel()
        await asyncio.sleep(self.settings.grace_seconds)
        if known["status"]["phase"] in ("Pending", "Running"):
            statuses = {
                part: [_killed(item) for item in known["status"].get(part) or []]
                for part in ("initContainerStatuses", "containerStatuses")
            }
            self.storage.change("Pod", pod, {"status": {"phase": "Failed", **statuses}})
            await asyncio.sleep(self.settings.removal_seconds)
        # The kubelet deletes it without grace, and the API server sets the time anew.
        stamp = {"deletionTimestamp": now(), "deletionGracePeriodSeconds": 0}
        self.storage.change("Pod", pod, {"metadata": stamp})
        self.storage.remove("Pod", pod)

    # Nodes

    def patch_node(self, name: str, patch: Manifest) -> None:
        node = self.storage.get("Node", "", name)
        if node is None:
            raise KeyError(name)
        self.storage.change("Node", node, patch)

    def set_condition(self, name: str, condition: Manifest) -> None:
        node = self.storage.get("Node", "", name)
        if node is None:
            raise KeyError(name)
        conditions = with_condition(node["status"]["conditions"], condition)
        self.storage.change("Node", node, {"status": {"conditions": conditions}})

    def lose_node(self, name: str) -> None:
        """Its kubelet answers no more."""
        message = "Kubelet stopped posting node status."
        taints = [
            {"key": "node.kubernetes.io/unreachable", "effect": effect, "timeAdded": now()}
            for effect in ("NoSchedule", "NoExecute")
        ]
        self.patch_node(name, {"spec": {"taints": taints}})
        self.set_condition(name, new_condition("Ready", "Unknown", "NodeStatusUnknown", message))
        for pod in self._on(name):
            task = self._tasks.pop(pod["metadata"]["uid"], None)
            if task:
                task.cancel()
            unready = new_condition("Ready", "False", "NodeNotReady", "")
            self.storage.change(
                "Pod", pod, {"status": {"conditions": with_condition(pod["status"].get("conditions") or [], unready)}}
            )
            self._start(self._evict_by_taint(pod))

    async def _evict_by_taint(self, pod: Manifest) -> None:
        await asyncio.sleep(self.settings.eviction_seconds)
        known = self.storage.get("Pod", *self._key(pod))
        if known is None:
            return
        message = "Taint manager: deleting due to NoExecute taint"
        condition = new_condition("DisruptionTarget", "True", "DeletionByTaintManager", message)
        self.event(
            pod, "TaintManagerEviction", f"Marking for deletion Pod {'/'.join(self._key(pod))}", "taint-eviction"
        )
        conditions = with_condition(known["status"].get("conditions") or [], condition)
        self.storage.change("Pod", pod, {"status": {"conditions": conditions}})
        await self._end_pod(pod)

    def delete_node(self, name: str) -> None:
        """A node leaves the cluster; the collector of pods removes what ran on it."""
        node = self.storage.get("Node", "", name)
        pods = self._on(name)
        if node:
            self.storage.remove("Node", node)
        for pod in pods:
            if task := self._tasks.pop(pod["metadata"]["uid"], None):
                task.cancel()
            message = "PodGC: node no longer exists"
            condition = new_condition("DisruptionTarget", "True", "DeletionByPodGC", message)
            self._fail(pod, "", "", condition)
            self.storage.remove("Pod", pod)

    def restore_node(self, name: str) -> None:
        ready = new_condition("Ready", "True", "KubeletReady", "kubelet is posting ready status")
        self.patch_node(name, {"spec": {"taints": []}})
        self.set_condition(name, ready)
        for pod in self._on(name):
            if pod["metadata"].get("deletionTimestamp"):
                self.storage.remove("Pod", pod)

    def _on(self, node: str) -> list[Manifest]:
        return [pod for pod in self.storage.objects["Pod"].values() if pod["spec"].get("nodeName") == node]

    # Small things

    def _fault(self, job: Manifest, kind: str, stage: str | None = "", *, first: bool = True) -> Fault | None:
        """The fault of a kind that strikes a Job now; with `stage` None whatever its stage."""
        meta = job["metadata"]
        name = (meta.get("annotations") or {}).get(NODE_ANNOTATION) or next(iter(_targets_of_job(job)), "")
        if name not in self.faults:
            return None
        attempt = int((meta.get("labels") or {}).get(ATTEMPT_LABEL, "1"))
        for fault in self.faults[name]:
            here = stage is None or (fault.stage == stage if fault.stage else first)
            if fault.kind == kind and here and fault.attempt in (0, attempt) and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def event(
        self, about: Manifest, reason: str, message: str, source: str, level: str = "Normal", where: str = ""
    ) -> None:
        meta = about["metadata"]
        self.storage.add(
            "Event",
            {
                "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
                "involvedObject": {
                    "kind": about["kind"],
                    "namespace": meta["namespace"],
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "apiVersion": about["apiVersion"],
                    "resourceVersion": meta["resourceVersion"],
                },
                "reason": reason,
                "message": message,
                "source": {"component": source, **({"host": where} if where else {})},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
                "type": level,
                "eventTime": None,
                "reportingComponent": source,
                "reportingInstance": where,
            },
        )

    @staticmethod
    def _key(item: Manifest) -> tuple[str, str]:
        return item["metadata"]["namespace"], item["metadata"]["name"]


class _PodView:
    """The status of one pod as its kubelet reports it."""

    def __init__(self, cluster: SimulatedCluster, pod: Manifest, node: str) -> None:
        self.cluster, self.pod, self.node = cluster, pod, node
        init = pod["spec"].get("initContainers") or []
        self.specs = [*init, *pod["spec"]["containers"]]
        self.inits = len(init)
        self.current = 0
        self.states: list[Manifest] = [{"waiting": {"reason": "PodInitializing"}} for _ in self.specs]
        if not init:
            self.states = [{"waiting": {"reason": "ContainerCreating"}} for _ in self.specs]
        self.phase = "Pending"
        self.prepared = False
        self.extra: list[Manifest] = []
        self.started = now()

    def wait(self, index: int, reason: str, message: str) -> None:
        self.states[index] = {"waiting": {"reason": reason, "message": message}}
        self.tell()

    def run(self, index: int) -> None:
        self.current = index
        self.states[index] = {"running": {"startedAt": now()}}
        self.phase = "Running" if index >= self.inits else "Pending"
        self.tell()

    def end(self, index: int, exit_code: int, reason: str, message: str) -> None:
        started = self.states[index].get("running", {}).get("startedAt", now())
        ended = {"exitCode": exit_code, "reason": reason, "startedAt": started, "finishedAt": now()}
        ended["containerID"] = f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}"
        self.states[index] = {"terminated": {**ended, **({"message": message} if message else {})}}

    def kill(self, exit_code: int, reason: str) -> None:
        self.end(self.current, exit_code, reason, "")
        self.tell()

    def add_condition(self, condition: Manifest) -> None:
        self.extra = with_condition(self.extra, condition)
        self.tell()

    def finish(self) -> None:
        bad = [state for state in self.states if state.get("terminated", {}).get("exitCode", 0)]
        self.phase = "Failed" if bad else "Succeeded"
        self.tell()

    def tell(self) -> None:
        done = self.phase in ("Succeeded", "Failed")
        init_left = [
            spec["name"] for i, spec in enumerate(self.specs[: self.inits]) if "terminated" not in self.states[i]
        ]
        initialized = (
            new_condition("Initialized", "True")
            if not init_left
            else new_condition(
                "Initialized", "False", "ContainersNotInitialized", f"containers with incomplete status: {init_left}"
            )
        )
        running = self.phase == "Running"
        ready = (
            new_condition("Ready", "True")
            if running
            else new_condition("Ready", "False", "PodCompleted" if done else "ContainersNotReady")
        )
        statuses = [self._status(index) for index in range(len(self.specs))]
        status = {
            "phase": self.phase,
            "startTime": self.started,
            "hostIP": "10.0.0.1",
            "podIP": "10.244.0.7",
            "conditions": [
                new_condition("PodReadyToStartContainers", str(self.prepared and not done)),
                initialized,
                ready,
                _scheduled(),
                *self.extra,
            ],
            "initContainerStatuses": statuses[: self.inits],
            "containerStatuses": statuses[self.inits :],
        }
        self.cluster.storage.change("Pod", self.pod, {"status": status})

    def _status(self, index: int) -> Manifest:
        spec, state = self.specs[index], self.states[index]
        succeeded = state.get("terminated", {}).get("exitCode") == 0
        return {
            "name": spec["name"],
            "image": spec.get("image", ""),
            "imageID": "" if "waiting" in state else f"{spec.get('image', '').split('@')[0]}@sha256:{'0' * 64}",
            "restartCount": 0,
            "ready": "running" in state if index >= self.inits else succeeded,
            "started": "running" in state,
            "state": state,
            "lastState": {},
        }


def stage_of(container: Mapping[str, Any]) -> str:
    """The stage that a container runs: what `--stage` says, else its name."""
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    for index, word in enumerate(words):
        if word == "--stage" and index + 1 < len(words):
            return words[index + 1]
        if found := re.search(r"--stage[= ](\S+)", word):
            return found[1].strip("'\"")
    return container["name"]


def new_condition(name: str, status: str, reason: str = "", message: str = "") -> Manifest:
    words = {key: value for key, value in (("reason", reason), ("message", message)) if value}
    return {"type": name, "status": status, "lastProbeTime": None, "lastTransitionTime": now(), **words}


def _scheduled() -> Manifest:
    return new_condition("PodScheduled", "True")


def with_condition(conditions: list[Manifest], new: Manifest) -> list[Manifest]:
    return [*(item for item in conditions if item["type"] != new["type"]), new]


def _killed(status: Manifest) -> Manifest:
    if "running" not in status["state"]:
        return status
    ended = {
        "exitCode": 137,
        "reason": "Error",
        "startedAt": status["state"]["running"]["startedAt"],
        "finishedAt": now(),
    }
    return {**status, "ready": False, "started": False, "state": {"terminated": ended}}


def _ready(node: Manifest) -> bool:
    return any(item["type"] == "Ready" and item["status"] == "True" for item in node["status"]["conditions"])


def _targets(spec: Mapping[str, Any], operator: str = "In") -> list[str]:
    """Names of nodes that a pod is pinned to, or with `NotIn` kept off."""
    if operator == "In" and (name := (spec.get("nodeSelector") or {}).get(HOSTNAME)):
        return [name]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or []:
        for rule in [*(term.get("matchExpressions") or []), *(term.get("matchFields") or [])]:
            if rule["key"] in (HOSTNAME, "metadata.name") and rule["operator"] == operator:
                return list(rule["values"])
    return []


def _targets_of_job(job: Manifest) -> list[str]:
    return _targets(job["spec"]["template"]["spec"])


def _tolerated(taint: Mapping[str, Any], tolerations: list[Mapping[str, Any]]) -> bool:
    for item in tolerations:
        effect = not item.get("effect") or item["effect"] == taint["effect"]
        key = not item.get("key") or item["key"] == taint["key"]
        value = item.get("operator", "Equal") == "Exists" or item.get("value", "") == taint.get("value", "")
        if effect and key and value and (item.get("key") or item.get("operator") == "Exists"):
            return True
    return False


def _requested(spec: Mapping[str, Any], resource: str) -> int:
    def of(container: Mapping[str, Any]) -> int:
        resources = container.get("resources") or {}
        return int((resources.get("requests") or resources.get("limits") or {}).get(resource, 0))

    return max([sum(map(of, spec["containers"])), *map(of, spec.get("initContainers") or [])])


def _mounts(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[str], bool]]:
    """Volume, kind, name, wanted keys, whether optional, of each Secret and ConfigMap."""
    for volume in spec.get("volumes") or []:
        sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
        for source in sources:
            for field_name, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
                with contextlib.suppress(KeyError):
                    part = source[field_name]
                    name = part.get("secretName") or part["name"]
                    keys = [item["key"] for item in part.get("items") or []]
                    yield volume["name"], kind, name, keys, bool(part.get("optional"))


def check_job(manifest: Manifest) -> None:
    """Refuse what the API server refuses in a Job."""
    name = manifest["metadata"].get("name", "")
    spec = manifest["spec"]["template"]["spec"]
    if spec.get("restartPolicy") not in ("Never", "OnFailure"):
        raise Problem(
            422, "Invalid", f'Job.batch "{name}" is invalid: spec.template.spec.restartPolicy: Required value'
        )
    if len(name) > 63:
        raise Problem(
            422, "Invalid", f'Job.batch "{name}" is invalid: metadata.name: must be no more than 63 characters'
        )


def check_job_set(manifest: Manifest) -> None:
    """Refuse what the webhook of JobSet refuses."""
    for each in manifest["spec"]["replicatedJobs"]:
        name = f"{manifest['metadata']['name']}-{each['name']}-{each['replicas'] - 1}"
        if len(name) > 63 or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
            problem = f"JobSet name is too long, job names generated for this JobSet will exceed 63 characters: {name}"
            raise Problem(403, "Forbidden", f'admission webhook "vjobset.kb.io" denied the request: {problem}')


def check_pod_security(pod: Manifest, level: str) -> None:
    """Refuse what Pod Security refuses of a pod of ours, in its words (1.36)."""
    spec = pod["spec"]
    identity = spec.get("securityContext") or {}
    found = []
    if level and (spec.get("hostNetwork") or any("hostPath" in volume for volume in spec.get("volumes") or ())):
        found.append(
            "host namespaces (hostNetwork=true)" if spec.get("hostNetwork") else 'hostPath volumes (volume "models")'
        )
    if level == "restricted" and identity.get("runAsNonRoot") is not True:
        found.append(
            "runAsNonRoot != true (pod or container "
            f'"{spec["containers"][0]["name"]}" must set securityContext.runAsNonRoot=true)'
        )
        if identity.get("runAsUser") == 0:
            found.append("runAsUser=0 (pod must not set runAsUser=0)")
    if found and level != "privileged":
        name = pod["metadata"]["name"]
        raise Problem(
            403, "Forbidden", f'pods "{name}" is forbidden: violates PodSecurity "{level}:latest": {", ".join(found)}'
        )
