"""What reports, comparisons and settings know of a stage: ``files/stage.yml`` in its folder, which may be absent."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from . import extensions, yaml_file
from .errors import SettingError
from .paths import COLLECTION
from .text import pattern_of

OF_STAGE, OF_ALL = "files/stage.yml", COLLECTION / "skus/shared/stages.yml"
#: Tables of rows for metrics by name.
TABLES = ("ranges", "comparisons")


@dataclass(frozen=True)
class StageFigure:
    """A figure that people see. `line`: its title in the line of a node that has done the stage; `summary`: its text in
    FINAL ACCEPTANCE; `in_table`: a column of the table of nodes; `gauge`: what Prometheus gets; `loss`: how the
    smallest loss that the run would have found is measured."""

    stage: str
    metric: str
    line: str = ""
    summary: str = ""
    in_table: bool = False
    gauge: Mapping[str, str] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageTraits:
    """The traits of a stage, which the schema describes. Rows of ranges and comparisons also have their file's name."""

    gpus: str = "work"
    optional: bool = False
    shortened_by: Sequence[str] = ()
    bounds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    alternatives: Sequence[str] = ()
    figures: Sequence[StageFigure] = ()
    ranges: Sequence[Mapping[str, Any]] = ()
    comparisons: Sequence[Mapping[str, Any]] = ()
    implicates: Mapping[str, Sequence[str]] = field(default_factory=dict)


@extensions.cached
def traits_of_stages() -> Mapping[str, StageTraits]:
    """By stage the traits of those that declare some, extensions first. Raises SettingError, YamlError,
    schemas.Invalid."""
    return {path.parents[1].name: _read(path) for path in extensions.files("stages", OF_STAGE)}


def traits_of(stage: str) -> StageTraits:
    """The traits of a stage; the defaults for one that declares none, or whose extension is not in use."""
    return traits_of_stages().get(stage, StageTraits())


def figures_of(stages: Iterable[str]) -> list[StageFigure]:
    """The figures of these stages that people see, in the order of the stages."""
    return [figure for stage in dict.fromkeys(stages) for figure in traits_of(stage).figures]


@extensions.cached
def alternatives_to(metric: str) -> Sequence[str]:
    """The metrics of which a stage reports only one, this one among them; else this one alone."""
    lists = (traits.alternatives for traits in traits_of_stages().values())
    return next((metrics for metrics in lists if metric in metrics), [metric])


def table_row(table: str, metric: str) -> Mapping[str, Any]:
    """The first row of ``ranges`` or ``comparisons`` that fits the metric's name: of its stage, else of all stages,
    whose last row fits all."""
    rows = (row for traits in (*traits_of_stages().values(), _read(OF_ALL)) for row in getattr(traits, table))
    return next(row for row in rows if any(pattern_of(name).fullmatch(metric) for name in row["metrics"]))


@cache
def _read(path: Path) -> StageTraits:
    document, stage = yaml_file.shipped(path, "stage"), path.parents[1].name
    for row in (row for table in TABLES for row in document.get(table, ())):
        if path != OF_ALL and not all(name.startswith(f"{stage}_") for name in row["metrics"]):
            raise SettingError(f"{path}: {', '.join(row['metrics'])}: metrics of the stage begin with {stage}_: rename")
        row["file"] = extensions.short_path(path)
    document["figures"] = [StageFigure(stage, **figure) for figure in document.get("figures", ())]
    del document["schema"]
    return StageTraits(**document)
