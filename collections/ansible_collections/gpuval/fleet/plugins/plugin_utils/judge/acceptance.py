"""Evidence that a node with PASS needs to be accepted, whatever the profile (``skus/shared/acceptance.yml``). A report
lists the gaps as ``unproven``, which marks, health file, hostfiles and the run's verdict obey. Pure."""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core import yaml_file
from ..core.paths import COLLECTION
from ..core.stage_traits import traits_of
from ..core.text import some_of
from ..records.documents import Document
from ..runs import datasets
from . import sku_catalogue
from .check import FACTS
from .identity import DISPUTED

PROOFS = COLLECTION / "skus/shared/acceptance.yml"
#: Upper bound for the number of GPUs that a node reports: its report is not trusted.
MAX_GPUS = 4096
_GPU = re.compile(r"gpu:?(\d+)")


@dataclass(frozen=True)
class AcceptanceProof:
    """Evidence that cpu or gpu nodes (``of``) need for acceptance. ``seconds``: least duration of the stage's work."""

    what: str
    of: str
    stage: str
    metrics: Sequence[str]
    parts: str
    min_gpus: int = 1
    seconds: float = 0.0
    seconds_of: str = ""


@functools.cache
def read_proofs(path: Path) -> tuple[AcceptanceProof, ...]:
    """Read the required proofs from a file. Raises an error for a file that does not follow its schema."""
    return tuple(AcceptanceProof(**proof) for proof in yaml_file.shipped(path, "proofs")["proofs"])


def unproven(node: Document) -> list[str]:
    """The proofs that a report's node lacks for acceptance, each with the reason."""
    is_cpu = node["accelerator"] == sku_catalogue.CPU
    counted = [metric["value"] or 0 for metric in node["metrics"].get(FACTS, ()) if metric["name"] == "gpu_count"]
    gpus = 0 if is_cpu else max(len(node["identity"].get("gpus", ())), *(min(int(n), MAX_GPUS) for n in counted), 0)
    required = [
        proof
        for proof in read_proofs(PROOFS)
        if proof.of == ("cpu" if is_cpu else "gpu") and (is_cpu or max(gpus, 1) >= proof.min_gpus)
    ]
    lacking = [(proof.what, _lacking(node, proof, gpus)) for proof in required]
    gaps = [f"{what} ({reason})" for what, reason in lacking if reason]
    disputed = (check for check in node["checks"] if check["reason"].startswith(DISPUTED))
    return gaps + [f"whose the GPUs are ({check['value']} lists them, too)" for check in disputed]


def stages_of(nodes: Sequence[Document]) -> list[str]:
    ran = (stage for node in nodes for stage in node["stages"] if stage["state"] == "success")
    return list(dict.fromkeys(stage["name"] for stage in ran))


def may_use_gpus(stages: Iterable[str]) -> bool:
    """Whether any of the stages works on a GPU; a stage of an extension may."""
    return not all(traits_of(stage).gpus != "work" or stage.startswith(datasets.STAGE) for stage in stages)


def _lacking(node: Document, proof: AcceptanceProof, gpus: int) -> str:
    """Why a report's node, with this number of GPUs, lacks the proof; empty if it has the proof."""
    stage = next((stage for stage in node["stages"] if stage["name"] == proof.stage), None)
    metrics = node["metrics"].get(proof.stage, ())
    scopes = [metric["scope"] for metric in metrics if metric["name"] in proof.metrics and metric["value"]]
    indices = {int(index) for scope in scopes if scope.startswith(("gpu", "link")) for index in _GPU.findall(scope)}
    is_gpu = proof.parts != "node"
    missing = [f"gpu:{index}" for index in range(gpus) if index not in indices]
    seconds = (stage or {}).get("duration_seconds") or 0.0
    if proof.seconds_of:
        timed = (one for one in metrics if (one["scope"], one["name"]) == ("node", proof.seconds_of))
        seconds = next((metric["value"] or 0.0 for metric in timed), 0.0)
    rules = (
        (stage is None, f"no stage {proof.stage}"),
        (stage is not None and stage["state"] != "success", f"{proof.stage} did not succeed"),
        (is_gpu and not gpus, "how many GPUs the node has is not known"),
        (not scopes, f"{proof.stage} reports no {proof.metrics[0]}"),
        (is_gpu and len(indices) < gpus, f"not {some_of(missing, 4)}"),
        (seconds < proof.seconds, f"{proof.stage} worked {seconds:.3g} s of at least {proof.seconds:g} s"),
    )
    return next((reason for holds, reason in rules if holds), "")
