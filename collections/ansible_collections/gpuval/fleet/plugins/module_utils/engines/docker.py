from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from ._engine import ContainerEngine, DeviceAccess, EngineFacts, architecture_of, parse_json

HOOKS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")
HOOK_DIRECTORIES = ("usr/bin", "usr/local/bin", "usr/local/nvidia/toolkit")


class Docker(ContainerEngine):
    name = "docker"
    order = 10
    nvidia_remedy = (
        "install nvidia-container-toolkit, run 'nvidia-ctk runtime configure --runtime=docker' and restart docker"
    )
    answer_words = ("version", "--format", "{{.Server.Version}}")

    @classmethod
    def parse_info(cls, info: Mapping[str, Any]) -> Optional[EngineFacts]:
        if not info.get("ServerVersion"):
            return None
        status = {str(pair[0]): str(pair[1]) for pair in info.get("DriverStatus") or [] if len(pair) == 2}
        return EngineFacts(
            version=str(info["ServerVersion"]),
            rootless=any("rootless" in str(option) for option in info.get("SecurityOptions") or []),
            runtimes=frozenset(info.get("Runtimes") or {}),
            cdi=bool(info.get("CDISpecDirs")),
            architecture=architecture_of(info.get("Architecture")),
            storage=Path(info["DockerRootDir"]) if info.get("DockerRootDir") else None,
            containerd_images="containerd" in status.get("driver-type", ""),
        )

    def installed(self) -> Any:
        """Return docker's entry in the facts: its version, and whether the daemon answers this user."""
        result = self.run(self.command, "version", "--format", "{{json .}}")
        if result.missing:
            return None
        printed = parse_json(result.stdout)
        answer = printed if isinstance(printed, dict) else {}
        client, server = (answer.get(part) or {} for part in ("Client", "Server"))
        usable = result.ok and bool(server.get("Version"))
        return {
            "client_version": client.get("Version"),
            "server_version": server.get("Version"),
            "usable": usable,
            "problem": None if usable else result.complaint,
        }

    def nvidia(self, root: Path) -> DeviceAccess:
        hooks = (root / directory / name for directory in HOOK_DIRECTORIES for name in HOOKS)
        if "nvidia" in self.facts.runtimes or any(hook.exists() for hook in hooks):
            return DeviceAccess(("--gpus=all",))
        return super().nvidia(root)

    def gaudi(self, root: Path) -> DeviceAccess:
        access = super().gaudi(root)
        if "habana" in self.facts.runtimes:
            return DeviceAccess(("--runtime=habana", "--cap-add=sys_nice"), access.environment)
        return access

    def build_environment(self) -> dict[str, str]:
        has_buildx = self.run(self.command, "buildx", "version", timeout=30).ok
        return {} if has_buildx else {"DOCKER_BUILDKIT": "0"}
