"""Make the customer's copy of a run (delivery), and send it to its destination."""

import os
from typing import Any, Literal

from ...module_utils.store import Connection
from ..core.errors import disk_problem
from ..core.paths import project_path
from ..core.step_options import StoreOptions
from ..core.text import some_of
from ..core.urls import in_clear
from ..delivery import DeliveryError, build, destination
from ..internal_data import scan
from ..runs import folder as run_folder
from ..runs import node_ids, overview, site_names
from ..runs.action import RunAction, RunOptions
from ..runs.node_ids import MAX_SHOWN


class DeliverRunOptions(RunOptions):
    name: str = ""
    format: Literal["folder", "tar.gz", "zip"] = "folder"
    unmapped: Literal["fail", "keep"] = "fail"
    destination: str = ""
    s3_endpoint: str = ""
    s3_region: str = "us-east-1"
    s3_access_key: str = ""
    s3_secret_key: str = ""
    s3_session_token: str = ""
    s3_ca_file: str = ""
    store: StoreOptions


def deliver_run(action: RunAction, options: DeliverRunOptions) -> dict[str, Any]:
    folder = action.folder(options)
    run = folder.read_run()
    if not (folder.path / "report.json").exists() and run_folder.is_open(run):
        raise DeliveryError(overview.without_verdict(folder, run))
    name = options.name or run["run_id"]
    if node_ids.unsafe(name):
        raise DeliveryError(f"delivery_name {name!r} {node_ids.unsafe(name)}")
    hosts = site_names.hosts_of(run["nodes"], action.task_vars)
    variables = site_names.variables_of(hosts)
    reader = node_ids.NodeIdReader(project_path)
    mappings = [reader(values.get("gpuval_node_ids")) for values in variables.values()]
    mapping = node_ids.merged({id(mapping): mapping for mapping in mappings}.values())
    # nodes that the mapping lacks now keep their id from the start of the run
    earlier = {name: node["id"] for name, node in run["nodes"].items() if node.get("id") and name not in mapping}
    mapping, nodes = node_ids.merged([mapping, earlier]), run["nodes"].keys()
    unmapped, unknown = [name for name in nodes if name not in mapping], sorted(mapping.keys() - nodes)
    mapped = {name: mapping[name] for name in nodes if name in mapping}
    ids = _ids(action, mapped, unmapped, unknown, keeps_names=options.unmapped == "keep")
    sensitive = site_names.sensitive_of(variables, options.store)
    sensitive.add_plan(run)
    sensitive.secrets |= {options.s3_access_key, options.s3_secret_key, options.s3_session_token} - {""}
    sensitive.add_variables("", {"gpuval_s3_endpoint": options.s3_endpoint})
    target_place = destination.parse(options.destination) if options.destination else None
    connection = _connection(action, options, target_place) if target_place and target_place[0] == "s3" else None
    targets = scan.read_targets(run, hosts, {**vars(options), "store": dict(options.store)}, os.environ)
    request = build.Request(folder, name, options.format, ids, targets)
    result = {"path": str(request.target), "unmapped": unmapped, "unknown": unknown}
    if action.check_mode:
        report = run_folder.read_report(folder)
        build.check(request, sensitive)
        action.display.display(_verdict(run, report))
        message = f"check mode: nothing is written; {len(ids)} nodes would go into {request.target}"
        return {**result, "changed": not request.target.exists(), "msg": message}
    try:
        built = build.build(request, sensitive, action.display.display)
        source = built.path if request.form == "folder" else built.path.parent
        below = request.name if request.form == "folder" else ""
        sent = None
        if target_place and connection is not None:
            target = "/".join(part for part in (target_place[2], below) if part)
            sent = destination.send(connection, source, built.files, target, action.display.display)
        elif target_place:
            sent = destination.send_to_folder(built.path, source, built.files, project_path(target_place[1]) / below)
    except OSError as error:
        folders = {"gpuval_results_dir": folder.results}
        if target_place and target_place[0] == "folder":
            folders["delivery_destination"] = project_path(target_place[1])
        problem = disk_problem(error, folders) or f"the delivery could not be written: {error}"
        raise DeliveryError(problem) from None
    lines = _summary(unmapped, unknown, ids, built, sent, options.destination)
    lines.insert(1, _verdict(run, run_folder.read_report(folder)))
    action.display.display(*lines)
    return {
        **result,
        "changed": built.changed or bool(sent and sent.sent),
        "files": len(built.files),
        "bytes": built.bytes,
        "sent": sent.sent if sent else 0,
        "there": sent.there if sent else 0,
        "msg": lines[0],
    }


def _ids(action, mapped, unmapped, unknown, *, keeps_names):
    """{node: id in the delivery}. Raises DeliveryError for nodes without id, unless they keep their names."""
    if unknown:
        action.display.warning(f"gpuval_node_ids names workers that are not in the run: {some_of(unknown, MAX_SHOWN)}")
    if not unmapped:
        return mapped
    names = some_of(unmapped, MAX_SHOWN)
    if not keeps_names:
        raise DeliveryError(
            f"{len(unmapped)} node(s) without a unique id: {names}. Add them to the mapping in gpuval_node_ids, or set "
            "delivery_unmapped=keep to deliver them under their own names"
        )
    action.display.warning(f"delivered under their own names, without unique ids: {names}")
    return node_ids.checked([*mapped.items(), *zip(unmapped, unmapped)], "unique ids and names that are kept")


def _connection(action, options, target_place):
    """The S3 connection to a destination. Raises DeliveryError if its keys are those of the run's store."""
    run_secrets = site_names.secrets_of_store(project_path(options.store["state_dir"]) / "store")
    if options.s3_secret_key and options.s3_secret_key in {options.store["secret_key"], *run_secrets}:
        raise DeliveryError(
            "delivery_s3_secret_key is that of the run's store: use the destination's own keys, so that "
            "readers of deliveries cannot write evidence"
        )
    if in_clear(options.s3_endpoint):
        action.display.warning(
            f"delivery_s3_endpoint {options.s3_endpoint} has no TLS: the delivery crosses the network in "
            "clear. Use https://, with delivery_s3_ca_file for a certificate of your own."
        )
    names = ("endpoint", "access_key", "secret_key", "session_token", "ca_file")
    values = {name: getattr(options, f"s3_{name}") or None for name in names}
    connection = Connection(bucket=target_place[1], region=options.s3_region, **values)
    destination.check_keys(connection)
    return connection


def _verdict(run, report):
    """A line with the verdict of a run, since a run need not have passed to be delivered."""
    counts = ", ".join(f"{report['counts'][word]} {word}" for word in ("PASS", "FAIL", "INCOMPLETE"))
    open_still = ", which has not ended" if run["finished_at"] is None else ""
    return f"- verdict of run {run['run_id']}{open_still}: {report['verdict']} ({counts})"


def _summary(unmapped, unknown, ids, built, sent, where):
    lines = [f"delivery of {len(ids)} nodes: {built.path}{'' if built.changed else ' (unchanged)'}"]
    lines.append(f"- {len(built.files)} file(s), {built.bytes / 1e6:.2f} MB")
    names = {
        "under their own names": unmapped,
        "in the mapping but not in the run": unknown,
        "common words, converted as names of nodes but kept in running text": built.ordinary,
    }
    lines += [f"- {what}: {some_of(listed, MAX_SHOWN)}" for what, listed in names.items() if listed]
    if built.own_terms:
        lines.append(
            f"- {built.own_terms} secret(s) of yours are words of gpuval's own files: redacted in logs, but not "
            "scanned for; use other secrets"
        )
    if built.within:
        parts = [f"{name} ({count})" for name, count in sorted(built.within.items())]
        lines.append(f"- kept within longer words, or names that only their nodes gave: {some_of(parts, MAX_SHOWN)}")
    if sent:
        lines.append(f"- {where}: {sent.sent} file(s) sent, {sent.there} already there")
    return lines
