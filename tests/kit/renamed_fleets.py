"""Judges what a fleet's maker judges once more with other names, twice, and compares the reports."""

import dataclasses
import functools
import json
import re
from contextlib import contextmanager
from unittest import mock

from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import COLLECTION
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle.renaming import NameRenamer, keyed_name
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.conversion import (
    InternalData,
    InternalDataConverter,
)
from ansible_collections.gpuval.fleet.plugins.plugin_utils.internal_data.scan import own_words
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge import verdict
from ansible_collections.gpuval.fleet.plugins.plugin_utils.judge.peer_groups import PeerHistory

HASHED = re.compile(r"\b[a-z]+-[0-9a-f]{12}\b")
#: Lists that are cut, beside the number of all, and digests of records, which have names in them.
CUT = {"names": "not_tested", "outliers": "statistics"}
gpuval_words = functools.lru_cache(own_words)


def renamer_of(run, names, key):
    ids = {name: keyed_name(key, "node", name) for name in names}
    words = {name for name in names if name.lower() in gpuval_words(COLLECTION) and not re.search("[0-9]", name)}
    data = InternalData(names=ids, ordinary=words, run_id=run["run_id"])
    return NameRenamer(InternalDataConverter(data, functools.partial(keyed_name, key)), run)


def renamed_inputs(renamer, run, evidence, history, options):
    """The arguments of a judgement with other names; nodes are in another order."""
    of_nodes = {
        field.name: renamer.document({"nodes": getattr(evidence, field.name)})["nodes"]
        for field in dataclasses.fields(evidence)
        if isinstance(getattr(evidence, field.name), dict)
    }
    renamed = dataclasses.replace(evidence, **of_nodes, problems=renamer.document(evidence.problems))
    earlier = {
        name: dict(
            zip((renamer.document({"of": of})["of"] for of in options[name]), options[name].values(), strict=True)
        )
        for name in ("lacked_gpus", "unsteady")
        if name in options
    }
    standings = PeerHistory.of(renamer.document(history.documents())) if history is not None else None
    return renamer.document(run), renamed, standings, {**options, **earlier}


def comparable(value, field=""):
    """A part of a report in a form in which the order of nodes, and which names of many are shown, do not count."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, str):
        if len(HASHED.findall(value)) < 2 and " more" not in value and " ... " not in value:
            return value
        shown = HASHED.sub("NAME", value.partition(" ... ")[0])
        return sorted(re.split(r"[,;:()] ?| and ", shown))[: 4 if " ... " in value else None]
    if isinstance(value, dict):
        return {
            key: comparable(part, key)
            for key, part in value.items()
            if key not in ("evidence", "metrics")
            and not (key == "names" and value["count"] > len(part) if "count" in value else False)
        }
    if isinstance(value, list):
        return sorted((comparable(part) for part in value), key=lambda part: json.dumps(part, sort_keys=True))
    return value


def differences(one, other, place=""):
    """Places in which two comparable values differ, with both."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{place}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from differences(*pair, f"{place}/{number}")
    elif one != other:
        yield place, one, other


def outcome(report, ids):
    """By node what is decided on it, without words."""
    return {
        ids.get(node["name"], node["name"]): (
            node["verdict"], node["class"], node["flaky"], node["gpus"],
            sorted((one["name"], one["stage"] or "", one["verdict"], one["part"]) for one in node["checks"]),
        )
        for node in report["nodes"]
    }  # fmt: skip


@contextmanager
def judged_under_other_names():
    """Yields a list that gets, for each judgement, (report, the renamed report, the report of renamed evidence)."""
    judge, judgements = verdict.judge, []

    def judge_all(run, evidence, criteria, *, history=None, **options):
        names = [*dict.fromkeys([*run["nodes"], *evidence.records, *evidence.launches])]
        first = renamer_of(run, names, b"first")
        inputs = renamed_inputs(first, run, evidence, history, options)
        second = renamer_of(inputs[0], first.ids.values(), b"second")
        again = renamed_inputs(second, *inputs)
        report = judge(run, evidence, criteria, history=history, **options)
        reports = [
            judge(run_, of_run, criteria, history=of_history, **more)
            for run_, of_run, of_history, more in (inputs, again)
        ]
        placeholders = {original: shown for (_, original), shown in second.converter.placeholders.items()}
        names_anew = {**placeholders, **second.ids}
        renamed = json.loads(
            HASHED.sub(lambda name: names_anew.get(name[0], name[0]), json.dumps(reports[0], default=list))
        )
        judgements.append((outcome(report, first.ids), outcome(reports[0], {}), renamed, reports[1]))
        return report

    with mock.patch.object(verdict, "judge", judge_all):
        yield judgements
