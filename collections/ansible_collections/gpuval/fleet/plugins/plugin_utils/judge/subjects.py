"""Build the nodes of a run as their checks see them (`Subject`), from run.json and the evidence."""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core.stages import depth_of
from ..records import environment
from ..records.documents import Document, NodeMetric, Record
from ..records.evidence import RunEvidence
from ..records.properties import VERSIONS, properties_of
from . import expected_fingerprints, sku_catalogue
from .check import FACTS, Subject
from .entries import is_held
from .identity import identity_of, machine_names, models_of


def subjects_of(
    run: Document, evidence: RunEvidence, lacked_gpus: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Subject]:
    """{node name: Subject} of a run. ``lacked_gpus``: {machine: text on an earlier run that found GPUs missing}."""
    subjects = {name: subject_of(run, name, evidence) for name in run["nodes"]}
    has_gpus = [one.accelerator in GPU_VENDORS for one in subjects.values() if one.accelerator != "unknown"]
    most = 2 * sum(has_gpus) > len(has_gpus)
    names = {name: machine_names(name, identity_of(one.records.get(FACTS))) for name, one in subjects.items()}
    counted = Counter(machine for machines in names.values() for machine in machines)
    for name, subject in subjects.items():
        if most:
            subject.expects_gpus = "most nodes of the run have GPUs"
        elif lacked_gpus:
            own_names = (machine for machine in names[name] if counted[machine] == 1)  # without the id of a cloned disk
            subject.expects_gpus = next((lacked_gpus[machine] for machine in own_names if machine in lacked_gpus), "")
    return subjects


def subject_of(run: Document, name: str, evidence: RunEvidence) -> Subject:
    """The subject for one node of the run, with the records of its stages."""
    expected = run["nodes"][name]
    records = evidence.records.get(name, {})
    records = {stage: _last_measured(records[stage]) for stage in expected["stages"] if stage in records}
    facts = records.get(FACTS)
    accelerator = _accelerator_vendor(expected["sku"], facts)
    models = models_of(facts)
    declared_sku = sku_catalogue.named(expected["sku"])
    peer_types = environment.texts(facts["environment"], "gpus[].peer_type") if facts else []
    sku = sku_catalogue.of_models(models, peer_types, declared_sku or sku_catalogue.hinted(expected["sku"]))
    sku_name = sku.name if sku else None
    if accelerator == sku_catalogue.CPU:
        sku_name = sku_catalogue.CPU
    subject = Subject(
        name=name,
        profile=run["profile"],
        depth=run.get("depth") or depth_of(run["profile"]),
        sku=declared_sku.name if declared_sku else expected["sku"],
        accelerator=accelerator,
        declared_gpus=expected["gpu_count"],
        detected_gpus=count_of(facts["metrics"] if facts else (), "gpu_count"),
        records=records,
        gpu_temperature_max=expected.get("declared", {}).get("gpu_temperature_max_celsius"),
        catalogue_sku=sku_name,
        properties=properties_of_node(expected.get("labels", {}), facts),
        known_spreads=sku.part_spreads if sku else {},
        kind=_kind_name(sku_name, models, expected["sku"]),
        workloads=run.get("workloads", {}),
        setups=expected_fingerprints.for_sku(run.get("setups", {}), sku.name if sku else None),
    )
    if sku:  # figures of healthy nodes of the SKU, where measured as on this node: those with a floor for it
        floors = {check.metric for check in sku.checks if check.kind == "min" and is_held(check, subject)}
        subject.measured = {key: figure for key, figure in sku.measured.items() if key[0] in floors}
        judged = {check.metric for check in sku.checks}  # Gaudi's fp8 has no floor: no stage measures it
        precisions = sku.gpu.get("peak_tflops", {})
        subject.precisions = frozenset(one for one in precisions if f"diagnostics_matmul_{one}_tflops" in judged)
    return subject


def _kind_name(catalogue_sku: str | None, models: Sequence[str], declared: str) -> str:
    return catalogue_sku or ", ".join(sorted(set(models))) or declared


def kind_of(node: Document) -> str:
    """The kind of a report's node: nodes of the same kind are compared. The same value as of its subject."""
    models = [gpu["model"] for gpu in node["identity"].get("gpus", ()) if "model" in gpu]
    return _kind_name(node.get("catalogue_sku"), models, node["sku"])


def _last_measured(record: Record) -> Record:
    """The record, or an earlier attempt that passed, if the last one never began, was ended from outside or ran beside
    other work."""
    *attempts, before = record["attempts"] or (None,)
    at_deadline = record["state"] == "timeout" and "(deadline_seconds)" in record["message"]
    outside = at_deadline or record["state"] == "cancelled" or record["started_at"] is None
    if not before or before["state"] != "success" or before.get("of_round"):
        return record
    if outside or environment.accelerator_users(record["environment"]):
        return {**before, "attempts": attempts}
    return record


def _accelerator_vendor(sku: str, facts: Record | None) -> str:
    if sku == "cpu":
        return "cpu"
    accelerator = facts["environment"].get("accelerator") if facts else None
    vendor = accelerator.get("vendor") if isinstance(accelerator, dict) else None
    return vendor if vendor == "cpu" or vendor in GPU_VENDORS else "unknown"


def count_of(metrics: Sequence[NodeMetric], name: str) -> int | float | None:
    """A count that the node reported; None if it reported none, or several that differ."""
    values = {metric["value"] for metric in metrics if metric["name"] == name and metric["scope"] == "node"}
    return values.pop() if len(values) == 1 else None


LABEL = "label "


def properties_of_node(labels: Mapping[str, str], facts: Record | None) -> dict[str, str]:
    """The node's properties by name; a label with the name of a version gets a prefix for its kind."""
    reported = {} if facts is None else properties_of(facts)
    versions = {name: reported[name] for name in VERSIONS if name in reported}
    return versions | {LABEL + name if name in VERSIONS else name: text for name, text in labels.items()}
