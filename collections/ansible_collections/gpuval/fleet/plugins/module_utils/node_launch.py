"""The launch on the node: writes a run's files, unless other work is active, and starts the runner. It arrives in the
runner's zip application over the standard input of a Python (`main`), which costs less than a module, or as a module
(step `launch_plan`) where a connection or an escalation accepts no such input."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from . import requirement_trial
from .engines import of_runtime
from .hardware.tools import toolbox
from .hardware.tree import Tree
from .hardware.users import accelerator_users, foreign_runs
from .node_directory import (
    KEYS,
    PRIVATE_PREFIXES,
    SECRETS,
    NodeError,
    base_directory,
    inherited,
    make_private,
    names_in_run,
    one_launch_at_once,
    read_document,
    runs_at_work,
    within,
    workload_python,
    write_private,
)

#: Start of the line of standard output that has the launch's answer: a login may print other lines.
ANSWER = "gpuval-launch: "
#: Time limit of the whole launch on the node; the runner itself answers within seconds. Shorter than the controller's
#: run_launch_seconds, which includes the connection: otherwise the node's message about what hangs would be lost.
LAUNCH_SECONDS = 140
OLDEST_PYTHON = (3, 9)
#: Exit code of a scheduler's job whose node refused the plan.
REFUSED = 96
JOB_FETCH_BYTES = 1 << 20
MOST_NAMED = 8
#: Messages say what is wrong; the remedy of their failure class (failures/launch.yml) says what to do.
IN_THE_WAY = "others use this node's accelerators or run here: {named}"
BUSY = "run {run} is at work on this node{holder}"
TWICE = "this machine is in this run already, as {name}: one machine is listed twice"

#: Time limit of the trial of what stages need: imports may come from a slow shared file system.
TRIAL_SECONDS = 90
TRIALS_AT_ONCE = 4
#: Levels of hidden folders that the home of a trial has as real folders, not as links: programs create folders there.
MIRRORED_LEVELS = 2
MAX_SETTINGS_BYTES = 65536
CACHES = (".cache", ".nv", ".triton")
ENGINE_SECONDS = 30
NO_ENGINE = "no container engine for the plan's images: {problems}"
#: Start of a message; the remedy of the failure class no_package, or of doctor, follows.
LACKING = "stages need what this node lacks: {lacks}"
NO_PYTHON = "{python} of gpuval_workload_python, which cannot be started ({why})"
#: Bytes for logs and records, beside images and models.
SPARE_BYTES = 256 << 20
NO_SPACE = (
    "the node lacks space: its plan loads {needed:.2f} GB into {place}, where {free:.2f} GB are free, and logs and "
    "records need {spare:.2f} GB"
)


def place(parameters, runner, workloads):
    """Write a run's files on the node: plan, store file, and the zip files `runner` and `workloads` (bytes). Returns
    the run's folder. `parameters`: of a launch, as `main` reads them."""
    plan = parameters["plan"]
    directory = base_directory(parameters["directory"]) / plan["run_id"] / plan["node"]
    for folder in (directory.parents[1], directory.parent, directory):
        make_private(folder)
    files = {"runner.pyz": runner, "workloads.zip": workloads, "store.json": json.dumps(parameters["store"]).encode()}
    texts = {"controller": parameters.get("controller"), "ca.pem": parameters["ca"]}
    texts["rclone.conf"] = parameters["rclone_config"]
    files |= {name: text.encode() for name, text in texts.items() if text}
    if attempt_of(read_document(directory / "plan.json")) < plan["attempt"]:
        files["plan.json"] = json.dumps(plan, indent=1).encode()  # a plan under way is not replaced by the same plan
    keys = parameters.get("keys") or {}
    if keys:
        make_private(directory / KEYS)
        files |= {f"{KEYS}/{name}": text.encode() for name, text in keys.items()}
    for stage, values in (parameters.get("secrets") or {}).items():
        record = read_document(directory / "records" / f"{stage}.json")
        if not record.get("finished_at") or attempt_of(record) < plan["attempt"]:  # a finished stage needs no secrets
            make_private(directory / SECRETS)
            files[f"{SECRETS}/{stage}.json"] = json.dumps(values).encode()
    for name, data in files.items():
        write_private(directory / name, data)
    return directory


def launch(parameters, runner, workloads, start=None):
    """Start a plan on this node unless other work is active. Returns the run's folder, the refusal (empty if none), and
    the answer of `start`, a function that gets the folder."""
    base, plan = base_directory(parameters["directory"]), parameters["plan"]
    with one_launch_at_once(base):
        plan["python"] = workload_python(plan["python"], base)
        refusal = ({} if parameters["force"] else in_the_way(parameters)) or lacking(parameters)
        refusal = refusal or without_engine(parameters) or without_space(parameters)
        if refusal:
            return "", refusal, {}
        directory = place(parameters, runner, workloads)
        return str(directory), {}, (start or start_runner)(directory)


def runner_in(directory):
    """Make the runner in `directory` importable in this process, and remove secrets from the environment."""
    for name in [name for name in os.environ if name.startswith(PRIVATE_PREFIXES)]:
        del os.environ[name]
    os.umask(0o077)
    sys.path.insert(0, str(directory / "runner.pyz"))


def attempt_of(document):
    """Return the attempt in a plan or record on the node, 0 if it names none: a stage may have changed the file."""
    attempt = document.get("attempt")
    return attempt if isinstance(attempt, int) else 0


def start_runner(directory):
    """Start the runner in `directory` by a call within this process, which `within` made for the launch: a new Python
    would load everything again. Returns the answer of the command `start`."""
    runner_in(directory)
    from gpuval_runner import errors, layout, start  # noqa: PLC0415 - the archive has just been written

    try:
        return start.start(layout.NodeDirectory(directory))
    except errors.RunnerError as error:
        raise NodeError(f"the runner did not start: {error}") from error


def in_the_way(parameters):
    """Return why the launch is refused, `message` and maybe `class`, if other work uses this machine; empty if none."""
    run_id = parameters["plan"]["run_id"]
    base = base_directory(parameters["directory"])
    for run, holder in (runs_at_work(base, run_id) if base.is_dir() else {}).items():
        return {"message": BUSY.format(run=run, holder=holder)}
    names = names_in_run(base, run_id, parameters["plan"]["node"])
    if names:
        return {"class": "same_machine_twice", "twin": names[0], "message": TWICE.format(name=names[0])}
    run = toolbox()
    users = [] if parameters["plan"]["accelerator"]["vendor"] == "cpu" else accelerator_users(Tree(), run, run_id)
    work = [str(user) for user in users] + foreign_runs(run, run_id)
    more = f" and {len(work) - MOST_NAMED} more" if len(work) > MOST_NAMED else ""
    return {"message": IN_THE_WAY.format(named=", ".join(work[:MOST_NAMED]) + more)} if work else {}


def lacking(parameters):
    """Return the refusal because stages need packages or commands that this node lacks; empty if it lacks none."""
    trials, python = parameters.get("requirements"), parameters["plan"]["python"]
    if not trials:
        return {}
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - a launch without trials must not import it

    deadline = time.monotonic() + TRIAL_SECONDS
    with ThreadPoolExecutor(TRIALS_AT_ONCE) as pool:
        lacks = pool.map(lambda trial: _lacks_of(trial, python, deadline), trials)
    stages_of = {}
    for what, stages in chain.from_iterable(lacks):
        stages_of.setdefault(what, []).extend(stages)
    if not stages_of:
        return {}
    names = list(dict.fromkeys(chain.from_iterable(stages_of.values())))
    by_need = ((what, list(dict.fromkeys(stages))) for what, stages in stages_of.items())
    text = "; ".join(f"{', '.join(stages)} need{'s' if len(stages) == 1 else ''} {what}" for what, stages in by_need)
    return {"class": "no_package", "lacking_stages": names, "message": LACKING.format(lacks=text)}


def _lacks_of(trial, python, deadline):
    """Try on the node, until `deadline` (monotonic), what stages need. Return what is missing: pairs of a text and the
    stages that need it. Files that the trial writes are removed."""
    folder = tempfile.mkdtemp(prefix="gpuval-trial-")
    try:
        mirror(Path("~").expanduser(), Path(folder, "home"), MIRRORED_LEVELS)
        return _lacks_in(folder, trial["needs"], python if trial["in_python"] else sys.executable, trial, deadline)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lacks_in(folder, needs, python, trial, deadline):
    """Return what `_lacks_of` does, from a trial with `folder` as working directory and `home` in it as HOME."""
    source = requirement_trial.__loader__.get_source(requirement_trial.__name__)
    private = {"HOME": f"{folder}/home", "TMPDIR": folder, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [python, "-c", source, json.dumps(needs)],
            env={**inherited(os.environ), **private, **trial["environment"]}, cwd=folder,
            capture_output=True, text=True, timeout=max(1, deadline - time.monotonic()), check=False,
        )  # fmt: skip
        reasons = json.loads(done.stdout.rstrip().rpartition("\n")[2]) if done.returncode == 0 else []
    except OSError as error:
        stages = [stage for need in needs for stage in need["stages"]]
        return [(NO_PYTHON.format(python=python, why=error.strerror), stages)]
    except (subprocess.TimeoutExpired, ValueError):  # the stages that need this Python will report its fault
        return []
    return [
        (f"{readable(need)} ({reason}: {_install(need, python)})", need["stages"])
        for need, reason in zip(needs, reasons)
        if reason
    ]


def mirror(source, folder, levels):
    """Make `folder` a view of the home `source` without caches: a trial needs the programs and settings there. Hidden
    folders are made anew with their content, `levels` deep, and small hidden files are copied; all else are links. So
    what programs write changes `source` only below these links."""
    folder.mkdir()
    entries = []
    with contextlib.suppress(OSError), os.scandir(source) as found:  # a folder that this user cannot list stays empty
        entries += found
    for entry in entries:
        is_inner = levels < MIRRORED_LEVELS or entry.name.startswith(".")
        if entry.name in CACHES:
            continue
        if is_inner and levels and entry.is_dir(follow_symlinks=False):
            mirror(entry.path, folder / entry.name, levels - 1)
        elif not (is_inner and copied(entry, folder / entry.name)):
            (folder / entry.name).symlink_to(entry.path)


def copied(entry, target):
    """Copy a small file of a home, such as settings, which programs write when they start. Returns whether it did."""
    try:
        if not entry.is_file(follow_symlinks=False) or entry.stat().st_size > MAX_SETTINGS_BYTES:
            return False
        shutil.copy(entry.path, str(target))
    except (PermissionError, FileNotFoundError):  # a file that this user may not read, or that vanished, becomes a link
        return False
    return True


def readable(need):
    """Return what a stage needs as text: the command, or the first module of each alternative."""
    if "start" in need:
        return need["start"].split()[0]
    return " or ".join(alternative.partition("+")[0].strip() for alternative in need["import"].split("|"))


def _install(need, python):
    if "start" in need:
        return f"install {need.get('install') or readable(need)}"
    modules = need["import"].rpartition("|")[2].replace("+", " ")
    return f"{python} -m pip install {need.get('install') or modules}"


def without_engine(parameters):
    """Return the refusal because no container engine answers for the plan's images; empty if one does."""
    plan = parameters["plan"]
    runtime = plan["runtime"]
    if runtime in ("host", "pod") or not (plan.get("images") or any(stage["image"] for stage in plan["stages"])):
        return {}
    run = toolbox()
    problems = []
    for engine in of_runtime(runtime):
        listing = run(engine.command, "ps", "--quiet", timeout=ENGINE_SECONDS)
        if listing.ok or listing.timed_out:  # an engine that hangs is a fault of the node, which the stages report
            return {}
        problems.append(listing.complaint)
    return {"class": "no_engine", "message": NO_ENGINE.format(problems="; ".join(problems))}


def without_space(parameters):
    """Return the refusal because a file system lacks space for the plan's images and models; empty if there is enough.
    Files that are there already need no space."""
    plan, base = parameters["plan"], base_directory(parameters["directory"])
    models = Path(plan.get("models_dir") or base / "models")
    folders = parameters.get("folders") or {}
    needed = sum(max(0, size - size_of(models / name)) for name, size in folders.items())
    free = shutil.disk_usage(next(path for path in (models, *models.parents) if path.exists())).free
    if not needed or needed + SPARE_BYTES <= free:
        return {}
    sizes = {"needed": needed / 1e9, "spare": SPARE_BYTES / 1e9, "free": free / 1e9}
    return {"message": NO_SPACE.format(place=models, **sizes)}


def size_of(folder):
    """Return the bytes of all files in a folder; 0 for a missing folder."""
    total = 0
    for parent, _folders, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a running stage may rename the file
                total += os.lstat(f"{parent}/{name}").st_size
    return total


def check_python():
    """Raise NodeError unless the runner supports this Python and system."""
    if sys.version_info < OLDEST_PYTHON:
        raise NodeError(f"Python {sys.version.split()[0]} is too old for the runner, which needs 3.9: {sys.executable}")
    if not sys.platform.startswith("linux"):
        raise NodeError(f"a node must run Linux, this is {sys.platform}: a Mac can be the controller, not a node")


def answer(parameters, runner, workloads):
    """Launch within LAUNCH_SECONDS and return the module's result. Raises NodeError."""
    check_python()
    directory, refusal, answered = within(LAUNCH_SECONDS, launch, parameters, runner, workloads)
    if refusal:
        return {"changed": False, "directory": "", "launch": {"state": "refused", **refusal}}
    state = "started" if answered["started"] or answered["already_running"] else "refused"
    if answered["finished"] and not answered["started"]:
        state = "finished"
    outcome = {"state": state, **{name: answered[name] for name in ("message", "pid", "store_reachable")}}
    return {"changed": bool(answered["started"]), "directory": directory, "launch": outcome}


def main(runner, stream):
    """Launch and print the answer. `stream` holds the parameters as a line of JSON, then the workloads."""
    parameters = json.loads(stream.readline())
    try:
        result = answer(parameters, runner, stream.read())
    except NodeError as error:
        result = {"failed": True, "msg": str(error)}
    # begins a new line, since the login may have printed an unfinished one
    print("\n" + ANSWER + json.dumps({**result, "python": sys.executable}), flush=True)


def main_in_job(runner, stream, refuse, note=None):
    """Run the plan in this process, a scheduler's job, then remove the run's folder. Returns the exit code. `stream` is
    as in `main`; for a gang it has `members`, parameters by node. A refusal, as in a launch's outcome, is passed to
    `refuse`; at the end `note` gets the digests of the results. If the store lacks results, the folder stays."""
    parameters = json.loads(stream.readline())
    if "members" in parameters:
        parameters = parameters["members"][os.environ["SLURMD_NODENAME"]]
    workloads = stream.read()
    try:
        check_python()
        place_records = functools.partial(earlier_records, parameters.get("earlier") or {})
        directory, refusal, _answer = within(LAUNCH_SECONDS, launch, parameters, runner, workloads, place_records)
    except NodeError as error:
        refusal = {"message": str(error)}
    if refusal:
        refuse(refusal)
        return REFUSED
    directory = Path(directory)
    runner_in(directory)
    from gpuval_runner import clean, errors, fetch, layout  # noqa: PLC0415 - the archive has just been written
    from gpuval_runner import runner as runners  # noqa: PLC0415

    place = layout.NodeDirectory(directory)
    try:
        code = runners.run(runners.RunnerOptions(directory=place))
        answer = fetch.fetch(place, {}, JOB_FETCH_BYTES, not_uploaded=True)
        if note:
            note({"digests": answer["digests"]})
        if not answer["files"]:
            clean.clean(place)
    except errors.RunnerError as error:
        refuse({"message": str(error)})
        return REFUSED
    return code


def earlier_records(records, directory):
    """Write the records of earlier attempts into the run's folder, where the runner continues them."""
    make_private(directory / "records")
    for stage, record in records.items():
        path = directory / "records" / f"{stage}.json"
        if not path.exists():
            write_private(path, json.dumps(record).encode())
    return {}
