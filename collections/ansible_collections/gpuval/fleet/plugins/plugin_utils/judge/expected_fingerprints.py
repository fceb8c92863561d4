"""Values of fingerprints that a run's settings imply, so that no node can choose the limits that apply to it.

The setup of a training, NVLS and the collectives of a gang follow from the command and the environment of their stage,
sizes that are ``auto`` from the memory of the SKU. They are frozen in run.json when the run is opened.
"""

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ansible_collections.gpuval.fleet.node.gpuval_workloads.gang import config as gang
from ansible_collections.gpuval.fleet.node.gpuval_workloads.training import config as training

from . import sku_catalogue

#: For each fingerprint and SKU of the catalogue (or ANY) the values that the settings allow.
Setup = Mapping[str, Mapping[str, Sequence[str]]]
ANY = "any"
_Config = TypeVar("_Config")


def of_stages(declarations: Mapping[str, Mapping[str, Any]], stages: Iterable[str]) -> dict[str, Setup]:
    """For each stage the values of fingerprints that its declaration implies; stages without any are left out."""
    setups = {stage: _MAKERS[stage](declarations[stage]) for stage in stages if stage in declarations.keys() & _MAKERS}
    return {stage: setup for stage, setup in setups.items() if setup}


def for_sku(setups: Mapping[str, Setup], sku: str | None) -> dict[str, dict[str, frozenset[str]]]:
    """For each stage and fingerprint the values that nodes of that SKU may report."""
    by_stage: dict[str, dict[str, frozenset[str]]] = {}
    for stage, setup in setups.items():
        for name, by_sku in setup.items():
            values = by_sku.get(sku or ANY) or by_sku.get(ANY)
            if values:
                by_stage.setdefault(stage, {})[name] = frozenset(values)
    return by_stage


def _training_setup(declaration: Mapping[str, Any]) -> Setup:
    config = _parsed(declaration, "gpuval_workloads.training", training.parse_arguments)
    if config is None or config.validation_only:
        return {}
    by_sku = {
        sku.name: training.gpu_setups(config, sku.vendor == "nvidia", int(sku.gpu["memory_bytes"]))
        for sku in sku_catalogue.shipped()
        if "memory_bytes" in sku.gpu
    }
    return {"training_setup": by_sku}


def _diagnostics_setup(declaration: Mapping[str, Any]) -> Setup:
    enabled = str((declaration.get("environment") or {}).get("NCCL_NVLS_ENABLE", "")).strip()
    return {"diagnostics_nvls": {ANY: ["off" if enabled == "0" else "on"]}}


def _collective_setup(declaration: Mapping[str, Any]) -> Setup:
    config = _parsed(declaration, "gpuval_workloads.gang", gang.parse_arguments)
    if not isinstance(config, gang.CollectivesConfig):
        return {}
    requested = config.only or gang.NAMES
    network = ["MNNVL"] if config.fabric == gang.NVLINK else list(config.expect_network)
    # Names with * are InfiniBand, beside which NVLink may join the nodes: then the record decides.
    network_values = {"gang_network": {ANY: network}} if network and not any("*" in name for name in network) else {}
    return network_values | {f"gang_{name}_asked": {ANY: ["yes" if name in requested else "no"]} for name in gang.NAMES}


_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], Setup]] = {
    "training": _training_setup,
    "diagnostics": _diagnostics_setup,
    "collective": _collective_setup,
    "collective_nvlink": _collective_setup,
}


def _parsed(declaration: Mapping[str, Any], module: str, parse: Callable[[Sequence[str]], _Config]) -> _Config | None:
    """The configuration of a stage that runs that module; None for another command, or one that the module rejects."""
    command = [str(word) for word in declaration.get("command") or ()]
    if module not in command:
        return None
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return parse(command[command.index(module) + 1 :])
    except SystemExit:
        return None
