"""Traits of stages that reports, comparisons and settings use: optional ``files/stage.yml`` in a stage's folder."""

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
#: Fields of StageTraits that are tables, whose rows hold for metrics by name.
TABLES = ("ranges", "comparisons")


@dataclass(frozen=True)
class StageFigure:
    """A metric of a stage that reports show. `line`: its title in the console line of a node that completed the stage;
    `summary`: its text in FINAL ACCEPTANCE; `in_table`: a column of the table of nodes; `gauge`: the Prometheus gauge;
    `loss`: how to compute the smallest loss that a run detects."""

    stage: str
    metric: str
    line: str = ""
    summary: str = ""
    in_table: bool = False
    gauge: Mapping[str, str] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StageTraits:
    """The traits of a stage as its stage.yml declares them. Rows of tables also have the path of their file."""

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
    """{stage: its traits} for stages with a stage.yml, extensions first. Raises SettingError, YamlError, or Invalid."""
    return {path.parents[1].name: _read(path) for path in extensions.files("stages", OF_STAGE)}


def traits_of(stage: str) -> StageTraits:
    """The traits of a stage; the defaults for a stage without a stage.yml, or whose extension is not in use."""
    return traits_of_stages().get(stage, StageTraits())


def figures_of(stages: Iterable[str]) -> list[StageFigure]:
    """The figures of these stages that reports show, in the order of the stages."""
    return [figure for stage in dict.fromkeys(stages) for figure in traits_of(stage).figures]


@extensions.cached
def alternatives_to(metric: str) -> Sequence[str]:
    """The metrics, with ``metric`` among them, of which a stage reports only one; [metric] if it has no alternative."""
    lists = (traits.alternatives for traits in traits_of_stages().values())
    return next((metrics for metrics in lists if metric in metrics), [metric])


def table_row(table: str, metric: str) -> Mapping[str, Any]:
    """The first row of ``table`` (ranges or comparisons) whose name patterns match the metric: of a stage's file, else
    of the file for all stages, whose last row matches any."""
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
