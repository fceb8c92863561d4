"""Build a node's plan, sign the URLs of its objects in the store, and send both to the node by one call."""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ansible import constants
from ansible.errors import AnsibleConnectionFailure, AnsibleError, AnsibleValueOmittedError

from ...module_utils.store import StoreError
from ..artifacts import images
from ..core import schemas
from ..core.errors import GpuvalError
from ..core.escape import one_line
from ..core.paths import project_path
from ..gang import keys
from ..records import evidence, launch_errors
from ..records.documents import LAUNCHED
from ..records.evidence import EvidenceRefused
from ..runs import folder as run_folder
from ..runs import plans
from ..runs.action import RunAction, RunOptions
from ..ssh import node_program
from ..watch import launch_inputs
from ..watch.decisions import keep_started
from ..watch.launch_inputs import ProbeOptions

#: Options of the step that a plan has unchanged.
COPIED = ("heartbeat_seconds", "runtime", "python", "container", "telemetry_seconds")
#: Values of ansible_python_interpreter for an interpreter that is still to be discovered.
DISCOVERED = ("auto", "auto_silent", "auto_legacy", "auto_legacy_silent")


class LaunchOptions(RunOptions, ProbeOptions):
    directory: str = ""
    #: Start even if another run is active on the node, or other processes use its accelerators.
    force: bool = False
    #: The run (gpuval.run/1) in check mode, which writes no run.json.
    run: Mapping[str, Any] = field(default_factory=dict)
    #: Declarations of stages (workloads) by name.
    workloads: Mapping[str, Any]
    runtime: str = "auto"
    #: Python of stages that run on the host.
    python: str = "python3"
    models_dir: str = ""
    heartbeat_seconds: float = 10.0
    #: Seconds between two samples of telemetry; 0 takes none.
    telemetry_seconds: float = 1.0
    #: Deadline of the plan; 0 is that of the run.
    deadline_seconds: float = 0.0
    container: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    #: Stages of an attempt after the first.
    stages: Sequence[str] = ()


def launch_plan(action: RunAction, options: LaunchOptions) -> dict[str, Any]:
    node = action.task_vars["inventory_hostname"]
    folder = action.folder(options)
    if action.check_mode:
        plan = _plan(action, folder, options.run, node, options)
        diff = {"before": "", "after": launch_inputs.shown(plan), "after_header": node}
        return {"changed": True, "plan": plan, "diff": diff}
    run, earlier_launch = folder.read_run(), folder.read_launch(node)
    if earlier_launch.get("attempt", 1) > options.attempt:  # a controller that resumes the run starts at 1 again
        options = replace(options, attempt=earlier_launch["attempt"], stages=earlier_launch["stages"])
    launch = {"node": node, "attempt": options.attempt, "stages": options.stages, "at": run_folder.now()}
    try:
        plan = _plan(action, folder, run, node, options)
    except GpuvalError as error:
        folder.write_launch(node, {**launch, "state": "failed", "message": str(error)})
        raise
    launch["nonce"] = folder.read_plan(node).get("nonce", "")
    away = launch_inputs.still_unreachable(folder, node, options, action.task_vars, action.connection)
    if away:
        launch |= away
    else:
        launch["host_key"] = launch_inputs.host_key(folder, node)
        launch = _launch(action, folder, run, launch, plan, options)
    python = launch.pop("found_python", "")  # the node's Python, from its answer
    launch = launch_errors.described({**launch, "message": one_line(launch["message"], 4000)})
    launch = keep_started(earlier_launch, launch)
    folder.write_launch(node, launch)
    if launch["state"] not in LAUNCHED:
        action.display.warning(f"{node}: not started ({launch['state']}): {launch['message']}")
    elif launch["at"] == earlier_launch.get("at"):
        action.display.warning(f"{node}: {launch['message']}")
    result = {"changed": launch["state"] == "started", "launch": launch, "msg": launch["message"]}
    if python:  # a fact, as modules return it, saves later tasks the search
        result["ansible_facts"] = {"discovered_interpreter_python": python}
    return result


def _plan(action, folder, run, node, options):
    """Return a node's plan. That of the first attempt stays once it is on the node; a later attempt is a part of it."""
    path = folder.plan_file(node)
    refused = folder.read_launch(node).get("state") == "refused"  # settings may have been fixed since
    if options.attempt > 1 or (path.exists() and not refused):
        plan = folder.read_plan(node)
        return plans.for_attempt(plan, options.stages, options.attempt) if options.attempt > 1 else plan
    expected = run["nodes"][node]
    before = folder.read_plan(node) if path.exists() else {}
    plan = plans.build(
        plans.PlanSettings.of(
            run,
            node,
            created_at=run_folder.now(),
            deadline_seconds=options.deadline_seconds or run["deadline_seconds"],
            **{name: getattr(options, name) for name in COPIED},
            models_dir=options.models_dir or None,
            gives_way=bool(run.get("only_idle")),
            **({"nonce": before["nonce"]} if before.get("nonce") else {}),  # the node may have it already
        ),
        expected["stages"],
        launch_inputs.with_needed_packages(expected, options.workloads),
        images=_images(options, expected["stages"]),
    )
    schemas.validate("plan", plan, what=f"plan of {node}")
    if not action.check_mode:
        run_folder.write_json(path, plans.without_members(plan))
    return plan


def _launch(action, folder, run, launch, plan, options):
    """Launch a plan on its node; return `launch` (a document of the run's folder) with state, message and answer."""
    node = launch["node"]
    names = [stage["name"] for stage in folder.read_plan(node)["stages"]]
    try:
        store = launch_inputs.NodeStore.of(options.store, run, action._connection.transport)
        seconds_left = options.deadline_seconds or float(run["deadline_seconds"])
        store_inputs = {**store.given(node, names, seconds_left), "folders": store.sizes(launch_inputs.folders(plan))}
        store_inputs["secrets"] = store.secrets(plan)
        if store.reachable and images.archives(plan.get("images", {})):
            store_inputs["store"]["downloads"] = images.signed_downloads(
                store.client, plan["images"], seconds_left + launch_inputs.SIGNED_SLACK_SECONDS
            )
    except plans.PlanError as error:
        return {**launch, "state": "refused", "message": str(error)}
    except StoreError as error:
        return {**launch, "state": "failed", "message": f"the store cannot be used: {error}"}
    arguments = {
        "directory": options.directory,
        "plan": plans.with_members(plan, run),
        "controller": launch_inputs.controller_name(),
        **store_inputs,
        "keys": keys.files_for(folder, node),
        "requirements": launch_inputs.requirements(run["nodes"][node], options.workloads, options.runtime)
        if plan["attempt"] == 1  # later attempts need not try them again
        else [],
        "force": options.force,
    }
    try:
        outcome = _on_node(action, arguments)
    except AnsibleError as error:  # such as the connection, become, the interpreter or a temporary folder
        kind = "unreachable" if isinstance(error, AnsibleConnectionFailure) else "failed"
        outcome = {kind: True, "msg": str(error.message)}
    if outcome.get("unreachable"):
        return {**launch, "state": "unreachable", "message": str(outcome.get("msg", "unreachable"))}
    if outcome.get("failed"):
        message = f"{outcome.get('msg', 'the launch failed')} {outcome.get('module_stderr') or ''}".strip()
        return {**launch, "state": "failed", "message": message}
    try:
        answer = evidence.accept_answer("launch_answer", outcome)
    except EvidenceRefused as refusal:
        return {**launch, "state": "failed", "class": "bad_answer", "message": str(refusal)}
    launch = {**launch, **answer["launch"], "directory": answer["directory"], "runner": "alive"}
    launch["found_python"] = answer.get("python", "")
    if not store.reachable:  # the node writes nothing; its records are fetched
        return {**launch, "store_reachable": False}
    if launch.get("store_reachable") is False and store.access.firewall_hint():
        launch["message"] = f"{launch['message']}; {store.access.firewall_hint()}"
    return launch


def _on_node(action, arguments):
    """Launch over the standard input of the node's Python, or as a module where the connection takes no input."""
    task_vars = action.task_vars
    takes_input = action._is_pipelining_enabled("new") and action._connection._shell.SHELL_FAMILY == "sh"
    if not takes_input:  # either way the answer is checked by its schema
        return action.execute_on_node("launch_plan", {**arguments, **launch_inputs.encoded_archives()})
    interpreter = _interpreter(action, task_vars)
    candidates = constants.config.get_config_value("INTERPRETER_PYTHON_FALLBACK", variables=task_vars)
    command = node_program.command(interpreter, candidates)
    environment = action._compute_environment_string()
    if environment:
        command = f"export {environment}; {command}"
    stream = node_program.data(arguments, **launch_inputs.archives())
    outcome = action._low_level_execute_command(command, sudoable=True, in_data=stream)
    return node_program.answer(outcome["rc"], outcome["stdout"], outcome["stderr"], interpreter)


def _interpreter(action, task_vars):
    """Return the Python that is configured for the node or was discovered before; empty if it must be discovered."""
    configured = constants.config.get_config_value("INTERPRETER_PYTHON", variables=task_vars)
    try:  # the variable may be a template
        interpreter = str(action._templar.template(configured) or "").strip()
    except AnsibleValueOmittedError:
        interpreter = ""
    if interpreter and interpreter not in DISCOVERED:
        return interpreter
    return str((task_vars.get("ansible_facts") or {}).get("discovered_interpreter_python") or "")


def _images(options, stages):
    """Return the images of a plan's stages by reference, each with the source from which the node gets it."""
    by_stage = {stage: options.workloads[stage].get("image") for stage in stages if stage in options.workloads}
    plans.check_images(options.runtime, by_stage)
    references = list(by_stage.values())
    if not any(references) and plans.IMAGE not in stages:
        return {}
    catalogue = images.read_catalogue(project_path(options.store["state_dir"]))
    return images.image_plan(options.images, options.runtime, catalogue, references)
