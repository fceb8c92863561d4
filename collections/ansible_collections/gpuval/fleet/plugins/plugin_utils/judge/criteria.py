"""Criteria: YAML files of checks, and those of the SKU catalogue, read into dataclasses. Data, never code."""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from ..core import extensions, schemas, yaml_file
from ..core.errors import GpuvalError
from ..core.paths import COLLECTION
from ..core.text import meant, pattern_of
from .check import Applies, Check, Informational
from .kinds import KINDS

CRITERIA_SCHEMA = "gpuval.criteria/1"
SKU_SCHEMA = "gpuval.skus/1"
#: Criteria files within a stage's folder.
CRITERIA = "files/criteria*.yml"
SHARED_CHECKS = COLLECTION / "skus/shared/checks.yml"
#: Bytes/s of one PCIe lane in one direction after encoding, by PCIe generation.
LANE_BYTES_PER_SECOND = {1: 2.5e8, 2: 5e8, 3: 9.85e8, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


class CriteriaError(GpuvalError, ValueError):
    """A criteria file that cannot be used; the message names the file and the check."""


class Criteria(tuple[Check, ...]):
    """The checks of criteria files, with the metrics that are declared to need no check."""

    informational: tuple[Informational, ...]

    def __new__(cls, checks: Iterable[Check], informational: Iterable[Informational] = ()) -> "Criteria":
        criteria = super().__new__(cls, checks)
        criteria.informational = tuple(informational)
        return criteria


def informational_of(checks: Sequence[Check]) -> tuple[Informational, ...]:
    """The metrics declared to need no check; empty for a plain list of checks."""
    return checks.informational if isinstance(checks, Criteria) else ()


def checks_digest(checks: Sequence[Check]) -> str:
    """SHA-256 of all checks with their limits, whatever files they come from."""
    return hashlib.sha256("\n".join(sorted(map(_text_of, checks))).encode()).hexdigest()


@functools.lru_cache(maxsize=4096)
def _text_of(check: Check) -> str:
    return json.dumps(asdict(check), sort_keys=True, default=sorted)


def shipped_files() -> list[Path]:
    return [*sorted(COLLECTION.glob(f"roles/*/{CRITERIA}")), *sku_files()]


def _files_of_extensions() -> tuple[Path, ...]:
    return extensions.files("stages", CRITERIA, shipped=False)


def sku_files() -> list[Path]:
    return sorted(COLLECTION.glob("skus/*.yml"))


@functools.cache
def _shipped() -> tuple[Criteria, ...]:
    return tuple(read_file(path) for path in shipped_files())


def beside_shipped(paths: Iterable[str | Path]) -> Criteria:
    """The shipped criteria, those of extensions and those of ``paths``. The shipped ones are read once per process."""
    return _merged([*_shipped(), *map(read_file, _files_of_extensions()), *map(read_file, map(Path, paths))])


def load(paths: Iterable[str | Path]) -> Criteria:
    """The criteria of all files; a later file replaces a check of the same name. Raises CriteriaError, YamlError."""
    return _merged([read_file(Path(path)) for path in paths])


def _merged(files: Sequence[Criteria]) -> Criteria:
    """The criteria of these files; a later check replaces an earlier one of the same name, at that one's position."""
    checks = {check.name: check for file in files for check in file}
    return Criteria(checks.values(), (one for file in files for one in file.informational))


def read_file(path: Path) -> Criteria:
    """Read the criteria of one criteria file or SKU file. Raises CriteriaError, YamlError."""
    document = yaml_file.parse(path, yaml_file.read(path))
    try:
        if isinstance(document, dict) and document.get("schema") == SKU_SCHEMA:
            return Criteria(sku_checks(document))
        checks = parse(document)
    except (CriteriaError, schemas.Invalid) as error:
        raise CriteriaError(f"{path}: {error}") from error
    informational = (
        Informational(one["stage"], tuple(one["metrics"]), one["reason"]) for one in document.get("informational", ())
    )
    return Criteria(checks, informational)


def problems_of(path: Path, stages: Sequence[str]) -> list[str]:
    """All mistakes in a criteria file for these stages, each as ``FILE:LINE: ...``."""
    try:
        document = yaml_file.parse(path, yaml_file.read(path))
        entries = document.get("checks") if isinstance(document, dict) else None
        if not isinstance(entries, list) or document.get("schema") != CRITERIA_SCHEMA:
            read_file(path)
            return []
    except GpuvalError as error:
        return [str(error)]
    problems, good = [], []
    head = {key: document[key] for key in ("schema", "stage") if key in document}
    for line, entry in zip(_lines(path), entries):
        try:
            checks = parse({**head, "checks": [entry]})
        except CriteriaError as error:
            problems.append(f"{path}:{line}: {error}")
            continue
        good.append(entry)
        for check in checks:
            if check.stage not in stages:
                near = meant(check.stage, stages) or f"; stages are {', '.join(stages)}"
                problems.append(f"{path}:{line}: check '{check.name}': no stage {check.stage}{near}")
    try:
        parse({**document, "checks": good})  # the fields beside the checks, and repeated names
    except CriteriaError as error:
        problems.append(f"{path}: {error}")
    return problems


def problems_of_extensions() -> list[str]:
    """Mistakes in the criteria of extensions, each of which may judge its own stage only."""
    found = []
    paths = _files_of_extensions()
    shipped = {check.name for file in _shipped() for check in file} if paths else set()
    for path in paths:
        stage = path.parents[1].name
        wrong = problems_of(path, [stage])
        names = [] if wrong else [check.name for check in read_file(path)]
        foreign = [name for name in names if not name.startswith(f"{stage}_")]
        found += wrong + [f"{path}: check '{name}': the name must begin with {stage}_: rename it" for name in foreign]
        found += [f"{path}: check '{name}': gpuval ships one by this name: rename it" for name in shipped & {*names}]
    return [f"{extensions.SETTING}: {problem}" for problem in found]


def doubtful_metrics(path: Path) -> list[str]:
    """Remarks on checks in a valid file whose metric no shipped check uses but which resembles one that is used."""
    shipped = beside_shipped([])
    metrics = {check.metric for check in shipped} | {name for one in shipped.informational for name in one.metrics}
    return [
        f"{path}: check '{check.name}': no shipped check has the metric {check.metric}{near}"
        for check in read_file(path)
        for near in [meant(check.metric, metrics, 0.9)]
        if near and not any(pattern_of(name).fullmatch(check.metric) for name in metrics)
    ]


def _lines(path: Path) -> list[int]:
    """The line number of each check in the file."""
    root: Any = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml_file.SafeLoader)
    (checks,) = (value for key, value in root.value if key.value == "checks")
    return [entry.start_mark.line + 1 for entry in checks.value]


def parse(document: Any) -> list[Check]:
    """The checks of a criteria document. Raises CriteriaError."""
    try:
        schemas.validate("criteria", document, what="criteria")
    except schemas.Invalid as error:
        raise CriteriaError(_describe_error(document, error)) from error
    common = {"stage": document["stage"]} if "stage" in document else {}
    checks = [_parse_check(one) for entry in document["checks"] for one in _of_each_stage({**common, **entry})]
    for name, times in Counter(check.name for check in checks).items():
        if times > 1:
            raise CriteriaError(f"check '{name}' stands twice in one file")
    return checks


def sku_checks(document: Any) -> list[Check]:
    """The checks of a SKU file, which apply to nodes of that SKU only. Raises CriteriaError, schemas.Invalid."""
    schemas.validate("skus", document, what="SKU")
    sku = document["name"]
    checks = []
    for check in parse({"schema": CRITERIA_SCHEMA, "checks": sku_entries(document)}):
        if not check.name.endswith(f"_{sku}"):
            raise CriteriaError(f"check '{check.name}': the name must end with _{sku}, or it replaces that of others")
        checks.append(replace(check, applies=replace(check.applies, sku=(sku,)), catalogue_sku=sku))
    return checks


def sku_entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The checks of a SKU file, completed from the shared checks that ``like`` names. Raises CriteriaError."""
    shared, sku, entries = _read_shared_checks(), document["name"], []
    for entry in document["checks"]:
        own = dict(entry)
        like = own.pop("like", None)
        if like is None:
            entries.append(own)
            continue
        if like not in shared:
            raise CriteriaError(f"like: {like}: there is no such check in {SHARED_CHECKS.name}")
        is_list = isinstance(shared[like], list)
        for name in shared[like] if is_list else [like]:
            filled = {"name": f"{name}_{sku}", **shared[name], **own}
            times, value_of = filled.pop("times", None), filled.pop("value_of", None)
            if value_of and (times is None or "source" not in own):  # a check with its own source has its own value
                figure = data_sheet_figure(document, value_of)
                value = figure if figure is None or times is None else float(f"{figure * times:.4g}")
                filled = {"value": value, **filled}
            if is_list and filled.get("value", 0) is None:
                continue  # a data sheet without fp8 needs no fp8 check
            if "requires" in filled:
                filled["requires"] = [f"{one}_{sku}" if one in shared else one for one in filled["requires"]]
            entries.append(filled)
    return entries


def data_sheet_figure(document: Mapping[str, Any], path: str) -> Any:
    """The figure at a dotted path of a SKU file (gpu.memory_bytes), or None. A GPU's link to the host is PCIe by
    default."""
    figure: Any = document
    for key in path.split("."):
        figure = figure.get(key) if isinstance(figure, Mapping) else None
    if figure is None and path == "gpu.host_bytes_per_second":
        gpu = document.get("gpu", {})
        return gpu.get("pcie_width", 0) * LANE_BYTES_PER_SECOND.get(gpu.get("pcie_generation", 0), 0.0) or None
    return figure


@functools.cache
def _read_shared_checks() -> Any:
    return yaml_file.parse(SHARED_CHECKS, yaml_file.read(SHARED_CHECKS))


def _of_each_stage(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The check's entry, and a copy for each stage in its ``also``, named after that stage. Raises CriteriaError."""
    if "stage" not in entry:
        raise CriteriaError(f"check '{entry['name']}': no stage: give it one, or its whole file")
    home, also = entry["stage"], entry.get("also", ())
    if (also or entry.get("every_stage")) and not entry["name"].startswith(f"{home}_"):
        raise CriteriaError(f"check '{entry['name']}': also and every_stage need a name that begins with {home}_")
    bare = {key: value for key, value in entry.items() if key != "also"}
    copy = {**bare, "every_stage": False}
    return [bare, *({**copy, "stage": stage, "name": stage + entry["name"].removeprefix(home)} for stage in also)]


def of_stage(criteria: Iterable[Check], stage: str) -> list[Check]:
    """The checks of one stage, and those of other stages that apply to every stage, unless the stage has its own."""
    checks = list(criteria)
    stage_checks = [check for check in checks if check.stage == stage]
    judged = {(check.metric, check.scope) for check in stage_checks}
    names = {check.name for check in stage_checks}
    for check in checks:
        if check.every_stage and (check.metric, check.scope) not in judged:
            name = stage + check.name.removeprefix(check.stage)
            # The facts use this name for errors since boot; ``_new`` are errors that came up during the stage.
            stage_checks.append(_copy_to_stage(check, stage, f"{name}_new" if name in names else name))
    return stage_checks


@functools.lru_cache(maxsize=1024)
def _copy_to_stage(check: Check, stage: str, name: str) -> Check:
    return replace(check, stage=stage, name=name, every_stage=False, where_reported=True)


def _parse_check(entry: dict[str, Any]) -> Check:
    facts = entry.get("applies", {})
    fingerprints = tuple((name, tuple(values)) for name, values in facts.get("fingerprints", {}).items())
    applies = Applies(**{**_with_tuples(facts), "fingerprints": fingerprints})
    check = Check(**{**_with_tuples(entry), "applies": applies})
    problem = _problem(check)
    if problem:
        raise CriteriaError(f"check '{check.name}': {problem}")
    return replace(check, expected=KINDS[check.kind].describe(check, check.value))


def _with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def _problem(check: Check) -> str | None:
    """The check's first mistake that the schema cannot express, None if it has none."""
    if isinstance(check.value, str) and _is_number(check.value):
        return f"value '{check.value}' is text: write the number without quotes, and an exponent as 1.0e+9"
    if isinstance(check.value, str) and (check.scope != "node" or check.unit is not None):
        return "a text value is compared with a fingerprint of the node: it takes neither scope nor unit"
    if check.scope in ("rank", "link") and check.parts_from is None:
        return f"scope {check.scope} needs parts_from, the metric that tells how many of them must report"
    if check.relative_to == "node" and check.scope == "node":
        return "relative_to: node compares the parts of a node with each other: it needs a scope of parts"
    kind = KINDS[check.kind]
    if (check.every_stage or check.where_reported) and kind.compares:
        return f"every_stage and where_reported are for figures with a limit, not for kind {check.kind}"
    if check.of_gang and kind.compares:
        return f"of_gang is for figures with a limit, not for kind {check.kind}"
    if check.name in check.requires:
        return "a check cannot require itself"
    return kind.problem(check)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _describe_error(document: Any, error: schemas.Invalid) -> str:
    path = error.path
    if len(path) >= 2 and path[0] == "checks" and isinstance(path[1], int):
        entry, number = document["checks"][path[1]], f"number {path[1] + 1}"
        name = entry.get("name", number) if isinstance(entry, dict) else number
        key_path = ".".join(str(key) for key in path[2:])
        return f"check '{name}': {key_path + ': ' if key_path else ''}{error.problem}"
    return str(error)
