"""The command line of ``runner.pyz``, the program that runs a plan on a node."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from gpuval_runner.errors import LockHeldError, RunnerError
from gpuval_runner.files import read_json
from gpuval_runner.layout import NodeDirectory

EXIT_REFUSED, EXIT_HELD = 2, 3


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run one command of the runner and print the document that the command returns, if any; returns the exit code."""
    os.umask(0o077)
    options = _parser().parse_args(arguments)
    try:
        result = options.call(importlib.import_module(f"gpuval_runner.{options.module}"), options)
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

    def command(name: str, module: str, call: Callable[[Any, Any], Any], description: str) -> argparse.ArgumentParser:
        """Add a command to the parser. `call` gets the command's module of ``gpuval_runner`` and the options. The
        module is imported only when the command runs: importing all takes several times as long as a command."""
        sub = commands.add_parser(name, help=description, description=description)
        sub.set_defaults(module=module, call=call)
        if name not in ("facts", "endpoints"):
            sub.add_argument("--dir", required=True, type=Path, help="node directory: BASE/RUN_ID/NODE")
        return sub

    command("start", "start", lambda start, o: start.start(_directory(o)), "start a runner in the background")
    sub = command("run", "runner", _run, "run the plan in the foreground; exit 0 only if every stage succeeded")
    sub.add_argument("--instance", default="", help=argparse.SUPPRESS)
    sub.add_argument("--unit", default="", help=argparse.SUPPRESS)
    sub.add_argument("--environment-file", type=Path, help=argparse.SUPPRESS)
    sub.add_argument("--boot-id-file", type=Path, help=argparse.SUPPRESS)
    description = "print how far the run is, as JSON"
    command("status", "fetch", lambda fetch, o: fetch.status(_directory(o)), description)
    sub = command("fetch", "fetch", _fetch, "print results that the caller does not have, as JSON")
    sub.add_argument("--since", default="{}", help="JSON object of key to digest already held, or - for standard input")
    sub.add_argument("--limit-bytes", type=int, default=32 << 20, help="maximum of content (default: 32 MiB)")
    sub.add_argument("--not-uploaded", action="store_true", help="only what the store lacks")
    description = "stop the running stage and cancel the rest"
    sub = command("cancel", "runner", lambda runner, o: runner.cancel(_runner_options(runner, o), o.wait), description)
    sub.add_argument("--wait", type=float, default=30.0, help="seconds to wait (default: %(default)s)")
    sub = command("clean", "clean", _clean, "stop everything of the run and remove its directory")
    sub.add_argument("--keep-models", action="store_true", help="leave the model cache")
    sub.add_argument("--remove-images", action="store_true", help="remove the images that the run brought, too")
    sub.add_argument("--dry-run", action="store_true", help="only name what would be ended")
    description = "bring the images of the plan; the result goes to GPUVAL_RESULT_FILE"
    command("image", "containers.images", lambda images, o: images.bring_images(_directory(o)), description)
    sub = command("pod", "pod", _pod, "run one stage as a container's entry point")
    sub.add_argument("--stage", required=True)
    sub.add_argument("--last", action="store_true", help="return the plan's outcome")
    given = "plan.json, store.json, rclone.conf and workloads.zip"
    sub.add_argument("--source", type=Path, help=f"where {given} are (default: --dir)")
    sub.add_argument("--clear", type=Path, help="folder to empty first: shared memory of earlier stages")
    sub = command("facts", "files", _facts, "find out what this node is; the result goes to GPUVAL_RESULT_FILE")
    sub.add_argument("--root", default="/", help="look below this directory (default: %(default)s)")
    sub.add_argument("--cabling", action="store_true", help="also ask what the node's ports are connected to")
    description = "measure the way to named services; the result goes to GPUVAL_RESULT_FILE"
    sub = command("endpoints", "endpoints", lambda stage, o: stage.endpoints(o.endpoints, o.seconds), description)
    sub.add_argument("--endpoints", required=True, type=json.loads, help="list of endpoints, as JSON")
    sub.add_argument("--seconds", type=float, default=10, help="for each endpoint (default: %(default)s)")
    return parser


def _directory(options: argparse.Namespace) -> NodeDirectory:
    source = getattr(options, "source", None)
    return NodeDirectory(options.dir.absolute(), source and source.absolute())


def _runner_options(runner: Any, options: argparse.Namespace) -> Any:
    names = ("instance", "unit", "boot_id_file")
    chosen = {name: value for name in names if (value := getattr(options, name, None))}
    return runner.RunnerOptions(directory=_directory(options), **chosen)


def _run(runner: Any, options: argparse.Namespace) -> Any:
    if options.environment_file:
        os.environ.update(read_json(options.environment_file, 1 << 20))
    return runner.run(_runner_options(runner, options))


def _fetch(fetch: Any, options: argparse.Namespace) -> Any:
    try:
        since = json.loads(sys.stdin.read() if options.since == "-" else options.since)
    except ValueError as error:
        raise RunnerError(f"--since is not JSON: {error}") from error
    if not isinstance(since, dict):
        raise RunnerError("--since is not a JSON object of key to digest")
    return fetch.fetch(_directory(options), since, options.limit_bytes, options.not_uploaded)


def _clean(clean: Any, options: argparse.Namespace) -> Any:
    chosen = {name: getattr(options, name) for name in ("keep_models", "remove_images", "dry_run")}
    return clean.clean(_directory(options), **chosen)


def _pod(pod: Any, options: argparse.Namespace) -> Any:
    clear = options.clear and options.clear.absolute()
    return pod.run_pod(_runner_options(pod, options), options.stage, options.last, clear)


def _facts(files: Any, options: argparse.Namespace) -> int:
    from gpuval_node.hardware.collect import facts_result

    accelerator = os.environ.get("GPUVAL_ACCELERATOR", "auto")
    result: dict[str, Any] = facts_result(options.root, accelerator, with_cabling=options.cabling)
    if not files.write_result(result):  # outside of a stage: the caller reads the facts
        print(json.dumps(result, indent=2))
    if result["state"] == "failure":
        print(f"failure: {result['message']}", file=sys.stderr)
        return 1
    return 0
