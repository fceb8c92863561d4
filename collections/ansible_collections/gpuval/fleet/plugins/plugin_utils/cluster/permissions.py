"""The requests that gpuval makes to a cluster, and the Role that allows them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..core import files
from ..core.grouping import values_by_key
from ..core.paths import ROLES

ROLE_FILE = ROLES / "kubernetes/files/role.yml"

#: The namespace in role.yml, which is replaced by the namespace in use.
FILE_NAMESPACE = "gpuval"
#: Name of the ClusterRoleBinding for nodes: it contains the namespace, so that each namespace has a binding.
_NODES_BINDING = "gpuval-nodes-{}"


class AccessRequest(NamedTuple):
    """One request in the terms of access control (RBAC): verb, API group, resource."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


#: Requests that ask for one right, and for all rights in a namespace. Every user may ask (ClusterRole
#: system:basic-user).
REVIEW = AccessRequest("create", "authorization.k8s.io", "selfsubjectaccessreviews")
RULES_REVIEW = AccessRequest("create", "authorization.k8s.io", "selfsubjectrulesreviews")

#: The request that shows which cluster this is. Runs do without it where it is denied.
IDENTITY = AccessRequest("get", "", "namespaces")
#: The requests that write verdicts to nodes (labels, conditions), and how to grant them: role.yml has the ClusterRole
#: without a binding.
MARKS = frozenset({AccessRequest("patch", "", "nodes"), AccessRequest("patch", "", "nodes", "status")})
BIND_MARKS = (
    "`make prepare` writes that ClusterRole, gpuval-marks; bind it: kubectl create clusterrolebinding gpuval-marks "
    "--clusterrole=gpuval-marks --user=NAME (or --serviceaccount=NAMESPACE:gpuval-controller)"
)

#: Resources without a namespace, of those that gpuval uses.
CLUSTER_SCOPED = frozenset(
    {
        *("nodes", "namespaces", "persistentvolumes", "resourceslices", "deviceclasses"),
        *("clusterroles", "clusterrolebindings", "priorityclasses"),
    }
)


def documents(namespace: str) -> list[dict[str, Any]]:
    """The manifests in role.yml (Roles, ClusterRoles, bindings, ServiceAccount), for a namespace."""
    return list(yaml.safe_load_all(printed(namespace)))


def printed(namespace: str) -> str:
    """The text of role.yml for a namespace, with its comments."""
    text = ROLE_FILE.read_text(encoding="utf-8")
    head, separator, documents_text = text.partition("---\n")
    # The comment at the head of role.yml stays as it is; in the YAML below it only the namespace changes.
    for pattern in ("namespace: {}\n", f"name: {_NODES_BINDING}\n"):
        documents_text = documents_text.replace(pattern.format(FILE_NAMESPACE), pattern.format(namespace))
    return head + separator + documents_text


def write_role(path: Path, namespace: str) -> None:
    """Write role.yml for an administrator of the cluster to `path`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.replace(path, printed(namespace).encode())


def how_to_grant(path: Path, namespace: str, requests: Iterable[AccessRequest] = ()) -> str:
    """How to grant the Role in the file `path`; with the ClusterRole gpuval-marks if the denied `requests` need it."""
    text = f"an administrator of the cluster grants what gpuval needs with: kubectl apply -f {path}"
    text += f"; first, where the namespace is missing: kubectl create namespace {namespace}"
    text += "; its bindings are for the ServiceAccount gpuval-controller: another user goes into their `subjects`"
    return text + (f"\n{BIND_MARKS}" if MARKS.intersection(requests) else "")


def granted(roles: Iterable[Mapping[str, Any]]) -> set[AccessRequest]:
    """All single requests that these Roles and ClusterRoles allow."""
    requests = set()
    for role in (role for role in roles if role["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            for group, full, verb in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"]):
                resource, _, subresource = full.partition("/")
                # A Role covers no cluster-scoped resource.
                if role["kind"] == "ClusterRole" or resource not in CLUSTER_SCOPED:
                    requests.add(AccessRequest(verb, group, resource, subresource))
    return requests


def rule_text(requests: Iterable[AccessRequest]) -> str:
    """The rules of a Role that would allow these requests, as YAML."""
    verbs = values_by_key(((item.group, item.full_resource), item.verb) for item in sorted(set(requests)))
    lines = []
    for (group, resource), names in verbs.items():
        lines += [f'- apiGroups: ["{group}"]', f'  resources: ["{resource}"]']
        lines.append("  verbs: [" + ", ".join(f'"{name}"' for name in names) + "]")
    return "\n".join(lines)


def explain(requests: Sequence[AccessRequest], namespace: str) -> str:
    """A message with the rules that a Role, or a ClusterRole, lacks for these requests."""
    parts = []
    for role, is_scoped in ((f"Role in the namespace {namespace}", False), ("ClusterRole", True)):
        if items := [item for item in requests if (item.resource in CLUSTER_SCOPED) == is_scoped]:
            parts.append(f"a {role} needs this rule:\n{rule_text(items)}")
    operations = ", ".join(f"{item.verb} {item.full_resource}" for item in requests)
    return f"this user may not {operations}; " + "\n".join(parts)


def is_listed(request: AccessRequest, rules: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a namespace's rules allow the request. Rules restricted to some resource names do not count."""
    names = {"verbs": request.verb, "apiGroups": request.group, "resources": request.full_resource}
    return request.resource not in CLUSTER_SCOPED and any(
        not rule.get("resourceNames") and all({"*", name} & {*(rule.get(key) or ())} for key, name in names.items())
        for rule in rules
    )


def needed(
    *,
    makes_namespace: bool = False,
    marks_nodes: bool = False,
    makes_volumes: bool = False,
    makes_job_sets: bool = False,
    makes_claims: bool = False,
) -> list[AccessRequest]:
    """All requests that a run and its clean make, from role.yml, without those that a run can do without. `makes_...`
    and `marks_nodes`: what the run does."""
    is_needed = {
        "gpuval-controller": True,
        "gpuval-nodes": True,
        "gpuval-namespace": makes_namespace,
        "gpuval-marks": marks_nodes,
        "gpuval-volumes": makes_volumes,
    }
    roles = [role for role in documents(FILE_NAMESPACE) if is_needed.get(role["metadata"]["name"])]
    optional = {"jobset.x-k8s.io": makes_job_sets, "resource.k8s.io": makes_claims, "resource.nvidia.com": False}
    requests = granted(roles) - {IDENTITY}
    return sorted(request for request in requests if optional.get(request.group, True))
