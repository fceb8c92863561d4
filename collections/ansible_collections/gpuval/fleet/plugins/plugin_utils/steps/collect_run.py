"""Collect a run's records, logs and series into results/: from the store, and from nodes what the store lacks."""

import base64
import errno
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ansible import context
from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes

from ...module_utils.redaction import SecretRedactor
from ...module_utils.store import StoreError
from ..core import schemas
from ..core.errors import GpuvalError, reason_of
from ..core.escape import clean_text
from ..core.step_options import PathText, StoreOptions
from ..core.text import some_of
from ..gang import document as gang_document
from ..gang import evidence as gang_evidence
from ..records import digests, evidence
from ..records.documents import FINAL_STATES, LAUNCHED
from ..records.evidence import object_key
from ..runs import folder as run_folder
from ..runs import job_secrets, publishing
from ..runs import state as run_state
from ..runs.action import RunAction, RunOptions
from ..ssh.node_tasks import MAX_WORKERS, NodeTasks
from ..store import unread
from ..store.access import open_store
from ..store.guard import shortage
from ..store.stored_runs import READERS, read_all
from ..watch import collecting
from ..watch.watched_run import MEMORY_FILE

#: Seconds to wait for missing evidence before nodes are asked for it: uploads may still be in transit.
UPLOAD_SECONDS = 4.0
#: Seconds for each node by which the time to compare digests with all nodes exceeds that of one fetch.
COMPARE_SECONDS_A_NODE = 0.5
#: Max fetches from a node: evidence beyond them stays there.
MAX_FETCHES = 4
LEFT_ON_NODE = f"evidence left out: it is more than {MAX_FETCHES} fetches bring: the run's folder on the node has it"
FULL = (errno.ENOSPC, errno.EDQUOT)
#: Seconds between two saves of which objects were read. An interrupted collection reads newer ones again.
REMEMBER_SECONDS = 5.0


class CollectRunOptions(RunOptions):
    store: StoreOptions
    fetch_tasks: PathText | None = None
    fetch_seconds: float = 300.0


def collect_run(action: RunAction, options: CollectRunOptions) -> dict[str, Any]:
    if action.check_mode:
        return {"changed": False, "skipped": True}
    return RunCollection(action, options).collect(action.folder(options))


class RunCollection:
    #: StoreError after which the store is not read any more; None while it answers.
    error = None
    #: Whether the run was judged after its end.
    is_judged = False
    #: Whether the run's evidence may not change any more, since the run was judged.
    frozen = False
    #: Whether the run was imported anew: all of its evidence here is replaced by that in the store.
    renews = False
    #: Whether this controller may write into the run's folder in the store.
    publishes = True
    redaction = SecretRedactor()
    #: {node: {stage: digest of the record}} of the last verdict.
    judged: Mapping[str, Any] = MappingProxyType({})
    #: What the watch loop saved: versions of objects that it read, and their digests since the last collection.
    watched: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, action, options):
        self.action, self.options = action, options

    def collect(self, folder):
        folder.advance(run_state.COLLECTING)
        gangs, results = gang_document.read(folder), []
        self.publishes = not folder.is_imported
        verdict = publishing.judged(folder)
        self.is_judged = publishing.is_final(folder.read_run(), verdict)
        self.judged = verdict["evidence"] if verdict else {}
        self.redaction = SecretRedactor(job_secrets.hidden(self.options.store))
        try:
            access = open_store(self.options.store)
            self.store = access.store()
            if self.publishes:
                for line in access.guard(folder.read_run()["folder"], lambda: self.store)(time.monotonic()):
                    self.action.display.warning(line)
        except StoreError as error:
            self._without_store(folder, error)
        if gangs is not None and self.publishes and not self.error:
            self._publish_gangs(folder, gangs)
        for part in (folder, *gang_document.round_folders(folder, gangs)):  # a round is a run of its own
            try:
                results.append(self._collect_run(part))
            except (GpuvalError, OSError) as error:  # collect the others, and judge all
                if folder.is_imported:
                    raise
                reason = f"{evidence.NOT_COLLECTED} in {part.path}: {reason_of(error)}"
                folder.add_problems([{"node": None, "stage": None, "reason": reason}])
                self.action.display.warning(reason)
        gang_evidence.lay_out(folder, folder.read_run(), gangs)
        problems = [problem for _collected, part_problems in results for problem in part_problems]
        return {"changed": any(collected for collected, _problems in results), "problems": problems}

    def _collect_run(self, folder):
        self.run_folder, self.run_info = folder, folder.read_run()
        self.evidence = evidence.RunEvidence(launches=folder.read_launches())
        self.seen_file = self.run_folder.collected_file
        self.renews = folder.is_imported and not self.seen_file.exists()
        self.frozen = self.is_judged and not self.renews
        # {key: version} of the objects that the watch or a collection has read from the store
        self.memory_file = folder.state / MEMORY_FILE
        self.watched = watched = run_folder.read_object(self.memory_file)
        self.seen = {
            key: stamp
            for key, stamp in {**watched.get("seen", {}), **run_folder.read_object(self.seen_file)}.items()
            if (parts := self._parts_of(key)) and self._holds(*parts)
        }
        self.digests = {name: folder.read_digests(name) for name in self.run_info["nodes"]}
        for key in watched.get("digests", {}).keys() & self.seen.keys():
            kind, stage, node = self._parts_of(key)
            self.digests[node].read[f"{kind}/{stage}"] = watched["digests"][key]
        self.refused, self.unread, self.has_read = {}, {}, False
        self.collected, self.stored = 0, set()
        problems = folder.read_problems()
        lasting = [problem for problem in problems if not problem["reason"].startswith(evidence.NOTED_ANEW)]
        if lasting != problems and not self.frozen:  # a resumed run accepts later evidence
            run_folder.write_json(folder.problems_file, lasting)
        self._read_store()
        if self.renews:
            self._drop_gone()
        if self.options.fetch_tasks:
            lacking, deadline = self._lacking(), time.monotonic() + UPLOAD_SECONDS
            while not self.error and time.monotonic() < deadline:
                if all(folder.read_launch(name).get("store_reachable") is False for name in lacking):
                    break
                time.sleep(0.5)
                self._read_store()
                lacking = self._lacking()
            if lacking:
                self._fetch(lacking)
                self._read_store()
            if not (self.frozen or folder.is_imported):
                self._compare_digests()
        if not self.frozen:
            self._drop_altered()
            self._note_unread()
        self._remember()
        if self.publishes and not self.error:
            self._publish_evidence()
        return self.collected, self.evidence.problems

    def _read_store(self):
        try:
            if not self.error:
                self._from_store()
        except StoreError as error:
            self._without_store(self.run_folder, error)

    def _without_store(self, folder, error):
        """Continue without the store; for an imported run, which has no other source, raise the error."""
        if folder.is_imported:
            raise error
        self.error, (self.reason, steps) = error, unread.in_words(error, folder)
        self.action.display.warning(
            f"{evidence.UNREAD}: {self.reason}; judging what is here and what nodes answer: {steps}"
        )

    def _note_unread(self):
        """Add problems for evidence that the store did not give: if it failed, for the run and each stage without final
        record here; if only some objects were unreadable, for the run and the stages that lack them."""
        if not self.error:
            for error in list(self.unread.values())[:1]:
                first = unread.in_words(error, self.run_folder)[0]
                self.evidence.add_problem(f"{evidence.UNREAD}: {len(self.unread)} object(s): {first}")
            for (kind, stage, node), error in self.unread.items():
                if stage not in self.run_info["nodes"].get(node, {"stages": ()})["stages"]:
                    continue
                lacks = not self._holds(kind, stage, node)
                if kind == "records":
                    record, launch = self._document(node, stage, kind), self.run_folder.read_launch(node)
                    lacks = collecting.is_awaited(stage, record, launch)
                if lacks:
                    reason = f"{evidence.UNREAD}: {kind}: {unread.in_words(error, self.run_folder)[0]}"
                    self.action.display.warning(f"{node}: {stage}: {reason}")
                    self.evidence.add_problem(reason, node=node, stage=stage)
            return
        reason = f"{evidence.UNREAD}: {self.reason}"
        self.evidence.add_problem(reason)
        for name, expected in self.run_info["nodes"].items():
            launch = self.run_folder.read_launch(name)
            for stage in expected["stages"] if launch.get("state") in LAUNCHED else ():
                if collecting.is_awaited(stage, self._document(name, stage, "records"), launch):
                    self.evidence.add_problem(reason, node=name, stage=stage)

    def _remember(self):
        """Save which evidence was refused, then which objects were read: those are not read again."""
        try:
            self.run_folder.add_problems(self.evidence.problems)
            run_folder.write_json(self.seen_file, self.seen)
            for name, known in self.digests.items() if not self.frozen else ():
                if known != self.run_folder.read_digests(name):
                    run_folder.write_json(self.run_folder.digests_file(name), vars(known))
            if self.watched.get("digests") and not self.frozen:  # later digests in this file are then of a later watch
                self.watched = {**self.watched, "digests": {}}
                run_folder.write_json(self.memory_file, self.watched)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.action.display.warning(
                "the next collection reads all again: the disk of the results is full, free space"
            )

    def _holds(self, kind, stage, node):
        return evidence.is_whole(self.run_folder.evidence_file(node, stage, kind), kind, self.run_info["run_id"])

    def _from_store(self):
        entries = self.store.list(f"{self.run_info['folder']}/")
        listed = [(entry, parts) for entry in entries if (parts := self._parts_of(entry.key))]
        places = {entry.key: parts for entry, parts in listed}
        self.stored |= {*places.values()}
        changed = [
            entry
            for entry in self._within_quota(listed)
            if entry.stamp not in (self.seen.get(entry.key), self.refused.get(entry.key))
        ]
        remembered, in_a_row = time.monotonic(), []

        def note(entry, error):
            in_a_row.append(error)
            if self.run_folder.is_imported or len(in_a_row) == READERS:
                raise error
            self.unread[places[entry.key]] = error

        try:
            for entry, raw in read_all(
                self.store, changed, lambda entry: evidence.MAX_BYTES[places[entry.key][0]], note
            ):
                if raw is None:
                    continue
                if raw:  # an empty object can be read even if the store breaks off all others
                    in_a_row.clear()
                    self.has_read = True
                self.unread.pop(places[entry.key], None)
                collected = self._keep(entry.key, places[entry.key], raw)
                if collected is None:  # the next collection reads it again, and knows the reason
                    self._refuse(entry, places[entry.key])
                    continue
                self.collected += collected
                self.seen[entry.key] = entry.stamp
                self._note_digest(places[entry.key], raw, collected)
                if not self.renews and time.monotonic() - remembered >= REMEMBER_SECONDS:
                    self._remember()
                    remembered = time.monotonic()
            if in_a_row and not self.has_read:
                raise in_a_row[0]
        except StoreError:
            if not self.renews:
                self._remember()
            raise

    def _within_quota(self, listed):
        """The listed objects, without the largest logs and series of nodes that exceed their quota."""
        used, fitting = Counter(), []
        for entry, (kind, stage, node) in sorted(listed, key=lambda pair: (pair[1][0] != "records", pair[0].size)):
            used[node] += min(entry.size, evidence.MAX_BYTES[kind])
            if kind == "records" or used[node] <= evidence.MAX_NODE_BYTES:
                fitting.append(entry)
            elif self.refused.get(entry.key) != entry.stamp:
                self._refuse(entry, (kind, stage, node))
                reason = f"{kind} left out: the node has written more than {human_bytes(evidence.MAX_NODE_BYTES)}"
                self.evidence.add_problem(reason, node=node, stage=stage)
        return fitting

    def _keep(self, key, parts, raw, **how):
        """Write an object into the results as `_collect` does; if their disk is nearly full, only records."""
        kind, stage, node = parts
        try:
            if kind == "records" or shortage(self.run_folder.path) <= 0:
                return self._collect(key, parts, raw, **how)
        except OSError as error:
            if error.errno not in FULL:
                reason = f"{evidence.NOT_COLLECTED}: {kind}: {reason_of(error)}"
                self.evidence.add_problem(reason, node=node, stage=stage)
                return None
        self.evidence.add_problem(f"{kind} left in the store: the disk of the results is full", node=node, stage=stage)
        return None

    def _refuse(self, entry, parts):
        self.refused[entry.key] = entry.stamp
        self.seen.pop(entry.key, None)
        if self.renews:
            self._drop(parts)

    def _drop(self, parts):
        kind, stage, node = parts
        if stage in self.run_info["nodes"].get(node, {"stages": []})["stages"]:
            self.run_folder.evidence_file(node, stage, kind).unlink(missing_ok=True)

    def _drop_gone(self):
        """For a run imported again, delete local evidence that the store no longer has."""
        for node, expected in self.run_info["nodes"].items():
            for parts in itertools.product(evidence.MAX_BYTES, expected["stages"], [node]):
                if parts not in self.stored:
                    self._drop(parts)

    def _publish_gangs(self, folder, gangs):
        """Upload gangs.json again: the store may have been unreachable when the multi-node tests ended."""
        try:
            self.store.put(gang_document.key_of(folder.read_run()), json.dumps(gangs).encode(), "application/json")
        except StoreError as error:
            self.action.display.warning(f"the state of the gangs was not written to the store: {error}")

    def _publish_evidence(self):
        """Upload evidence that only this controller has: nodes' answers, refused evidence, logs that the store
        lacks."""
        run, folder, published = self.run_info, self.run_folder, set()
        try:
            for name, expected in run["nodes"].items():
                for stage in expected["stages"]:
                    path = folder.evidence_file(name, stage, "logs")
                    if ("logs", stage, name) not in self.stored and path.is_file():
                        key = object_key(run["folder"], "logs", stage, name)
                        self.store.put(key, path.read_bytes(), "text/plain; charset=utf-8")
                        published.add(key)
            if published:  # do not read these again: they came from the nodes themselves
                listed = self.store.list(f"{run['folder']}/logs/")
                self.seen |= {entry.key: entry.stamp for entry in listed if entry.key in published}
                self._remember()
            if document := run_folder.read_object(folder.watch_file):
                document = publishing.renewed(document, folder.read_launches(), folder.read_problems())
                publishing.DocumentPublisher(folder).publish(self.store, run, document, time.monotonic())
        except (StoreError, schemas.Invalid) as error:
            self.action.display.warning(f"what was collected here was not written to the store: {error}")

    def _lacking(self):
        """Nodes of this play that were launched and may have evidence that is missing here."""
        present, lacking = set(self.action.task_vars["ansible_play_hosts"]), []
        for name, expected in self.run_info["nodes"].items():
            launch = self.run_folder.read_launch(name)
            if name not in present or not launch.get("directory"):
                continue
            records = {stage: self._document(name, stage, "records") for stage in expected["stages"]}
            log_of, series_of = partial(self._log_end, name), partial(self._document, name, kind="series")
            if collecting.lacks(expected, records, log_of, series_of, launch):
                lacking.append(name)
        return lacking

    def _log_end(self, name, stage):
        path = self.run_folder.evidence_file(name, stage, "logs")
        if not os.access(path, os.R_OK) or not path.is_file():
            return None
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - 4 * collecting.TAIL_CHARACTERS))
            return stream.read().decode(errors="replace")

    def _document(self, name, stage, kind):
        return run_folder.read_object(self.run_folder.evidence_file(name, stage, kind)) or None

    def _compare_digests(self):
        """Ask nodes for the digests of their evidence, and replace evidence that differs by what they return."""
        refused = {node for kind, _stage, node in map(self._parts_of, self.refused) if kind == "records"}
        asked = {}
        for name in self.action.task_vars["ansible_play_hosts"]:
            known, launch = self.digests.get(name), self.run_folder.read_launch(name)
            has_open = known is not None and (known.has_open_keys or name in refused)
            if has_open and launch.get("directory") and not launch.get("contact"):
                asked[name] = {key: digest or digests.CUT for key, digest in known.read.items()}
        if not asked:
            return
        tasks, arguments = self._node_tasks()
        file, seconds = Path(self.options.fetch_tasks), self.options.fetch_seconds
        answers = {name: {"msg": "no answer in time"} for name in asked}
        until = time.monotonic() + seconds + COMPARE_SECONDS_A_NODE * len(asked)
        with closing(tasks):
            for name, read in asked.items():
                tasks.submit(name, "fetch", file, {**arguments, "read": read}, seconds)
            while tasks.busy and time.monotonic() < until:
                for outcome in tasks.wait(5):
                    answers[outcome.node] = {"msg": outcome.message, **(outcome.result or {})}
        self._read_store()  # evidence that was uploaded meanwhile
        silent = {name: answer["msg"] for name, answer in answers.items() if "stated" not in answer}
        for name in answers.keys() - silent.keys():
            self._take_stated(name, answers[name])
        if silent:
            self.action.display.warning(
                f"{len(silent)} node(s) did not confirm the digests of their evidence, which the report marks "
                f"{digests.STORE_ONLY!r}: {some_of(sorted(silent))}: {silent[min(silent)]}"
            )

    def _take_stated(self, name, answer):
        """Keep the digests that a node states, and the evidence that it returned because its digest differs."""
        known, stated = self.digests[name], answer["stated"]
        known.channel = digests.BY_NODE
        for key, text in answer["objects"].items():
            parts, raw = self._parts_of(key), base64.b64decode(text)
            kind, stage, _node = parts
            result, digest = f"{kind}/{stage}", digests.digest_of_bytes(raw, evidence.MAX_BYTES[kind])
            if digest not in stated.get(result, ()) or known.read.get(result) in stated[result]:
                continue
            altered = result in known.read and not answer["running"]
            kept = self._keep(key, parts, raw, altered=altered)
            if kept is None:
                continue
            self.collected += kept
            known.read[result] = digest
            if altered:
                self._report_altered(f"{kind} fetched from the node: {evidence.ALTERED}", name, stage)
        if answer["running"]:  # a running node has written more than it has uploaded
            stated = {result: values for result, values in stated.items() if known.read.get(result) in values}
        known.stated = stated

    def _drop_altered(self):
        """Delete evidence from the store whose digest differs from the one that its node states."""
        for name, known in self.digests.items():
            for result in [result for result in known.read if known.is_altered(result)]:
                kind, _, stage = result.partition("/")
                del known.read[result]
                self.seen.pop(object_key(self.run_info["folder"], kind, stage, name), None)
                self._drop((kind, stage, name))
                self._report_altered(f"{evidence.ALTERED}: {kind}", name, stage)

    def _report_altered(self, reason, name, stage):
        self.evidence.add_problem(reason, node=name, stage=stage)
        self.action.display.warning(f"{name}: {stage}: {reason}")

    def _parts_of(self, key):
        return evidence.parse_key(self.run_info["folder"], key)

    def _note_digest(self, parts, raw, is_new):
        """Keep the digest of evidence from the store: `raw` bytes of `parts` (kind, stage, node), `is_new` if this
        controller had no copy."""
        kind, stage, node = parts
        result, read = f"{kind}/{stage}", self.digests[node].read
        if is_new or read.get(result) != digests.BY_CHANNEL:  # otherwise the store has a copy of what the node returned
            read[result] = digests.digest_of_bytes(raw, evidence.MAX_BYTES[kind])

    def _node_tasks(self):
        """Workers for tasks on nodes, and the arguments that the tasks have in common."""
        tasks = NodeTasks(self.action, self.action.task_vars, min(context.CLIARGS.get("forks") or 5, MAX_WORKERS))
        path = self.run_folder.path
        return tasks, {"run_id": path.name, "results_dir": str(path.parent), "store": self.options.store}

    def _fetch(self, names):
        """Fetch missing evidence from these nodes directly, in parallel."""
        (tasks, arguments), fetches = self._node_tasks(), Counter()
        unread_nodes = {node for _kind, _stage, node in self.unread}
        by_store = {name: not self.error and name not in unread_nodes for name in names}

        def submit(name, *, not_uploaded=True):
            task_arguments = {**arguments, "by_store": by_store[name], "not_uploaded": not_uploaded}
            tasks.submit(name, "fetch", Path(self.options.fetch_tasks), task_arguments, self.options.fetch_seconds)

        with closing(tasks):
            for name in names:
                submit(name)
            while tasks.busy:
                for outcome in tasks.wait(5):
                    fetches[outcome.node] += 1
                    result = outcome.result or {}
                    if outcome.failed:
                        self.action.display.warning(
                            f"{outcome.node}: its evidence could not be fetched: {outcome.message}"
                        )
                    elif result.get("store_failed") and by_store[outcome.node]:
                        by_store[outcome.node] = False
                        submit(outcome.node)
                    elif result.get("more") and fetches[outcome.node] < MAX_FETCHES:
                        submit(outcome.node, not_uploaded=by_store[outcome.node])  # continues after what was returned
                    elif result.get("more"):
                        self.evidence.add_problem(LEFT_ON_NODE, node=outcome.node)
                    for problem in result.get("problems", ()):
                        self.evidence.add_problem(**problem)
                    for key, text in result.get("objects", {}).items():
                        parts = self._parts_of(key)
                        kept = self._keep(key, parts, base64.b64decode(text))
                        self.collected += bool(kept)
                        if kept is not None:
                            self.digests[outcome.node].channel = digests.BY_NODE
                            self.digests[outcome.node].read[f"{parts[0]}/{parts[1]}"] = digests.BY_CHANNEL

    def _collect(self, key, parts, raw, *, altered=False):
        """Write an object from the store or a node into the results. ``parts``: (kind, stage, node); ``raw``: its
        bytes; ``altered``: it replaces an altered one. Returns whether results changed; None if refused or outdated."""
        kind, stage, node = parts
        if kind == "records":
            self.evidence.records.get(node, {}).pop(stage, None)  # the record in the results counts
            record = evidence.take_record(self.evidence, self.run_info, key, raw)
            if record is None:
                return None
            path = self.run_folder.evidence_file(node, stage)
            before, written = run_folder.read_object(path) if self._holds(*parts) else None, evidence.as_written(record)
            if before and not altered and evidence.is_stale(record, before):
                return None  # its digest must not be noted: the file here is newer
            if self.frozen and written != before and evidence.digest_of(record) != self.judged.get(node, {}).get(stage):
                late = before is None or before["state"] not in FINAL_STATES
                self.evidence.add_problem(evidence.LATE if late else evidence.CHANGED, node=node, stage=stage)
                return None
            try:
                evidence.check_attempts(record, before)
            except evidence.EvidenceRefused as refusal:
                self.evidence.add_problem(f"record refused: {refusal}", node=node, stage=stage)
                return None
            if written != before:  # the file's time stays that of the record's arrival
                run_folder.write_json(path, written)
            return written != before
        if stage not in self.run_info["nodes"].get(node, {"stages": []})["stages"]:
            self.evidence.add_problem(f"an object that is not expected: {key}")
            return None
        path = self.run_folder.evidence_file(node, stage, kind)
        if self.frozen and self._holds(*parts):
            return False
        if kind == "logs":
            text = raw[: evidence.MAX_LOG_BYTES].decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
            text = "\n".join(map(clean_text, text.removesuffix("\n").split("\n")))  # other separators hide a secret
            run_folder.write_bytes(path, (self.redaction(text) + "\n").encode())
            return True
        try:
            series = evidence.accept_series(raw, run_id=self.run_info["run_id"], node=node, stage=stage)
        except evidence.EvidenceRefused as refusal:
            self.evidence.add_problem(f"series refused: {refusal}", node=node, stage=stage)
            return None
        run_folder.write_json(path, series)
        return True
