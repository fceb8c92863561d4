"""Racks: the nodes of one NVLink domain, and what must hold of them together. Pure.

A node is a tray if its SKU has an NVLink domain of several nodes, whether or not its fabric works. Its rack is that of
its ClusterUUID, else of its chassis serial, else of its label. A rack is PASS only if all its trays are there and PASS,
and its required checks hold. What an inventory leaves out makes it INCOMPLETE, and changes no node.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.text import natural_order, some_of
from ..records import environment
from ..records.documents import Document
from ..runs.labels import CLIQUE_LABEL, rack_of
from . import sku_catalogue
from .acceptance import MAX_GPUS
from .check import FACTS, Subject
from .entries import Entry, own_entry, required_checks, verdict_and_class
from .peer_statistics import MIN_PARTS, majority
from .sku_catalogue import Sku
from .stage_end import MAX_REASON

#: What shows the rack of a tray, the strongest first, and its words in messages.
SOURCES = {"cluster_uuid": "ClusterUUID", "chassis_serial": "chassis serial", "label": "label"}
#: {key: path below ``gpus[]`` in a node's facts} of the values that show a tray's rack and place.
_OF_GPUS = {
    "cluster_uuid": "fabric_cluster_uuid",
    "clique": "fabric_clique",
    "chassis_serial": "chassis_serial",
    "slot": "chassis_slot+tray_index+host_id",
    "model": "name",
}
#: A healthy NVLink has at most this many errors since the driver was loaded.
MANY_LINK_ERRORS = 100
#: Rack checks that are open only because --limit, or other work, left trays out of the run.
NOT_WHOLE = frozenset({"rack_trays"})
#: Class of a tray's check of its links, where only links of a dead switch plane are down, and the metric of the check.
OF_PLANE, LINKS_UP = "nvlink_plane", "gpu_nvlinks_up_count"


@dataclass(frozen=True)
class RackTray:
    """A node of a rack. ``values``: ``{key: {value: GPUs that report it}}``."""

    name: str
    verdict: str
    sku: Sku | None
    #: GPUs that the facts report, and those that it should have.
    gpus: int
    expected_gpus: int
    has_facts: bool
    labels: Mapping[str, str]
    declared: Mapping[str, Any]
    values: Mapping[str, Mapping[str, list[str]]]
    imex: Mapping[str, Any]
    #: {number of an NVLink: GPUs of the tray on which it is down or has errors}; and only those on which it is down.
    bad_links: Counter[str]
    down_links: Counter[str]

    @classmethod
    def of(cls, subject: Subject, expected: Document, verdict: str) -> "RackTray":
        facts = subject.records.get(FACTS)
        reported, sku = facts["environment"] if facts else {}, _sku_of(subject)
        properties = {key: {text: list[str]()} for key, text in subject.properties.items()}
        links = [
            (one_line(str(link.get("link")), 8), link.get("is_up") is False, link.get("errors"))
            for link in environment.objects(reported, "gpus[].nvlinks[]")
        ]
        return cls(
            subject.name, verdict, sku, min(int(subject.detected_gpus or 0), MAX_GPUS),
            subject.declared_gpus or (sku.node_gpus if sku else 0) or 0, facts is not None,
            expected.get("labels", {}), expected.get("declared", {}).get("rack", {}),
            properties | {key: _values(reported, path) for key, path in _OF_GPUS.items()}, _imex_facts(reported),
            Counter(link for link, down, errors in links
                    if down or (type(errors) is int and errors > MANY_LINK_ERRORS)),
            Counter(link for link, down, _ in links if down),
        )  # fmt: skip

    def source(self, key: str) -> str:
        """The tray's rack by a source (key of SOURCES): what most of its GPUs report, else its label; or empty."""
        if key == "label":
            return rack_of(self.labels)
        values = self.values[key]
        if not values and key == "cluster_uuid" and not self.values["chassis_serial"]:  # labels may be old
            return self.labels.get(CLIQUE_LABEL, "").rpartition(".")[0].lower()
        return max(values, key=lambda value: len(values[value]), default="")

    @property
    def attributed_by(self) -> str:
        """The strongest source (key of SOURCES) that shows the tray's rack; empty if none does."""
        return next((key if self.values.get(key) else "label" for key in SOURCES if self.source(key)), "")

    @property
    def place(self) -> str:
        """The tray's place in the rack: ``slot 14, tray 4, host 1``; empty if not reported."""
        numbers = next(iter(self.values["slot"]), "").split()
        return ", ".join(f"{word} {number}" for word, number in zip(("slot", "tray", "host"), numbers))

    def named(self, parts: Sequence[str] = ()) -> str:
        """The tray's name as text, with its place and those of its ``parts`` (GPUs) that a message is about."""
        return f"{self.name} ({', '.join(filter(None, [*parts, self.place]))})" if parts or self.place else self.name


def _values(reported: Mapping[str, Any], path: str) -> dict[str, list[str]]:
    """``{value: GPUs that report it}`` for a path below ``gpus[]`` of the facts; zeros count in places alone."""
    pairs = environment.members(reported, f"gpus[].{path}")
    texts = ((one_line(text, 80), environment.part_of(gpu)) for gpu, text in pairs)
    return values_by_key(pair for pair in texts if "+" in path or pair[0].strip("0-"))


def _imex_facts(reported: Mapping[str, Any]) -> dict[str, Any]:
    """A tray's IMEX domain by its facts: whether it is configured, its nodes, those not READY, why none is known."""
    nodes = [text.rpartition(" ") for text in environment.texts(reported, "imex.nodes[].address+state")]
    return {
        "is_configured": bool(nodes or environment.values(reported, "imex.configured[]")),
        "addresses": sorted(one_line(address, 64) for address, *_ in nodes),
        "not_ready": [f"{one_line(address, 64)} {one_line(state, 40)}" for address, _, state in nodes
                      if state != "READY"],
        "problem": one_line(", ".join(environment.texts(reported, "imex.problem")), 160),
    }  # fmt: skip


def _sku_of(subject: Subject) -> Sku | None:
    """The SKU that the facts show; the declared one if they show none, as of a tray that is unreachable."""
    name = subject.sku if subject.catalogue_sku in (None, sku_catalogue.CPU) else subject.catalogue_sku
    sku = sku_catalogue.by_name(name)
    return sku if sku and sku.rack_trays else None


class RackFinding(NamedTuple):
    """The result of a check on a rack: verdict, reason, and the nodes that it names."""

    verdict: str
    reason: str
    nodes: Sequence[str] = ()


@dataclass(frozen=True)
class NvlinkRack:
    """The trays of one rack in the order of their names. ``elsewhere``: trays of other racks."""

    trays: Sequence[RackTray]
    elsewhere: Sequence[RackTray]

    def usual(self, key: str) -> str:
        """The value that most trays have by a source (key of SOURCES); empty if none, or two values are as common."""
        counts = Counter(filter(None, (tray.source(key) for tray in self.trays)))
        most = max(counts.values(), default=0)
        values = [value for value, count in counts.items() if count == most]
        return values[0] if len(values) == 1 else ""

    @cached_property
    def sku(self) -> Sku | None:
        counts = Counter(tray.sku for tray in self.trays if tray.sku)
        return counts.most_common(1)[0][0] if counts else None

    @cached_property
    def own_trays(self) -> list[RackTray]:
        """The rack's trays without those whose chassis serial is that of another rack."""
        others = {tray.source("chassis_serial") for tray in self.elsewhere} - {self.usual("chassis_serial")}
        return [tray for tray in self.trays if tray.source("chassis_serial") not in others - {""}]

    def declared(self, key: str, default: Any) -> Any:
        """What the site declares of the rack; of several values the largest."""
        return max((tray.declared[key] for tray in self.trays if key in tray.declared), default=default)

    @cached_property
    def expected_trays(self) -> int:
        return int(self.declared("trays", self.sku.rack_trays if self.sku else 0))

    @cached_property
    def gpus(self) -> int:
        """Number of GPUs that the facts of its trays report."""
        return sum(tray.gpus for tray in self.trays)

    @cached_property
    def gpus_of_tray(self) -> int:
        return max(tray.expected_gpus for tray in self.trays)

    @cached_property
    def dead_planes(self) -> dict[str, int]:
        """``{NVLink number: GPUs on which it is down}`` for links that are down on most GPUs of the rack. Links of one
        number end at one switch plane, so that the switch is at fault. One or two trays do not show this."""
        counts = sum((tray.down_links for tray in self.trays), Counter[str]())
        trays = Counter(number for tray in self.trays for number in tray.down_links)
        return {
            number: count for number, count in counts.items() if 2 * count > self.gpus and trays[number] >= MIN_PARTS
        }

    @cached_property
    def name(self) -> str:
        """The rack's label, else its chassis serial, else its ClusterUUID; empty if it has none."""
        return self.usual("label") or self.usual("chassis_serial") or self.usual("cluster_uuid")


def _count(trays: Sequence[RackTray]) -> str:
    return f"{len(trays)} tray{'s' * (len(trays) != 1)}"


def _trays_check(rack: NvlinkRack) -> RackFinding:
    expected = rack.expected_trays
    if not rack.name:
        names = [tray.name for tray in rack.trays]
        reason = f"neither ClusterUUID, chassis serial nor label: {some_of(names)} of an unknown rack"
        return RackFinding("missing", reason, names)
    if len(rack.trays) == expected:
        return RackFinding("pass", _count(rack.trays))
    gone = [
        f"{tray.named()} has its {SOURCES[key]} and is in another domain"
        for tray in rack.elsewhere
        for key in ("chassis_serial", "label")
        if tray.source(key) and tray.source(key) == rack.usual(key)
    ]
    is_short = len(rack.trays) < expected
    count = f"{len(rack.trays)} of {expected} trays" if is_short else f"{len(rack.trays)} trays instead of {expected}"
    return RackFinding("missing", "; ".join([count, *gone[:4]]))


def _gpus_check(rack: NvlinkRack) -> RackFinding:
    known = [tray for tray in rack.trays if tray.has_facts]
    few = [tray for tray in known if tray.gpus < (tray.expected_gpus or rack.gpus_of_tray)]
    total, expected = sum(tray.gpus for tray in known), len(known) * rack.gpus_of_tray
    if not known:
        return RackFinding("missing", "no tray reports its GPUs")
    if not few:
        return RackFinding("pass", f"{total} GPUs on {_count(known)}")
    names = some_of(f"{tray.named()} has {tray.gpus}" for tray in few)
    return RackFinding("missing", f"{total} of {expected} GPUs: {names}", [tray.name for tray in few])


def _alike(key: str, words: str, trays: Sequence[RackTray], otherwise: str = "missing") -> RackFinding:
    """Whether all trays report one value of ``key``, in messages ``words``. ``otherwise``: the verdict if none does."""
    values = {tray.name: tray.values.get(key, {}) for tray in trays}
    reporting = [tray for tray in trays if values[tray.name]]
    if not reporting:
        return RackFinding(otherwise, f"no tray reports its {words}")
    texts = [*map(" and ".join, (sorted(values[tray.name]) for tray in reporting))]
    right = majority(texts)
    odd = [tray for tray, text in zip(reporting, texts) if text != right]
    silent = [tray for tray in trays if tray.has_facts and not values[tray.name]]
    if right is None or (len(odd) > 1 and 3 * len(odd) > len(reporting)):  # too many for single faults
        groups = values_by_key((text, tray.name) for tray, text in zip(reporting, texts))
        described = "; ".join(f"{text} on {some_of(names, 4)}" for text, names in groups.items())
        return RackFinding("missing", f"{words} differs, inconclusive which is right: {described}")
    if odd:
        named = some_of(  # GPUs are named if others of the tray have another value
            f"{tray.named(parts if len(values[tray.name]) > 1 else ())} has {text}"
            for tray in odd
            for text, parts in values[tray.name].items()
            if text != right
        )
        most = f"{right} on {texts.count(right)} of {_count(reporting)}"
        return RackFinding("fail", f"{words} differs: {named}; {most}", [tray.name for tray in odd])
    if silent:
        names = [tray.name for tray in silent]
        return RackFinding("missing", f"no {words} reported: {some_of(tray.named() for tray in silent)}", names)
    return RackFinding("pass", f"{words} is {right} on {_count(reporting)}")


def _cliques_check(rack: NvlinkRack) -> RackFinding:
    """Check that all trays are in one clique, or in one for each partition that the site declares."""
    partitions = values_by_key((str(tray.declared.get("partition", "")), tray) for tray in rack.trays)
    findings = {
        name: _alike("clique", f"clique of partition {name}" if name else "clique", trays)
        for name, trays in partitions.items()
    }
    for word in ("fail", "missing"):
        if bad := [finding for finding in findings.values() if finding.verdict == word]:
            nodes = [name for finding in bad for name in finding.nodes]
            return RackFinding(word, "; ".join(finding.reason for finding in bad), nodes)
    cliques = values_by_key(
        (clique, name or "(undeclared)")
        for name, trays in partitions.items()
        for clique in {clique for tray in trays for clique in tray.values["clique"]}
    )
    if shared := [names for names in cliques.values() if len(names) > 1]:
        return RackFinding("missing", f"partitions {' and '.join(shared[0])} have one clique")
    return RackFinding("pass", "; ".join(finding.reason for finding in findings.values()))


def _chassis_check(rack: NvlinkRack) -> RackFinding:
    counts = Counter(serial for tray in rack.trays for serial in tray.values["chassis_serial"])
    if 1 < len(counts) == rack.declared("chassis", 1):
        return RackFinding("pass", f"{len(counts)} chassis, as declared: {', '.join(sorted(counts))}")
    serial = rack.usual("chassis_serial")
    others = [tray for tray in rack.elsewhere if serial and tray.source("chassis_serial") == serial]
    if len(others) > 1 and 2 * len(others) >= len(rack.trays):
        labels = sorted({tray.source("cluster_uuid" if tray.source("label") in ("", rack.name) else "label")
                         for tray in others}, key=natural_order)  # fmt: skip
        reason = f"{rack.name} and {some_of(labels, 4)} report one chassis serial, {serial}"
        return RackFinding("missing", reason, [tray.name for tray in others])
    return _alike("chassis_serial", "chassis serial", rack.trays, "skipped")


def _slots_check(rack: NvlinkRack) -> RackFinding:
    trays = [(f"{tray.source('chassis_serial') or tray.source('cluster_uuid')} {next(iter(tray.values['slot']))}", tray)
             for tray in rack.trays if tray.values["slot"]]  # fmt: skip
    places = values_by_key(trays)
    shared = [listed for listed in places.values() if len(listed) > 1]
    if not places:
        return RackFinding("skipped", "no tray reports its slot")
    if len(places) == 1 and len(trays) > 1:
        return RackFinding("missing", f"all trays report {trays[0][1].place}, which tells none apart")
    if not shared:
        return RackFinding("pass", f"{len(places)} places")
    texts = some_of((f"{some_of(tray.name for tray in listed)} report {listed[0].place}" for listed in shared), 4, "; ")
    return RackFinding("fail", texts, [tray.name for listed in shared for tray in listed])


def _links_check(rack: NvlinkRack) -> RackFinding:
    counts = sum((tray.bad_links for tray in rack.trays), Counter[str]())
    bad = ((number, count) for number, count in counts.most_common(8) if 2 * count > rack.gpus)
    return _links_finding(rack, bad, "down or has many errors", "no link of all GPUs is bad")


def _links_finding(rack: NvlinkRack, bad: Iterable[tuple[str, int]], word: str, otherwise: str) -> RackFinding:
    """The finding on NVLinks that are bad on most GPUs of the rack. ``bad``: (NVLink number, GPUs with it bad)."""
    texts = [f"link {number} is {word} on {count} of {rack.gpus} GPUs" for number, count in bad]
    return RackFinding("fail", some_of(texts, 4, "; ")) if texts else RackFinding("pass", otherwise)


def _imex_check(rack: NvlinkRack) -> RackFinding:
    configured = [tray for tray in rack.trays if tray.imex["is_configured"]]
    if not configured:
        return RackFinding("skipped", "no IMEX domain is configured: IMEX is idle, which is no fault")
    seen = values_by_key((text, tray.name) for tray in configured for text in tray.imex["not_ready"])
    unknown = [tray for tray in configured if not tray.imex["addresses"]]
    texts = [f"{text}, seen by {some_of(names, 4)}" for text, names in seen.items()]
    texts += [f"{tray.named()}: {tray.imex['problem'] or 'nvidia-imex-ctl lists no node'}" for tray in unknown]
    if not texts and (apart := _apart_in_imex(configured)):
        listed = some_of(f"{tray.named()} is in a domain of {some_of(tray.imex['addresses'], 2)}" for tray in apart)
        return RackFinding("missing", f"IMEX domains differ: {listed}", [tray.name for tray in apart])
    if not texts:
        return RackFinding("pass", f"all nodes of the IMEX domain are READY on {_count(configured)}")
    seers = dict.fromkeys(name for names in seen.values() for name in names)
    nodes = [tray.name for tray in unknown] or [*seers]  # where a daemon does not answer, others only see that
    return RackFinding("missing", f"IMEX is not READY: {some_of(texts, 4, '; ')}", nodes)


def _apart_in_imex(trays: Sequence[RackTray]) -> list[RackTray]:
    """Trays in an IMEX domain much smaller than the largest of their partition. A rack may have several large ones."""
    apart = []
    for partition in values_by_key((str(tray.declared.get("partition", "")), tray) for tray in trays).values():
        domains = values_by_key((tuple(tray.imex["addresses"]), tray) for tray in partition).values()
        most = max(map(len, domains))
        apart += [tray for domain in domains if 4 * len(domain) <= most for tray in domain]
    return apart


def _labels_check(rack: NvlinkRack) -> RackFinding:
    """Check that a tray's labels and its hardware show the same rack."""
    texts, usual = {}, rack.usual("label")
    for tray in rack.trays:
        clique = ".".join([tray.source("cluster_uuid"), *tray.values["clique"]])
        label = tray.labels.get(CLIQUE_LABEL, "")
        if label and tray.values["clique"] and label.lower() != clique:
            texts[tray.name] = f"{tray.named()} is labelled {CLIQUE_LABEL}={label}, and its GPUs are in {clique}"
        if tray.source("label") not in ("", usual):
            texts[tray.name] = f"{tray.named()} is labelled {tray.source('label')}, the others {usual or 'differently'}"
    if not texts:
        return RackFinding("pass", "labels and hardware agree")
    return RackFinding("fail", some_of(texts.values(), 4, "; "), [*texts])


def _nodes_check(rack: NvlinkRack) -> RackFinding:
    by_verdict = values_by_key((tray.verdict, tray) for tray in rack.trays)
    for word, verdict in (("FAIL", "fail"), ("INCOMPLETE", "missing")):
        if trays := by_verdict.get(word):
            names = some_of(tray.named() for tray in trays)
            return RackFinding(verdict, f"{_count(trays)} {word}: {names}", [tray.name for tray in trays])
    return RackFinding("pass", f"{_count(rack.trays)} PASS")


class RackCheck(NamedTuple):
    """A check on a rack; ``expected`` may name fields of `NvlinkRack`."""

    name: str
    judge: Callable[[NvlinkRack], RackFinding]
    expected: str
    source: str
    remedy: str
    severity: str = "required"


def _same(key: str, words: str, otherwise: str = "missing") -> Callable[[NvlinkRack], RackFinding]:
    """The check that the trays of the rack's own chassis share a property."""
    return lambda rack: _alike(key, words, rack.own_trays, otherwise)


_SHAPE, _PLACE = "Rack of the SKU (links.domain_gpus), or gpuval_rack.", "platformInfo of nvidia-smi."
_FABRIC = "All trays of a rack share one ClusterUUID; a clique is a partition of it (fabric of nvidia-smi)."
_SOFTWARE = "An NVLink domain needs one driver; the trays of a rack get one package of firmware."
_REFLASH = "Install one version on all trays of the rack, then validate the rack again."
_PLANE = "NVLinks with one number share a switch."
_SWITCH = "Read the log of the switch tray behind this link and its ports (NMX-C, nv show interface)."
#: The checks on a rack, in the order in which they decide: the first that fails gives the rack its class.
CHECKS = (
    RackCheck("rack_trays", _trays_check, "{rack.expected_trays} trays", _SHAPE,
              "Add the missing trays to inventory and --limit, or declare gpuval_rack (trays), gpuval_labels (rack)."),
    RackCheck("rack_chassis", _chassis_check, "one chassis serial", _PLACE,
              "Check slot and NVLink cabling of the tray from another chassis, and its domain in NMX-C."),
    RackCheck("rack_slots", _slots_check, "each tray in a place of its own", _PLACE,
              "Check whether one machine is listed twice; else reseat the trays or update the chassis firmware."),
    RackCheck("rack_domain", lambda rack: _alike("cluster_uuid", "ClusterUUID", rack.trays), "one ClusterUUID", _FABRIC,
              "Check NMX-C or the fabric manager of the switches and the NVLinks of these trays; reset their GPUs."),
    RackCheck("rack_cliques", _cliques_check, "one clique for each declared partition", _FABRIC,
              "Move these trays to the partition of the others (NMX-C), or declare partitions in gpuval_rack."),
    RackCheck("rack_gpus", _gpus_check, "{rack.gpus_of_tray} GPUs in each tray", _SHAPE,
              "Find the missing GPUs of these trays, or give them to the host."),
    RackCheck("rack_planes",
              lambda rack: _links_finding(rack, rack.dead_planes.items(), "down", "no link is down on most GPUs"),
              "no link that is down on most GPUs", _PLANE, _SWITCH),
    RackCheck("rack_links", _links_check, "no link that is bad on most GPUs", _PLANE, _SWITCH, "advisory"),
    RackCheck("rack_model", _same("model", "GPU model"), "one GPU model", "GPU names of nvidia-smi.",
              "Compare the trays with the order. A driver that is too old calls its GPUs NVIDIA Graphics Device."),
    RackCheck("rack_driver", _same("driver", "driver"), "one driver", _SOFTWARE, _REFLASH),
    RackCheck("rack_vbios", _same("vbios", "VBIOS"), "one VBIOS", _SOFTWARE, _REFLASH),
    RackCheck("rack_bios", _same("bios", "BIOS", "skipped"), "one BIOS", _SOFTWARE, _REFLASH, "advisory"),
    RackCheck("rack_bmc", _same("bmc", "BMC firmware", "skipped"), "one BMC firmware", _SOFTWARE, _REFLASH, "advisory"),
    RackCheck("rack_imex", _imex_check, "READY on all nodes of the domain", "nvidia-imex-ctl -N.",
              "Compare nodes_config.cfg of the trays, read /var/log/nvidia-imex.log and restart nvidia-imex."),
    RackCheck("rack_labels", _labels_check, "labels agree with the hardware", "Labels of inventory and cluster.",
              "Correct the label; if it is right, check the NVLink cabling of the tray.", "advisory"),
    RackCheck("rack_nodes", _nodes_check, "PASS of every tray", "A rack is at most as good as its trays.",
              "Follow the remedies of these trays."),
)  # fmt: skip


def racks_of(run: Document, nodes: Iterable[dict[str, Any]], subjects: Mapping[str, Subject]) -> list[dict[str, Any]]:
    """The report's entries of racks. Sets ``rack``, the rack's name, in the report's entry of each tray (``nodes``)."""
    by_name = {node["name"]: node for node in nodes}
    trays = [RackTray.of(subjects[name], run["nodes"][name], node["verdict"]) for name, node in by_name.items()]
    if not any(tray.sku for tray in trays):
        return []
    groups = group_trays([tray for tray in trays if _may_be_tray(tray, subjects[tray.name])])
    for group in groups:
        dead_planes = NvlinkRack(group, ()).dead_planes
        for index, tray in enumerate(group):
            if tray.down_links and tray.down_links.keys() <= dead_planes.keys():
                _blame_plane(by_name[tray.name])
                group[index] = replace(tray, verdict=by_name[tray.name]["verdict"])
    all_racks = [
        NvlinkRack(group, [tray for other in groups if other is not group for tray in other]) for group in groups
    ]
    racks = []
    for rack, name in zip(all_racks, _unique_names(all_racks)):
        entries = [_entry(check, rack) for check in CHECKS]
        for tray in rack.trays:
            by_name[tray.name]["rack"] = name
        racks.append(
            {
                "name": name, "sku": rack.sku.name if rack.sku else None, **verdict_and_class(entries),
                "trays": [{"node": tray.name, "place": tray.place, "by": tray.attributed_by} for tray in rack.trays],
                "expected_trays": rack.expected_trays,
                "gpus": rack.gpus,
                "expected_gpus": rack.expected_trays * rack.gpus_of_tray,
                "domain_uuid": rack.usual("cluster_uuid") or None,
                "chassis_serial": rack.usual("chassis_serial") or None,
                "cliques": sorted({each for tray in rack.trays for each in tray.values["clique"]}, key=natural_order),
                "checks": entries,
            }
        )  # fmt: skip
    return sorted(racks, key=lambda rack: natural_order(rack["name"]))


def _blame_plane(node: dict[str, Any]) -> None:
    """Class the tray's check of its links by the switch plane, and judge the tray again."""
    for check in node["checks"]:
        if check["metric"] == LINKS_UP and check["verdict"] == "fail":
            check["class"], check["remedy"] = OF_PLANE, _SWITCH
    node.update(verdict_and_class(node["checks"]))


def _unique_names(racks: Sequence[NvlinkRack]) -> list[str]:
    """The names of racks, with chassis serial and ClusterUUID where several racks have one name."""
    names = [rack.name or "unknown" for rack in racks]
    for key in ("chassis_serial", "cluster_uuid"):
        counts = Counter(names)
        names = [f"{name} {rack.usual(key)}".rstrip() if counts[name] > 1 else name for rack, name in zip(racks, names)]
    return names


def _may_be_tray(tray: RackTray, subject: Subject) -> bool:
    """Whether a node (`subject`) with these facts (`tray`) is a tray of a rack. A node with one GPU whose rack only a
    label names is none: it may be a virtual machine. Unknown hardware is a tray if anything names its rack."""
    if tray.sku is not None:
        return tray.attributed_by not in ("", "label") or subject.gpus != 1
    if sku_catalogue.by_name(subject.sku) or subject.catalogue_sku not in (None, sku_catalogue.CPU):
        return False
    if subject.catalogue_sku and not (subject.declared_gpus or subject.expects_gpus):  # without GPUs, as ordered
        return False
    return bool(tray.values["cluster_uuid"]) if tray.gpus else tray.attributed_by != ""


def group_trays(trays: Sequence[RackTray]) -> list[list[RackTray]]:
    """The trays of each rack. A node of unknown SKU only joins a rack of others."""
    groups: list[list[RackTray]] = []
    rest = sorted(trays, key=lambda tray: (tray.sku is None, natural_order(tray.name)))
    for key in SOURCES:
        for value, members in values_by_key((tray.source(key), tray) for tray in rest if tray.source(key)).items():
            counts = [sum(tray.source(key) == value for tray in group) for group in groups]
            if any(counts):
                groups[counts.index(max(counts))] += members
            elif any(tray.sku for tray in members):
                groups.append(members)
        rest = [tray for tray in rest if not tray.source(key)]
    groups += [rest] if rest else []
    joined: list[list[RackTray]] = []
    for group in sorted(groups, key=len, reverse=True):
        other = next((other for other in joined if _is_one_rack(other, group)), None)
        if other is None:
            joined.append(group)
        else:
            other += group
    return [sorted(group, key=lambda tray: natural_order(tray.name)) for group in joined]


def _is_one_rack(first: Sequence[RackTray], second: Sequence[RackTray]) -> bool:
    """Whether two domains are one rack: of one chassis serial, else label, and no more trays than a rack has."""
    racks = NvlinkRack(first, ()), NvlinkRack(second, ())
    serials, labels = ([rack.usual(key) for rack in racks] for key in ("chassis_serial", "label"))
    same = serials if all(serials) else labels
    return all(same) and same[0] == same[1] and len(first) + len(second) <= racks[0].expected_trays


def _entry(check: RackCheck, rack: NvlinkRack) -> Entry:
    finding = check.judge(rack)
    verdict = "warn" if finding.verdict == "fail" and check.severity == "advisory" else finding.verdict
    is_good = verdict in ("pass", "skipped")
    return own_entry(
        check.name, FACTS, "same", verdict, one_line(finding.reason, MAX_REASON), "" if is_good else check.remedy,
        severity=check.severity, expected=check.expected.format(rack=rack), source=check.source, part="rack",
        nodes=[*finding.nodes],
    )  # fmt: skip


def verdicts_for_run(racks: Iterable[Document], narrowed_by: Collection[str]) -> list[str]:
    """The racks' verdicts that count for the run. A rack is left out if all it lacks are trays that a narrowed run (one
    of some nodes) left out."""
    is_cut = not {"limit", "busy"}.isdisjoint(narrowed_by)
    return [
        rack["verdict"]
        for rack in racks
        if not (is_cut and {check["name"] for check in open_checks(rack)} <= NOT_WHOLE)
    ]


def open_checks(rack: Document) -> list[Document]:
    return required_checks(rack["checks"], "fail", "missing")
