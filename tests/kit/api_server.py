"""A Kubernetes API server for tests: storage with resource versions, selectors, pages, watches, and faults on request.

kmock serves, and answers for what is no resource (versions, groups); what it lacks (resource versions, selectors,
watches that resume, deleting collections) is here. All runs in one event loop; objects are never changed in place.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

import aiohttp.web
import kmock

Manifest = dict[str, Any]

#: Versions kept for watches that resume; older ones are Gone.
HISTORY = 20_000
#: What etcd takes in one object.
MAX_OBJECT_BYTES = 1_500_000
MAX_CONFIG_BYTES = 1 << 20
BOOKMARK_SECONDS = 1.0


class Asked(NamedTuple):
    """One request as access control sees it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""


@dataclass(frozen=True)
class Resource:
    kind: str
    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES = {
    item.kind: item
    for item in (
        Resource("Job", "batch", "v1", "jobs"),
        Resource("Pod", "", "v1", "pods"),
        Resource("Secret", "", "v1", "secrets"),
        Resource("ConfigMap", "", "v1", "configmaps"),
        Resource("Service", "", "v1", "services"),
        Resource("Event", "", "v1", "events"),
        Resource("PersistentVolume", "", "v1", "persistentvolumes", namespaced=False),
        Resource("PersistentVolumeClaim", "", "v1", "persistentvolumeclaims"),
        Resource("Node", "", "v1", "nodes", namespaced=False),
        Resource("Namespace", "", "v1", "namespaces", namespaced=False),
        Resource("CronJob", "batch", "v1", "cronjobs"),
        Resource("ServiceAccount", "", "v1", "serviceaccounts"),
        Resource("Role", "rbac.authorization.k8s.io", "v1", "roles"),
        Resource("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings"),
        Resource("ClusterRole", "rbac.authorization.k8s.io", "v1", "clusterroles", namespaced=False),
        Resource("ClusterRoleBinding", "rbac.authorization.k8s.io", "v1", "clusterrolebindings", namespaced=False),
        Resource("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses", namespaced=False),
        Resource("JobSet", "jobset.x-k8s.io", "v1alpha2", "jobsets"),
        Resource("ResourceSlice", "resource.k8s.io", "v1", "resourceslices", namespaced=False),
        Resource("DeviceClass", "resource.k8s.io", "v1", "deviceclasses", namespaced=False),
        Resource("ResourceClaimTemplate", "resource.k8s.io", "v1", "resourceclaimtemplates"),
        Resource("ComputeDomain", "resource.nvidia.com", "v1beta1", "computedomains"),
    )
}
_BY_PLURAL = {(item.group, item.plural): item for item in RESOURCES.values()}
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:alpha2|beta1)?(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?$"
)

#: API groups that a cluster may lack.
OPTIONAL_GROUPS = frozenset({"jobset.x-k8s.io", "resource.k8s.io", "resource.nvidia.com"})
_GROUP_PATH = re.compile(r"/apis/(?P<group>[^/]+)/[^/]+(?P<resource>/.*)?$")
_ACCESS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_RULES_PATH = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
#: Its events are not cached, and what is not cached has no bookmarks.
_NO_BOOKMARKS = ("Event",)


class Change(NamedTuple):
    version: int
    type: str
    object: Manifest
    before: Manifest | None


class Problem(Exception):  # noqa: N818  (what the answer tells)
    """A request that is answered with a Status."""

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.retry_after = code, reason, message, retry_after

    def status(self) -> Manifest:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


def now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def matches(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether labels satisfy a selector (`a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`)."""
    for term in re.findall(r"(?:[^,(]|\([^)]*\))+", selector):
        text = term.strip()
        if found := re.fullmatch(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)", text):
            values = {value.strip() for value in found[3].split(",")}
            if (labels.get(found[1]) in values) != (found[2] == "in"):
                return False
        elif found := re.fullmatch(r"([^=!\s]+)\s*(==|=|!=)\s*(\S*)", text):
            if (labels.get(found[1]) == found[3]) != (found[2] != "!="):
                return False
        elif text.startswith("!"):
            if text[1:] in labels:
                return False
        elif text and text not in labels:
            return False
    return True


def fields_match(selector: str, item: Mapping[str, Any]) -> bool:
    for term in filter(None, selector.split(",")):
        path, wanted = re.split(r"!=|==?", term, maxsplit=1)
        value: Any = item
        for part in path.split("."):
            value = (value or {}).get(part)
        if ((value or "") == wanted) == ("!=" in term):
            return False
    return True


def merged(target: Any, patch: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def strategically_merged(status: Mapping[str, Any], patch: Mapping[str, Any]) -> Manifest:
    """Strategic merge of a status: conditions merge by their type, and `$patch: delete` removes one."""
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    for condition in patch.get("conditions", []):
        if condition.get("$patch") == "delete":
            conditions.pop(condition["type"], None)
        else:
            conditions[condition["type"]] = {**conditions.get(condition["type"], {}), **condition}
    return {**merged(status, patch), "conditions": list(conditions.values())}


@dataclass(eq=False)
class Watcher:
    resource: Resource
    wanted: Callable[[Manifest], bool]
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


class Storage:
    """Objects by kind, each change with a resource version of its own, and what is told about it."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[tuple[str, str], Manifest]] = {kind: {} for kind in RESOURCES}
        self.version = 100
        self.oldest = 100
        self.changes: dict[str, deque[Change]] = {kind: deque(maxlen=HISTORY) for kind in RESOURCES}
        self.watchers: set[Watcher] = set()
        self.listeners: list[Callable[[str, Change], None]] = []

    def key(self, kind: str, item: Mapping[str, Any]) -> tuple[str, str]:
        meta = item["metadata"]
        return (meta.get("namespace", "") if RESOURCES[kind].namespaced else "", meta["name"])

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self.objects[kind].get((namespace if RESOURCES[kind].namespaced else "", name))

    def add(self, kind: str, manifest: Manifest) -> Manifest:
        meta = {
            **manifest["metadata"],
            "uid": str(uuid.uuid4()),
            "creationTimestamp": now(),
            "generation": 1,
            "managedFields": [{"manager": "test", "operation": "Update", "apiVersion": "v1", "fieldsV1": {}}],
        }
        if "name" not in meta:
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        item = {"apiVersion": RESOURCES[kind].api_version, "kind": kind, **manifest, "metadata": meta}
        return self._keep(kind, "ADDED", item, None)

    def change(self, kind: str, item: Manifest, patch: Manifest) -> Manifest | None:
        """Merge a patch into an object as it is now. None when it is there no more."""
        known = self.objects[kind].get(self.key(kind, item))
        if known is None or known["metadata"]["uid"] != item["metadata"]["uid"]:
            return None
        return self._keep(kind, "MODIFIED", merged(known, patch), known)

    def remove(self, kind: str, item: Manifest) -> None:
        known = self.objects[kind].pop(self.key(kind, item), None)
        if known is not None:
            self._tell(kind, "DELETED", known, known)

    def _keep(self, kind: str, change: str, item: Manifest, before: Manifest | None) -> Manifest:
        told = self._tell(kind, change, item, before)
        self.objects[kind][self.key(kind, told)] = told
        for listener in self.listeners:
            listener(kind, self.changes[kind][-1])
        return told

    def _tell(self, kind: str, change: str, item: Manifest, before: Manifest | None) -> Manifest:
        self.version += 1
        item = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        entry = Change(self.version, change, item, before)
        changes = self.changes[kind]
        if len(changes) == changes.maxlen:
            self.oldest = max(self.oldest, changes[0].version)
        changes.append(entry)
        encoded: dict[str, bytes] = {}
        for watcher in self.watchers:
            if watcher.resource.kind == kind and (name := seen_as(entry, watcher.wanted)):
                if name not in encoded:
                    encoded[name] = event(name, item)
                watcher.queue.put_nowait(encoded[name])
        if change == "DELETED":
            for listener in self.listeners:
                listener(kind, entry)
        return item


def seen_as(change: Change, wanted: Callable[[Manifest], bool]) -> str:
    """What a watch with a selector calls a change; empty when it does not see it."""
    is_wanted, was = wanted(change.object), change.before is not None and wanted(change.before)
    if change.type == "DELETED":
        return "DELETED" if was else ""
    if is_wanted:
        return "MODIFIED" if was else "ADDED"
    return "DELETED" if was else ""


def event(name: str, item: Mapping[str, Any]) -> bytes:
    return json.dumps({"type": name, "object": item}, separators=(",", ":")).encode() + b"\n"


class ApiServer(kmock.KubernetesScaffold):
    """Answers requests for the resources from the storage."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.storage = Storage()
        self.asked: list[Asked] = []
        self.token = ""
        self.logs: dict[tuple[str, str, str], bytes] = {}
        self.denied: dict[Asked, int | None] = {}
        self.allowed: Callable[[Asked], bool] | None = None
        self.answers: list[Problem] = []  # of the next requests, whatever they are
        self.lost: Counter[str] = Counter()  # verbs whose answers get lost
        self.down_until = 0.0
        self.gone_by_status = False
        self.lists_rules = True  # webhook authorizers do not
        self.served: set[str] = set()  # those of OPTIONAL_GROUPS that the cluster has
        self.documents: dict[str, Manifest] = {}  # of discovery and OpenAPI, by path
        self.admit: Callable[[Resource, Manifest], None] = lambda resource, manifest: None
        self.delete: Callable[[Resource, Manifest, str], None] = lambda resource, item, propagation: None

    async def __call__(self, raw_request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        if time.monotonic() < self.down_until:
            return self._hang_up(raw_request)
        if raw_request.path == _ACCESS_PATH:
            return await self._review_access(raw_request)
        if raw_request.path == _RULES_PATH:
            return self._review_rules()
        if raw_request.path == "/api/v1":
            return aiohttp.web.json_response(_known_resources())
        in_group = _GROUP_PATH.match(raw_request.path)
        if in_group and in_group["group"] in OPTIONAL_GROUPS:
            if in_group["group"] not in self.served:
                return _not_found()
            if not in_group["resource"]:
                return aiohttp.web.json_response(_known_resources(in_group["group"]))
        if raw_request.path in self.documents:
            return aiohttp.web.json_response(self.documents[raw_request.path])
        found = _PATH.match(raw_request.path)
        resource = _BY_PLURAL.get((found["group"] or "", found["plural"])) if found else None
        if not found or not resource:
            if raw_request.path.startswith(("/apis/", "/openapi/")):
                return _not_found()
            return await super().__call__(raw_request)
        asked = Asked(_verb(raw_request, found["name"]), resource.group, resource.plural, found["sub"] or "")
        self.asked.append(asked)
        body = await raw_request.content.read()
        try:
            self._guard(raw_request, asked, found["namespace"])
            answer = await self._answer(raw_request, asked, resource, found["namespace"] or "", found["name"], body)
        except Problem as problem:
            headers = {} if problem.retry_after is None else {"Retry-After": str(problem.retry_after)}
            return aiohttp.web.json_response(problem.status(), status=problem.code, headers=headers)
        if self.lost[asked.verb]:
            self.lost[asked.verb] -= 1
            return self._hang_up(raw_request)
        return answer

    async def _review_access(self, raw_request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        """Say whether this user may do one thing."""
        self.asked.append(Asked("create", "authorization.k8s.io", "selfsubjectaccessreviews"))
        wanted = json.loads(await raw_request.content.read())["spec"]["resourceAttributes"]
        resource = _BY_PLURAL[wanted["group"], wanted["resource"]]
        asked = Asked(wanted["verb"], wanted["group"], wanted["resource"], wanted["subresource"])
        # Without a namespace it is asked of all namespaces, and a Role says nothing about those.
        allowed = self._allows(asked) and bool(wanted["namespace"]) == resource.namespaced
        status = {"allowed": allowed}
        return aiohttp.web.json_response({"kind": "SelfSubjectAccessReview", "status": status}, status=201)

    def _review_rules(self) -> aiohttp.web.StreamResponse:
        """Say what this user may do in a namespace."""
        self.asked.append(Asked("create", "authorization.k8s.io", "selfsubjectrulesreviews"))
        rules = [
            {"verbs": [verb], "apiGroups": [item.group], "resources": [f"{item.plural}/{sub}" if sub else item.plural]}
            for item in RESOURCES.values()
            for verb in _VERBS
            for sub in ("", "log", "exec", "status")
            if self.lists_rules and self._allows(Asked(verb, item.group, item.plural, sub))
        ]
        status = {"resourceRules": rules, "incomplete": not self.lists_rules}
        return aiohttp.web.json_response({"kind": "SelfSubjectRulesReview", "status": status}, status=201)

    def _allows(self, asked: Asked) -> bool:
        return self.denied.get(asked, 0) == 0 and (self.allowed is None or self.allowed(asked))

    def _hang_up(self, raw_request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        if raw_request.transport:
            raw_request.transport.abort()
        return aiohttp.web.Response()

    def _guard(self, raw_request: aiohttp.web.BaseRequest, asked: Asked, namespace: str | None) -> None:
        if self.token and raw_request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Problem(401, "Unauthorized", "Unauthorized")
        if self.answers:
            raise self.answers.pop(0)
        if self._allows(asked):
            return
        if self.denied.get(asked):
            self.denied[asked] -= 1  # None counts for ever
        what = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        raise Problem(
            403,
            "Forbidden",
            f'{what} is forbidden: User "tester" cannot {asked.verb} resource "{what}" in API group '
            f'"{asked.group}" {where}',
        )

    async def _answer(
        self,
        raw_request: aiohttp.web.BaseRequest,
        asked: Asked,
        resource: Resource,
        namespace: str,
        name: str | None,
        body: bytes,
    ) -> aiohttp.web.StreamResponse:
        query = raw_request.query
        if asked.subresource == "log":
            return self._log(namespace, name or "", query)
        if asked.subresource and (asked.subresource, asked.verb) != ("status", "patch"):
            raise Problem(400, "BadRequest", f"no {asked.subresource} here")
        if asked.verb == "list":
            return self._list(resource, namespace, query, raw_request.headers.get("Accept", ""))
        if asked.verb == "watch":
            return await self._watch(raw_request, resource, namespace, query)
        if asked.verb == "create":
            if query.get("dryRun", "All") != "All":
                raise Problem(422, "Invalid", "dryRun: Unsupported value")
            made = self._create(resource, namespace, body, keep="dryRun" not in query)
            return aiohttp.web.json_response(made, status=201)
        if asked.verb == "deletecollection":
            propagation = self._propagation(query, body)
            items = list(self._chosen(resource, namespace, query))
            meta = {"resourceVersion": str(self.storage.version)}
            for item in items:
                self.delete(resource, item, propagation)
            return _page(resource, meta, items, raw_request.headers.get("Accept", ""))
        item = self.storage.get(resource.kind, namespace, name or "")
        if item is None:
            raise Problem(404, "NotFound", f'{resource.plural} "{name}" not found')
        if asked.verb == "delete":
            self.delete(resource, item, self._propagation(query, body))
        elif asked.verb == "patch":
            strategic = "strategic-" if asked.subresource else ""
            if raw_request.content_type != f"application/{strategic}merge-patch+json":
                raise Problem(415, "UnsupportedMediaType", f"no {raw_request.content_type} here")
            patch = json.loads(body)
            wanted = (patch.get("metadata") or {}).pop("resourceVersion", None)
            if wanted and wanted != item["metadata"]["resourceVersion"]:
                what = f'Operation cannot be fulfilled on {resource.plural} "{name}"'
                raise Problem(409, "Conflict", f"{what}: the object has been modified; please apply your changes to it")
            if asked.subresource:  # the spec stays, whatever the patch says
                patch = {"status": strategically_merged(item.get("status") or {}, patch["status"])}
            if "dryRun" in query:
                item = merged(item, patch)
            elif merged(item, patch) != item:
                item = self.storage.change(resource.kind, item, patch) or item
        return aiohttp.web.json_response(item)

    def _create(self, resource: Resource, namespace: str, body: bytes, *, keep: bool = True) -> Manifest:
        manifest = json.loads(body)
        meta = manifest.setdefault("metadata", {})
        if (manifest.get("kind"), manifest.get("apiVersion")) != (resource.kind, resource.api_version):
            raise Problem(400, "BadRequest", f"this is no {resource.api_version} {resource.kind}")
        if len(body) > MAX_OBJECT_BYTES:
            raise Problem(413, "RequestEntityTooLarge", "etcdserver: request is too large")
        if resource.namespaced:
            if meta.setdefault("namespace", namespace) != namespace:
                raise Problem(400, "BadRequest", "the namespace of the object is not that of the request")
            if not self.storage.get("Namespace", "", namespace):
                raise Problem(404, "NotFound", f'namespaces "{namespace}" not found')
        name = meta.get("name", "")
        if name and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", name):
            raise Problem(422, "Invalid", f'{resource.kind} "{name}" is invalid: metadata.name: Invalid value')
        for label, value in meta.get("labels", {}).items():
            if not isinstance(value, str) or not re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value):
                raise Problem(422, "Invalid", f"metadata.labels: Invalid value: {value!r} of {label}")
        if name and self.storage.get(resource.kind, namespace, name):
            raise Problem(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        if resource.kind == "ConfigMap" and _config_bytes(manifest) > MAX_CONFIG_BYTES:
            raise Problem(
                422, "Invalid", f'ConfigMap "{name}" is invalid: []: Too long: may not be more than 1048576 bytes'
            )
        self.admit(resource, manifest)
        if not keep:
            return {**manifest, "metadata": {**meta, "uid": str(uuid.uuid4()), "creationTimestamp": now()}}
        return self.storage.add(resource.kind, manifest)

    def _chosen(self, resource: Resource, namespace: str, query: Mapping[str, str]) -> Iterator[Manifest]:
        wanted = self._wanted(namespace, query)
        return (item for item in self.storage.objects[resource.kind].values() if wanted(item))

    @staticmethod
    def _wanted(namespace: str, query: Mapping[str, str]) -> Callable[[Manifest], bool]:
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")

        def wanted(item: Manifest) -> bool:
            meta = item["metadata"]
            return (
                (not namespace or meta.get("namespace") == namespace)
                and (not labels or matches(labels, meta.get("labels") or {}))
                and (not fields or fields_match(fields, item))
            )

        return wanted

    @staticmethod
    def _propagation(query: Mapping[str, str], body: bytes) -> str:
        options = json.loads(body) if body else {}
        return query.get("propagationPolicy") or options.get("propagationPolicy") or ""

    def _list(self, resource: Resource, namespace: str, query: Mapping[str, str], accept: str) -> aiohttp.web.Response:
        version, start = self.storage.version, 0
        if query.get("continue"):
            version, start = json.loads(query["continue"])
            if version < self.storage.oldest:
                raise Problem(410, "Expired", "The provided continue parameter is too old")
        limit = int(query.get("limit", 0))
        items = list(self._chosen(resource, namespace, query))
        page = items[start : start + limit] if limit else items
        meta: Manifest = {"resourceVersion": str(version)}
        if limit and start + limit < len(items):
            meta["continue"] = json.dumps([version, start + limit])
        return _page(resource, meta, page, accept)

    def _log(self, namespace: str, name: str, query: Mapping[str, str]) -> aiohttp.web.Response:
        pod = self.storage.get("Pod", namespace, name)
        if pod is None:
            raise Problem(404, "NotFound", f'pods "{name}" not found')
        container = query.get("container", "")
        known = [item["name"] for part in ("initContainers", "containers") for item in pod["spec"].get(part) or []]
        if container not in known:
            raise Problem(400, "BadRequest", f"container {container} is not valid for pod {name}")
        data = self.logs.get((namespace, name, container))
        if data is None:
            raise Problem(400, "BadRequest", f'container "{container}" in pod "{name}" is waiting to start')
        if query.get("tailLines"):
            data = b"".join(data.splitlines(keepends=True)[-int(query["tailLines"]) :])
        if query.get("limitBytes"):
            data = data[: int(query["limitBytes"])]
        return aiohttp.web.Response(body=data, content_type="text/plain")

    async def _watch(
        self, raw_request: aiohttp.web.BaseRequest, resource: Resource, namespace: str, query: Mapping[str, str]
    ) -> aiohttp.web.StreamResponse:
        storage = self.storage
        wanted = self._wanted(namespace, query)
        watcher = Watcher(resource, wanted)
        since = int(query.get("resourceVersion") or 0)
        if since and since < storage.oldest:
            gone = Problem(410, "Expired", f"too old resource version: {since} ({storage.oldest})")
            self.gone_by_status = not self.gone_by_status  # servers do both
            if self.gone_by_status:
                raise gone
            watcher.queue.put_nowait(event("ERROR", gone.status()))
            watcher.queue.put_nowait(None)
        elif since:
            for change in storage.changes[resource.kind]:
                if change.version > since and (name := seen_as(change, wanted)):
                    watcher.queue.put_nowait(event(name, change.object))
        else:
            for item in self._chosen(resource, namespace, query):
                watcher.queue.put_nowait(event("ADDED", item))
        storage.watchers.add(watcher)
        response = aiohttp.web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        try:
            await response.prepare(raw_request)
            await self._feed(raw_request, response, watcher, query)
        except ConnectionError:
            pass  # the client has left
        finally:
            storage.watchers.discard(watcher)
        return response

    async def _feed(
        self,
        raw_request: aiohttp.web.BaseRequest,
        response: aiohttp.web.StreamResponse,
        watcher: Watcher,
        query: Mapping[str, str],
    ) -> None:
        ends = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmarks = query.get("allowWatchBookmarks") == "true" and watcher.resource.kind not in _NO_BOOKMARKS
        while (left := ends - time.monotonic()) > 0:
            try:
                data = await asyncio.wait_for(watcher.queue.get(), min(left, BOOKMARK_SECONDS))
            except asyncio.TimeoutError:
                if bookmarks:
                    mark = {
                        "kind": watcher.resource.kind,
                        "apiVersion": watcher.resource.api_version,
                        "metadata": {"resourceVersion": str(self.storage.version), "creationTimestamp": None},
                    }
                    await response.write(event("BOOKMARK", mark))
                continue
            chunks = []
            while data is not None:
                chunks.append(data)
                if watcher.queue.empty():
                    break
                data = watcher.queue.get_nowait()
            if chunks:
                await response.write(b"".join(chunks))
            if data is None:  # told to end
                if watcher not in self.storage.watchers and raw_request.transport:
                    raw_request.transport.abort()  # dropped, not ended
                    return
                break
        await response.write_eof()

    def drop_watches(self) -> None:
        for watcher in list(self.storage.watchers):
            self.storage.watchers.discard(watcher)
            watcher.queue.put_nowait(None)


def _not_found() -> aiohttp.web.Response:
    problem = Problem(404, "NotFound", "the server could not find the requested resource")
    return aiohttp.web.json_response(problem.status(), status=404)


def _known_resources(group: str = "") -> Manifest:
    """The resources of a group, as kubectl asks for them first."""
    known = [
        {"name": item.plural, "singularName": "", "namespaced": item.namespaced, "kind": item.kind, "verbs": ["get"]}
        for item in RESOURCES.values()
        if item.group == group
    ]
    version = next(item.api_version for item in RESOURCES.values() if item.group == group)
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": known}


def _page(resource: Resource, meta: Manifest, items: list[Manifest], accept: str) -> aiohttp.web.Response:
    """Objects as a list has them: its items carry neither kind nor apiVersion."""
    kind, version = f"{resource.kind}List", resource.api_version
    if "PartialObjectMetadataList" in accept:
        kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        items = [{"metadata": item["metadata"]} for item in items]
    items = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return aiohttp.web.json_response({"kind": kind, "apiVersion": version, "metadata": meta, "items": items})


def _verb(raw_request: aiohttp.web.BaseRequest, name: str | None) -> str:
    if raw_request.method == "GET":
        if raw_request.query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if name else "list"
    if raw_request.method == "DELETE":
        return "delete" if name else "deletecollection"
    return {"POST": "create", "PATCH": "patch", "PUT": "update"}[raw_request.method]


def _config_bytes(manifest: Manifest) -> int:
    data, binary = manifest.get("data") or {}, manifest.get("binaryData") or {}
    return sum(map(len, data.values())) + sum(len(value) * 3 // 4 for value in binary.values())
