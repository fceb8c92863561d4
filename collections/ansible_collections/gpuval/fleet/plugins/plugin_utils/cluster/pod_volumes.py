"""The volumes of pods, and where they are mounted: models, datasets, shared memory, folders of nodes. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..runs import datasets
from . import names
from .kinds import Manifest
from .pod_settings import PodSettings, PodSettingsError

#: Folders in a pod: its input files (read-only), its state between stages, and the models.
GIVEN = "/opt/gpuval"
STATE = "/var/lib/gpuval/state"
MODELS = "/var/lib/gpuval/models"
#: Folder of datasets, the same as in containers of SSH hosts.
DATASETS = "/opt/gpuval/datasets"
SHM = "/dev/shm"  # noqa: S108 - the pod's own
#: Keys of gpuval_pods.volumes that name the source of a volume.
KINDS = ("claim", "nfs", "csi", "host_path", "storage_class")


def model_volumes(run_id: str, namespace: str, settings: PodSettings) -> list[Manifest]:
    """PersistentVolume and claim for a model cache on NFS with mount options, which an NFS volume of a pod lacks; else
    none."""
    nfs = settings.model_cache.get("nfs")
    if not nfs or not nfs.get("mount_options"):
        return []
    name = _claim_name(run_id, nfs)
    size = str(nfs.get("size", "1Ti"))
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = names.metadata(run_id, namespace, name)
    del volume["namespace"]  # PersistentVolumes have no namespace
    volume_spec = {
        **common,
        "capacity": {"storage": size},
        "persistentVolumeReclaimPolicy": "Retain",
        "mountOptions": list(nfs["mount_options"]),
        "nfs": {"server": nfs["server"], "path": nfs["path"]},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": namespace},
    }
    claim_spec = {**common, "volumeName": name, "resources": {"requests": {"storage": size}}}
    return [
        names.core_object("PersistentVolume", volume, spec=volume_spec),
        names.core_object("PersistentVolumeClaim", names.metadata(run_id, namespace, name), spec=claim_spec),
    ]


def dataset_mounts(stage: Mapping[str, Any], models_dir: str) -> list[dict[str, Any]]:
    """Read-only mounts of a stage's datasets from the volume of models, also over that volume's writable mount.
    `models_dir`: the plan's folder of models in the pod."""
    below = models_dir.removeprefix(MODELS).strip("/")
    folders = {name: f"{below}/{datasets.FOLDER}{name}".lstrip("/") for name in stage.get("datasets", ())}
    return [
        {"name": "models", "mountPath": place, "subPath": folder, "readOnly": True}
        for name, folder in folders.items()
        for place in (f"{DATASETS}/{name}", f"{MODELS}/{folder}")
    ]


def volume_of(run_id: str, kind: str, source: Any, folder: str = "Directory") -> dict[str, Any]:
    """A volume of a pod. `kind`: `empty_dir` or one of KINDS; `source`: its value in the settings. `folder`: the `type`
    of a hostPath volume."""
    if kind == "host_path":
        return {"hostPath": {"path": source, "type": folder}}
    if kind == "csi":
        attributes = {"volumeAttributes": dict(source["attributes"])} if source.get("attributes") else {}
        return {"csi": {"driver": source["driver"], **attributes}}
    if kind == "storage_class":
        requests = {"storage": str(source.get("size", "100Gi"))}
        spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": source[kind], "resources": {"requests": requests}}
        return {"ephemeral": {"volumeClaimTemplate": {"spec": spec}}}
    if kind == "claim":
        return {"persistentVolumeClaim": {"claimName": source}}
    if kind == "nfs" and source.get("mount_options"):
        return {"persistentVolumeClaim": {"claimName": _claim_name(run_id, source)}}
    if kind == "nfs":
        return {"nfs": {"server": source["server"], "path": source["path"]}}
    limits = {"sizeLimit": str(source["size"])} if source.get("size") else {}
    return {"emptyDir": {**limits, "medium": "Memory"} if source.get("memory") else limits}


def asked_volumes(run_id: str, settings: PodSettings) -> list[dict[str, Any]]:
    """The volumes in gpuval_pods.volumes. Raises PodSettingsError for a mount path used by gpuval or twice."""
    used = [GIVEN, STATE, MODELS, DATASETS, SHM]
    volumes = []
    for index, declared in enumerate(settings.volumes):
        path = declared["path"]
        if any(f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/") for other in used[:5]):
            raise PodSettingsError(f"gpuval_pods.volumes: {path} is a folder of gpuval: mount the volume elsewhere")
        if path in used:
            raise PodSettingsError(f"gpuval_pods.volumes: two volumes have the path {path}")
        used.append(path)
        kind = next(kind for kind in KINDS if kind in declared)
        volume = volume_of(run_id, kind, declared if kind == "storage_class" else declared[kind])
        if "csi" in volume:
            volume["csi"]["readOnly"] = bool(declared.get("read_only"))
        volumes.append({"name": f"asked-{index}", **volume})
    return volumes


def names_by_folder(settings: PodSettings) -> dict[str, str]:
    """{folder in the containers: name in messages} of volumes outside the node: claims, NFS, CSI."""
    words: dict[str, str] = {}
    for volume in [*settings.volumes, {"path": MODELS, **settings.model_cache}]:
        if "claim" in volume:
            words[volume["path"]] = f"claim {volume['claim']}"
        elif nfs := volume.get("nfs"):
            words[volume["path"]] = f"NFS {nfs['server']}:{nfs['path']}"
        elif "csi" in volume:
            words[volume["path"]] = f"CSI volume of {volume['csi']['driver']}"
    return words


def _claim_name(run_id: str, nfs: Mapping[str, Any]) -> str:
    return names.run_name(run_id, f"models-{names.digest(json.dumps(nfs, sort_keys=True), 6)}")


def shm_of(settings: PodSettings, stages: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The shared-memory volume of a pod, one for all stages, with the largest size that a stage requests."""
    sizes = [stage["container"].get("shm_bytes") for stage in stages]
    most = max((size for size in (settings.shm_bytes, *sizes) if size), default=None)
    return {"medium": "Memory", **({"sizeLimit": str(most)} if most else {})}


def host_volumes(
    stages: Iterable[Mapping[str, Any]], settings: PodSettings
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """For folders of the node that stages request: the pod's hostPath volumes, and the mounts by stage name. Folders
    in which the settings mount other volumes are left out."""
    mounted = {volume["path"] for volume in settings.volumes}
    volumes: dict[str, dict[str, Any]] = {}
    mounts: dict[str, list[dict[str, Any]]] = {}
    for stage in stages:
        mounts[stage["name"]] = []
        for volume in stage["container"].get("volumes") or ():
            path, inside, *more = volume.split(":")
            if inside in mounted:
                continue
            if not path.startswith("/"):
                raise PodSettingsError(f"stage {stage['name']}: container.volumes: {path} is no folder of the node")
            volume_made = volumes.setdefault(path, {"name": f"host-{len(volumes)}", "hostPath": {"path": path}})
            options = more[0].split(",") if more else []
            mounts[stage["name"]].append(
                {"name": volume_made["name"], "mountPath": inside, **({"readOnly": True} if "ro" in options else {})}
            )
    return list(volumes.values()), mounts
