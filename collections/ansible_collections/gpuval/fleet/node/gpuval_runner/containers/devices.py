"""What lets a container see the accelerators of the node, by vendor and engine: only devices that exist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuval_runner.containers.engine import EngineFacts

CDI_DIRECTORIES = ("etc/cdi", "var/run/cdi", "run/cdi")
OCI_HOOKS = ("usr/share/containers/oci/hooks.d", "etc/containers/oci/hooks.d")
NVIDIA_HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
HOOK_DIRECTORIES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit")
CDI_BYTES = 1 << 20


@dataclass(frozen=True)
class DeviceAccess:
    """Arguments of the engine and variables of the container; `problem` says why the accelerators stay hidden."""

    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def access(vendor: str, engine: EngineFacts, root: Path = Path("/")) -> DeviceAccess:
    """Return how a container sees the accelerators of a vendor; ``auto`` goes by the devices that are there."""
    if vendor == "auto":
        vendor = next((name for name in ("nvidia", "gaudi", "amd") if _present(name, root)), "cpu")
    if vendor not in _PRESENT or not _present(vendor, root):
        return DeviceAccess()
    device_access = {"nvidia": _nvidia, "amd": _amd, "gaudi": _gaudi}[vendor](engine, root)
    if device_access.problem:
        return device_access
    rdma = [f"--device=/dev/{name}" for name in ("infiniband", "gdrdrv") if (root / "dev" / name).exists()]
    return DeviceAccess((*device_access.arguments, *rdma), device_access.environment)


_PRESENT = {
    "nvidia": ("dev/nvidiactl", "dev/nvidia[0-9]*", "dev/dxg"),
    "amd": ("dev/kfd",),
    "gaudi": ("dev/accel/accel[0-9]*", "dev/hl[0-9]*"),
}


def _present(vendor: str, root: Path) -> bool:
    return any(any(root.glob(pattern)) for pattern in _PRESENT[vendor])


def _nvidia(engine: EngineFacts, root: Path) -> DeviceAccess:
    by_cdi = DeviceAccess(("--device=nvidia.com/gpu=all",))
    if engine.kind == "docker":
        hook = any(
            (root / hook_directory / name).exists() for hook_directory in HOOK_DIRECTORIES for name in NVIDIA_HOOKS
        )
        if "nvidia" in engine.runtimes or hook:
            return DeviceAccess(("--gpus=all",))
        if engine.cdi and _has_cdi("nvidia.com/gpu", root):
            return by_cdi
        return DeviceAccess(
            problem="docker cannot hand NVIDIA GPUs to containers: install nvidia-container-toolkit, run "
            "'nvidia-ctk runtime configure --runtime=docker' and restart docker"
        )
    if _has_cdi("nvidia.com/gpu", root):
        return by_cdi
    if any("nvidia" in hook.name for hook_directory in OCI_HOOKS for hook in (root / hook_directory).glob("*.json")):
        return DeviceAccess(environment=(("NVIDIA_VISIBLE_DEVICES", "all"),))
    return DeviceAccess(
        problem="podman cannot hand NVIDIA GPUs to containers: install nvidia-container-toolkit and run "
        "'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'"
    )


def _amd(engine: EngineFacts, root: Path) -> DeviceAccess:
    devices = [f"--device=/dev/{name}" for name in ("kfd", "dri") if (root / "dev" / name).exists()]
    if engine.kind == "podman" and engine.rootless:
        groups = ["--group-add=keep-groups"]
    else:  # by number: the image's own groups of these names have other numbers
        nodes = [root / "dev/kfd", *(root / "dev/dri").glob("renderD*"), *(root / "dev/dri").glob("card*")]
        numbers = {_group(node) for node in nodes} | set(_named_groups(("video", "render"), root))
        groups = [f"--group-add={number}" for number in sorted(numbers - {0})]
    return DeviceAccess((*devices, *groups, "--security-opt=seccomp=unconfined"))


def _gaudi(engine: EngineFacts, root: Path) -> DeviceAccess:
    environment = (("HABANA_VISIBLE_DEVICES", "all"), ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"))
    if engine.kind == "docker" and "habana" in engine.runtimes:
        return DeviceAccess(("--runtime=habana", "--cap-add=sys_nice"), environment)
    if engine.cdi and _has_cdi("habana.ai/gaudi", root):
        return DeviceAccess(("--device=habana.ai/gaudi=all", "--cap-add=sys_nice"), environment)
    devices = ["/dev/accel"] if (root / "dev/accel").is_dir() else []
    devices += [f"/dev/{node.name}" for node in sorted((root / "dev").glob("hl*[0-9]"))]
    return DeviceAccess((*(f"--device={device}" for device in devices), "--cap-add=sys_nice"), environment)


def _has_cdi(kind: str, root: Path) -> bool:
    for directory in CDI_DIRECTORIES:
        for spec in (root / directory).glob("*.*"):
            if spec.suffix not in (".json", ".yaml", ".yml"):
                continue
            try:
                with spec.open("rb") as stream:
                    if kind.encode() in stream.read(CDI_BYTES):
                        return True
            except OSError:
                continue
    return False


def _group(node: Path) -> int:
    try:
        return node.stat().st_gid
    except OSError:
        return 0


def _named_groups(names: Iterable[str], root: Path) -> list[int]:
    try:
        lines = (root / "etc/group").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    fields = (line.split(":") for line in lines)
    return [int(f[2]) for f in fields if len(f) >= 3 and f[0] in tuple(names) and f[2].isdigit()]
