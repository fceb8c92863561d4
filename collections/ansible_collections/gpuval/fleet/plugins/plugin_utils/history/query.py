"""The history of a node, a serial, a SKU or the fleet from the cached runs, as one document (``gpuval.history/1``)."""

# ruff: noqa: S608 - names and files are this project's own; values are parameters
import fnmatch
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from ..core.escape import one_line
from ..core.grouping import values_by_key
from ..core.text import some_of
from ..judge import sku_catalogue
from ..judge.check import Check
from ..judge.peer_groups import LEAST, MOST
from . import HistoryError
from .cache import TABLES, Cache, parquet, statement
from .trend import CONFIDENCE, MIN_RUNS, MIN_TOTAL, Flakiness, Judged, trend_of

Rows = list[dict[str, Any]]
SCHEMA = "gpuval.history/1"
NOT_JUDGED = "not judged"
#: Units of the figures shown by default; more is faster, except for seconds.
SPEEDS = ("bytes/s", "TFLOP/s", "tokens/s", "samples/s", "images/s", "requests/s", "seconds")
#: Min number of sister parts (the same figure of other parts) for a meaningful median of their scatter.
MIN_SISTERS = 3
MAX_DRIFTS = 1000
MAX_FLAKY = 1000
MAX_CHANGES = 12
MAX_REFUSED = 100
#: Columns in which figures must agree to be compared.
GROUP = ("stage", "metric", "unit", "scope", "sku", "gpus", "workload", "setup")

#: SQL expression for the setup of a series of figures; a revision of their definition after the first precedes it.
_SETUP = "concat(CASE WHEN m.revision > 1 THEN concat('revision ', m.revision, ' ') END, c.setup)"


class Question:
    """The query: at most one of node, serial and sku. ``since``: a date; ``metric``: names or patterns."""

    def __init__(self, node: str = "", serial: str = "", sku: str = "", metric: str = "", since: str = "") -> None:
        """Make the query from options. Raises HistoryError for invalid ones."""
        self.node, self.serial, sku, self.since = (text.strip() for text in (node, serial, sku, since))
        if sum(map(bool, (self.node, self.serial, sku))) > 1:
            settings = "history_node, history_serial and history_sku (make: NODE=, SERIAL=, SKU=)"
            raise HistoryError(f"set only one of {settings}")
        if self.since:
            try:
                moment = datetime.fromisoformat(self.since)
            except ValueError:
                raise HistoryError(f"SINCE={self.since}: give a date, such as 2026-11-01") from None
            moment = moment.replace(tzinfo=moment.tzinfo or timezone.utc).astimezone(timezone.utc)
            self.since = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        listed = sku_catalogue.named(sku) if sku else None
        self.sku = listed.name if listed else sku
        self.metrics = metric.replace(",", " ").split()

    @property
    def subject(self) -> str:
        return next((kind for kind in ("node", "serial", "sku") if getattr(self, kind)), "fleet")

    @property
    def value(self) -> str:
        """The name or serial that the query is about; empty for the fleet."""
        return self.node or self.serial or self.sku


class History:
    """The cached runs as DuckDB tables (runs, nodes, records, metrics, machines, parts), and the query on them."""

    def __init__(self, cache: Cache, question: Question, checks: Iterable[Check]) -> None:
        self.question = question
        self.execute = cache.connection.execute
        cached = [(state, run) for run in cache.runs() if (state := run.state)]
        cached.sort(key=lambda pair: (pair[0]["created_at"], pair[0]["run_id"]))
        self.empty = not cached
        if self.empty:
            return
        columns = "folder VARCHAR, no INTEGER, run_id VARCHAR, time VARCHAR, profile VARCHAR, shown BOOLEAN"
        self.execute(f"CREATE OR REPLACE TEMP TABLE runs ({columns})")
        for number, (state, _) in enumerate(cached):
            row = [state["folder"], number, state["run_id"], state["created_at"], state["profile"]]
            self.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", [*row, state["created_at"] >= question.since])
        for name in TABLES:
            files = parquet(*(run.file(name) for _, run in cached))
            select = statement(name, files=files) if name == "metrics" else f"SELECT * FROM {files}"
            self.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS {select}")
        self.execute(statement("machines"))
        self.execute(statement("parts"))
        self._choose_subject()
        self._choose_metrics(checks)

    def _choose_subject(self) -> None:
        """Make the table ``chosen`` of what is asked for: run's number, node, part (NULL: the whole node)."""
        question = self.question
        select = statement(f"chosen_{question.subject}")
        self.execute(
            f"CREATE OR REPLACE TEMP TABLE chosen AS SELECT c.* FROM ({select}) c JOIN runs USING (no) WHERE shown",
            [question.value],
        )
        if question.value and not self._table("SELECT no FROM chosen LIMIT 1"):
            raise HistoryError(self._unknown_subject())

    def _unknown_subject(self) -> str:
        question = self.question
        since = f" since {question.since}" if question.since else ""
        text = f"no run{since} knows the {question.subject} {question.value!r}"
        if question.subject == "serial":
            remedy = "give the serial or machine id of a machine, or the serial or UUID of a GPU, as in its facts"
            return f"{text}: {remedy}"
        rows = self.execute(f"SELECT DISTINCT {question.subject} FROM machines ORDER BY 1 LIMIT 9").fetchall()
        return f"{text}; known are {', '.join(name for (name,) in rows[:8])}{' and more' if len(rows) > 8 else ''}"

    def _choose_metrics(self, checks: Iterable[Check]) -> None:
        """Make the table ``wanted`` (stage, metric): metrics of required checks, or the requested ones."""
        chosen = {(check.stage, check.metric) for check in checks if check.required and check.metric}
        self.execute("CREATE OR REPLACE TEMP TABLE wanted (stage VARCHAR, metric VARCHAR)")
        if self.question.metrics:
            stored = self.execute("SELECT DISTINCT stage, metric FROM metrics").fetchall()
            chosen = {
                (stage, metric)
                for stage, metric in stored
                for pattern in self.question.metrics
                if fnmatch.fnmatchcase(metric, pattern) or fnmatch.fnmatchcase(f"{stage}/{metric}", pattern)
            }
            if not chosen:
                near = sorted({metric for _, metric in stored if any(word in metric for word in self.question.metrics)})
                hint = f"; there are {some_of(near)}" if near else "; METRIC='training_*' asks for several"
                raise HistoryError(f"no record has the metric {', '.join(self.question.metrics)}{hint}")
        columns = list(map(list, zip(*sorted(chosen), strict=True))) or [[], []]
        self.execute("INSERT INTO wanted SELECT unnest($1), unnest($2)", columns)
        self._gather_figures()

    def _gather_figures(self) -> None:
        """Make the tables ``groups`` (columns of GROUP) and ``figures``."""
        units = "TRUE" if self.question.metrics else f"unit IN ({', '.join(repr(unit) for unit in SPEEDS)})"
        self.execute(statement("contexts"))
        self.execute(statement("groups", setup=_SETUP, units=units))
        self.execute(statement("figures", setup=_SETUP, units=units, least=LEAST, most=MOST))

    def document(self) -> dict[str, Any]:
        question = self.question
        query = {
            "subject": question.subject,
            "metrics": question.metrics,
            "since": question.since or None,
            "value": question.value or None,
        }
        rows, figures, flaky, drifts, refused, count = ([], [], [], [], [], 0) if self.empty else self._read()
        return {
            "schema": SCHEMA, "asked": query, "rows": rows, "figures": figures,
            "flaky": flaky[:MAX_FLAKY], "flaky_count": len(flaky),
            "drifts": drifts[:MAX_DRIFTS], "drift_count": len(drifts), "held_count": count,
            "refused": refused[:MAX_REFUSED], "refused_count": len(refused),
            "rules": {"min_runs": MIN_RUNS, "min_total_ratio": MIN_TOTAL, "confidence": CONFIDENCE},
        }  # fmt: skip

    def _read(self) -> tuple[Rows, Rows, Rows, Rows, Rows, int]:
        """Rows, figures, flaky machines, drifts and refused records, and the number of series examined for drifts."""
        is_of_machine = self.question.subject in ("node", "serial")
        rows = self._node_rows() if is_of_machine else self._table(statement("run_rows"))
        flaky, (count, drifts) = self._flaky(), self._drifts()
        self._add_changes(drifts[:MAX_DRIFTS])
        refused = self._table(
            "SELECT run_id, node, unnest(refused, max_depth := 2) FROM nodes JOIN runs USING (folder) "
            "WHERE (no, node) IN (SELECT (no, node) FROM chosen) ORDER BY no, node"
        )
        return rows, self._figures(), flaky, drifts, refused, count

    def _table(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        answer = self.execute(sql, list(parameters))
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def _node_rows(self) -> list[dict[str, Any]]:
        """A row for each run of the queried node or GPU, with its verdict, failed checks and versions."""
        rows = self._table(statement("node_rows"), NOT_JUDGED)
        for row in rows:
            row["failed_checks"] = [_check_text(one) for one in row.pop("failed")]
            versions = dict(row.pop("versions") or {})
            row |= {"driver": versions.get("driver"), "firmware": versions.get("vbios"), "versions": versions}
        return rows

    def _figures(self) -> list[dict[str, Any]]:
        """For each comparable figure the median, min and max of each run."""
        if self.question.subject == "fleet" and not self.question.metrics:
            return []
        names = ", ".join(GROUP)
        grouped: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self._table(statement("figure_rows", names=names)):
            group = {name: row.pop(name) for name in GROUP}
            grouped.setdefault(tuple(group.values()), {**group, "runs": []})["runs"].append(row)
        return list(grouped.values())

    def _flaky(self) -> list[dict[str, Any]]:
        """Machines that passed only on a further attempt, or changed between PASS and FAIL, the worst first."""
        answer = self.execute(statement("verdicts"))
        rows = itertools.chain.from_iterable(iter(lambda: answer.fetchmany(10_000), []))
        flaky: list[dict[str, Any]] = []
        for machine, group in itertools.groupby(rows, lambda row: row[0]):
            node, history = "", []
            for _, node, run_id, profile, stages, verdict, retried, gpus in group:  # noqa: B007 - the last one names it
                history.append(Judged(run_id, (profile, *stages), verdict, retried, frozenset(gpus)))
            judged = Flakiness(history)
            if judged.flaky:
                flaky.append({"node": node, "machine": machine, **vars(judged)})
        return sorted(flaky, key=lambda row: (-row["retried"] - row["changes"], row["node"]))

    def _drifts(self) -> tuple[int, list[dict[str, Any]]]:
        """Number of series examined, and the drifting ones: medians of whole SKUs first, then by size of the drift."""
        total, drifts = 0, []
        for kind in ("fleet", "part") if self.question.subject in ("sku", "fleet") else ("part",):
            count, series = self._series(kind)
            total += count
            drifts += sorted(series, key=lambda row: (-abs(row["total_ratio"]), row["metric"], row["subject_key"]))
        return total, drifts

    def _series(self, kind: str) -> tuple[int, list[dict[str, Any]]]:
        """Number of series, and the drifting ones: of parts, or (``fleet``) of the medians of all nodes of a kind."""
        # a part has one figure per run, so the mean is exact; medians of millions of groups are slow
        subject, value, condition = "subject_key", "avg(value)", ""
        if kind == "fleet":
            subject, value, condition = "0", "median(value)", "HAVING count(DISTINCT node_key) > 1"
        limits = {"min_total": MIN_TOTAL, "min_runs": MIN_RUNS, "min_sisters": MIN_SISTERS}
        self.execute(statement("series", subject=subject, value=value, condition=condition, **limits))
        (count,) = self.execute("SELECT count(*) FROM series").fetchone()
        names = ", ".join(f"g.{name}" for name in GROUP)
        answer = self.execute(
            f"SELECT s.group_key, s.subject_key, s.figures, s.floor, {names} FROM series s "
            "JOIN groups g USING (group_key) WHERE s.figures IS NOT NULL"
        )
        drifts = []
        while rows := answer.fetchmany(2_000):
            for group_key, subject_key, figures, floor, *group in rows:
                trend = trend_of(figures, floor=0.0 if kind == "fleet" else floor)
                if trend is not None and trend.drifts:
                    drifts.append(
                        {**vars(trend), **dict(zip(GROUP, group)), "of": kind, "values": figures,
                         "group_key": group_key, "subject_key": subject_key}
                    )  # fmt: skip
        return count, drifts

    def _add_changes(self, drifts: Sequence[dict[str, Any]]) -> None:
        """Add to each drift, in place, its part, its runs, and the versions and slots that changed between runs."""
        if not drifts:
            return
        columns = "one INTEGER, group_key UBIGINT, subject_key UBIGINT, fleet BOOLEAN"
        self.execute(f"CREATE OR REPLACE TEMP TABLE flagged ({columns})")
        keys = [
            (number, drift.pop("group_key"), drift.pop("subject_key"), drift["of"] == "fleet")
            for number, drift in enumerate(drifts)
        ]
        self.execute(
            "INSERT INTO flagged SELECT unnest($1::INTEGER[]), unnest($2::UBIGINT[]), unnest($3::UBIGINT[]), "
            "unnest($4::BOOLEAN[])",
            list(map(list, zip(*keys, strict=True))),
        )
        self.execute(statement("flagged_runs"))
        moments = self.execute(statement("flagged_places")).fetchall()
        places = values_by_key((one, moment) for one, *moment in moments)
        versions: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
        for one, run_id, name, values in self.execute(statement("flagged_versions")).fetchall():
            versions[one, run_id][name] = some_of(values, 4)
        for number, drift in enumerate(drifts):
            _, node, machine, part, gpu, _ = places[number][-1]
            runs = list(dict.fromkeys(moment[0] for moment in places[number]))
            moves = {moment[0]: {"node": moment[1], "place": moment[3]} for moment in places[number] if moment[1]}
            states = [(run, {**versions[number, run], **moves.get(run, {})}) for run in runs]
            drift |= {
                "node": node,
                "machine": machine,
                "part": part,
                "gpu": gpu,
                "runs": runs,
                "nodes": max(moment[5] for moment in places[number]),
                "changes": _changes(states),
            }


def _check_text(failed: Mapping[str, str]) -> str:
    part = "" if failed["part"] == "node" else f" {failed['part']}"
    return f"{failed['name']}{part}" + (" (missing)" if failed["verdict"] == "missing" else "")


def _changes(states: Sequence[tuple[str, Mapping[str, str]]]) -> list[dict[str, str]]:
    """The values that changed from one run to the next; a missing value is no change."""
    changes = [
        {"run_id": run_id, "what": name, "before": one_line(before[name], 128), "after": one_line(after[name], 128)}
        for (_, before), (run_id, after) in itertools.pairwise(states)
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]
    return changes[:MAX_CHANGES]
