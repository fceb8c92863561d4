"""The API of a Kubernetes cluster: JSON in, JSON out, each call with a deadline, errors that say what to do. Without
the typed models of the library `kubernetes`, a thousand nodes fit into memory."""

import contextlib
import json
import os
import random
import re
import socket
import tempfile
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from . import permissions
from .kinds import KINDS, Manifest, ObjectKind, trim, unmanaged
from .login import FOLDER_PREFIX, ClusterAccess, ClusterError, log_in, plain_reason, remove_folder
from .permissions import AccessRequest

with contextlib.suppress(ImportError):  # the package `kubernetes` requires urllib3; the login reports what is missing
    import urllib3

#: Time limit of one API call, retries included.
DEADLINE_SECONDS = 60.0
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
#: Seconds to wait before the first retry, doubled before each further one up to the maximum.
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.25, 8.0
PAGE = 500
MAX_LOG_BYTES = 16 << 20
#: Time limit to read one log, retries included: the pod's kubelet may be dead, and other nodes wait meanwhile.
LOG_SECONDS = 8.0
#: Maximum bytes to read of the body of an HTTP error.
MAX_STATUS_BYTES = 1 << 16
#: HTTP codes of answers that are retried; 403 only from an API server that may have just started.
RETRIED = frozenset({403, 429, 500, 502, 503, 504})
#: HTTP codes after which a log is read again. Others mean that the node's kubelet does not answer.
LOG_RETRIED = frozenset({429})
#: How long denied requests are retried, all together: an API server that has just started denies everything until it
#: has read its Roles. Once the API server has allowed a request, its denials are final.
DENIED_SECONDS, DENIED_WAIT_SECONDS = 8.0, 2.0
#: How often credentials that expired (exec plugins, files) are read again in one call.
MAX_LOGINS = 2

#: Text in an HTTP 403 by access control. Other refusals (quota, Pod Security) concern the object.
_NOT_ALLOWED = re.compile(r"\bcannot [a-z]+ (resource|path)\b")


_JSON = "application/json"
_METADATA = f"{_JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{_JSON}"


@dataclass(frozen=True)
class ApiRequest:
    """One HTTP request to the API; `asked` is the same request in the terms of access control (RBAC)."""

    asked: AccessRequest
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    accept: str = _JSON
    content_type: str = _JSON
    #: Maximum bytes of the answer to read; None: all.
    most_bytes: int | None = None


class Unreachable(ClusterError):  # noqa: N818  (what the server is, when no answer comes)
    """The API server gave no answer, or not in time."""


class Forbidden(ClusterError):  # noqa: N818  (what the answer is)
    """An RBAC rule is missing; `asked` lists the requests that the rule would have to allow."""

    def __init__(self, requests: Sequence[AccessRequest], namespace: str, detail: str = "") -> None:
        super().__init__(
            permissions.explain(requests, namespace) + (f"\n(the cluster reports: {detail})" if detail else ""), 403
        )
        self.asked = list(requests)


class ObjectRefused(ClusterError):  # noqa: N818  (what the answer is)
    """The cluster rejects the object: a quota, Pod Security, a field."""


class Gone(ClusterError):  # noqa: N818  (what the answer is)
    """HTTP 410: the resource version is too old; list again."""


class Missing(ClusterError):  # noqa: N818  (what the answer is)
    """HTTP 404: the cluster has no such object or namespace."""


class Exists(ClusterError):  # noqa: N818  (what the answer is)
    """HTTP 409: another object has this name, or the object has changed since it was read."""


_ERRORS: Mapping[int, type[ClusterError]] = {
    400: ObjectRefused,
    404: Missing,
    409: Exists,
    410: Gone,
    413: ObjectRefused,
    422: ObjectRefused,
}


class Cluster:
    """Client of the Kubernetes API for one cluster and namespace. Several threads may use it."""

    def __init__(self, access: ClusterAccess, *, deadline_seconds: float = DEADLINE_SECONDS) -> None:
        self.access, self.namespace = access, access.namespace
        self.deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self.asked: Counter[AccessRequest] = Counter()
        #: Whether the API server allowed a request since it was last unreachable; monotonic time of its first denial.
        self._allowed = False
        self._denied_at: float | None = None
        # Keys and certificates of a kubeconfig are written here. The library removes its own at the interpreter's exit,
        # which the forked workers of Ansible skip.
        self._folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
        self._forget = weakref.finalize(self, remove_folder, self._folder, os.getpid())
        try:
            self._client = log_in(access, self._folder)
        except BaseException:
            self._forget()
            raise
        self._logins = 1

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.rest_client.pool_manager.clear()
        self._forget()

    @property
    def url(self) -> str:
        """The address of the API server."""
        return str(self._client.configuration.host)

    def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Manifest:
        """Create an object and return it. If an object with this name and labels exists, return that, trimmed: an
        earlier answer was lost, or the run is resumed. With `dry_run` the API server only checks the object. Raises
        ``Exists``, ``ObjectRefused``, ``Forbidden``, ``Missing`` (the namespace)."""
        kind = KINDS[manifest["kind"]]
        query = {"dryRun": "All"} if dry_run else {}
        try:
            return _document(self._call(self._request(kind, "create", "POST", query=query, body=manifest)))
        except Exists:
            if kind.name == "Namespace":
                return dict(manifest)
        name, expected_labels = manifest["metadata"]["name"], manifest["metadata"].get("labels") or {}
        items, _ = self.list(kind.name, fields=f"metadata.name={name}")
        if not items:
            raise Exists(f"{kind.name} {name} is being deleted: try again", 409)
        metadata = items[0]["metadata"]
        if expected_labels.items() - (metadata.get("labels") or {}).items():
            raise Exists(f"{kind.name} {name} in the namespace {self.namespace} is not of this run", 409)
        if metadata.get("deletionTimestamp"):
            raise Exists(f"{kind.name} {name} is being deleted: try again when it is gone", 409)
        return items[0]

    def list(
        self, kind: str, selector: str = "", fields: str = "", *, untrimmed: bool = False
    ) -> tuple[list[Manifest], str]:
        """Objects of a kind, trimmed unless `untrimmed`, and their resource version. The content of Secrets is never
        read, that of ConfigMaps only if `untrimmed`."""
        object_kind = KINDS[kind]
        query = {"labelSelector": selector, "fieldSelector": fields, "limit": str(PAGE)}
        accept = _METADATA if object_kind.metadata_only and not (untrimmed and kind == "ConfigMap") else _JSON
        items: list[Manifest] = []
        while True:
            try:
                page = _document(self._call(self._request(object_kind, "list", "GET", query=query, accept=accept)))
            except Gone:
                if "continue" not in query:
                    raise
                del query["continue"]  # the list's version expired between two pages: list from the start
                items = []
                continue
            items += [unmanaged(item) if untrimmed else trim(kind, item) for item in page["items"] or []]
            following = page["metadata"].get("continue")
            if not following:
                return items, page["metadata"]["resourceVersion"]
            query["continue"] = following

    def delete_all(self, kind: str, selector: str, fields: str = "") -> None:
        """Delete the objects that the selectors choose, and their dependents. Returns before the objects are gone."""
        if not selector and not fields:
            raise ValueError("a selector is needed: all objects of a kind are never deleted")
        query = {"labelSelector": selector, "fieldSelector": fields}
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        # The answer contains the deleted objects: ask for their metadata only, to get no content of Secrets.
        kind_of, verb = KINDS[kind], "deletecollection"
        self._call(self._request(kind_of, verb, "DELETE", query=query, body=options, accept=_METADATA))

    def delete(self, kind: str, name: str) -> None:
        """Delete one object, which may be missing. Needs the RBAC verb `deletecollection`."""
        self.delete_all(kind, "", fields=f"metadata.name={name}")

    def patch(
        self, kind: str, name: str, body: Mapping[str, Any], subresource: str = "", *, dry_run: bool = False
    ) -> Manifest:
        """Merge a patch (RFC 7386) into an object and return it, trimmed. The patch of a `subresource` is a strategic
        one: lists are merged by their entries' keys. With `dry_run` nothing changes. Raises ``Exists`` when the patch
        names a resource version that the object no longer has."""
        merge = f"application/{'strategic-' if subresource else ''}merge-patch+json"
        path = f"{KINDS[kind].path(self.namespace)}/{name}"
        asked = KINDS[kind].asked("patch")
        if subresource:
            path, asked = f"{path}/{subresource}", asked._replace(subresource=subresource)
        query = {"dryRun": "All"} if dry_run else {}
        request = ApiRequest(asked, "PATCH", path, query, body, content_type=merge)
        return trim(kind, _document(self._call(request)))

    def log(self, pod: str, container: str, limit_bytes: int = MAX_LOG_BYTES, tail_lines: int | None = None) -> str:
        """The output of a container, at most `limit_bytes`; empty before the container starts. Raises ``ClusterError``
        within `LOG_SECONDS` when the node's kubelet, which has the output, does not answer."""
        query = {"container": container, "limitBytes": str(limit_bytes)}
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        path = f"{KINDS['Pod'].path(self.namespace)}/{pod}/log"
        asked = AccessRequest("get", "", "pods", "log")
        request = ApiRequest(asked, "GET", path, query, accept="*/*", most_bytes=limit_bytes)
        try:
            answer = self._call(request, min(LOG_SECONDS, self.deadline_seconds), LOG_RETRIED)
        except ObjectRefused as error:
            if error.code == 400 and ("waiting to start" in str(error) or "PodInitializing" in str(error)):
                return ""
            raise
        except Unreachable as error:
            text = f"{error}; another possible cause: the kubelet of the node of {pod} does not answer"
            raise Unreachable(text) from None
        return answer.data.decode("utf-8", "replace")

    def serves(self, kind: str) -> bool:
        """Whether the cluster has the API of this kind of object. Every user may ask this."""
        return any(item.get("kind") == kind for item in self.discover(KINDS[kind].root).get("resources") or ())

    def discover(self, path: str) -> Manifest:
        """Read versions, resources or schemas of an API at `path`; empty if the cluster lacks this API."""
        try:
            return _document(self._call(ApiRequest(AccessRequest("get", path, ""), "GET", path)))
        except (Missing, Forbidden):
            return {}

    def read_uid(self) -> str:
        """The cluster's identity, however it is reached: the UID of its namespace kube-system. A denied request is not
        retried. Raises ``ClusterError``."""
        kind = KINDS["Namespace"]
        request = ApiRequest(permissions.IDENTITY, "GET", f"{kind.path(self.namespace)}/kube-system")
        uid = _document(self._call(request, retried=RETRIED - {403}))["metadata"].get("uid")
        if not uid:
            raise ClusterError("the namespace kube-system has no UID")
        return str(uid)

    def check(self, needed: Sequence[AccessRequest]) -> None:
        """Raise ``Forbidden`` with all requests of `needed` that no rule allows. Asks for the list of rules once, then
        once for each request that the list does not allow."""
        status = self._review(permissions.RULES_REVIEW, "SelfSubjectRulesReview", {"namespace": self.namespace})
        lacking = []
        for request in needed:
            if permissions.is_listed(request, status.get("resourceRules") or ()):
                continue
            namespace = "" if request.resource in permissions.CLUSTER_SCOPED else self.namespace
            spec = {"resourceAttributes": {"namespace": namespace, "version": "v1", **request._asdict()}}
            if not self._review(permissions.REVIEW, "SelfSubjectAccessReview", spec).get("allowed"):
                lacking.append(request)
        if lacking:
            raise Forbidden(lacking, self.namespace)

    def _review(self, access: AccessRequest, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the API server about this user's rights, and return the status of its answer."""
        version = f"{access.group}/v1"
        body = {"kind": kind, "apiVersion": version, "spec": spec}
        request = ApiRequest(access, "POST", f"/apis/{version}/{access.resource}", body=body)
        return _document(self._call(request)).get("status") or {}

    def watch(
        self, kind: str, selector: str, fields: str, version: str, *, seconds: float, silence_seconds: float
    ) -> "EventStream":
        """Open a watch from a resource version; the server ends it after `seconds`. Silence for longer than
        `silence_seconds` breaks it. Raises ``Gone`` when the version is too old."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "labelSelector": selector,
            "fieldSelector": fields,
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, int(seconds))),
        }
        request = self._request(KINDS[kind], "watch", "GET", query=query)
        for login in range(MAX_LOGINS + 1):
            logins = self._logins
            try:
                answer = self._send_once(request, silence_seconds, stream=True)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise self._unreachable(error) from None
            if answer.status != 401 or login == MAX_LOGINS:
                break
            self._log_in_again(logins)
        if answer.status >= 300:
            raise self._error(request.asked, answer)
        return EventStream(answer)

    def _request(self, kind: ObjectKind, verb: str, method: str, **options: Any) -> ApiRequest:
        """A request about the objects of a kind."""
        return ApiRequest(kind.asked(verb), method, kind.path(self.namespace), **options)

    def _call(
        self, request: ApiRequest, deadline_seconds: float | None = None, retried: frozenset[int] = RETRIED
    ) -> "_ApiAnswer":
        """Send a request, with retries until it is answered or the deadline has passed; return the answer."""
        ends = time.monotonic() + (self.deadline_seconds if deadline_seconds is None else deadline_seconds)
        tries = logins = 0
        while True:
            tries, count = tries + 1, self._logins
            wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(tries - 1, 16))
            wait *= random.uniform(0.8, 1.2)  # noqa: S311  (so that clients do not come back together)
            seconds_left = max(0.1, ends - time.monotonic())
            try:
                answer = self._send_once(request, min(READ_SECONDS, seconds_left))
            except (urllib3.exceptions.HTTPError, OSError) as error:
                problem: ClusterError = self._unreachable(error)
                # A retry does not help: a missing file, a wrong certificate, no TLS on that port.
                is_tls = isinstance(error, urllib3.exceptions.SSLError) and "EOF" not in str(error)
                if isinstance(error, OSError) or is_tls:
                    raise problem from None
            else:
                if answer.status < 300:
                    self._allowed = True
                    return answer
                problem = self._error(request.asked, answer)
                if answer.status == 401 and logins < MAX_LOGINS:
                    logins += 1
                    self._log_in_again(count)
                    wait = 0.0 if logins == 1 else wait
                elif answer.status not in retried:
                    raise problem
                elif answer.status == 403:
                    if not isinstance(problem, Forbidden) or not self._may_have_just_started():
                        raise problem
                    wait = min(wait, DENIED_WAIT_SECONDS)
                if answer.retry_after is not None:
                    wait = answer.retry_after
            if time.monotonic() + wait > ends:
                raise problem from None
            if wait:
                time.sleep(wait)

    def _may_have_just_started(self) -> bool:
        """Whether the API server may deny the request only because it has just started."""
        now = time.monotonic()
        self._denied_at = now if self._denied_at is None else self._denied_at
        return not self._allowed and now - self._denied_at < DENIED_SECONDS

    def _send_once(self, request: ApiRequest, read_seconds: float, *, stream: bool = False) -> Any:
        with self._lock:  # an expired login is renewed once, not by each thread
            self.asked[request.asked] += 1
            client = self._client
            headers = {"Accept": request.accept, "User-Agent": "gpuval"}
            queries = [(key, value) for key, value in request.query.items() if value]
            try:
                client.update_params_for_auth(headers, queries, ["BearerToken"])
            except Exception as error:  # login plugins of the operator may raise anything
                raise ClusterError(f"the login to the cluster failed: {error}") from None
        url = client.configuration.host + request.path + (f"?{urlencode(queries)}" if queries else "")
        data = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            data = json.dumps(request.body, separators=(",", ":")).encode()
        response = client.rest_client.pool_manager.request(
            request.method,
            url,
            body=data,
            headers=headers,
            timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, read_seconds), read=read_seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        )
        if stream and response.status < 300:
            return response
        try:
            limit = request.most_bytes if response.status < 300 else MAX_STATUS_BYTES
            content = response.read(limit) if limit is not None else response.read()
            complete = limit is None or len(content) < limit
        except BaseException:
            response.close()
            raise
        if complete:
            response.release_conn()
        else:
            response.close()  # instead of reading the rest of the answer
        return _ApiAnswer(response.status, content, _seconds(response.headers.get("Retry-After")))

    def _log_in_again(self, logins: int) -> None:
        """Read the credentials again, unless another thread has done so since login number `logins`."""
        with self._lock:
            if self._logins == logins:
                self._client = log_in(self.access, self._folder)
                self._logins += 1

    def _unreachable(self, error: Exception) -> ClusterError:
        self._allowed, self._denied_at = False, None  # the API server may be starting
        reason = plain_reason(error)
        return Unreachable(f"{self.url} does not answer: {reason}: check the kubeconfig, its context, and the network")

    def _error(self, request: AccessRequest, answer: Any) -> ClusterError:
        status = _parsed(answer)
        detail = str(status.get("message") or f"HTTP {answer.status}")
        reason, code = status.get("reason"), answer.status
        operation = f"{request.verb} {request.full_resource}"
        if code == 401:
            problem = "the cluster does not know this user: the credentials are wrong or have expired"
            return ClusterError(f"{problem}: log in again, or get a new kubeconfig", 401)
        if code == 403:
            if _NOT_ALLOWED.search(detail) or reason != "Forbidden":
                return Forbidden([request], self.namespace, detail)
            return ObjectRefused(detail, 403)
        if code == 404 and request.verb == "create" and "namespaces" in detail:
            make = f"kubectl create namespace {self.namespace}, or prepare with -e kubernetes_make_namespace=true"
            return Missing(f"{detail}: create the namespace ({make}), or set gpuval_namespace", 404)
        if code in _ERRORS:
            return _ERRORS[code](f"{operation}: {detail}", code)
        return ClusterError(f"{operation}: {detail} (HTTP {code})", code)


@dataclass(frozen=True)
class _ApiAnswer:
    status: int
    data: bytes
    retry_after: float | None


class EventStream:
    """The events of an open watch, until the server ends the watch. Another thread may call ``close``."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._closed = False

    def __iter__(self) -> Iterator[Manifest]:
        """The events as they arrive. Raises ``ClusterError`` when the connection breaks."""
        incomplete = b""
        try:
            for data in self._response.stream(1 << 16, decode_content=True):
                *lines, incomplete = (incomplete + data).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # urllib3 raises the last two exceptions when another thread closes the connection.
            if not self._closed:
                raise ClusterError(f"the watch broke: {plain_reason(error)}") from None
        finally:
            self._response.close()

    def close(self) -> None:
        self._closed = True
        shutdown = getattr(self._response, "shutdown", None)
        try:
            if shutdown:
                shutdown()  # wakes the thread that reads the watch; close alone would wait for it
            else:
                self._response.connection.sock.shutdown(socket.SHUT_RD)
        except (OSError, AttributeError, ValueError):
            return  # the watch has ended already


def _parsed(answer: _ApiAnswer) -> Manifest:
    """The JSON object in an answer of the API; empty if the answer is anything else."""
    try:
        document = json.loads(answer.data)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _document(answer: _ApiAnswer) -> Manifest:
    if document := _parsed(answer):
        return document
    raise ClusterError("the answer is not from a Kubernetes API server (a proxy, a login page?): check the kubeconfig")


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
