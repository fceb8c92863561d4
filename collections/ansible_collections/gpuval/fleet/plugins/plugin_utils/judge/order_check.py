"""Whether a node is the machine that was ordered: its model, and as many GPUs."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import units
from . import sku_catalogue
from .entries import Entry, own_entry
from .subject import FACTS, Subject


def checks(subject: Subject, has_facts: bool, models: Sequence[str]) -> list[Entry]:
    """The entries of the SKU; ``models`` are those of the GPUs, by the facts, if there are any."""
    if subject.sku == sku_catalogue.CPU or (has_facts and subject.accelerator not in GPU_VENDORS):
        return []  # the accelerator's own check says what there is to say
    ordered = sku_catalogue.named(subject.sku)
    models_text = ", ".join(sorted(set(models))[:8])
    entry = functools.partial(
        own_entry, "sku", FACTS, "identity", value=models_text or None, expected=f"sku {subject.sku}",
        source="gpuval_sku of the inventory, and the models that the facts report",
    )  # fmt: skip
    if not models:
        remedy = "let the facts stage run and succeed; check the GPUs with the vendor's tool"
        return [entry("missing", "no facts report the models of the GPUs", remedy)]
    listed = sku_catalogue.by_name(subject.catalogue_sku)
    several = listed is None and len({sku.name if sku else None for sku in map(sku_catalogue.of_model, models)}) > 1
    # a mixed machine has a name of its own, which may hold that of a part of it
    expected = ordered or (None if several else sku_catalogue.hinted(subject.sku))
    if expected is not None and listed is not expected:
        remedy = "compare the machine with the order: it is the wrong machine, or gpuval_sku is wrong"
        return [entry("fail", f"{expected.title} was ordered, the facts report {models_text}", remedy)]
    if listed is None:
        reason = (
            f"{'several models' if several else 'not in the catalogue'}: {models_text}; only the general criteria apply"
        )
        if several and subject.sku in (sku_catalogue.AUTO, *GPU_VENDORS):
            remedy = (
                "find the GPU that was not ordered; if a mixed machine was ordered, give it a name of its own in "
                "gpuval_sku"
            )
            return [entry("fail", reason, remedy)]
        remedy = "compare with the order; set gpuval_sku, and add a SKU with floors of your own (docs/criteria.md)"
        return [entry("warn", reason, remedy, severity="advisory")]
    if listed.vendor != subject.accelerator:
        remedy = "run the facts again, and compare with lspci: which checks apply depends on the vendor"
        return [entry("fail", f"the facts report {models_text}, and accelerators of {subject.accelerator}", remedy)]
    size = _node_size_check(subject, listed, ordered=ordered is not None)
    return [entry("pass", f"{models_text}: {listed.title}"), *size]


def _node_size_check(subject: Subject, sku: sku_catalogue.Sku, *, ordered: bool) -> list[Entry]:
    """How many GPUs such a node has, where it is not declared.

    Who orders an H200 node means a whole one. Where the SKU is only found, a part of a node is what virtual machines
    are sold as; but no machine is sold with seven of eight GPUs.
    """
    if subject.declared_gpus is not None or sku.node_gpus is None:
        return []
    count = subject.detected_gpus
    entry = functools.partial(
        own_entry, "sku_gpu_count", FACTS, "identity", value=count, unit="count", metric="gpu_count",
        expected=units.number_text(sku.node_gpus), source=f"SKU catalogue: {sku.title}",
        remedy="look for the missing GPU on the PCI bus and in the kernel log (XID 79); if fewer were ordered, "
        "declare gpuval_gpu_count",
    )  # fmt: skip
    if count is None:
        return [entry("missing", "the facts have no gpu_count")]
    reason = f"{units.number_text(count)} GPUs; a node of {sku.title} has {sku.node_gpus}"
    if count == sku.node_gpus:
        return [entry("pass", reason)]
    if ordered or count not in sku.part_gpus:
        return [entry("fail", reason)]
    return [entry("warn", reason, severity="advisory")]
