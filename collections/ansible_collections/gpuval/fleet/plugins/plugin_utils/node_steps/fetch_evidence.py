"""Fetch results that a node could not upload, and put them into the store in its place, or return them."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gpuval.fleet.node.gpuval_workloads.common.units import human_bytes

from ...module_utils.store import StoreError
from ..core.escape import one_line
from ..core.step_options import StoreOptions
from ..records import evidence, launch_errors
from ..records.evidence import MAX_NODE_BYTES, MAX_RECORD_BYTES, EvidenceRefused, object_key
from ..runs import folder as run_folder
from ..runs.action import RunAction, RunOptions
from ..store.access import open_store

#: Maximum number of a node's answers, of `limit_bytes` each, that one task asks for.
MAX_ROUNDS = 25
CONTENT_TYPES = {"records": "application/json", "series": "application/json", "logs": "text/plain; charset=utf-8"}


class FetchEvidenceOptions(RunOptions):
    store: StoreOptions
    #: Fetch only results that never reached the store.
    not_uploaded: bool = False
    #: Put fetched results into the store. Otherwise return by key what is new since the last fetch, or with
    #: `not_uploaded` all.
    by_store: bool = True
    #: Digests by key of results read from the store: return the node's results that differ, and all its digests.
    read: Mapping[str, Any] | None = None


def fetch_evidence(action: RunAction, options: FetchEvidenceOptions) -> dict[str, Any]:
    node = action.task_vars["inventory_hostname"]
    folder = action.folder(options)
    launch = folder.read_launch(node)
    if action.check_mode or not launch.get("directory"):
        return {"changed": False, "skipped": True, "msg": "the node has no plan of this run"}
    try:
        return fetch_launched(action, folder, node, launch, options)
    except StoreError as error:  # the evidence stays on the node, and is asked for again
        action.display.warning(f"{node}: its evidence could not be put into the store: {error}")
        return {"changed": False, "fetched": [], "msg": str(error), "store_failed": True}


def fetch_launched(action, folder, node, launch, options):
    """Fetch from a node the results that its launch left there. Raises StoreError."""
    run = folder.read_run()
    compares = options.read is not None
    by_store, returned = options.by_store and not compares, {}
    store = open_store(options.store).store() if by_store else None
    fetched_file = folder.state / ("fetched" if by_store else "returned") / f"{node}.json"
    digests = run_folder.read_json_or({}, fetched_file) if by_store or not options.not_uploaded else {}
    digests = dict(options.read) if compares else digests
    answer, fetched, problems, size = {}, [], [], 0

    def add_problem(reason, stage=None):
        problems.append({"node": node, "stage": stage, "reason": reason})
        action.display.warning(f"{node}: {stage or 'all stages'}: {reason}")

    for _round in range(MAX_ROUNDS):
        answer = _ask(action, launch["directory"], digests, options)
        if "error" in answer and compares:
            return {"changed": False, "msg": answer["error"]}
        if "error" in answer:
            contact = launch_errors.contact(answer["error"], launch.get("contact"))
            folder.write_launch(node, {**launch, "contact": contact})
            action.display.warning(f"{node}: its evidence could not be fetched: {answer['error']}")
            break
        for name, item in answer["files"].items():
            kind, _, stage = name.partition("/")
            if kind in CONTENT_TYPES and stage in run["nodes"][node]["stages"]:
                key = object_key(run["folder"], kind, stage, node)
                try:
                    data = base64.b64decode(item["base64"], validate=True)
                except ValueError:
                    data = None
                size += len(data or b"")
                if data is None:
                    subject = "record refused" if kind == "records" else f"{kind} left out"
                    add_problem(f"{subject}: the node's answer is not base64", stage)
                elif kind != "records" and size > MAX_NODE_BYTES:
                    add_problem(f"{kind} left out: the node sent more than {human_bytes(MAX_NODE_BYTES)}", stage)
                elif by_store:  # unchecked, as the node itself would have written it: readers of the store check it
                    if kind != "records" or not _is_newer(store, key, data):
                        store.put(key, data, CONTENT_TYPES[kind])
                else:
                    returned[key] = item["base64"]
            digests[name] = item["digest"]
            fetched.append(name)
        if by_store:
            run_folder.write_json(fetched_file, digests)
        if not answer["more"]:
            break
    result = {"changed": bool(fetched), "fetched": fetched, "objects": returned, "problems": problems}
    result["more"] = bool(answer.get("more"))
    if compares:
        return {**result, "running": answer["running"], "stated": answer.get("digests", {})}
    if not by_store:  # what a fetch that is broken off would return is fetched again
        run_folder.write_json(fetched_file, digests)
    if "error" in answer:
        return {**result, "msg": answer["error"]}
    launched = {**launch, "runner": "alive" if answer["running"] else "gone"}
    launched.pop("contact", None)
    ended = one_line(answer.get("ended", ""), 500)
    if ended and ended != launch.get("ended"):
        action.display.warning(f"{node}: its runner is gone: {ended}")
    launched["ended"] = ended
    folder.write_launch(node, launched)
    return {**result, "running": answer["running"]}


def _ask(action, directory, digests, options):
    not_uploaded = options.not_uploaded and options.by_store
    try:
        answer = action.ask_node(
            "fetch_evidence", {"directory": directory, "since": digests, "not_uploaded": not_uploaded}
        )
    except AnsibleError as error:
        return {"error": str(error.message)}
    if answer.get("failed") or answer.get("unreachable"):
        return {"error": str(answer.get("msg"))}
    try:
        return evidence.accept_answer("fetch_answer", answer)
    except EvidenceRefused as refusal:
        return {"error": str(refusal)}


def _is_newer(store, key, data):
    """Whether the store has a later record at `key` than the fetched `data`, which the node uploaded meanwhile."""
    raw = store.get_if_there(key, max_bytes=MAX_RECORD_BYTES)
    if raw is None:
        return False
    try:
        return str(json.loads(raw)["updated_at"]) > str(json.loads(data)["updated_at"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
