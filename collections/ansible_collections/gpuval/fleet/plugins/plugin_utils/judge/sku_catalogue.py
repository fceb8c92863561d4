"""The SKU catalogue: models of nodes, recognised by the GPUs in a node's facts, with their data sheets and checks."""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...module_utils.hardware.pci import GPU_VENDORS
from ..core import schemas, yaml_file
from ..core.text import meant, nearest_spelling, pattern_of
from . import criteria
from .criteria import CriteriaError
from .peer_statistics import borrowed_deviation

CPU = "cpu"
AUTO = "auto"
#: GPU models that the catalogue lacks, one letter from a name in it.
_RESEMBLING = {
    *("a100x", "a40", "b100", "gaudi2c", "gaudi2d", "gb10", "l20", "l40g", "mi300", "mi350p", "p4", "p40", "p100"),
    *("r100", "r200", "r300", "t4", "v100"),
}
#: The number of GPUs in a name: 8xh200, h200x8.
_COUNTED = re.compile(r"\b\d+x(?=[a-z])|(?<=\d)x\d+\b")
#: Words of a site's name that make another model of a GPU of that number: H800 PCIe, RTX PRO 6000 Workstation.
_VARIANTS = {"pcie", "nvl", "workstation", "station", "ws", "max", "40g", "40gb", "64gb"}


class Sku:
    """A node model; ``schemas/skus.schema.json`` explains each field. Units: bytes, bytes/s, watts, TFLOP/s."""

    def __init__(self, path: Path) -> None:
        """Read a file of the catalogue. Raises CriteriaError, YamlError."""
        document = yaml_file.parse(path, yaml_file.read(path))
        try:
            self.checks = tuple(criteria.sku_checks(document))
        except (CriteriaError, schemas.Invalid) as error:
            raise CriteriaError(f"{path}: {error}") from error
        self.name, self.title, self.vendor = (str(document[key]) for key in ("name", "title", "vendor"))
        if self.name != path.stem:
            raise CriteriaError(f"{path}: holds the SKU {self.name}, which belongs into {self.name}.yml")
        self.models: tuple[str, ...] = tuple(document["models"])
        count = document.get("gpu_count", {})
        self.node_gpus: int | None = count.get("node")
        self.part_gpus: tuple[int, ...] = tuple(count.get("part", ()))
        self.gpu: dict[str, Any] = document.get("gpu", {})
        self.links: dict[str, Any] = document.get("links", {})
        self.part_spreads = _by_revision(document.get("part_spreads", {}), borrowed_deviation)
        figures = document.get("measured", {})
        with_median = {name: one for name, one in figures.items() if isinstance(one, dict) and "median" in one}
        medians = {(name, 1): one["median"] for name, one in with_median.items()}  # of records of revision 1
        self.measured = {**medians, **_by_revision(figures, lambda value, median=0.0: value)}

    @property
    def rack_trays(self) -> int:
        """Number of nodes in an NVLink domain of this SKU; 0 if its nodes work without one."""
        return int(self.links.get("domain_gpus", 0)) // (self.node_gpus or 1)


def _by_revision(figures: Mapping[str, Any], value_of: Callable[..., float]) -> dict[tuple[str, int], float]:
    """Figures by (metric, revision of its definition); the revision is 1 unless the figure has another."""
    texts = {name: dict(figure) if isinstance(figure, dict) else {"value": figure} for name, figure in figures.items()}
    return {(name, figure.pop("revision", 1)): value_of(**figure) for name, figure in texts.items()}


@functools.cache
def shipped() -> tuple[Sku, ...]:
    """The SKUs of the catalogue that ships with the collection."""
    return tuple(map(Sku, criteria.sku_files()))


def by_name(name: str | None) -> Sku | None:
    return next((sku for sku in shipped() if sku.name == name), None)


def is_in_domain(name: str | None) -> bool:
    """Whether the GPUs of an SKU form NVLink domains of several nodes."""
    sku = by_name(name)
    return sku is not None and bool(sku.links.get("domain_gpus"))


def of_model(model: str, peer_type: str | None = None, ordered: Sku | None = None) -> Sku | None:
    """The SKU whose GPUs the vendor's tool calls ``model``. Of SKUs with one name their ``peer_type`` decides;
    where the tool does not report it, what was ``ordered`` does."""
    name = _plain(model)
    alike = [sku for sku in shipped() if any(pattern_of(_plain(known)).fullmatch(name) for known in sku.models)]
    if peer_type is None and ordered in alike:
        return ordered
    fitting = [sku for sku in alike if sku.links.get("peer_type") in (None, peer_type)]
    return max(fitting or alike, key=lambda sku: "peer_type" in sku.links, default=None)


def of_models(models: Sequence[str], peer_types: Sequence[str] = (), ordered: Sku | None = None) -> Sku | None:
    """The SKU of a node with GPUs of these models and ``peer_types``; None for several, or one not listed."""
    alike = set(peer_types) if len(peer_types) == len(models) else set()
    peer_type = alike.pop() if len(alike) == 1 else None
    skus = {of_model(model, peer_type, ordered) for model in set(models)}
    return skus.pop() if len(skus) == 1 else None


def named(declared: str) -> Sku | None:
    """The SKU that ``gpuval_sku`` means: the name of one, or of its GPU (H200, NVIDIA H200); None for any other."""
    return by_name(_plain(declared)) or of_model(declared)


def hinted(declared: str) -> Sku | None:
    """The SKU whose name is in a site's own name as whole words (hgx-h200, 8xh100), the longest one, or None. A model
    of another form or size (h800-pcie) is not hinted at."""
    words = _words(_COUNTED.sub("", declared.casefold()))
    padded = f" {' '.join(words)} "
    hints = [
        (len(piece), sku)
        for sku in shipped()
        for piece in (sku.name, *(" ".join(_words(model)) for model in sku.models))
        if f" {piece} " in padded and sku.name != CPU and _VARIANTS & set(words) <= set(piece.split())
    ]
    return max(hints, key=lambda item: item[0], default=(0, None))[1]


def misspelled(declared: str) -> str:
    """The name that a ``gpuval_sku`` misses by one letter, else empty; another number is another model: H20, H800."""
    name = _plain(declared).replace(" ", "")
    if re.fullmatch("[^c]pus?", name):  # gpu, hpu: as cpu no accelerator would be tested
        return AUTO
    alike = _of_its_number(name, (AUTO, CPU, *GPU_VENDORS, *(sku.name for sku in shipped())))
    return nearest_spelling(name, alike, 1) if remark(declared) and name not in _RESEMBLING else ""


def _of_its_number(name: str, names: Sequence[str]) -> list[str]:
    """Those of ``names`` with the number in ``name``, its o read as 0 if that fits: another number is another GPU."""
    with_zeros = re.sub("(?<=[0-9])o+", lambda letters: "0" * len(letters[0]), name)
    alike: dict[str, list[str]] = {text: [] for text in (with_zeros, name)}
    for text, near in itertools.product(alike, names):
        if re.findall("[0-9]+", near) == re.findall("[0-9]+", text):
            alike[text].append(near)
    return alike[with_zeros] or alike[name]


def remark(declared: str) -> str:
    """A remark on a ``gpuval_sku`` that the catalogue lacks; empty for one that it has."""
    if declared in (AUTO, CPU, *GPU_VENDORS) or named(declared) or hinted(declared):
        return ""
    names = [sku.name for sku in shipped()]
    name = _plain(declared).replace(" ", "")
    near = "" if name in _RESEMBLING else meant(name, _of_its_number(name, names))
    return f"not in the catalogue{near}; its limits do not hold. Known are {', '.join(names)}"


def _words(text: str) -> list[str]:
    return re.findall("[a-z0-9]+", text.casefold())


@functools.lru_cache(maxsize=1024)
def _plain(model: str) -> str:
    return " ".join(re.sub("[-_]", " ", model.casefold()).split())
