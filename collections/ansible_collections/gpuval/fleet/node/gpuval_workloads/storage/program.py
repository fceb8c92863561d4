"""Measures each target with fio, verifies written data, and compares the disks' health before and after."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuval_node.volumes import SLOW, MountedVolume, volume_of

from ..common import fio
from ..common.arguments import positive_float, workload_parser
from ..common.result import WorkloadFailure, WorkloadResult
from ..common.units import human_bytes
from . import health, table
from .targets import StorageTarget, TargetError, free_bytes, in_memory, prepared_file, refused

MAX_TARGETS = 32
MAX_MESSAGE = 4000
NO_FIO = "fio was not found: install it on the node, or put it into the image of the stage (storage_image)"


@dataclass
class TargetFindings:
    """The findings on one target. ``figures``: value by the end of the metric's name; ``direct``: whether requests
    bypassed the page cache; ``problem``: why something was not measured. ``volume``: the target's file system;
    ``fault``: the failure class if a file system of the site, not the node, is to blame."""

    figures: dict[str, float] = field(default_factory=dict)
    direct: bool = True
    written_bytes: int = 0
    verified_bytes: int = 0
    mismatch: str = ""
    io_error: str = ""
    problem: str = ""
    volume: MountedVolume | None = None
    fault: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether all tests were measured and verified."""
        return self.verified_bytes > 0 and not self.problem

    def take(self, measured: fio.FioMeasurement) -> bool:
        """Add written bytes and problems of a measurement; returns whether to go on."""
        self.written_bytes += measured.write.total_bytes if measured.write else 0
        if measured.error == fio.MISMATCH:
            self.mismatch = f"wrong data: what was read is not what was written: {measured.problem}"
        elif measured.is_disk_error:
            self.io_error = f"error of the disk or file system: {measured.problem}"
        elif measured.problem:
            self.problem = measured.problem
        return not measured.problem

    def ascribe(self, volume: MountedVolume, *, shared: bool) -> None:
        """Note the target's file system. If it is the site's, or nodes share it, a problem may be the site's fault."""
        text = self.mismatch or self.io_error or self.problem
        self.volume = replace(volume, of_site=volume.of_site or shared)
        self.fault = self.volume.fault_in(text)
        if self.fault:
            self.mismatch, self.io_error, self.problem = "", "", text

    def add_figures(self, name: str, measured: fio.FioMeasurement) -> None:
        sides = [side for side in (measured.read, measured.write) if side]
        latency = sides[0].latency_seconds if sides else {}  # in a mix, the work waits for reads
        figures = {
            "bytes_per_second": sum(side.bytes_per_second for side in sides),
            "requests_per_second": sum(side.requests_per_second for side in sides),
            **{table.PERCENTILES[percent]: value for percent, value in latency.items()},
        }
        self.figures.update({f"{name}_{figure}": value for figure, value in figures.items()})


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = workload_parser("storage", "Measure file systems and disks, and verify their data.")
    add = parser.add_argument
    add("--seconds", type=positive_float, default=60.0, help="seconds for all targets together")
    add("--path", type=Path, action="append", default=[], help="folder of a local file system (default: scratch)")
    add("--shared-path", type=Path, action="append", default=[], help="folder of a file system that nodes share")
    add("--raw-device", type=Path, action="append", default=[], help="disk whose content is destroyed")
    add("--confirmed-raw-device", type=Path, action="append", default=[], help="the disk of --raw-device once more")
    add("--max-written-bytes", type=positive_float, default=5e10, help="limit for all targets together")
    add("--file-bytes", type=positive_float, default=1.6e10, help="size of the largest file")
    add("--keep-free-ratio", type=float, default=0.1, help="share of a file system that stays free")
    add("--sharers", type=int, default=1, help="nodes that may use the shared file systems at the same time")
    add("--floors", type=_floors, default={}, help="least rates and longest latencies of local targets, as JSON")
    add("--shared-floors", type=_floors, default={}, help="the same for shared targets")
    options = parser.parse_args(list(arguments))
    if sorted(options.raw_device) != sorted(options.confirmed_raw_device):
        names = "storage_raw_devices and storage_raw_devices_confirmed"
        parser.error(f"{names} must name the same disks: nothing was measured")
    count = sum(map(len, (options.path or [""], options.shared_path, options.raw_device)))
    if count > MAX_TARGETS:
        parser.error(f"{count} paths and devices: {MAX_TARGETS} at most, shorten storage_paths")
    return options


def _floors(text: str) -> dict[str, float]:
    floors = json.loads(text)
    unknown = [name for name in floors if name not in table.FIGURES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]} is none of {', '.join(table.FIGURES)}")
    return {name: float(limit) for name, limit in floors.items()}


def main(result: WorkloadResult) -> None:
    """Measure all targets. Raises ``WorkloadFailure``, naming the target, for wrong data, disk errors, and volumes of
    the site that are full, read-only, slow or broken."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # exits, and so removes its folders
    options = parse_arguments(sys.argv[1:])
    work = Path(os.environ.get("GPUVAL_WORK_DIR") or ".").absolute()
    targets = [
        *([] if options.path else [StorageTarget(work, name="scratch")]),
        *(StorageTarget(path) for path in options.path),
        *(StorageTarget(path, shared=True) for path in options.shared_path),
        *(StorageTarget(path, raw=True) for path in options.raw_device),
    ]
    before = health.read_all()
    program = fio.find()
    findings_by_target = {target: TargetFindings() for target in targets}
    for number, (target, findings) in enumerate(findings_by_target.items(), 1):
        seconds, limit = options.seconds / len(targets), options.max_written_bytes / len(targets)
        result.report(f"{target.path}: {seconds:.0f} s, target {number} of {len(targets)}")
        try:
            size = _file_bytes(target, limit, options)
            if not program:
                findings.problem = NO_FIO
                continue
            with prepared_file(target, work, os.environ) as file:
                _measure(program, file, size, seconds, limit, findings)
        except TargetError as error:
            findings.problem = str(error) if program else f"{error}; {NO_FIO}"
        except OSError as error:
            findings.problem = f"{target.path}: {error.strerror or error}"
        finally:
            if not target.raw:
                findings.ascribe(volume_of(target.path), shared=target.shared)
    _report(result, findings_by_target, options)
    _report_health(result, before, health.read_all())
    wrong = {target.path: findings.mismatch or findings.io_error for target, findings in findings_by_target.items()}
    faults = [f"{path}: {fault}" for path, fault in wrong.items() if fault]
    result.message = result.message[:MAX_MESSAGE]
    of_volumes = [findings.fault for findings in findings_by_target.values() if findings.fault]
    if faults or of_volumes:
        fault = "" if faults else of_volumes[0]
        raise WorkloadFailure("; ".join([*faults, result.message])[:MAX_MESSAGE], fault=fault)


def _file_bytes(target: StorageTarget, limit: float, options: argparse.Namespace) -> int:
    """Return a file's size in bytes, for a `limit` of written bytes. Raises ``TargetError`` for an unusable target."""
    why = refused(target.path) if target.raw else ""
    if why:
        raise TargetError(f"{target.path} {why}: it was not touched")
    if not target.raw and in_memory(target):
        raise TargetError(f"{target.path} is memory (tmpfs): name a folder on a disk in storage_paths")
    free, total = free_bytes(target)
    keep = 0 if target.raw else options.keep_free_ratio * total
    sharers = max(1, options.sharers) if target.shared else 1
    size = table.file_bytes(limit, options.file_bytes, free, keep, sharers)
    if not size:
        sharing = f"{sharers} nodes share the rest, " if sharers > 1 else ""
        has_room = (free - keep) / sharers >= table.LEAST_FILE_BYTES
        remedy = "raise storage_max_written_bytes" if has_room else "make room, or lower storage_keep_free_ratio"
        raise TargetError(
            f"{target.path}: {free / 1e6:.0f} MB are free, {keep / 1e6:.0f} MB are to stay free, {sharing}"
            f"{limit / 1e6:.0f} MB may be written: too little for a file of "
            f"{table.LEAST_FILE_BYTES >> 20} MiB; {remedy}"
        )
    return size


def say(text: str) -> None:
    print(text, flush=True)


def _measure(program: str, file: Path, size: int, seconds: float, limit: float, findings: TargetFindings) -> None:
    """Run the tests on a file of so many bytes (`size`), writing at most `limit` bytes, then verify its data; stop at
    the first failure."""
    engine, measured = fio.choose_engine(program, file, table.MIB)
    findings.direct = engine.direct
    if not findings.take(measured):
        return
    for test in table.TESTS:
        begun = time.monotonic()
        measured = fio.call(program, file, work(test, size, seconds, limit), engine, say)
        say(f"{test.name}: {measured.figures()} in {time.monotonic() - begun:.1f} s")
        if not findings.take(measured):
            findings.problem = findings.problem and f"{test.name}: {findings.problem}"
            return
        findings.add_figures(test.name, measured)
        if test is table.TESTS[0] and measured.write and measured.write.total_bytes < size:
            size = measured.write.total_bytes // table.MIB * table.MIB  # a slow disk: less was written in the time
            if not size:
                findings.problem = f"less than 1 MiB was written in {seconds * test.time_share:.0f} s"
                return
    # Write blocks with checksums, then read them back, bypassing the page cache or after emptying it.
    size = table.verify_bytes(size, findings.figures["sequential_write_bytes_per_second"], seconds, limit)
    patience = 2 * seconds * table.VERIFY_SHARE + fio.GRACE_SECONDS
    options = ("--verify=crc32c", "--verify_state_save=0", "--invalidate=1")
    write = fio.FioWork("write", "128k", 16, size, patience, limit_bytes=size, arguments=(*options, "--do_verify=0"))
    measured = fio.call(program, file, write, engine, say)
    if not findings.take(measured) or measured.write is None:
        return
    read = fio.FioWork("read", "128k", 16, measured.write.total_bytes, patience, arguments=options)
    measured = fio.call(program, file, read, engine, say)
    say(f"verify: {measured.figures()}")
    if findings.take(measured) and measured.read is not None:
        findings.verified_bytes = measured.read.total_bytes


def work(test: table.Test, size_bytes: int, seconds: float, limit_bytes: float) -> fio.FioWork:
    """Return fio's settings for a test on a file of this size, within the target's time and written bytes."""
    time_options = ("--time_based=1",) if not test.writes else ()
    # In a mix, io_size counts both directions; reads cost no endurance.
    limit = int(test.write_share * limit_bytes) if test.writes else 0
    if test.name == "sequential_write":
        limit = size_bytes
    return fio.FioWork(
        test.rw, test.block, test.depth, size_bytes, seconds * test.time_share, min(test.jobs, os.cpu_count() or 1),
        limit, ("--norandommap=1", "--invalidate=1", *time_options, *test.arguments),
    )  # fmt: skip


def _report(
    result: WorkloadResult, findings_by_target: Mapping[StorageTarget, TargetFindings], options: argparse.Namespace
) -> None:
    """Add all findings to the result. A volume of the site that misses a floor of the options gets the fault SLOW."""
    notes = []
    tested = [findings for findings in findings_by_target.values() if findings.is_whole]
    result.add_metric("storage_targets_count", len(findings_by_target), "count")
    result.add_metric("storage_direct_count", sum(findings.direct for findings in tested), "count")
    result.add_metric("storage_written_bytes", sum(f.written_bytes for f in findings_by_target.values()), "bytes")
    for target, findings in findings_by_target.items():
        scope, is_named = target.scope, str(target.path) in findings.problem
        name = f"{findings.volume.name}: " if findings.volume and findings.fault else ""
        notes += [f"{name}{'' if is_named else f'{target.path}: '}{findings.problem}"] if findings.problem else []
        if findings.fault or NO_FIO in findings.problem:
            continue
        result.add_metric("storage_mismatch_count", int(bool(findings.mismatch)), "count", scope)
        result.add_metric("storage_io_error_count", int(bool(findings.io_error)), "count", scope)
        # Only direct I/O measures the disk: figures through the page cache have other names, and no floor.
        prefix = "storage" if findings.direct else "storage_buffered"
        for name, value in findings.figures.items():
            unit = {"bytes": "bytes/s", "requests": "requests/s"}.get(name.split("_")[-3], "seconds")
            result.add_metric(f"{prefix}_{name}", value, unit, scope)
        if not findings.is_whole:
            continue
        result.add_metric("storage_verified_bytes", findings.verified_bytes, "bytes", scope)
        if not findings.direct:
            notes.append(f"{target.path} refuses O_DIRECT: its figures are those of the page cache")
        floors = options.shared_floors if target.shared else options.floors
        missed = [text for name, limit in floors.items() if (text := _missed(name, limit, findings))]
        if missed and findings.volume and findings.volume.of_site:
            findings.fault, name = SLOW, f"{findings.volume.name}: "
        notes += [f"{name}{target.path}: {text}" for text in missed]
        if findings.fault:
            continue
        if not floors or (findings.direct and floors.keys() <= findings.figures.keys()):
            result.add_metric("storage_floor_misses_count", len(missed), "count", scope)
    result.environment.update(
        targets=[{"path": str(t.path), "scope": t.scope, "shared": t.shared, "raw": t.raw, "direct": f.direct,
                  "written_bytes": f.written_bytes} for t, f in findings_by_target.items()],
    )  # fmt: skip
    is_buffered = any(not findings.direct for findings in tested)
    result.fingerprints["storage_io"] = "buffered" if is_buffered else "direct" if tested else "none"
    counted = "1 target" if len(findings_by_target) == 1 else f"{len(findings_by_target)} targets"
    result.message = "; ".join(dict.fromkeys(notes)) or f"{counted} measured and verified"


def _missed(name: str, limit: float, findings: TargetFindings) -> str:
    """Return a message for a figure below its floor (latency: above its ceiling), else an empty text."""
    value = findings.figures.get(name)
    if value is None or not findings.direct:
        return f"no {name} (floor {_with_unit(name, limit)})"
    rate = name.endswith("_per_second")
    is_met = value >= limit if rate else value <= limit
    side = "under" if rate else "over"
    return "" if is_met else f"{name} {_with_unit(name, value)}, {side} the declared {_with_unit(name, limit)}"


def _with_unit(name: str, value: float) -> str:
    if name.endswith("_bytes_per_second"):
        return f"{human_bytes(value)}/s"
    return f"{value:,.0f} requests/s" if name.endswith("_per_second") else f"{value * 1e6:,.0f} us"


#: A disk's health, or None and why it is unknown.
Reading = tuple["health.Health | None", str]


def _report_health(result: WorkloadResult, before: Mapping[str, Reading], after: Mapping[str, Reading]) -> None:
    """Add figures of disks whose health was read both before and after; name the others as not tested. A disk that
    vanished is lost. If a health can no longer be read, the count is left out: evidence is missing."""
    untested, lost, unread, count = {}, 0, 0, 0
    aspects = {"media": "media_errors", "power": "unsafe_shutdowns", "used": "used_ratio"}
    telling = dict.fromkeys(aspects, 0)  # not every kind of disk has every figure
    for name, (earlier, problem) in before.items():
        now, why = after.get(name, (None, "the kernel no longer has it"))
        if now is None or earlier is None:
            lost += earlier is not None and name not in after
            unread += earlier is not None and name in after
            untested[name] = why or problem
            if earlier and earlier.warning:
                result.add_metric("storage_disk_warning_count", 1, "count", f"link:{name}")
            continue
        count += 1
        figures = [
            ("storage_disk_warning_count", int(bool(now.warning)), "count"),
            ("storage_disk_media_error_count", now.media_errors, "count"),
            ("storage_disk_media_error_new_count", _rise(earlier.media_errors, now.media_errors), "count"),
            ("storage_disk_power_loss_new_count", _rise(earlier.unsafe_shutdowns, now.unsafe_shutdowns), "count"),
            ("storage_disk_used_ratio", now.used_ratio, "ratio"),
            ("storage_disk_spare_ratio", now.spare_ratio, "ratio"),
            ("storage_disk_temperature_celsius", now.celsius, "celsius"),
        ]
        for metric, value, unit in figures:
            if value is not None:
                result.add_metric(metric, value, unit, f"link:{name}")
        for aspect, figure in aspects.items():
            telling[aspect] += any(getattr(reading, figure) is not None for reading in (earlier, now))
        if now.warning:
            result.message += f"; {name}: {now.warning}"
    result.add_metric("storage_disks_count", count, "count")
    for aspect, number in telling.items():
        result.add_metric(f"storage_disks_with_{aspect}_count", number, "count")
    if not unread:
        result.add_metric("storage_disks_lost_count", lost, "count")
    result.add_metric("storage_disks_untested_count", len(untested), "count")
    result.environment["untested_disks"] = untested
    if untested:
        words = "; ".join(f"{name}: {why}" for name, why in untested.items())
        result.message += f"; health {'no longer readable' if lost or unread else 'not tested'}: {words}"


def _rise(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)
