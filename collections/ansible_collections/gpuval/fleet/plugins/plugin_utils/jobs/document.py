"""Reads job files (gpuval.job/1), YAML that declares a user's own work. Reports all mistakes of a file, with lines."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core import extensions, schemas, yaml_file
from ..core.errors import SettingError
from ..core.text import meant
from ..runs import plans

MAX_FILE_BYTES = 256 << 10
#: Maximum total bytes of the files that a job copies to its nodes: each node's plan contains them.
MAX_COPIED_BYTES = 512 << 10
#: Maximum number of values in a document: YAML aliases can turn few lines into many values.
MAX_VALUES = 20_000
MAX_STAY_SECONDS = 86_400.0
#: Prefixes of environment variables that jobs may not set: gpuval's programs on the node set them.
OWN_VARIABLES = ("GPUVAL_", "PYTHONPATH")
GANG, NONE, MPIRUN = "gang", "none", "mpirun"
LEAST_INACTIVITY = 60
#: Keys of multi-node jobs: {key in the job file: (key in the job that the node gets, default)}.
GANG_KEYS = {
    "least_nodes": ("least", 2),
    "most_nodes": ("most", 0),
    "gpus_per_node": ("gpus_per_node", 0),
    "order": ("order", "inventory"),
    "join_seconds": ("join_seconds", 300),
}
#: Keys of a job file that are also keys of a stage in a plan. A job treats its image and environment differently.
STAGE_KEYS = [key for key in plans.STAGE_DEFAULTS if key not in ("environment", "image")]


@dataclass(frozen=True)
class StepDocument:
    """One step of a job: a command with its settings. ``timeout_seconds`` 0: no limit but the job's; ``creates``: path
    on the node whose presence skips the step; ``once``: on one node of a multi-node job."""

    name: str
    command: tuple[str, ...]
    timeout_seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict)
    creates: str = ""
    once: bool = False
    launcher: str = NONE


@dataclass(frozen=True)
class JobDocument:
    """A job, read from its file at ``path``. ``files``: {name: text} of the files that it copies to nodes; ``stage``:
    its values of STAGE_KEYS; ``gang``: how several nodes run the job together, empty for a single-node job."""

    path: Path
    name: str
    steps: tuple[StepDocument, ...]
    image: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[Mapping[str, str], ...] = ()
    output: tuple[str, ...] = ()
    csv: str = ""
    gang: Mapping[str, Any] = field(default_factory=dict)
    stay_alive_seconds: float = 0.0
    stage: Mapping[str, Any] = field(default_factory=dict)


def examine(path: Path) -> tuple[JobDocument | None, list[str]]:
    """Read a job file. Returns the job, or None and all mistakes in the file, each as ``FILE:LINE: ...``."""
    try:
        status = path.stat()
    except OSError as error:
        return None, [f"{path}: cannot be read: {error.strerror}"]
    return _examined(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=512)
def _examined(path: Path, _changed: int, size: int) -> tuple[JobDocument | None, list[str]]:
    """Read a job file as `examine` does. Cached by its times and ``size`` in bytes, since many nodes run one job."""
    if size > MAX_FILE_BYTES:
        return None, [f"{path}: {size} bytes, and a job has at most {MAX_FILE_BYTES}"]
    try:
        text = yaml_file.read(path)
        document = yaml_file.parse(path, text, yaml_file.VerbatimLoader)
    except yaml_file.YamlError as error:
        return None, [str(error)]
    if not _is_small(document):
        return None, [f"{path}: more than {MAX_VALUES} values: remove aliases"]
    problems = [
        (invalid.path, invalid.problem, invalid.key) for invalid in schemas.problems("job", document, what="job")
    ]
    files: dict[str, str] = {}
    if not problems:
        files, unread = _files(path, document.get("files", ()))
        problems = [(*problem, "") for problem in (*unread, *_doubts(document))]
    if problems:
        placed = sorted((_placed(text, *problem) for problem in problems), key=lambda pair: pair[0])
        return None, [f"{path}:{line}: {problem}" for line, problem in placed]
    return _job(path, document, files), []


def _is_small(document: Any) -> bool:
    waiting, count = [document], 0
    while waiting and count <= MAX_VALUES:
        value = waiting.pop()
        count += 1
        if isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
    return count <= MAX_VALUES


def _placed(text: str, place: Sequence[str | int], problem: str, key: str) -> tuple[int, str]:
    where = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")
    return yaml_file.line_of(text, place, key), f"{where + ': ' if where else ''}{problem}"


Problem = tuple[tuple[str | int, ...], str]


def _doubts(document: Mapping[str, Any]) -> Iterable[Problem]:
    """Mistakes in a job file that its schema cannot detect, each with the path of its keys in the document."""
    if document["name"] in extensions.found("stages"):
        yield ("name",), f"{document['name']} is a stage of gpuval: choose another name"
    names = Counter(step["name"] for step in document["steps"])
    for index, step in enumerate(document["steps"]):
        if names[step["name"]] > 1:
            yield ("steps", index, "name"), f"two steps are called {step['name']}: rename one"
        if not str(step["run"] if isinstance(step["run"], str) else step["run"][0]).strip():
            yield ("steps", index, "run"), "is empty: write a command"
    yield from _gang_doubts(document)
    steps = [(("steps", index), step) for index, step in enumerate(document["steps"])]
    for place, part in [((), document), *steps]:
        for name in part.get("environment", {}):
            if name.startswith(OWN_VARIABLES):
                yield (*place, "environment", name), "gpuval sets it itself: choose another name"
            if name in document.get("secrets", ()):
                yield (*place, "environment", name), "is a secret of the job, too: remove one of the two"
    for index, name in enumerate(document.get("secrets", ())):
        if name.startswith(OWN_VARIABLES):
            yield ("secrets", index), f"gpuval sets {name} itself: choose another name"
    try:
        plans.checked_container(document["name"], document.get("container", {}))
    except plans.PlanError as error:
        yield ("container",), str(error).partition(": ")[2]
    results = document.get("results", {})
    try:
        plans.readers(results.get("output"))
    except SettingError as error:
        yield ("results", "output"), str(error)
    for index, pattern in enumerate(results.get("patterns", ())):
        place = ("results", "patterns", index, "pattern")
        try:
            if "value" not in re.compile(pattern["pattern"]).groupindex:
                yield place, "has no group 'value': write (?P<value>...) around the number"
        except re.error as error:
            yield place, f"is not a regular expression: {error}"


def _gang_doubts(document: Mapping[str, Any]) -> Iterable[Problem]:
    if document.get("nodes") != GANG:
        alone = "is for jobs of several nodes: add nodes: gang"
        yield from (((key,), alone) for key in GANG_KEYS if key in document)
        yield from ((("results", "node"), alone) for key in document.get("results", {}) if key == "node")
        for index, step in enumerate(document["steps"]):
            yield from ((("steps", index, key), alone) for key in ("once", "launcher") if key in step)
        return
    least, most = document.get("least_nodes", 2), document.get("most_nodes")
    if most is not None and most < least:
        yield ("most_nodes",), f"{most} is less than least_nodes, {least}"
    if document.get("timeout_seconds") == 0:
        yield ("timeout_seconds",), "nodes that wait for each other need a limit: set more than 0"
    if 0 < document.get("inactivity_seconds", 0) < LEAST_INACTIVITY:
        yield ("inactivity_seconds",), f"a node that waits prints every 30 s: set {LEAST_INACTIVITY} or more, or 0"
    for index, step in enumerate(document["steps"]):
        if step.get("once") and step.get("launcher", NONE) not in (NONE, MPIRUN):
            yield ("steps", index, "once"), "a step with this launcher runs on all nodes: remove one of the two"


def _files(path: Path, names: Sequence[str]) -> tuple[dict[str, str], list[Problem]]:
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    total = 0
    for index, name in enumerate(names):
        file = path.parent / name
        try:
            total += file.stat().st_size
            if total <= MAX_COPIED_BYTES:
                texts[name] = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            beside = (other.name for other in path.parent.iterdir() if other.is_file())
            problems.append((("files", index), f"there is no file {file}{meant(name, beside)}"))
        except (OSError, UnicodeDecodeError) as error:
            problems.append((("files", index), f"{file} cannot be read as text: {error}"))
    if total > MAX_COPIED_BYTES:
        problem = f"{total} bytes, and a job copies at most {MAX_COPIED_BYTES}: put them into its image"
        problems.append((("files",), problem))
    return texts, problems


def _job(path: Path, document: Mapping[str, Any], files: Mapping[str, str]) -> JobDocument:
    results, stay = document.get("results", {}), document.get("stay_alive", 0)
    gang = {}
    if document.get("nodes") == GANG:
        gang = {name: document.get(key, default) for key, (name, default) in GANG_KEYS.items()}
        gang["figures"] = results.get("node", "first")
    return JobDocument(
        path,
        document["name"],
        tuple(_step(step) for step in document["steps"]),
        image=document.get("image", ""),
        environment=_texts(document.get("environment", {})),
        files=files,
        patterns=tuple(results.get("patterns", ())),
        output=tuple(results.get("output", ())),
        csv=results.get("csv", ""),
        gang=gang,
        stay_alive_seconds=MAX_STAY_SECONDS if stay is True else float(stay),
        stage={key: document[key] for key in STAGE_KEYS if key in document},
    )


def _step(step: Mapping[str, Any]) -> StepDocument:
    run = step["run"]
    command = ["bash", "-e", "-o", "pipefail", "-c", run] if isinstance(run, str) else [str(word) for word in run]
    seconds, environment = float(step.get("timeout_seconds", 0)), _texts(step.get("environment", {}))
    others = {key: step[key] for key in ("creates", "once", "launcher") if key in step}
    return StepDocument(step["name"], tuple(command), seconds, environment, **others)


def _texts(variables: Mapping[str, Any]) -> dict[str, str]:
    """The values of environment variables as text; a boolean becomes ``true`` or ``false``."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()}
