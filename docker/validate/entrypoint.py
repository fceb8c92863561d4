"""Validate the machine that this container runs on, or run a command of gpuval: IMAGE COMMAND [ARGUMENT ...].

    docker run --rm --gpus all --ipc=host -v "$PWD/out:/out" IMAGE
    docker run --rm --gpus all --ipc=host -v "$PWD/out:/out" IMAGE --profile standard -- -e gpuval_gpu_count=8
    docker run --rm -v "$PWD:/out" IMAGE ansible-playbook gpuval.fleet.validate -i inventory
    docker run --rm --network none -v "$PWD:/out:ro" IMAGE verify evidence_bundle --key vendor.pem

`IMAGE controller` is what `make in-cluster` runs in a cluster.

GPUVAL_NAME in the container's environment is the setting gpuval_name. Exit status: 0 for PASS, and for PARTIAL of a run
that was asked to be narrower; 1 for other verdicts, or none; 2 for mistyped options, and if the container lacks
something; 128 and more for a signal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.append("/usr/share/ansible/collections")
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware import pci
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree

REPORTS = ("report.json", "report.html", "cluster_test_report.json")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - only its size is read
#: What NCCL and RCCL share between the processes of a node; docker's default is 64 MiB.
LEAST_SHARED_BYTES = 1 << 30
NOT_ACCEPTED, NOT_STARTED, BY_SIGNAL = 1, 2, 128
#: Of a controller in a cluster that ends without a verdict: another pod resumes the run.
UNFINISHED = 3
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long the command may take to end after a signal; docker kills the container after 10 s.
GRACE_SECONDS = 8
HOW_TO_GIVE = {
    "nvidia": "--gpus all (docker) or --device nvidia.com/gpu=all (podman)",
    "amd": "--device /dev/kfd --device /dev/dri",
    "gaudi": "--runtime=habana -e HABANA_VISIBLE_DEVICES=all",
}


class StartError(Exception):
    """Nothing is started; the message says what to change."""


def main(arguments: Sequence[str]) -> int:
    try:
        if arguments[:1] == ["verify"]:
            status = run_command(verify_command(arguments[1:]))
            status = NOT_ACCEPTED if status > 0 else status
        elif arguments[:1] == ["controller"]:
            status = control(arguments[1:], os.environ.get("GPUVAL_CONTROLLER_RUN", ""))
        elif arguments and not arguments[0].startswith("-"):
            status = run_command(arguments)
        else:
            status = validate_machine(parse_options(arguments))
    except (StartError, OSError) as error:
        print(f"gpuval: {error}", file=sys.stderr)
        return NOT_STARTED if isinstance(error, StartError) else NOT_ACCEPTED
    return status if status >= 0 else BY_SIGNAL - status


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the options of the image; what follows `--` is `ansible_arguments`. A mistyped one ends the program."""
    summary, _, details = (__doc__ or "").partition("\n\n")
    usage = "IMAGE [--profile NAME] [--validation-only] [--output FOLDER] [-- ANSIBLE-PLAYBOOK-OPTION ...]"
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpuval", usage, summary, details, formatter_class=style, allow_abbrev=False)
    parser.add_argument("--profile", help="how much is tested, and how long: quick (default), standard, burnin, soak")
    parser.add_argument("--validation-only", action="store_true", help="facts and diagnostics alone: PARTIAL at best")
    parser.add_argument("--output", type=Path, default=Path("/out"), help="folder of the reports; default: /out")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:split])
    options.ansible_arguments = arguments[split + 1 :]
    return options


def verify_command(arguments: Sequence[str]) -> list[str]:
    """The command that verifies an evidence bundle. Mistyped options end the program."""
    parser = argparse.ArgumentParser("gpuval verify", allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="the evidence bundle")
    parser.add_argument("--key", type=Path, action="append", default=[], help="public key that must have signed (PEM)")
    parser.add_argument("--known", type=Path, action="append", default=[], help="list of keys that may have signed")
    options = parser.parse_args(arguments)
    keys, lists = ([str(path.absolute()) for path in paths] for paths in (options.key, options.known))
    settings = {"verify_folder": str(options.folder.absolute()), "verify_keys": keys, "gpuval_signing_keys": lists}
    return ["ansible-playbook", "gpuval.fleet.verify", "-i", "localhost,", "-e", json.dumps(settings)]


def control(arguments: Sequence[str], run_id: str) -> int:
    """Validate under a run id as the controller of a cluster, and resume what an earlier pod began. Returns 0 for an
    accepted run, NOT_ACCEPTED for another verdict, UNFINISHED without one, or the negative number of a signal.

    With `--clean` remove what the run made in the cluster. What follows `--` is for ansible-playbook.
    """
    parser = argparse.ArgumentParser("gpuval controller", allow_abbrev=False)
    parser.add_argument("--clean", action="store_true", help="clean after the verdict")
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if not run_id:
        raise StartError("GPUVAL_CONTROLLER_RUN is empty: `make in-cluster` sets it to the id of the run")
    os.environ["GPUVAL_AGAIN"] = "make in-cluster"
    words += ["-e", json.dumps({"gpuval_run_id": run_id, "run_resume_from_store": True})]
    status = run_command(["ansible-playbook", "gpuval.fleet.validate", *words])
    is_judged = any(Path("results").glob(f"*/{run_id}/report.json"))
    if status < 0 or not is_judged:
        return status if status < 0 else UNFINISHED
    if options.clean:
        run_command(["ansible-playbook", "gpuval.fleet.clean", *words])
    return NOT_ACCEPTED if status else 0


def validate_machine(options: argparse.Namespace) -> int:
    """Validate this machine and write the reports. Returns the exit status, or the negative number of a signal."""
    for name in REPORTS:  # of an earlier run, in whose folder they remain
        with contextlib.suppress(OSError):  # a folder that cannot be written is named below
            (options.output / name).unlink()
    settings = settings_of(os.environ)
    settings |= {"gpuval_profile": options.profile} if options.profile else {}
    settings |= {"gpuval_stages": ["facts", "diagnostics"]} if options.validation_only else {}
    if settings.get("gpuval_sku") != "cpu":
        shared = os.statvfs(SHARED_MEMORY)
        check_gpus(Tree(), shared.f_blocks * shared.f_frsize, "gpuval_gpu_count" in settings)
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise StartError("no folder for temporary files can be written: add --tmpfs /tmp") from error
    output = usable_output(options.output.absolute())
    name = machine_name(socket.gethostname())
    print(f"gpuval: this machine as {name}; {', '.join(REPORTS)} go to {output}", flush=True)
    run = output / "runs/latest"
    before = report_stamp(run)
    status = run_command([*playbook_command(output, name, settings), *options.ansible_arguments], signal.SIGKILL)
    if status < 0:
        ended = f"{signal.Signals(-status).name} ended the container, and with it the work on this machine"
        print(f"gpuval: {ended}: no report in {output}; what was recorded is in {output}/runs", file=sys.stderr)
        return status
    if report_stamp(run) == before:
        print(f"gpuval: no verdict: no report came to {output}/runs", file=sys.stderr)
        return NOT_ACCEPTED
    verdict, is_narrowed = copy_reports(run, output)
    return 0 if status == 0 and (verdict == "PASS" or (verdict == "PARTIAL" and is_narrowed)) else NOT_ACCEPTED


def settings_of(environment: Mapping[str, str]) -> dict[str, object]:
    """The settings in GPUVAL_* of an environment; lists and mappings are JSON. Raises StartError."""
    settings: dict[str, object] = {}
    for variable, text in environment.items():
        if variable.startswith("GPUVAL_") and variable != "GPUVAL_SIGNING_KEY":  # a secret, and no setting
            try:
                settings[variable.lower()] = json.loads(text) if text[:1] in ("[", "{") else text
            except ValueError as error:
                raise StartError(f"{variable} begins like JSON, but is not: {error}") from error
    return settings


def check_gpus(tree: Tree, shared_bytes: int, is_count_declared: bool) -> None:
    """Raise StartError if the machine's GPUs are not in this container (some may lack where the number to test is
    declared), or have too little shared memory (bytes)."""
    gpus = [gpu for gpu in pci.accelerators(tree) if gpu.certain]
    hidden = [gpu for gpu in gpus if pci.hidden_from_container(tree, gpu)]
    usable = sum(gpu.bound for gpu in gpus) - len(hidden)
    if hidden and not usable:
        vendor = hidden[0].vendor
        problem = f"{len(hidden)} GPU(s) of this machine ({vendor}) are not in this container"
        raise StartError(f"{problem}: add {HOW_TO_GIVE[vendor]}; to test the CPU alone, add -e GPUVAL_SKU=cpu")
    if hidden:
        problem = f"{usable} of {len(gpus)} GPUs are in this container"
        if not is_count_declared:
            remedy = f"add {HOW_TO_GIVE[hidden[0].vendor]}; to test these alone, add -e GPUVAL_GPU_COUNT={usable}"
            raise StartError(f"{problem}: {remedy}")
        print(f"gpuval: {problem}: the others are not tested", flush=True)
    if usable > 1 and shared_bytes < LEAST_SHARED_BYTES:
        problem = f"{SHARED_MEMORY} has {shared_bytes >> 20} MiB, too little for {usable} GPUs that work together"
        raise StartError(f"{problem}: add --ipc=host, or --shm-size=8g")


def usable_output(folder: Path) -> Path:
    """The folder for the reports, or another one if nothing is mounted there and it cannot be written. Raises
    StartError."""
    is_mounted = any(os.path.ismount(path) for path in (folder, *folder.parents[:-1]))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        if is_mounted:
            remedy = f"let uid {os.getuid()} write the mounted folder, or leave --user out"
            raise StartError(f"{folder} cannot be written ({error.strerror}): {remedy}") from error
        folder = Path(tempfile.mkdtemp(prefix="gpuval-out-"))
    if not is_mounted:
        remedy = 'to keep them add -v "$PWD/out:/out"'
        print(f"gpuval: no folder is mounted: the reports in {folder} end with this container; {remedy}", flush=True)
    return folder


def machine_name(hostname: str) -> str:
    """The name that the container was given (--hostname, --uts=host, --network=host), else localhost, not its id."""
    return "localhost" if re.fullmatch(r"[0-9a-f]{12}", hostname) else hostname


def playbook_command(output: Path, name: str, settings: Mapping[str, object]) -> list[str]:
    """Write inventory and settings, and return the command that validates this machine."""
    work = Path(tempfile.mkdtemp(prefix="gpuval-"))
    variables = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        "ansible_remote_tmp": str(work / "ansible"),
        "gpuval_workload_python": "/opt/gpuval-validate/bin/python",
        "gpuval_runtime": "host",
        "gpuval_profile": "quick",
        "gpuval_state_dir": str(work / "state"),
        "gpuval_node_dir": str(work / "node"),
    }
    inventory, extra = work / "machine.json", work / "settings.json"
    inventory.write_text(json.dumps({"all": {"hosts": {name: {}}, "vars": variables}}), encoding="utf-8")
    settings = {"gpuval_run_id": "new", **settings, "gpuval_results_dir": str(output / "runs")}
    extra.write_text(json.dumps(settings), encoding="utf-8")
    return ["ansible-playbook", "gpuval.fleet.validate", "-i", str(inventory), "-e", f"@{extra}"]


def run_command(command: Sequence[str], ending: signal.Signals | None = None) -> int:
    """Run the command as process 1 has to: pass signals on, or `ending` in place of them, and reap what it leaves.
    Returns its exit status, or the negative number of the signal that ended it. Raises StartError."""
    environment = {**os.environ, "GPUVAL_AGAIN": "docker run ... IMAGE"} if ending else dict(os.environ)
    home = environment.get("HOME", "")
    if home == str(Path.cwd()) or not os.access(home, os.W_OK):  # podman --user 12345: that of the reports
        environment["HOME"] = tempfile.mkdtemp(prefix="gpuval-home-")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:  # --user 12345: libraries that ask for a name take these
        environment |= {"USER": "gpuval", "LOGNAME": "gpuval"}
    children: list[int] = []
    received: list[int] = []

    def forward(number: int, _frame: object) -> None:
        received.append(number)
        signal.alarm(GRACE_SECONDS)
        if ending or not (number == signal.SIGINT and os.isatty(0)):  # a terminal sends Ctrl-C to its foreground
            for pid in children:
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.kill(pid, ending or number)

    for number in ENDING_SIGNALS:  # before there is a child: process 1 loses signals without a handler
        signal.signal(number, forward)
    try:
        child = subprocess.Popen(command, env=environment, start_new_session=bool(ending))
    except OSError as error:
        raise StartError(f"{command[0]}: {error.strerror}. Options begin with --: see --help") from error
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child.pid, signal.SIGKILL))
    children.append(child.pid)
    if received:
        os.kill(child.pid, ending or received[0])
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            signal.alarm(0)
            child.returncode = os.waitstatus_to_exitcode(status)
            return -received[0] if received else child.returncode


def report_stamp(run: Path) -> tuple[Path, int]:
    """The report in a run's folder, and when it was written (ns): that of an earlier run is no answer of this one."""
    report = run.resolve() / "report.json"
    return report, report.stat().st_mtime_ns if report.exists() else 0


def copy_reports(run: Path, output: Path) -> tuple[str, bool]:
    """Copy the reports of a judged run into `output`. Returns verdict, and whether less than a profile was asked."""
    for name in REPORTS:
        shutil.copyfile(run / name, output / f".{name}")
        (output / f".{name}").replace(output / name)
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    asked = report["run"]
    return report["verdict"], bool(asked["profile"] == "custom" or asked["narrowed_by"] or asked.get("shortened"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
