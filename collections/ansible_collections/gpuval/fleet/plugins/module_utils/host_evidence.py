"""Gathers evidence to investigate a node: state of the machine, of its accelerators, and of one run on it, in bounded
time and size. Environment variables and arguments of processes are never read; secrets are redacted in the rest."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import stat
import tarfile
import tempfile
import time
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .engines import engine_types
from .engines._engine import LABEL_RUN
from .hardware.tools import toolbox
from .network.parallel import in_parallel
from .redaction import PRIVATE_FILES, SecretRedactor, secrets_of_run

COMMAND_SECONDS = 15.0
VENDOR_SECONDS = 60.0
BUG_REPORT_SECONDS = 180.0
WORKERS = 6
MAX_PART_BYTES = 4 << 20
MAX_LOG_BYTES = 16 << 20
#: Overhead in bytes of each file in a tar archive, and of its compression.
TAR_OVERHEAD_BYTES, PACKED_BYTES = 1536, 64
MAX_CONTAINERS = 40
MAX_LISTED = 5000

#: Module that runs jobs. Engines keep its output with the jobs' secrets; the stage's log has it without secrets.
JOB = "gpuval_workloads.job"

#: Commands whose output is evidence: name in the archive, time limit in seconds, command. Missing ones are left out.
COMMANDS = (
    ("system/uname.txt", COMMAND_SECONDS, ("uname", "-a")),
    ("system/uptime.txt", COMMAND_SECONDS, ("uptime",)),
    ("system/clock.txt", COMMAND_SECONDS, ("timedatectl", "status")),
    ("system/chrony.txt", COMMAND_SECONDS, ("chronyc", "-n", "tracking")),
    ("system/free.txt", COMMAND_SECONDS, ("free", "--bytes", "--wide")),
    ("system/df.txt", COMMAND_SECONDS, ("df", "--block-size=1", "--local", "--print-type")),
    ("system/df-inodes.txt", COMMAND_SECONDS, ("df", "--inodes", "--local")),
    ("system/lsblk.txt", COMMAND_SECONDS, ("lsblk", "--bytes", "--output-all")),
    ("system/lscpu.txt", COMMAND_SECONDS, ("lscpu",)),
    ("system/numa.txt", COMMAND_SECONDS, ("numactl", "--hardware")),
    ("system/lsmod.txt", COMMAND_SECONDS, ("lsmod",)),
    ("system/processes.txt", COMMAND_SECONDS, ("ps", "-eo", "pid,ppid,user,stat,etime,pcpu,rss,wchan:24,comm")),
    ("system/failed-units.txt", COMMAND_SECONDS, ("systemctl", "--failed", "--no-pager", "--plain")),
    ("kernel/dmesg.txt", COMMAND_SECONDS, ("dmesg", "--time-format", "iso")),
    ("kernel/journal.txt", COMMAND_SECONDS,
        ("journalctl", "--dmesg", "--lines=5000", "--no-pager", "--output=short-iso")),
    ("pci/lspci.txt", COMMAND_SECONDS, ("lspci", "-nn", "-vv")),
    ("pci/lspci-tree.txt", COMMAND_SECONDS, ("lspci", "-tv")),
    ("network/links.txt", COMMAND_SECONDS, ("ip", "-statistics", "-details", "link")),
    ("network/addresses.txt", COMMAND_SECONDS, ("ip", "address")),
    ("network/routes.txt", COMMAND_SECONDS, ("ip", "route", "show", "table", "all")),
    ("network/sockets.txt", COMMAND_SECONDS, ("ss", "--tcp", "--listening", "--numeric")),
    ("network/ibstat.txt", COMMAND_SECONDS, ("ibstat",)),
    ("network/ibv_devinfo.txt", COMMAND_SECONDS, ("ibv_devinfo", "-v")),
    ("network/rdma.txt", COMMAND_SECONDS, ("rdma", "link")),
    ("gpu/nvidia-smi-q.txt", VENDOR_SECONDS, ("nvidia-smi", "-q")),
    ("gpu/nvidia-smi.txt", VENDOR_SECONDS, ("nvidia-smi",)),
    ("gpu/nvidia-smi-topo.txt", VENDOR_SECONDS, ("nvidia-smi", "topo", "-m")),
    ("gpu/nvidia-smi-nvlink.txt", VENDOR_SECONDS, ("nvidia-smi", "nvlink", "--errorcounters")),
    ("gpu/amd-smi-static.txt", VENDOR_SECONDS, ("amd-smi", "static")),
    ("gpu/amd-smi-metric.txt", VENDOR_SECONDS, ("amd-smi", "metric")),
    ("gpu/amd-smi-topology.txt", VENDOR_SECONDS, ("amd-smi", "topology")),
    ("gpu/rocm-smi.txt", VENDOR_SECONDS, ("rocm-smi", "--showall")),
    ("gpu/hl-smi.txt", VENDOR_SECONDS, ("hl-smi",)),
    ("gpu/hl-smi-q.txt", VENDOR_SECONDS, ("hl-smi", "-q")),
)  # fmt: skip
#: Commands of each container engine: name in the archive after the engine's, arguments.
ENGINE_COMMANDS = (
    ("info", ("info",)),
    ("ps", ("ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Image}} {{.Status}} {{.Names}} {{.Labels}}")),
    ("images", ("images", "--no-trunc", "--digests")),
)

#: Files of the node that are gathered: name in the archive, path on the node.
FILES = (
    ("system/os-release.txt", "/etc/os-release"),
    ("system/meminfo.txt", "/proc/meminfo"),
    ("system/cmdline.txt", "/proc/cmdline"),
    ("system/pressure-memory.txt", "/proc/pressure/memory"),
    ("system/mounts.txt", "/proc/mounts"),
    ("gpu/nvidia-driver.txt", "/proc/driver/nvidia/version"),
    ("gpu/fabricmanager.log", "/var/log/fabricmanager.log"),
)

#: Fields of a container's description (`inspect`) that go into the evidence; environment and command do not.
CONTAINER_STATE = ("Id", "Name", "Created", "Image", "RestartCount", "State")
CONTAINER_HOST = (
    *("AutoRemove", "Binds", "CapAdd", "CpusetCpus", "DeviceRequests", "Devices", "IpcMode", "Memory", "NanoCpus"),
    *("NetworkMode", "OomKillDisable", "Privileged", "SecurityOpt", "ShmSize", "Ulimits"),
)

#: Files of a run's folder that go into the evidence archive, the most informative first. Others are left out.
RUN_FILES = ("state.json", "plan.json", "runner.log", "uploaded.json", "undo/*.json", "records/*.json", "logs/*.log",
             "series/*.json")  # fmt: skip


@dataclass
class Part:
    """One file of the evidence archive. `note`: why the file is missing or cut."""

    name: str
    data: bytes = b""
    note: str = ""


def gather(directory, unit="", seconds=120.0, limit_bytes=8 << 20, bug_report=False):
    """Return a tar.gz of evidence as bytes, and the reasons why files are missing or cut, by name. `directory`: a run's
    folder on this node, None without a run; `unit`: its systemd unit; `bug_report`: make NVIDIA's, which is large."""
    deadline = time.monotonic() + seconds
    redact = SecretRedactor(secrets_of_run(directory) if directory else ())
    folder = Path(directory) if directory else None
    jobs = [partial(_run_files, folder), partial(_list_run, folder)] if folder else []
    jobs += [partial(_read_file, name, Path(path)) for name, path in FILES]
    commands = [
        *COMMANDS,
        *(
            (f"containers/{engine}-{name}.txt", COMMAND_SECONDS, (engine, *words))
            for engine in engine_types()
            for name, words in ENGINE_COMMANDS
        ),
    ]
    if unit:
        arguments = ("journalctl", "--unit", unit, "--lines=5000", "--no-pager", "--output=short-iso")
        commands.append(("run/journal.txt", COMMAND_SECONDS, arguments))
    jobs += [partial(_run_command, *command) for command in commands]
    if folder:
        jobs += [partial(_describe_containers, engine, folder.parent.name) for engine in engine_types()]
    if bug_report:
        jobs.append(_bug_report)
    parts, late = _work_off(jobs, deadline)
    return pack_parts(parts, redact, limit_bytes, late_commands=late, packed_at=time.time())


def pack_parts(parts, redact, limit_bytes, late_commands=0, packed_at=0.0):
    """Return a tar.gz of at most `limit_bytes` with the parts in order, redacted by `redact`, and the notes by name.
    `packed_at`: time of its files, in seconds since 1970."""
    notes, chosen, used = {}, [], 4096
    if late_commands:
        notes["deadline"] = f"{late_commands} of the commands were not done in time"
    for part in parts:
        if part.note:
            notes[part.name] = part.note
        if not part.data:
            continue
        data, cut = _fit(redact.data(part.data), limit_bytes - used - TAR_OVERHEAD_BYTES)
        if cut:
            notes[part.name] = cut
        if data:
            used += len(zlib.compress(data, 6)) + PACKED_BYTES + TAR_OVERHEAD_BYTES
            chosen.append((part.name, data))
    text = "".join(f"{name}: {redact(note)}\n" for name, note in sorted(notes.items()))
    chosen.append(("NOTES.txt", text[:2048].encode() if used > limit_bytes - 4096 else text.encode()))
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=int(packed_at)) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, data in chosen:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(data), int(packed_at), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue(), notes


def _work_off(jobs, deadline):
    """Run jobs in parallel until `deadline` (monotonic). Return their parts in order, and the number of late jobs."""

    def run(number, job):
        seconds = deadline - time.monotonic()
        try:
            return job(max(0.1, seconds)) if seconds > 0 else None
        except Exception as error:  # a failing job must not stop the others
            return [Part(f"failed-{number}", note=f"{type(error).__name__}: {error}")]

    tasks = {number: partial(run, number, job) for number, job in enumerate(jobs)}
    # Tools are ended at the deadline; a file system that hangs is left behind.
    answers = in_parallel(tasks, deadline + 5 - time.monotonic(), WORKERS)
    done = {number: parts for number, parts in sorted(answers.items()) if parts is not None}
    return [part for parts in done.values() for part in parts], len(jobs) - len(done)


def _run_command(name, limit_seconds, command, seconds):
    outcome = toolbox()(command[0], *command[1:], timeout=min(limit_seconds, seconds))
    if outcome.missing:
        return []
    data = (outcome.stdout + outcome.stderr).encode("utf-8", "replace")
    note = "" if outcome.ok else outcome.complaint
    cut = f"its first {len(data) - MAX_PART_BYTES} bytes are left out" if len(data) > MAX_PART_BYTES else ""
    return [Part(name, data[-MAX_PART_BYTES:], "; ".join(filter(None, (note, cut))))]


def _read_file(name, path, _seconds):
    return [_read(name, path.resolve(), MAX_PART_BYTES)] if path.exists() else []  # /etc/os-release is a link


def _run_files(directory, _seconds):
    paths = (path for pattern in RUN_FILES for path in sorted(directory.glob(pattern)))
    public = (path for path in paths if path.name not in PRIVATE_FILES)
    return [_read(f"run/{path.relative_to(directory).as_posix()}", path, MAX_LOG_BYTES) for path in public]


def _list_run(directory, _seconds):
    paths = (Path(where, name) for where, _folders, names in os.walk(str(directory)) for name in sorted(names))
    lines = filter(None, (_listed(path, directory) for path in paths))
    return [Part("run/files.txt", "".join(itertools.islice(lines, MAX_LISTED)).encode("utf-8", "replace"))]


def _listed(path, directory):
    """Return a line on a file as `ls -l` prints it; None for a file that has vanished."""
    try:
        status = path.lstat()
    except OSError:
        return None
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(status.st_mtime))
    return f"{stat.filemode(status.st_mode)} {status.st_size:>12} {when} {path.relative_to(directory).as_posix()}\n"


def _read(name, path, limit_bytes):
    """Return the end of a regular file as a part; a link is not followed, since it may lead outside the run."""
    try:
        handle = os.open(str(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return Part(name, note="is no regular file")
            skipped = max(0, status.st_size - limit_bytes)
            stream.seek(skipped)
            data = stream.read(limit_bytes)
    except OSError as error:
        return Part(name, note=f"cannot be read: {error.strerror or error}")
    return Part(name, data, f"its first {skipped} bytes are left out" if skipped else "")


def _describe_containers(engine, run_id, seconds):
    """Return state and output of a run's existing containers as parts. `engine`: docker or podman."""
    deadline, run = time.monotonic() + seconds, toolbox()
    label = f"--filter=label={LABEL_RUN}={run_id}"
    listing = run(engine, "ps", "--all", "--quiet", "--no-trunc", label, timeout=min(COMMAND_SECONDS, seconds))
    parts = []
    for identifier in listing.stdout.split()[:MAX_CONTAINERS] if listing.ok else []:
        limit = min(COMMAND_SECONDS, deadline - time.monotonic())
        if limit <= 0:
            break
        name = f"containers/{engine}-{identifier[:12]}"
        described = run(engine, "inspect", "--type=container", identifier, timeout=limit)
        if described.ok:
            parts.append(Part(name + ".json", shown_container(described.stdout)))
        if not described.ok or JOB in described.stdout:
            parts.append(Part(name + ".log", note="not read: a job's output may have secrets; see run/logs"))
            continue
        limit = min(COMMAND_SECONDS, max(0.1, deadline - time.monotonic()))
        logs = run(engine, "logs", "--timestamps", "--tail=5000", identifier, timeout=limit)
        parts.append(Part(name + ".log", (logs.stdout + logs.stderr).encode("utf-8", "replace")[-MAX_PART_BYTES:]))
    return parts


def shown_container(text):
    """Return what an engine's `inspect` prints of a container, without environment and command, as JSON bytes."""
    try:
        described = json.loads(text)[0]
        shown = {key: described.get(key) for key in CONTAINER_STATE}
        shown["HostConfig"] = {key: (described.get("HostConfig") or {}).get(key) for key in CONTAINER_HOST}
        config = described.get("Config") or {}
        shown["Config"] = {key: config.get(key) for key in ("Image", "Labels", "User")}
    except (ValueError, TypeError, AttributeError, LookupError):
        return b""
    return json.dumps(shown, indent=1).encode()


def _bug_report(seconds):
    """Return NVIDIA's bug report, made within `seconds`; it is large and slow, so it is made only on request."""
    with tempfile.TemporaryDirectory(prefix="gpuval-bug-report-") as folder:
        target = f"{folder}/nvidia-bug-report.log"
        arguments = ("--safe-mode", "--extra-system-data", "--output-file", target)
        outcome = toolbox()("nvidia-bug-report.sh", *arguments, timeout=min(BUG_REPORT_SECONDS, seconds))
        if outcome.missing:
            return [Part("gpu/nvidia-bug-report.log", note="nvidia-bug-report.sh is not installed")]
        for path in (Path(target + ".gz"), Path(target)):
            if path.exists():
                data = path.read_bytes()[: MAX_LOG_BYTES + 1]
                if path.suffix == ".gz":  # only plain text can be redacted
                    try:
                        data = zlib.decompressobj(wbits=31).decompress(data, MAX_LOG_BYTES)
                    except zlib.error:
                        data = b""
                return [Part("gpu/nvidia-bug-report.log", data[-MAX_LOG_BYTES:])]
        return [Part("gpu/nvidia-bug-report.log", note=outcome.complaint)]


def _fit(data, limit_bytes):
    """Return data, or as much of its end as fits compressed into `limit_bytes`, and a note on what was cut."""
    size = len(data)
    while data and (packed := len(zlib.compress(data, 6)) + PACKED_BYTES) > limit_bytes:
        if limit_bytes < 2048:
            return b"", "left out: the archive is full"
        data = data[len(data) - int(len(data) * min(0.9, 0.9 * limit_bytes / packed)) :]
    return data, f"its first {size - len(data)} bytes are left out: the archive is full" if len(data) < size else ""
