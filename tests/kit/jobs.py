"""Jobs for tests: written as files, and run by the runner as a stage of a plan."""

from __future__ import annotations

import textwrap
from pathlib import Path

import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import payload
from ansible_collections.gpuval.fleet.plugins.plugin_utils.jobs import document, stages
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans

from tests.kit.runner import Node

SHIPPED = Path(__file__).resolve().parents[2] / "jobs"


def write(folder: Path, **changes) -> Path:
    """A job file, with one step unless said otherwise."""
    job = {"schema": "gpuval.job/1", "name": "mine", "steps": [{"name": "work", "run": "true"}], **changes}
    path = folder / f"{job['name']}.yml"
    path.write_text(yaml.safe_dump(job, sort_keys=False))
    return path


def write_text(folder: Path, text: str, name: str = "mine.yml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def read(path: Path) -> document.JobDocument:
    """The job of a file without mistakes."""
    job, problems = document.examine(path)
    assert job and not problems, problems
    return job


def put(node: Node, path: Path, seconds: float = 60, **chosen) -> str:
    """Put a plan with a job as its only stage in place; returns the stage's name."""
    declared = stages.workloads([path], **chosen)
    ((name, declaration),) = declared.items()
    node.files.workloads.write_bytes(payload.workloads_zip())
    node.put_plan(plans.stage(name, declaration, [name]), deadline_seconds=seconds)
    return name


def run(node: Node, path: Path, seconds: float = 60, **chosen) -> tuple[dict, str]:
    """Run a job as the only stage of a plan; its final record and its log."""
    name = put(node, path, seconds, **chosen)
    node.call("run", seconds=seconds + 30)
    return node.record(name), node.files.result(f"logs/{name}").read_text()
