from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ._engine import ContainerEngine, DeviceAccess, EngineFacts, architecture_of, part

OCI_HOOKS = ("usr/share/containers/oci/hooks.d", "etc/containers/oci/hooks.d")


class Podman(ContainerEngine):
    """Podman, also where a distribution installs it under docker's name."""

    name = "podman"
    order = 20
    nvidia_remedy = "install nvidia-container-toolkit and run 'nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml'"
    build_options = ("--format", "docker")

    @classmethod
    def parse_info(cls, info: Mapping[str, Any]) -> Optional[EngineFacts]:
        host = part(info, "host")
        if not host:
            return None
        store, version, security = part(info, "store"), part(info, "version"), part(host, "security")
        return EngineFacts(
            version=str(version.get("Version") or ""),
            rootless=bool(security.get("rootless")),
            cdi=True,
            architecture=architecture_of(host.get("arch")),
            storage=Path(store["graphRoot"]) if store.get("graphRoot") else None,
        )

    def nvidia(self, root: Path) -> DeviceAccess:
        access = super().nvidia(root)
        hooks = (hook for directory in OCI_HOOKS for hook in (root / directory).glob("*.json"))
        if access.problem and any("nvidia" in hook.name for hook in hooks):
            return DeviceAccess(environment=(("NVIDIA_VISIBLE_DEVICES", "all"),))
        return access

    def groups(self, root: Path) -> list[str]:
        return ["--group-add=keep-groups"] if self.facts.rootless else super().groups(root)

    def push_options(self, digest_file: str) -> list[str]:
        return ["--digestfile", digest_file]

    def save_argv(self, reference: str) -> list[str]:
        return [self.command, "save", "--quiet", "--format", "docker-archive", reference]
