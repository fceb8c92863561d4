"""Write the rights that gpuval needs on a cluster to a file, check them, and create the namespace if asked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleActionFail

from ..artifacts import images
from ..cluster import manifests, names, permissions, pod_classes, pod_settings
from ..cluster.api import Cluster, ClusterAccess, ClusterError, Forbidden, Missing, ObjectRefused
from ..core.paths import project_path
from ..core.step_options import PathText
from ..runs.action import RunAction

#: Text in the error of an admission webhook that supports no dry run.
NO_DRY_RUN = "does not support dry run"
#: Matches the refusal of a pod that may concern its image.
ABOUT_IMAGES = re.compile(r"image|registr", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class PrepareClusterOptions(ClusterAccess):
    make_namespace: bool = False
    marks: bool = False
    volumes: bool = False
    pods: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    role_file: PathText


def prepare_cluster(action: RunAction, options: PrepareClusterOptions) -> dict[str, Any]:
    path = project_path(options.role_file)
    role = permissions.printed(options.namespace)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if not action.check_mode and role != before:
        permissions.write_role(path, options.namespace)
    if role != before:
        written = "would be written to" if action.check_mode else "is in"
        action.display.display(f"what gpuval needs to be allowed on the cluster {written} {path}")
    try:
        with Cluster(options) as cluster:
            created = _prepare(action, cluster, options)
    except ClusterError as error:
        if not isinstance(error, (Forbidden, Missing)):
            raise AnsibleActionFail(str(error)) from None
        requests: list[permissions.AccessRequest] = []
        if isinstance(error, Forbidden):
            action.display.display(*role.split("\n"))
            requests = error.asked
        grant = permissions.how_to_grant(path, options.namespace, requests)
        raise AnsibleActionFail(f"{error}\n{grant}") from None
    return {
        "changed": role != before or created,
        "role_file": str(path),
        "diff": {"before": before, "after": role, "after_header": str(path), "before_header": str(path)},
        "msg": f"everything that gpuval asks of the cluster is allowed; the Role is in {path}",
    }


def _prepare(action, cluster, options):
    """Check what runs need of the cluster. Returns whether the namespace was created (in check mode: would be)."""
    missing = missing_namespace(cluster)
    created = bool(missing and options.make_namespace)
    cluster.check(
        permissions.needed(
            makes_namespace=created,
            marks_nodes=options.marks,
            makes_volumes=options.volumes,
            makes_job_sets=cluster.serves("JobSet"),
            makes_claims=options.pods.get("devices") == "dra",
        )
    )
    if created:
        cluster.create(manifests.namespace(options.namespace), dry_run=action.check_mode)
        action.display.display(f"namespace {options.namespace}: {'would be ' if action.check_mode else ''}created")
    elif missing:
        raise missing
    else:
        settings = pod_settings.parse(options.pods)
        references = [image.reference for image in images.parse(options.images)]
        named = [*dict.fromkeys(filter(None, [settings.image, *references]))]
        for pod in [settings, pod_settings.for_gang(settings)] if settings.gang else [settings]:
            _try_pod(action, cluster, pod, named)
    return created


def missing_namespace(cluster):
    """The error if the cluster's namespace is missing; None if it exists, or the user may not see that."""
    # A list in a missing namespace is empty, no error: only creating an object shows that it is missing.
    manifest = names.core_object("ConfigMap", {"name": "gpuval-prepare", "labels": names.owner_labels()})
    try:
        cluster.create(manifest, dry_run=True)
    except Missing as error:
        return error
    except Forbidden:  # the check of all rights reports it
        return None
    except ObjectRefused as error:
        if NO_DRY_RUN not in str(error):  # the cluster calls webhooks after it checked the namespace
            raise
    return None


def _try_pod(action, cluster, settings, named):
    """Create a pod in a dry run. Raises ObjectRefused by Pod Security; other refusals, as by a quota, may change and
    are warnings. `named`: images of the run; without any, a refusal for the image is ignored."""
    try:
        cluster.create(manifests.trial_pod(cluster.namespace, settings, named or ["none"]), dry_run=True)
    except ObjectRefused as error:
        why, text = pod_classes.of_error(error), pod_classes.without_pod_name(str(error))
        text = f"namespace {cluster.namespace}: {text}: {why.steps}"
        if why.name == "pod_security":
            raise ObjectRefused(text, error.code) from None
        if NO_DRY_RUN not in text and (named or not ABOUT_IMAGES.search(str(error))):
            action.display.warning(text)
