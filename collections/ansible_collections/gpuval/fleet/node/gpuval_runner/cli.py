"""The command line of ``runner.pyz``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from gpuval_runner.errors import LockHeldError, RunnerError
from gpuval_runner.layout import NodeDirectory

EXIT_REFUSED, EXIT_HELD = 2, 3


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one command of the runner and print the document that the command returns, if any; returns the exit code."""
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
            sub.add_argument("--dir", required=True, type=Path, help="node directory: BASE/RUN_ID/NODE")
        return sub

    command("start", lambda o: _import_module("start").start(_directory(o)), "start a runner in the background")
    sub = command("run", _run, "run the plan in the foreground; exit 0 only if every stage succeeded")
    sub.add_argument("--instance", default="", help=argparse.SUPPRESS)
    sub.add_argument("--unit", default="", help=argparse.SUPPRESS)
    sub.add_argument("--environment-file", type=Path, help=argparse.SUPPRESS)
    sub.add_argument("--boot-id-file", type=Path, help=argparse.SUPPRESS)
    command("status", lambda o: _import_module("fetch").status(_directory(o)), "print how far the run is, as JSON")
    sub = command("fetch", _fetch, "print results that the caller does not have, as JSON")
    sub.add_argument("--since", default="{}", help="JSON object of key to digest already held, or - for standard input")
    sub.add_argument(
        "--limit-bytes", type=int, default=32 << 20, help="stop before this much content (default: 32 MiB)"
    )
    sub.add_argument("--not-uploaded", action="store_true", help="only what the store lacks")
    sub = command(
        "cancel",
        lambda o: _import_module("runner").cancel(_runner_options(o), o.wait),
        "stop the running stage and cancel the rest",
    )
    sub.add_argument("--wait", type=float, default=30.0, help="seconds to wait (default: %(default)s)")
    sub = command("clean", _clean, "stop everything of the run and remove its directory")
    sub.add_argument("--keep-models", action="store_true", help="leave the model cache")
    sub.add_argument("--remove-images", action="store_true", help="remove the images that the run brought, too")
    sub.add_argument("--dry-run", action="store_true", help="only name what would be ended")
    command(
        "image",
        lambda o: _import_module("containers.images").bring_images(_directory(o)),
        "bring the images of the plan; the result goes to GPUVAL_RESULT_FILE",
    )
    sub = command("pod", _pod, "run one stage as a container's entry point")
    sub.add_argument("--stage", required=True)
    sub.add_argument("--last", action="store_true", help="return the plan's outcome")
    given = "plan.json, store.json, rclone.conf and workloads.zip"
    sub.add_argument("--source", type=Path, help=f"where {given} are (default: --dir)")
    sub.add_argument("--clear", type=Path, help="folder to empty first: shared memory of earlier stages")
    sub = command("facts", _facts, "find out what this node is; the result goes to GPUVAL_RESULT_FILE")
    sub.add_argument("--root", default="/", help="look below this directory (default: %(default)s)")
    sub.add_argument("--cabling", action="store_true", help="also ask what the node's ports are connected to")
    sub = command(
        "endpoints",
        lambda o: _import_module("endpoints").endpoints(o.endpoints, o.seconds),
        "measure the way to named services; the result goes to GPUVAL_RESULT_FILE",
    )
    sub.add_argument("--endpoints", required=True, type=json.loads, help="list of endpoints, as JSON")
    sub.add_argument("--seconds", type=float, default=10, help="for each endpoint (default: %(default)s)")
    return parser


def _import_module(module: str) -> Any:
    """Import a module of the runner when its command runs: importing all takes several times as long as a command."""
    return importlib.import_module(f"gpuval_runner.{module}")


def _directory(options: argparse.Namespace) -> NodeDirectory:
    source = getattr(options, "source", None)
    return NodeDirectory(options.dir.absolute(), source and source.absolute())


def _runner_options(options: argparse.Namespace) -> Any:
    names = ("instance", "unit", "boot_id_file")
    chosen = {name: value for name in names if (value := getattr(options, name, None))}
    return _import_module("runner").RunnerOptions(directory=_directory(options), **chosen)


def _run(options: argparse.Namespace) -> Any:
    if options.environment_file:
        os.environ.update(_import_module("files").read_json(options.environment_file, 1 << 20))
    return _import_module("runner").run(_runner_options(options))


def _fetch(options: argparse.Namespace) -> Any:
    since = _read_since(sys.stdin.read() if options.since == "-" else options.since)
    return _import_module("fetch").fetch(_directory(options), since, options.limit_bytes, options.not_uploaded)


def _read_since(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RunnerError(f"--since is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RunnerError("--since is not a JSON object of key to digest")
    return value


def _clean(options: argparse.Namespace) -> Any:
    chosen = {name: getattr(options, name) for name in ("keep_models", "remove_images", "dry_run")}
    return _import_module("clean").clean(_directory(options), **chosen)


def _pod(options: argparse.Namespace) -> Any:
    return _import_module("pod").run_pod(
        _runner_options(options), options.stage, options.last, options.clear and options.clear.absolute()
    )


def _facts(options: argparse.Namespace) -> int:
    from gpuval_node.hardware.collect import facts_result

    from gpuval_runner.files import write_result

    accelerator = os.environ.get("GPUVAL_ACCELERATOR", "auto")
    result: dict[str, Any] = facts_result(options.root, accelerator, with_cabling=options.cabling)
    if not write_result(result):  # outside of a stage
        print(json.dumps(result, indent=2))
    if result["state"] == "failure":
        print(f"failure: {result['message']}", file=sys.stderr)
        return 1
    return 0
