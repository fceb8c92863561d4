"""Write all Kubernetes objects that a run would create into one file."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

import yaml

from ..cluster import manifests
from ..cluster.nodes import VARIABLE
from ..cluster.scheduler import KubernetesScheduler
from ..core import files
from ..core.paths import project_path
from ..core.step_options import PathText, StoreOptions
from ..runs import folder
from ..runs.action import RunAction, RunOptions
from ..watch import launch_inputs

#: Texts that every YAML reader takes for text without quotes; versions of YAML differ on 1e3, 0o7 and 12:30.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./-]*")
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}


class RenderManifestsOptions(RunOptions):
    run: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = "gpuval"
    make_namespace: bool = True
    path: PathText = ""
    store: StoreOptions


def render_manifests(action: RunAction, options: RenderManifestsOptions) -> dict[str, Any]:
    run = options.run if action.check_mode else action.folder(options).read_run()
    nodes = {
        name: action.task_vars["hostvars"][name].get(VARIABLE) or {} for name in action.task_vars["ansible_play_hosts"]
    }
    missing = [name for name, known in nodes.items() if known.get("exists") is False]
    if missing:
        action.display.warning(f"left out, since the cluster does not have them: {', '.join(missing)}")
    store = None if action.check_mode else launch_inputs.NodeStore.of(options.store, run, "kubernetes")
    placements = [
        _placement(action, name, known, run, options, store) for name, known in nodes.items() if name not in missing
    ]
    objects = manifests.everything(
        run["run_id"], options.namespace, launch_inputs.archives(bytecode=False), placements, options.make_namespace
    )
    result = {
        "nodes": [item.plan["node"] for item in placements],
        "missing": missing,
        "diff": {"before": "", "after": _summary(objects), "after_header": "manifests"},
    }
    if action.check_mode:
        return {**result, "changed": True, "path": "", "msg": f"{len(objects)} objects"}
    opened = action.folder(options)
    path = project_path(options.path) if options.path else opened.path / "manifests.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    folder.remember(opened)  # from now on the user may apply the file
    files.replace(path, to_yaml(objects).encode(), files.PRIVATE)
    message = (
        f"{len(objects)} objects for {len(placements)} node(s) in {path}: it has signed URLs and secrets of jobs. "
        f"Apply it with kubectl apply --server-side -f {path}, then validate with -e gpuval_run_id={run['run_id']}"
    )
    return {**result, "changed": True, "path": str(path), "msg": message}


def _placement(action, name, description, run, options, store):
    order = KubernetesScheduler(action, options).order(run, name)
    path = None if action.check_mode else action.folder(options).plan_file(name)
    if path and path.exists():
        plan = action.folder(options).read_plan(name)
    else:
        plan = manifests.pod_plan(order.plan, order.settings)
        if path:  # the run uses this plan even if another user applies the file
            folder.write_json(path, plan)
    names = [stage["name"] for stage in plan["stages"]]
    store_fields = store.given(name, names, run["deadline_seconds"]) | {"secrets": store.secrets(plan)} if store else {}
    return manifests.PodAttempt(manifests.target_of(name, description), order.settings, plan, order.sku, **store_fields)


_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _ManifestDumper(_Base):
    """Writes texts in quotes, unless they are plain words."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True  # aliases would make manifests hard to read


def _text(dumper: Any, text: str) -> Any:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_ManifestDumper.add_representer(str, _text)


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as documents, each after a line of three hyphens."""
    plain = (json.loads(json.dumps(item)) for item in objects)  # YAML cannot write Ansible's tagged texts
    return yaml.dump_all(plain, Dumper=_ManifestDumper, explicit_start=True, sort_keys=False, width=1 << 30)


def _summary(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return one line for each object, without its content."""
    return "".join(f"{item['kind']} {item['metadata']['name']}\n" for item in objects)
