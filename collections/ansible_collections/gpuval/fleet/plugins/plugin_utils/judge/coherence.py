"""Whether what a stage reports agrees with itself: its times, figures, telemetry, command, and the node's other stages.

A rule of ``skus/shared/coherence.yml``, or of ``files/coherence.yml`` of a stage, is a ratio of figures with the limits
of healthy records. A contradiction makes the stage's evidence missing, or fails it if the rule itself shows a fault.
"""

import functools
import hashlib
import math
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ansible_collections.gpuval.fleet.node.gpuval_workloads.training.models import shapes

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import extensions, units, yaml_file
from ..core.errors import SettingError
from ..core.escape import one_line
from ..core.extensions import short_path
from ..core.paths import COLLECTION
from ..core.text import some_of
from ..records import environment
from ..records.documents import Record
from . import sku_catalogue
from .check import FACTS, Subject
from .criteria import data_sheet_figure
from .entries import Entry, gang_of, own_entry
from .plausible import range_of

#: The file of coherence rules for all stages, and the file of a stage's own rules within its folder.
RULES, OF_STAGE = COLLECTION / "skus/shared/coherence.yml", "files/coherence.yml"
NODE = "node"
#: Seconds that consecutive stages of a node may overlap, since its clock may be set in between.
OVERLAP_SECONDS = 30.0
#: Arguments that bound a workload: the first bound reached ends the work.
BOUNDS = frozenset({"--seconds", "--steps", "--epochs", "--requests", "--until-stopped", "--validation-only"})
_REMEDY = (
    "Compare the two figures with nodes/{node}/{stage}.json and the log beside it. Look for a wrong clock, a changed "
    "program or forged records, then validate again with --limit {node}"
)
_GATHERINGS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum, "max": max, "min": min, "mean": fmean, "count": len,
    "distinct": lambda figures: len(set(figures)), "checksum": lambda figures: sum(set(figures)),
}  # fmt: skip
_ATOM = re.compile(r"(?:(?P<gather>[a-z]+)\()?(?:(?P<stage>[a-z_]+)/)?(?P<name>[a-z0-9_.*=\[\]]+)\)?")
_SETUP = re.compile(r"(llama|resnet18)(?:-(\w+))? (\d{1,6})(?:x(\d{1,6}))? (bf16|fp32) (compiled|eager)")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LINK = re.compile(r"link:(gpu|rank)(\d+)>(?:gpu|rank)(\d+)")
#: Measurements of two parts in these units never agree to more than _DIGITS digits in more than _MOST_EQUAL figures.
_MEASURED, _DIGITS, _MOST_EQUAL = frozenset({"seconds", "watts", "TFLOP/s", "bytes/s"}), 5, 2


class CoherenceTerm(NamedTuple):
    """One figure of a rule: a constant, a metric (of this or another stage, combined over parts), or a dotted name."""

    text: str
    name: str = ""
    stage: str = ""
    gather: str = ""
    constant: float | None = None


#: One side of a coherence rule's ratio: a product of sums of terms.
CoherenceProduct = tuple[tuple[CoherenceTerm, ...], ...]


@dataclass(frozen=True)
class CoherenceRule:
    """The ratio of ``of`` to ``over`` lies between ``low`` and ``high``; see ``schemas/coherence.schema.json``."""

    name: str
    stages: tuple[str, ...]
    says: str
    of: CoherenceProduct
    over: CoherenceProduct = ()
    low: float = -math.inf
    high: float = math.inf
    slack: float = 0.0
    each: str = NODE
    only_gpus: bool = False
    telemetry: str = ""
    shows_fault: bool = False
    #: The file that has the rule, as a report names it.
    file: str = ""

    @property
    def terms(self) -> Iterator[CoherenceTerm]:
        return (term for addends in (*self.of, *self.over) for term in addends)

    def allows(self, ratio: float) -> bool:
        return self.low <= ratio <= self.high

    def applies_to(self, metrics: frozenset[str]) -> bool:
        """Whether the rule's stage reports all metrics that the rule reads of it."""
        return all(t.name in metrics or t.constant is not None or "." in t.name or t.stage for t in self.terms)


def files() -> tuple[Path, ...]:
    """Paths of the files of coherence rules: first for all stages, then each stage's own. Raises SettingError."""
    return (RULES, *extensions.files("stages", OF_STAGE))


@extensions.cached
def rules() -> tuple[CoherenceRule, ...]:
    """All coherence rules. Raises SettingError, YamlError, schemas.Invalid."""
    return tuple(_parse_rule(entry, path) for path in files() for entry in entries_of(path))


def entries_of(path: Path) -> list[dict[str, Any]]:
    """The coherence rules of a file. Raises SettingError for a rule about another stage, YamlError, schemas.Invalid."""
    document = yaml_file.shipped(path, "coherence")
    for entry in document["rules"]:
        if path != RULES and "stages" in entry:
            raise SettingError(f"{path}: rule '{entry['name']}': stages: a stage has rules for itself: remove the key")
    return list(document["rules"])


def _parse_rule(entry: Mapping[str, Any], path: Path) -> CoherenceRule:
    fields = {key: value for key, value in entry.items() if key not in ("healthy", "source")}
    stages = entry.get("stages", ["*"] if path == RULES else [path.parents[1].name])
    return CoherenceRule(
        **{**fields, "stages": tuple(stages), "file": short_path(path)}
        | {
            side: tuple(tuple(map(_parse_term, str(text).split(" + "))) for text in entry.get(side, ()))
            for side in ("of", "over")
        }
    )


def _parse_term(text: str) -> CoherenceTerm:
    try:
        return CoherenceTerm(text, constant=float(text))
    except ValueError:
        match = _ATOM.fullmatch(text)
        assert match, text
        return CoherenceTerm(text, match["name"], match["stage"] or "", match["gather"] or "")


@extensions.cached
def rules_for(stage: str, metrics: frozenset[str]) -> tuple[CoherenceRule, ...]:
    """The coherence rules for a stage that reports these metrics; one with ``*`` is repeated for each that matches."""
    fitting = (rule for rule in rules() if not {"*", stage}.isdisjoint(rule.stages))
    return tuple(variant for rule in fitting for variant in _variants(rule, metrics) if variant.applies_to(metrics))


def _variants(rule: CoherenceRule, metrics: frozenset[str]) -> Iterator[CoherenceRule]:
    """The rule once for each text that its ``*`` matches in the metrics; a rule without ``*`` as it is."""
    pattern = next((term.name for term in rule.terms if "*" in term.name), "")
    if not pattern:
        yield rule
        return
    fits = re.compile("(.*)".join(map(re.escape, pattern.split("*"))))

    def filled(product: CoherenceProduct, stem: str) -> CoherenceProduct:
        return tuple(tuple(t._replace(name=t.name.replace("*", stem)) for t in addends) for addends in product)

    for stem in sorted({match[1] for match in map(fits.fullmatch, metrics) if match}):
        yield replace(rule, of=filled(rule.of, stem), over=filled(rule.over, stem))


class StageFigures:
    """The figures of one stage of a node that coherence rules read, in the units of ``ranges.yml``."""

    def __init__(self, subject: Subject, stage: str, record: Record) -> None:
        self._subject, self._stage, self._record = subject, stage, record
        self._sku = sku_catalogue.by_name(subject.catalogue_sku)
        self._parts: dict[tuple[str, str], dict[str, float]] = {}

    def rules(self) -> Iterator[CoherenceRule]:
        """The rules that apply to the stage on this kind of node."""
        has_gpus = self._subject.accelerator in GPU_VENDORS
        sources = {"", *(environment.texts(self._record["environment"], "telemetry.source") or ["host"])}
        for rule in rules_for(self._stage, frozenset(metric["name"] for metric in self._record["metrics"])):
            if (has_gpus or not rule.only_gpus) and rule.telemetry in sources:
                yield rule

    def contradictions(self, failed: Set[str]) -> Iterator[tuple[CoherenceRule, list[tuple[str, float]]]]:
        """Each violated rule, with (part, ratio) of each violation, except rules that read a metric in ``failed``."""
        for rule in self.rules():
            if not failed.isdisjoint(term.name for term in rule.terms):
                continue
            ratios = ((part, self.ratio(rule, part)) for part in self.parts_of(rule))
            violated = [(part, ratio) for part, ratio in ratios if ratio is not None and not rule.allows(ratio)]
            if violated:
                yield rule, violated

    def parts_of(self, rule: CoherenceRule) -> list[str]:
        """The parts that report the rule's first figure; the node alone for a rule about the node."""
        if rule.each == NODE:
            return [NODE]
        first = next(term for term in rule.terms if term.name and "." not in term.name)
        return [part for part in self._by_part(first.name, first.stage) if part != NODE]

    def ratio(self, rule: CoherenceRule, part: str) -> float | None:
        """``rule.of`` / ``rule.over``, each plus ``slack``, for a part (``gpu:3``); None without figures, or 0 / 0."""
        above, below = self._product(rule.of, part), self._product(rule.over, part)
        if above is None or below is None:
            return None
        above, below = above + rule.slack, below + rule.slack
        if below == 0:
            return None if above == 0 else math.copysign(math.inf, above)
        return above / below

    def figures_of(self, rule: CoherenceRule, part: str) -> str:
        words = {
            f"{term.text if '*' not in term.text else term.name} {self._figure_text(term, part)}"
            + (f" ({part})" if part != NODE else "")
            for term in rule.terms
            if term.constant is None and not term.name.startswith("setup.")
        }
        return " and ".join(sorted(words))

    def _figure_text(self, term: CoherenceTerm, part: str) -> str:
        value, reported = self._value(term, part), self._reported(term, part) or []
        if any(isinstance(text, str) for text in reported):
            return one_line(some_of(list(map(str, reported))), 120)
        is_metric = "." not in term.name and term.gather != "count"
        unit = range_of(term.name).unit if is_metric else "seconds" if term.name.endswith("_seconds") else ""
        return units.human(value, unit)

    def _product(self, product: CoherenceProduct, part: str) -> float | None:
        total = 1.0
        for addends in product:
            values = [self._value(term, part) for term in addends]
            if None in values:
                return None
            total *= sum(value for value in values if value is not None)
        return total

    def _value(self, term: CoherenceTerm, part: str) -> float | None:
        if term.constant is not None:
            return term.constant
        source, dot, name = term.name.partition(".")
        if source in _SOURCES:
            return _SOURCES[source](self, name)
        values = {} if dot else self._by_part(term.name, term.stage)
        if term.gather == NODE:
            return values.get(NODE)
        if term.gather or dot:
            of_parts = [value for scope, value in values.items() if scope != NODE] or None
            reported = self._reported(term, part) if dot else of_parts
            if not reported:
                return 0.0 if term.gather and reported == [] else None
            return float(_GATHERINGS[term.gather or "min"](list(map(_figure, reported))))
        kind, _, index = part.partition(":")
        sibling = {"gpu": f"rank:{index}", "rank": f"gpu:{index}"}.get(kind, part)
        return values.get(part, values.get(sibling, values.get(NODE)))

    def _by_part(self, name: str, stage: str) -> Mapping[str, float]:
        key = (name, stage)
        if key not in self._parts:
            usable = self._usable(stage)
            kinds = (NODE, "gpu", "rank", "link") if usable else ()
            metrics = (metric for kind in kinds if usable for metric in self._subject.metrics(usable, name, kind))
            self._parts[key] = {
                metric["scope"]: metric["value"] * factor
                for metric in metrics
                if metric["value"] is not None and (factor := _factor(metric["unit"], name)) is not None
            }
        return self._parts[key]

    def _reported(self, term: CoherenceTerm, part: str) -> list[Any] | None:
        """The values in the record's environment at the term's path; None if nothing is known, [] for an empty list."""
        record = self._usable(term.stage)
        path = term.name.partition(".")[2].replace("[part]", f"[index={part.partition(':')[2]}]")
        values = environment.values(record["environment"], path) if record else None
        filled = [value for value in values or () if value not in (None, "")]
        return filled if filled or values == [] else None

    def _usable(self, stage: str) -> Record | None:
        record = self._subject.records.get(stage) if stage else self._record
        return record if record is not None and record["state"] == "success" else None

    def of_record(self, name: str) -> float | None:
        """The record's duration by name, in seconds; None if it has no end."""
        record = self._record
        if name == "duration_seconds":
            return record["duration_seconds"]
        end = record["finished_at"] if name == "span_seconds" else record["updated_at"]
        return _timestamp(end) - _timestamp(record["started_at"]) if record["started_at"] and end else None

    def of_plan(self, name: str) -> float | None:
        """The value of an option of the stage's command, if that option alone bounds the work; else None."""
        option, command = f"--{name.replace('_', '-')}", self._record["command"]
        if (option in BOUNDS and len(BOUNDS.intersection(command)) > 1) or option not in command[:-1]:
            return None
        text = command[command.index(option) + 1]
        return float(text) if text.replace(".", "", 1).isdecimal() else None

    def fingerprint(self, name: str) -> str:
        return self._record["fingerprints"].get(name, "")

    def of_sku(self, path: str) -> float | None:
        """A figure of the SKU's data sheet, by its dotted path."""
        figure = data_sheet_figure(vars(self._sku), path) if self._sku else None
        return None if figure is None else float(figure)


def _figure(value: Any) -> float:
    """A number as float; for text a checksum, so that texts can be compared."""
    is_number = isinstance(value, (int, float)) and abs(value) < sys.float_info.max
    return float(value) if is_number else float(zlib.crc32(str(value).encode()))


@functools.lru_cache(maxsize=1 << 14)
def _factor(unit: str, name: str) -> float | None:
    """The factor from the unit to the metric's usual unit; None for an incompatible unit, which other checks report."""
    base = range_of(name).unit
    if unit == base or not base:
        return 1.0
    return units.to_float(units.convert(1, unit, base)) if units.compatible(unit, base) else None


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@functools.lru_cache(maxsize=256)
def training_setup_figures(setup: str) -> Mapping[str, float]:
    """What a training setup implies for a process: samples (or tokens) per step, FLOPs of each, loss of chance."""
    match = _SETUP.fullmatch(setup)
    model, size, batch, length, precision, way = match.groups() if match else [""] * 6
    if (model == "llama") != (size in shapes.SIZES) or not match:
        return {"known": 0.0}
    figures = {"known": 1.0, "compiled": float(way == "compiled"), "step_samples": float(int(batch) * int(length or 1))}
    if model == "resnet18":
        flops, classes = shapes.resnet18_flops(1), shapes.CLASSES
    else:
        shape = shapes.SIZES[size]
        flops, classes = shapes.llama_flops(shape, int(length or 1), 1), shape.vocabulary
        figures["parameters"] = float(shapes.llama_parameters(shape))
        figures["precision"] = _figure(f"{precision} weights")
    return {**figures, "sample_flops": float(flops), "loss_of_chance": math.log(classes)}


_SOURCES: Mapping[str, Callable[[StageFigures, str], float | None]] = {
    "record": StageFigures.of_record,
    "plan": StageFigures.of_plan,
    "setup": lambda figures, name: training_setup_figures(figures.fingerprint("training_setup")).get(name),
    # 1 if the fingerprint is a SHA-256 digest, else 0
    "fingerprint": lambda figures, name: float(bool(_DIGEST.fullmatch(figures.fingerprint(name)))),
    "sku": StageFigures.of_sku,
}


# Contradictions that no ratio shows. Each function yields those of one stage's record, as text.


def _unknown_parts(subject: Subject, stage: str, record: Record) -> Iterator[str]:
    """Figures of GPUs that the facts do not list, or of a link from a part to itself."""
    scopes = {metric["scope"] for metric in record["metrics"]}
    links = [link for link in map(_LINK.fullmatch, scopes) if link]
    yield from (f"figures of {link[0]}, which ends where it begins" for link in links if link[2] == link[3])
    counts = [count for count in (subject.detected_gpus, subject.declared_gpus) if count is not None]
    if subject.detected_gpus is None:
        return
    gpus = [scope for scope in scopes if scope.startswith("gpu:")]
    gpus += [f"gpu:{end}" for link in links if link[1] == "gpu" for end in link.group(2, 3)]
    unknown = sorted({scope for scope in gpus if int(scope.partition(":")[2]) >= max(counts)})
    if unknown:
        yield f"figures of {some_of(unknown)}, but the facts have {units.number_text(max(counts))} GPUs"


def _unnamed_gpus(subject: Subject, stage: str, record: Record) -> Iterator[str]:
    """GPUs that the facts list without a model's name, or with the same index."""
    is_listed = stage == FACTS and subject.accelerator in GPU_VENDORS
    gpus = environment.objects(record["environment"], "gpus[]") if is_listed else []
    for number, gpu in enumerate(gpus):
        if not isinstance(gpu.get("name"), str) or not gpu["name"].strip():
            yield f"gpu:{gpu.get('index', number)} of gpu_count {len(gpus)} has no name"
    for index, times in Counter(str(gpu.get("index")) for gpu in gpus).items():
        if times > 1:
            yield f"the facts list gpu:{index} {times} times"


def _copied_parts(subject: Subject, stage: str, record: Record) -> Iterator[str]:
    """Pairs of parts whose measured figures are equal in all digits."""
    first_parts: dict[tuple[str, float], str] = {}
    equal: dict[tuple[str, str], set[float]] = defaultdict(set)
    for metric in record["metrics"]:
        name, value, (kind, _, index) = metric["name"], metric["value"], metric["scope"].partition(":")
        is_measured = metric["unit"] in _MEASURED and name.startswith((f"{stage}_", "gpu_power_"))
        if value and is_measured and kind in ("gpu", "rank") and len(f"{value:.15e}"[:17].strip("-0")) > _DIGITS:
            equal[first_parts.setdefault((name, value), index), index].add(value)
    for (first, second), values in equal.items():
        if first != second and len(values) > _MOST_EQUAL:
            yield f"{len(values)} measured figures of parts {first} and {second} are the same to all digits"


def _empty_digests(subject: Subject, stage: str, record: Record) -> Iterator[str]:
    """Fingerprints that cannot be true digests: of empty input, malformed, or equal for different work."""
    digests = {name: value for name, value in record["fingerprints"].items() if name.endswith("_sha256")}
    for name, value in record["fingerprints"].items():
        if value.lower() in _of_nothing() or re.fullmatch(r"([0-9a-fA-F])\1{15,}", value):
            yield f"{name} {value[:12]}... is the digest of nothing"
        elif name in digests and name.startswith(f"{stage}_") and not _DIGEST.fullmatch(value):
            yield f"{name} {one_line(value, 40)} is no digest"
    for value, times in Counter(digests.values()).items():
        if times > 1:
            names = sorted(name for name, digest in digests.items() if digest == value)
            yield f"{some_of(names)} are one digest, {value[:12]}..."


@functools.cache
def _of_nothing() -> frozenset[str]:
    """Hex digests of empty input, of zeros, and of JSON's empty values."""
    sizes = (*range(65), *(1 << power for power in range(7, 21)))
    zeros = [*(bytes(size) for size in sizes), *(b"0" * size for size in range(1, 65))]
    texts = [*zeros, b"null", b"[]", b"{}", b'""', b"None", b"\n"]
    return frozenset(make(text).hexdigest() for text in texts for make in (hashlib.sha256, hashlib.sha1, hashlib.md5))


def _overlap(subject: Subject, stage: str, record: Record) -> Iterator[str]:
    """Earlier stages of the same plan that ended more than OVERLAP_SECONDS after this stage began."""
    begun = record["started_at"]
    for other_stage, past in subject.records.items():
        if other_stage == stage:
            return
        in_plan = past["attempt"] == record["attempt"] and not environment.objects(past["environment"], "gang")
        if in_plan and begun and past["finished_at"] and past["started_at"]:
            over = _timestamp(past["finished_at"]) - _timestamp(begun)
            if over > OVERLAP_SECONDS:
                ended = f"{other_stage} ended at {past['finished_at']}"
                yield f"it began at {begun}, {units.duration(over)} before {ended}"


_ORDERLY = (_unknown_parts, _unnamed_gpus, _empty_digests, _copied_parts)


def checks(subject: Subject, stage: str, of_gang: bool = False, failed: Set[str] = frozenset()) -> list[Entry]:
    """Return an entry for each rule that the stage's record contradicts. ``failed``: metrics that failed a check; it
    explains their contradictions, which are left out. ``of_gang``: the figures are of several nodes, and a
    contradiction is then no fault of this node."""
    record = subject.records.get(stage)
    if record is None or record["state"] != "success" or record["exit_code"] is None:  # None: the controller's own
        return []
    entry = functools.partial(
        own_entry, f"{stage}_coherent", stage, "coherent", expected="evidence that agrees with itself",
        source="skus/shared/coherence.yml", remedy=_REMEDY.format(node=subject.name, stage=stage),
    )  # fmt: skip
    gang = f"{gang_of(record) or 'a gang'}: " if of_gang else ""
    orderly = _ORDERLY if of_gang else (*_ORDERLY, _overlap)
    entries = [
        entry("missing", reason=f"{gang}contradiction: {text}", value=find.__name__.strip("_"))
        for find in orderly
        for text in list(find(subject, stage, record))[:1]
    ]
    figures = StageFigures(subject, stage, record)
    for rule, violated in figures.contradictions(failed):
        part, ratio = violated[0]
        more = f"; so do {len(violated) - 1} more parts" if len(violated) > 1 else ""
        limits = f"{units.number_text(ratio)} is not within {rule.low:g} and {rule.high:g}"
        reason = f"{gang}contradiction: {figures.figures_of(rule, part)}: {rule.says}; {limits}{more}"
        fields = {"reason": reason, "value": rule.name, "part": part, "source": rule.file}
        if rule.shows_fault and not of_gang:
            entries.append({**entry("fail", **fields), "name": f"{stage}_hidden_fault"})
        else:
            entries.append(entry("missing", **fields))
    return entries
