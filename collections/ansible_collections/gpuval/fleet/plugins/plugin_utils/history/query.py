"""The history of a node, a serial, a SKU or the fleet from the cached runs, as one document (``gpuval.history/1``)."""

# ruff: noqa: S608 - names and files are this project's own; values are parameters
from __future__ import annotations

import fnmatch
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..core.escape import one_line
from ..core.text import some_of
from ..judge import sku_catalogue
from ..judge.check import Check
from ..judge.peer_groups import LEAST, MOST
from . import HistoryError, identity
from .cache import TABLES, Cache, parquet
from .trend import CONFIDENCE, MIN_RUNS, MIN_TOTAL, Judged, flakiness, trend_of

SCHEMA = "gpuval.history/1"
NOT_JUDGED = "not judged"
#: Units of the figures shown by default; more is faster, except for seconds.
SPEEDS = ("bytes/s", "TFLOP/s", "tokens/s", "samples/s", "images/s", "requests/s", "seconds")
#: Min number of sister parts for a meaningful median scatter.
MIN_SISTERS = 3
MAX_DRIFTS = 1000
MAX_FLAKY = 1000
MAX_CHANGES = 12
MAX_REFUSED = 100
#: Columns in which figures must agree to be compared.
GROUP = ("stage", "metric", "unit", "scope", "sku", "gpus", "workload", "setup")

#: SQL: each chosen node of each run, as c (no, node, part), r (run), m (machine), n (the judged node).
_JUDGED_NODES = """chosen c JOIN runs r USING (no) JOIN machines m ON m.no = c.no AND m.node = c.node
    JOIN nodes n ON n.folder = r.folder AND n.node = c.node"""

#: SQL: columns of metrics. If a stage numbers GPUs otherwise than the facts, its GPUs are not in ``parts``.
_PLACED = """* REPLACE (CASE WHEN part LIKE 'gpu:%' AND (folder, node, stage)
    IN (SELECT (folder, node, unnest(renumbered)) FROM nodes)
    THEN part || ' as ' || stage || ' numbers it' ELSE part END AS part)"""


#: SQL: the setup of a series, after the revision of its figures' definition unless that is the first.
_SETUP = "concat(CASE WHEN m.revision > 1 THEN concat('revision ', m.revision, ' ') END, c.setup)"


@dataclass(frozen=True)
class Question:
    """The query: at most one of node, serial and sku. ``since``: a date; ``metrics``: names or patterns."""

    node: str = ""
    serial: str = ""
    sku: str = ""
    metrics: tuple[str, ...] = ()
    since: str = ""

    @classmethod
    def of(cls, node: str, serial: str, sku: str, metric: str, since: str) -> Question:
        """Make the query from options. Raises HistoryError for invalid ones."""
        node, serial, sku, since = (text.strip() for text in (node, serial, sku, since))
        if sum(map(bool, (node, serial, sku))) > 1:
            settings = "history_node, history_serial and history_sku (make: NODE=, SERIAL=, SKU=)"
            raise HistoryError(f"set only one of {settings}")
        if since:
            try:
                moment = datetime.fromisoformat(since)
            except ValueError:
                raise HistoryError(f"SINCE={since}: give a date, such as 2026-11-01") from None
            moment = moment.replace(tzinfo=moment.tzinfo or timezone.utc).astimezone(timezone.utc)
            since = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        listed = sku_catalogue.named(sku) if sku else None
        metrics = tuple(word for word in metric.replace(",", " ").split() if word)
        return cls(node, serial, listed.name if listed else sku, metrics, since)

    @property
    def subject(self) -> str:
        return next((kind for kind in ("node", "serial", "sku") if getattr(self, kind)), "fleet")

    @property
    def value(self) -> str:
        """The name or serial that the query is about; empty for the fleet."""
        return self.node or self.serial or self.sku


class History:
    """The cached runs as tables: runs, nodes, records, metrics, and the identities."""

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
            columns = _PLACED if name == "metrics" else "*"
            self.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {columns} FROM {files}")
        identity.resolve(cache.connection)
        self._choose_subject()
        self._choose_metrics(checks)

    def _choose_subject(self) -> None:
        """Make the table ``chosen`` with the query's subject: no, node, part (NULL: the whole node)."""
        question = self.question
        if question.subject == "node":
            # under this name, and under other names of the machine that has the name now
            select = """SELECT DISTINCT m.no, m.node, NULL AS part FROM machines m WHERE m.node = $1 OR m.machine =
                (SELECT machine FROM machines WHERE node = $1 ORDER BY no DESC LIMIT 1)"""
        elif question.subject == "serial":
            select = """SELECT m.no, m.node, NULL AS part FROM machines m
                WHERE lower(m.machine) IN ('serial ' || lower($1), 'machine ' || lower($1))
                UNION SELECT no, node, 'gpu:' || "index" FROM parts
                WHERE gpu IN (SELECT gpu FROM parts WHERE lower($1) IN (lower(gpu), lower(serial), lower(uuid)))"""
        elif question.subject == "sku":
            select = "SELECT no, node, NULL AS part FROM machines WHERE lower(sku) = lower($1)"
        else:
            select = "SELECT no, node, NULL AS part FROM machines WHERE $1 = ''"
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
        """Make the tables ``groups`` (columns of GROUP) and ``figures``. There are millions of figures, so they refer
        to run, node, group and subject by number and hash."""
        units = "TRUE" if self.question.metrics else f"unit IN ({', '.join(repr(unit) for unit in SPEEDS)})"
        self.execute(
            """CREATE OR REPLACE TEMP TABLE contexts AS
            SELECT r.no, r.folder, k.node, rec.stage, k.machine, k.sku, k.gpu_count AS gpus, rec.workload, rec.setup,
                c.part AS only_part
            FROM records rec SEMI JOIN wanted USING (stage) JOIN runs r USING (folder)
            JOIN machines k ON k.no = r.no AND k.node = rec.node JOIN chosen c ON c.no = r.no AND c.node = rec.node
            WHERE rec.state = 'success'"""
        )
        self.execute(
            f"""CREATE OR REPLACE TEMP TABLE groups AS
            SELECT *, hash(stage, metric, unit, scope, sku, gpus, workload, setup) AS group_key FROM
            (SELECT DISTINCT stage, metric, unit, scope, sku, gpus, workload, {_SETUP} AS setup FROM
            (SELECT DISTINCT stage, metric, unit, revision, split_part(part, ':', 1) AS scope FROM metrics
                SEMI JOIN wanted USING (stage, metric) WHERE {units}) m
            JOIN (SELECT DISTINCT stage, sku, gpus, workload, setup FROM contexts) c USING (stage))"""
        )
        self.execute(
            f"""CREATE OR REPLACE TEMP TABLE figures AS
            SELECT c.no, hash(c.node) AS node_key, m.part, m.value,
                hash(coalesce(p.gpu, c.machine || ' ' || m.part)) AS subject_key,
                hash(m.stage, m.metric, m.unit, split_part(m.part, ':', 1), c.sku, c.gpus, c.workload, {_SETUP})
                    AS group_key
            FROM (SELECT * FROM metrics SEMI JOIN wanted USING (stage, metric) WHERE {units}) m
            JOIN contexts c ON c.folder = m.folder AND c.node = m.node AND c.stage = m.stage
            LEFT JOIN parts p ON p.no = c.no AND p.node = c.node AND m.part = 'gpu:' || p."index"
            WHERE (m.value = 0 OR abs(m.value) BETWEEN {LEAST} AND {MOST}) AND coalesce(c.only_part = m.part, TRUE)"""
        )

    def document(self) -> dict[str, Any]:
        question = self.question
        query = {
            "subject": question.subject,
            "metrics": list(question.metrics),
            "since": question.since or None,
            "value": question.value or None,
        }
        document: dict[str, Any] = {
            "schema": SCHEMA, "asked": query, "rows": [], "figures": [], "flaky": [], "flaky_count": 0, "drifts": [],
            "drift_count": 0, "held_count": 0, "refused": [], "refused_count": 0,
            "rules": {"min_runs": MIN_RUNS, "min_total_ratio": MIN_TOTAL, "confidence": CONFIDENCE},
        }  # fmt: skip
        if self.empty:
            return document
        rows = self._node_rows() if question.subject in ("node", "serial") else self._run_rows()
        flaky, (count, drifts) = self._flaky(), self._drifts()
        self._add_changes(drifts[:MAX_DRIFTS])
        refused = self._table(
            "SELECT run_id, node, unnest(refused, max_depth := 2) FROM nodes JOIN runs USING (folder) "
            "WHERE (no, node) IN (SELECT (no, node) FROM chosen) ORDER BY no, node"
        )
        return document | {
            "rows": rows,
            "figures": self._figures(),
            "flaky": flaky[:MAX_FLAKY],
            "flaky_count": len(flaky),
            "drifts": drifts[:MAX_DRIFTS],
            "drift_count": len(drifts),
            "held_count": count,
            "refused": refused[:MAX_REFUSED],
            "refused_count": len(refused),
        }

    def _table(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        answer = self.execute(sql, list(parameters))
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def _node_rows(self) -> list[dict[str, Any]]:
        """A row for each run of the node or GPU: its part and its verdict."""
        rows = self._table(
            f"""SELECT r.time, r.run_id, r.profile, c.node, m.machine, m.sku, c.part, coalesce(n.verdict, ?) AS verdict,
                n.class, coalesce(n.flaky, FALSE) AS flaky, coalesce(n.failed, []) AS failed, n.versions,
                len(n.refused) AS refused
            FROM {_JUDGED_NODES} ORDER BY r.no, c.node, c.part""",
            NOT_JUDGED,
        )
        for row in rows:
            row["failed_checks"] = [_check_text(one) for one in row.pop("failed")]
            versions = dict(row.pop("versions") or {})
            row |= {"driver": versions.get("driver"), "firmware": versions.get("vbios"), "versions": versions}
        return rows

    def _run_rows(self) -> list[dict[str, Any]]:
        """A row for each run: the number of nodes by verdict, and their drivers."""
        verdicts = [f"count(*) FILTER (n.verdict = '{word}') AS \"{word}\"" for word in ("PASS", "FAIL", "INCOMPLETE")]
        versions = [
            f"coalesce(list_sort(list(DISTINCT {value}) FILTER ({value} IS NOT NULL)), []) AS {name}"
            for name, value in (("driver", "n.versions['driver']"), ("firmware", "n.versions['vbios']"))
        ]
        return self._table(
            f"""SELECT r.time, r.run_id, r.profile, count(*) AS nodes, {", ".join(verdicts)},
                count(*) FILTER (n.verdict IS NULL) AS not_judged, count(*) FILTER (n.flaky) AS flaky,
                list_sort(list(DISTINCT m.sku)) AS skus, {", ".join(versions)}, sum(len(n.refused))::INTEGER AS refused
            FROM {_JUDGED_NODES} GROUP BY r.no, r.time, r.run_id, r.profile ORDER BY r.no"""
        )

    def _figures(self) -> list[dict[str, Any]]:
        """For each comparable figure the median, min and max of each run."""
        if self.question.subject == "fleet" and not self.question.metrics:
            return []
        names = ", ".join(GROUP)
        grouped: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self._table(
            f"""SELECT {names}, run_id, median(value) AS median, min(value) AS low, max(value) AS high,
                count(*) AS parts, count(DISTINCT node_key) AS nodes
            FROM figures JOIN runs USING (no) JOIN groups USING (group_key) GROUP BY {names}, no, run_id
            ORDER BY stage, metric, scope, unit, sku, gpus, workload, setup, no"""
        ):
            group = {name: row.pop(name) for name in GROUP}
            grouped.setdefault(tuple(group.values()), {**group, "runs": []})["runs"].append(row)
        return list(grouped.values())

    def _flaky(self) -> list[dict[str, Any]]:
        """Machines that passed only on a further attempt, or changed between PASS and FAIL, the worst first."""
        answer = self.execute(
            """SELECT m.machine, m.node, r.run_id, r.profile, list_sort(m.stages), n.verdict, n.flaky,
                coalesce(g.gpus, [])
            FROM (SELECT DISTINCT machine FROM machines JOIN chosen USING (no, node)) own
            JOIN machines m USING (machine) JOIN runs r USING (no)
            JOIN nodes n ON n.folder = r.folder AND n.node = m.node AND n.verdict IS NOT NULL
            LEFT JOIN (SELECT no, node, list(gpu) AS gpus FROM parts GROUP BY ALL) g ON g.no = m.no AND g.node = m.node
            WHERE r.shown ORDER BY m.machine, r.no"""
        )
        rows = itertools.chain.from_iterable(iter(lambda: answer.fetchmany(10_000), []))
        flaky: list[dict[str, Any]] = []
        for machine, group in itertools.groupby(rows, lambda row: row[0]):
            node, history = "", []
            for _, node, run_id, profile, stages, verdict, retried, gpus in group:  # noqa: B007 - the last one names it
                history.append(Judged(run_id, (profile, *stages), verdict, retried, frozenset(gpus)))
            judged = flakiness(history)
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
        """The drifting series of parts, or (``fleet``) of the medians of all nodes of a kind. A series whose values
        differ by less than MIN_TOTAL cannot drift by more, so it stays in DuckDB."""
        # a part has one figure per run, so the mean is exact; medians of millions of groups are slow
        subject, value, condition = "subject_key", "avg(value)", ""
        if kind == "fleet":
            subject, value, condition = "0", "median(value)", "HAVING count(DISTINCT node_key) > 1"
        self.execute(
            f"""CREATE OR REPLACE TEMP TABLE series AS
            WITH per_run AS (
                SELECT group_key, {subject}::UBIGINT AS subject_key, no, {value} AS value
                FROM figures GROUP BY ALL {condition}
            ), placed AS (
                SELECT *, row_number() OVER (PARTITION BY group_key, subject_key ORDER BY no) - 1 AS place FROM per_run
            ), summed AS (
                SELECT group_key, subject_key, abs(median(value)) AS middle, max(value) - min(value) AS width,
                    sqrt(greatest(regr_syy(value, place) - regr_sxy(value, place) ** 2 / regr_sxx(value, place), 0)
                        / (count(*) - 2)) AS scatter,
                    CASE WHEN max(value) - min(value) > {MIN_TOTAL} * abs(median(value))
                        THEN list(value ORDER BY no) END AS figures
                FROM placed GROUP BY group_key, subject_key HAVING count(*) >= {MIN_RUNS} AND median(value) <> 0
            )
            SELECT group_key, subject_key, figures, CASE WHEN count(*) OVER sisters >= {MIN_SISTERS}
                THEN median(scatter / middle) OVER sisters ELSE 0 END AS floor
            FROM summed WINDOW sisters AS (PARTITION BY group_key)"""
        )
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
        """Add to each drift its part, its runs, and the versions and places that changed between runs."""
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
        self.execute(
            """CREATE OR REPLACE TEMP TABLE flagged_runs AS
            SELECT DISTINCT f.one, f.fleet, g.stage, x.no, r.run_id, r.folder, k.node, k.machine,
                CASE WHEN NOT f.fleet THEN x.part END AS part, p.gpu
            FROM flagged f JOIN groups g USING (group_key)
            JOIN figures x ON x.group_key = f.group_key AND (f.fleet OR x.subject_key = f.subject_key)
            JOIN runs r ON r.no = x.no
            JOIN machines k ON k.no = x.no AND hash(k.node) = x.node_key
            LEFT JOIN parts p ON NOT f.fleet AND p.no = x.no AND p.node = k.node AND x.part = 'gpu:' || p."index"
            """
        )
        places: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for one, *moment in self.execute(
            """SELECT one, run_id, CASE WHEN fleet THEN NULL ELSE node END, CASE WHEN fleet THEN NULL ELSE machine END,
                part, gpu, count(DISTINCT node) FROM flagged_runs GROUP BY ALL ORDER BY one, min(no)"""
        ).fetchall():
            places[one].append(tuple(moment))
        versions: dict[tuple[int, str], dict[str, str]] = defaultdict(dict)
        for one, run_id, name, values in self.execute(
            """WITH reported AS (
                SELECT f.one, f.run_id, unnest(map_entries(coalesce(of.versions, MAP {}))) AS entry
                FROM flagged_runs f JOIN (SELECT folder, node, 'facts' AS stage, versions FROM nodes UNION ALL
                    SELECT folder, node, stage, versions FROM records) of
                ON of.folder = f.folder AND of.node = f.node AND of.stage IN ('facts', f.stage)
            ) SELECT one, run_id, entry.key, list_sort(list(DISTINCT entry.value)) FROM reported GROUP BY ALL"""
        ).fetchall():
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
