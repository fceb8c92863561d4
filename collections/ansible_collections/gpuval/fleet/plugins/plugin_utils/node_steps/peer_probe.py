"""Let a node listen for other nodes, or measure its network to them and to services."""

from typing import Any

from ...module_utils.network.peers import PeerProbeOptions
from ..core.action import ControllerAction


def peer_probe(action: ControllerAction, options: PeerProbeOptions) -> dict[str, Any]:
    return action.ask_node("peer_probe", vars(options))
