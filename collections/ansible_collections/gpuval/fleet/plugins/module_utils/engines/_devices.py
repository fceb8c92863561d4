"""What of the accelerators of a node is there to hand to containers, by vendor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

CDI_DIRECTORIES = ("etc/cdi", "var/run/cdi", "run/cdi")
CDI_BYTES = 1 << 20
PRESENT = {
    "nvidia": ("dev/nvidiactl", "dev/nvidia[0-9]*", "dev/dxg"),
    "gaudi": ("dev/accel/accel[0-9]*", "dev/hl[0-9]*"),
    "amd": ("dev/kfd",),
}
GAUDI_VARIABLES = (("HABANA_VISIBLE_DEVICES", "all"), ("OMPI_MCA_btl_vader_single_copy_mechanism", "none"))


@dataclass(frozen=True)
class DeviceAccess:
    """Arguments of the engine and variables of the container; `problem` says why the accelerators stay hidden."""

    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    problem: str = ""


def with_rdma(device_access: DeviceAccess, root: Path) -> DeviceAccess:
    rdma = [f"--device=/dev/{name}" for name in ("infiniband", "gdrdrv") if (root / "dev" / name).exists()]
    return replace(device_access, arguments=(*device_access.arguments, *rdma))


def present(vendor: str, root: Path) -> bool:
    return any(any(root.glob(pattern)) for pattern in PRESENT[vendor])


def groups_of_amd(root: Path) -> list[int]:
    nodes = [root / "dev/kfd", *(root / "dev/dri").glob("renderD*"), *(root / "dev/dri").glob("card*")]
    return sorted({*map(_group, nodes), *_named_groups(("video", "render"), root)} - {0})


def nodes_of_gaudi(root: Path) -> list[str]:
    nodes = ["/dev/accel"] if (root / "dev/accel").is_dir() else []
    return nodes + [f"/dev/{node.name}" for node in sorted((root / "dev").glob("hl*[0-9]"))]


def has_cdi(kind: str, root: Path) -> bool:
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
