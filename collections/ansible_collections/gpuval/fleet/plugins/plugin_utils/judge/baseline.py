"""Baselines: the figures of the accepted nodes of one run with their spreads, which later runs are compared with."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core import schemas
from ..core.errors import SettingError, reason_of
from ..core.grouping import values_by_key
from ..records.documents import Document
from .check import Check, Subject
from .peer_statistics import borrowed_deviation

SCHEMA = "gpuval.baseline/1"
MAX_BYTES = 64 << 20
#: A baseline keeps separate figures for each value of these properties, where records report them.
TORCH, TRAINING_SETUP = SETUPS = ("torch", "fingerprints.training_setup")
#: A baseline of fewer nodes is advice only: it fails no node, and its spreads are not used.
LEAST_NODES = 8


class Baseline:
    """A document of ``gpuval.baseline/1``, with its figures by stage, metric and kind of part."""

    def __init__(self, document: Document) -> None:
        self.document = document
        figures = (((figure["stage"], figure["metric"], figure["scope"]), figure) for figure in document["figures"])
        self.figures = values_by_key(figures)

    @property
    def digest(self) -> str:
        """SHA-256 of the content, whatever the order of keys."""
        return hashlib.sha256(json.dumps(self.document, sort_keys=True).encode()).hexdigest()

    @property
    def title(self) -> str:
        return f"{self.document['name']} version {self.document['version']}"

    def find(
        self, check: Check, sku: str, gpus: Any, workload: str, setup: Mapping[str, str], revision: int = 1
    ) -> Document | None:
        """The baseline's figure for the check on nodes of this SKU, GPU count, workload and setup, ``{property:
        value}``; of several the one from the most nodes, None if there is none."""
        fitting = [
            figure
            for figure in self.figures.get((check.stage, check.metric, check.scope), ())
            if (figure["sku"], figure["gpus"], figure["workload"]) == (sku, gpus, workload)
            and figure.get("revision", 1) == revision
            and all(figure["setup"].get(path) == value for path, value in setup.items())
        ]
        return max(fitting, key=lambda figure: (figure["nodes"], sorted(figure["setup"].items())), default=None)


def spreads_of(figures: Sequence[Document]) -> list[dict[str, Any]]:
    """For each SKU in a baseline's figures how much the parts of a node differ, relative, in the catalogue's form."""
    of_skus: dict[str, dict[str, Any]] = {}
    for figure in sorted(figures, key=lambda fig: (fig.get("revision", 1), fig["within_nodes_ratio"] or 0.0)):
        if figure["within_nodes_ratio"]:
            usual = {"sku": figure["sku"], "nodes": figure["nodes"], "part_spreads": {}}
            sku = of_skus.setdefault(figure["sku"], usual)
            sku["nodes"] = min(sku["nodes"], figure["nodes"])
            spread = {"value": figure["within_nodes_ratio"], "revision": figure.get("revision", 1)}
            sku["part_spreads"][figure["metric"]] = spread
    return [*of_skus.values()]


def lend_spreads(baseline: Baseline | None, subjects: Iterable[Subject]) -> None:
    """Widen each node's ``known_spreads`` to those of its SKU in the baseline, if enough nodes are behind them."""
    document: Document = baseline.document if baseline else {}
    figures = [one for one in document.get("figures", ()) if one["nodes"] >= LEAST_NODES]
    spreads = document.get("spreads", spreads_of(figures))
    for subject, sku in ((subject, sku) for subject in subjects for sku in spreads if sku["sku"] == subject.kind):
        lent = {
            (metric, one["revision"]): borrowed_deviation(one["value"], sku["nodes"])
            for metric, one in sku["part_spreads"].items()
        }
        present = subject.known_spreads
        subject.known_spreads = {**present, **{key: max(lent[key], present.get(key, 0.0)) for key in lent}}


def read(path: Path, run_id: str = "") -> Baseline:
    """Read a baseline for a run. Raises SettingError for a bad file, and for spreads measured by that same run."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingError(f"{path}: over {MAX_BYTES:,} bytes: not a baseline")
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_parse_float, parse_float=_parse_float)
        schemas.validate("baseline", document, what=str(path))
    except OSError as error:
        raise SettingError(f"{path}: cannot be read: {reason_of(error)}; `make baseline` makes one") from error
    except (schemas.Invalid, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not a baseline: {error}") from error
    if document.get("spreads") and document["made_from"]["run_id"] == run_id:
        raise SettingError(
            f"{path}: spreads of run {run_id}, which they cannot judge: leave out gpuval_baseline, or name a file that "
            "`make calibrate` makes of another run"
        )
    return Baseline(document)


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def next_version(folder: Path, name: str) -> int:
    """The number after the highest version of the baseline ``name`` in the folder."""
    versions = (path.stem.removeprefix(f"{name}-v") for path in folder.glob(f"{name}-v*.json"))
    return max((int(text) for text in versions if text.isdecimal()), default=0) + 1


def file_name(document: Document) -> str:
    return f"{document['name']}-v{document['version']}.json"
