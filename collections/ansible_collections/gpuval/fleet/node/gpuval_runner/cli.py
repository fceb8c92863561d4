"""The command line of ``runner.pyz``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from gpuval_runner.errors import LockHeldError, RunnerError
from gpuval_runner.layout import NodeDirectory

# Each command imports what it needs itself: importing everything takes several times as long as a short command.

EXIT_REFUSED, EXIT_HELD = 2, 3


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one command and print the document that it gives, if any; returns the exit code."""
    os.umask(0o077)
    options = _parser().parse_args(arguments)
    try:
        result = options.command(options)
        if not isinstance(result, int):
            print(json.dumps(result, separators=(",", ":")), flush=True)
            result = 0
    except RunnerError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_HELD if isinstance(error, LockHeldError) else EXIT_REFUSED
    except OSError as error:
        print(f"error: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        return EXIT_REFUSED
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runner.pyz", description="Runs the plan of a gpuval run on this node.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, description: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=description, description=description)
        sub.set_defaults(command=function)
        if name not in ("facts", "endpoints"):
            sub.add_argument("--dir", required=True, type=_directory, help="node directory: BASE/RUN_ID/NODE")
        return sub

    command("start", _start, "start a runner in the background")
    sub = command("run", _run, "run the plan in the foreground; exit 0 only if every stage succeeded")
    sub.add_argument("--instance", default="", help=argparse.SUPPRESS)
    sub.add_argument("--unit", default="", help=argparse.SUPPRESS)
    sub.add_argument("--environment-file", type=Path, help=argparse.SUPPRESS)
    sub.add_argument("--boot-id-file", type=Path, help=argparse.SUPPRESS)
    command("status", _status, "print how far the run is, as JSON")
    sub = command("fetch", _fetch, "print results that the caller does not have, as JSON")
    sub.add_argument("--since", default="{}", help="JSON object of key to digest already held, or - for standard input")
    sub.add_argument("--limit-bytes", type=int, help="stop before this much content (default: 32 MiB)")
    sub.add_argument("--not-uploaded", action="store_true", help="only what the store lacks")
    sub = command("cancel", _cancel, "stop the running stage and cancel the rest")
    sub.add_argument("--wait", type=float, help="seconds to wait (default: 30)")
    sub = command("clean", _clean, "stop everything of the run and remove its directory")
    sub.add_argument("--keep-models", action="store_true", help="leave the model cache")
    sub.add_argument("--remove-images", action="store_true", help="remove the images that the run brought, too")
    sub.add_argument("--dry-run", action="store_true", help="only name what would be ended")
    command("image", _image, "bring the images of the plan; the result goes to GPUVAL_RESULT_FILE")
    sub = command("pod", _pod, "run one stage as a container's entry point")
    sub.add_argument("--stage", required=True)
    sub.add_argument("--last", action="store_true", help="return the plan's outcome")
    sub.add_argument(
        "--source",
        type=_directory,
        help="where plan.json, store.json, rclone.conf and workloads.zip are (default: --dir)",
    )
    sub.add_argument("--clear", type=_directory, help="folder to empty first: shared memory of earlier stages")
    sub = command("facts", _facts, "find out what this node is; the result goes to GPUVAL_RESULT_FILE")
    sub.add_argument("--root", default="/", help="look below this directory (default: %(default)s)")
    sub = command("endpoints", _endpoints, "measure the way to named services; the result goes to GPUVAL_RESULT_FILE")
    sub.add_argument("--endpoints", required=True, type=json.loads, help="list of endpoints, as JSON")
    sub.add_argument("--seconds", type=float, default=10, help="for each endpoint (default: %(default)s)")
    return parser


def _directory(text: str) -> Path:
    return Path(text).absolute()


def _start(options: argparse.Namespace) -> dict[str, Any]:
    from gpuval_runner.start import start

    return start(NodeDirectory(options.dir))


def _run(options: argparse.Namespace) -> int:
    from gpuval_runner.boot import BOOT_ID_FILE
    from gpuval_runner.files import read_json
    from gpuval_runner.runner import RunnerOptions, run

    if options.environment_file:
        os.environ.update(read_json(options.environment_file, 1 << 20))
    return run(
        RunnerOptions(
            directory=NodeDirectory(options.dir),
            instance=options.instance,
            unit=options.unit,
            boot_id_file=options.boot_id_file or BOOT_ID_FILE,
        )
    )


def _status(options: argparse.Namespace) -> dict[str, Any]:
    from gpuval_runner.status import status

    return status(NodeDirectory(options.dir))


def _fetch(options: argparse.Namespace) -> dict[str, Any]:
    from gpuval_runner.fetch import LIMIT_BYTES, fetch

    limit = LIMIT_BYTES if options.limit_bytes is None else options.limit_bytes
    return fetch(NodeDirectory(options.dir), _since(options.since), limit, options.not_uploaded)


def _since(text: str) -> dict[str, Any]:
    if text == "-":
        text = sys.stdin.read()
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RunnerError(f"--since is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RunnerError("--since is not a JSON object of key to digest")
    return value


def _cancel(options: argparse.Namespace) -> dict[str, Any]:
    from gpuval_runner.cancel import WAIT_SECONDS, cancel
    from gpuval_runner.runner import RunnerOptions

    return cancel(
        RunnerOptions(directory=NodeDirectory(options.dir)), WAIT_SECONDS if options.wait is None else options.wait
    )


def _clean(options: argparse.Namespace) -> dict[str, Any]:
    from gpuval_runner.clean import clean

    return clean(
        NodeDirectory(options.dir), options.keep_models, remove_images=options.remove_images, dry_run=options.dry_run
    )


def _image(options: argparse.Namespace) -> int:
    from gpuval_runner.containers.images import bring_images

    return bring_images(NodeDirectory(options.dir))


def _pod(options: argparse.Namespace) -> int:
    from gpuval_runner.pod import run_pod
    from gpuval_runner.runner import RunnerOptions

    pod_options = RunnerOptions(directory=NodeDirectory(options.dir), source=options.source)
    return run_pod(pod_options, options.stage, options.last, options.clear)


def _facts(options: argparse.Namespace) -> int:
    from gpuval_node.hardware.collect import facts_result

    from gpuval_runner.files import write_result

    result = facts_result(options.root, os.environ.get("GPUVAL_ACCELERATOR", "auto"))
    if not write_result(result):  # outside of a stage
        print(json.dumps(result, indent=2))
    if result["state"] == "failure":
        print(f"failure: {result['message']}", file=sys.stderr)
        return 1
    return 0


def _endpoints(options: argparse.Namespace) -> int:
    from gpuval_runner.endpoints import endpoints

    return endpoints(options.endpoints, options.seconds)
