#!/usr/bin/env python3
"""Answer `make status`, `runs`, `window` and `follow` without starting Ansible, which takes 3.6 s of processor time.

    tools/look.py ansible-playbook -i INVENTORY gpuval.fleet.status -e status_lines=true

runs the step of that playbook itself, with the settings that a playbook found last, as long as nothing changed that
they may come from. Whatever else is asked, the command runs as it stands, and remembers the settings.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLLECTION = ROOT / "collections/ansible_collections/gpuval/fleet"
#: A file for each inventory and all that its settings come from: a line of JSON for each step that had some.
MEMORY = ROOT / ".gpuval/remembered"
MEMORY_BYTES = 4 << 20
REMEMBERED = "GPUVAL_REMEMBERED"
sys.path.insert(0, str(ROOT / "collections"))

#: Of each playbook its step, that step's task, and the options that its extra variables set, with their types.
LOOKS = {
    "status": (
        "show_status",
        "Show the state of the run",
        {
            "status_nodes": ("nodes", lambda text: text.split(",")),
            "status_watch": ("watch", bool),
            "status_all": ("whole", bool),
            "status_lines": ("lines", bool),
        },
    ),
    "runs": ("list_runs", "List the runs", {}),
    "window": (
        "set_window",
        "Move the window of the run",
        {"run_window_nodes": ("max_nodes_at_once", int), "run_window_transfers": ("max_transfers", int)},
    ),
    "reach": (
        "reach_node",
        "Find the way to the node",
        {
            "run_reach": ("what", str),
            "run_reach_node": ("node", str),
            "run_reach_stage": ("stage", str),
            "run_reach_file": ("file", str),
        },
    ),
}
FAILED, INTERRUPTED = 2, 99
RED, PURPLE = "31", "1;35"


#: How extra variables are written that a look reads as a playbook does; it leaves others to the playbook.
FORMS = {bool: "true", int: "[0-9]+"}
PLAIN = r"""[^\s{'"\\]+"""
#: Settings that an inventory with these takes from elsewhere: lookups but of variables and of named ones of the
#: environment, the time, chance, tests of files, and other inventory plugins.
ELSEWHERE = re.compile(
    rb"""\b(?:lookup|query|q)\s*\(\s*+(?!['"](?:ansible\.builtin\.)?(?:vars['"]|env['"]\s*,\s*['"]\w+['"]))
    |\bnow\s*\(|\|\s*(?:ansible\.builtin\.)?(?:random|shuffle|strftime|fileglob|realpath)\b
    |\bis\s+(?:not\s+)?[\w.]*(?:exists|file|dir|directory|link|mount)\b
    |^\s*['"]?plugin['"]?\s*:\s*+(?!['"]?gpuval\.fleet\.node_list\b)""",
    re.MULTILINE | re.VERBOSE,
)
#: Files of such a plugin, and the list of nodes that it reads, relative to its file.
LIST_PLUGIN = re.compile(rb"""^\s*['"]?plugin['"]?\s*:.*gpuval\.fleet\.node_list""", re.MULTILINE)
LIST_PATH = re.compile(rb"""^\s*['"]?path['"]?\s*:\s*+['"]?([^'"#\n]+)""", re.MULTILINE)
#: Names that may be those of environment variables: in a lookup, and in a .env file, where the environment wins.
QUOTED, KEY = re.compile(rb"""['"](\w+)['"]"""), re.compile(rb"^\s*(?:export\s+)?'?(\w+)'?\s*=", re.MULTILINE)


class NoLookError(Exception):
    """The playbook has to answer."""


class Terminal:
    """Prints as Ansible's display does."""

    verbosity = 0

    def display(self, text, color="", stream=None, newline=True, screen_only=True):
        stream = stream or sys.stdout
        is_colored = color and stream.isatty() and "ANSIBLE_NOCOLOR" not in os.environ and "NO_COLOR" not in os.environ
        end = "\n" if newline else ""
        print(f"\033[{color}m{text}\033[0m" if is_colored else text, file=stream, flush=True, end=end)

    def warning(self, text):
        self.display(f"[WARNING]: {text}", PURPLE, sys.stderr)

    def error(self, text):
        self.display(f"[ERROR]: {text}", RED, sys.stderr)


def parse(command):
    """The playbook, the sources of the inventory and the extra variables of a command. Raises NoLookError."""
    playbook, sources, variables, words = "", [], {}, iter(command[1:])
    for word in words:
        if word == "-i":
            sources.append(next(words, ""))
        elif word == "-e":
            value = next(words, "")
            try:
                name, is_given, text = value.partition("=")
                variables |= json.loads(value) if value.startswith("{") else {name: text}
            except (TypeError, ValueError):
                raise NoLookError from None
            if not (value.startswith("{") or is_given):
                raise NoLookError
        elif playbook or not word.startswith("gpuval.fleet."):
            raise NoLookError
        else:
            playbook = word.removeprefix("gpuval.fleet.")
    return playbook, sources, variables


def options_of(kinds, variables):
    """The step's options from extra variables; one that is empty keeps its default. Raises NoLookError."""
    options = {}
    for name, text in variables.items():
        if name not in kinds:
            raise NoLookError
        option, kind = kinds[name]
        if text != "" or kind is not int:  # make gives an empty number for its default
            options[option] = kind(plain(text, FORMS.get(kind, PLAIN)))
    return options


def plain(text, form=PLAIN):
    """The text of an extra variable. Raises NoLookError where the playbook reads it otherwise or refuses it."""
    if isinstance(text, str) and re.fullmatch(form, text):
        return text
    raise NoLookError


def fingerprint(sources):
    """SHA-256 of all that the settings of an inventory come from; None where they may come from elsewhere."""
    paths = [Path(source) for source in sources]
    named = [Path(os.environ[name]) for name in ("ANSIBLE_CONFIG", "GPUVAL_ENV_FILE") if os.environ.get(name)]
    files = {Path("ansible.cfg"), *named, *(path.parent / ".env" for path in paths)}
    for path in paths:
        folders = [path] if path.is_dir() else [path.parent / name for name in ("group_vars", "host_vars")]
        files |= {path, *(file for folder in folders for file in folder.rglob("*"))}
    contents = {str(file): file.read_bytes() for file in sorted(files) if file.is_file()}
    text = b"\n".join(contents.values())
    of_lists = [(Path(name).parent, content) for name, content in contents.items() if LIST_PLUGIN.search(content)]
    lists = [folder / os.fsdecode(name).strip() for folder, content in of_lists for name in LIST_PATH.findall(content)]
    is_program = any(os.access(name, os.X_OK) for name in contents)
    is_linked = any(file.is_symlink() and file.is_dir() for file in files)  # rglob does not follow it
    if is_program or is_linked or ELSEWHERE.search(text) or len(lists) < len(of_lists):
        return None
    if not all(path.exists() for path in paths) or not all(file.is_file() for file in lists):
        return None
    contents |= {str(file): file.read_bytes() for file in lists}
    words = {name.decode() for pattern in (QUOTED, KEY) for name in pattern.findall(text)}
    environment = [key for key in os.environ if key.startswith(("ANSIBLE_", "GPUVAL_")) or key in words]
    contents |= {key: os.fsencode(os.environ[key]) for key in environment}
    contents |= {
        str(path): path.read_bytes() for path in (COLLECTION / "roles/gpuval/defaults/main.yml", Path(__file__))
    }
    parts = [f"{name}\0{hashlib.sha256(content).hexdigest()}\n" for name, content in sorted(contents.items())]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def memory_of(sources):
    """The file for these settings; None where they cannot be remembered."""
    with contextlib.suppress(OSError):
        if (digest := fingerprint(sources)) is not None:
            inventory = json.dumps([str(Path(source).resolve()) for source in sources])
            return MEMORY / hashlib.sha256(inventory.encode()).hexdigest()[:16] / f"{digest[:32]}.jsonl"
    return None


def recall(file):
    """The settings in a file; empty if there are none, it is damaged, or a look has to warn of some."""
    settings = {}
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            settings |= json.loads(line)
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
    return {} if settings.get("has_warnings", True) else settings


def prepare_memory(file):
    """Make room for settings, and drop those that no longer count, are damaged, or of too many runs."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not recall(file) or file.stat().st_size > MEMORY_BYTES:
        file.unlink(missing_ok=True)
    for earlier in {*file.parent.iterdir()} - {file}:
        earlier.unlink(missing_ok=True)


def check_folder(run_command, options):
    """Raise NoLookError unless the run's folder has its whole status: the store needs keys that the playbook has."""
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.status.folder_reader import read_status

    results, run_id = Path(options["results_dir"]), options["run_id"]
    own = folder.own(results, run_id, options["folder"], run_command.inventory, opened=True)
    if options["watch"] or own is None or read_status(own) is None:
        raise NoLookError


def look(command):
    """Answer the command. Returns its exit code. Raises NoLookError."""
    playbook, sources, variables = parse(command)
    if playbook not in LOOKS:
        raise NoLookError
    settings = recall(memory_of(sources))
    step_name, task, kinds = LOOKS[playbook]
    run_id = plain(variables.pop("gpuval_run_id", ""), f"(?:{PLAIN})?")
    options = options_of(kinds, variables)

    from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import commands, step_options
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.console import Console, folded
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import GpuvalError
    from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs.command import RunCommand

    run_command, terminal = RunCommand(), Terminal()
    run_command.use_inventory(sources)
    commands.look_sources[:] = sources
    run_command.display = Console(terminal)
    run_command.ways = settings.pop("ways", {})
    if store := settings.get("store"):
        settings["store"] = {**store, "secrets": {}}
    if not settings.get("results_dir"):
        raise NoLookError
    if playbook == "reach" and (options.get("what") != "follow" or not run_command.ways.get(options.get("node"))):
        raise NoLookError  # the connection of a node that no playbook has probed since
    step = step_options.load_step(step_name)
    spec = step_options.step_spec(step)
    defaults = {name: declared.get("default") for name, declared in spec.items()}
    chosen = {name: value for name, value in settings.items() if name in spec}
    options = {**defaults, **chosen, **options, **({"run_id": run_id} if run_id else {})}
    if "state_dir" in spec:
        options["state_dir"] = settings["results_dir"]  # of no use to a remembered way
    try:
        if settings.get("env_line"):
            run_command.display.display(settings["env_line"])
        run_command.adopt_runs(settings["results_dir"])
        if playbook == "status" and not settings["store"]:
            check_folder(run_command, options)
        result = step(run_command, **step_options.step_arguments(step, options))
    except GpuvalError as error:
        result = {"failed": True, "msg": str(error)}
    except OSError:  # the playbook names the setting to change
        raise NoLookError from None
    if not result.get("failed"):
        return 0
    terminal.display(f"FAILED: {task}: {folded(result['msg'])}", RED)
    return FAILED


def run_playbook(command):
    """Run the command in place of this process. It remembers the settings if none are on the command line."""
    with contextlib.suppress(NoLookError, OSError):
        _playbook, sources, variables = parse(command)
        chosen = [name for name in variables if not name.startswith(("status_", "runs_", "run_"))]
        if not chosen and (file := memory_of(sources)):
            prepare_memory(file)
            os.environ[REMEMBERED] = str(file)
    sys.stdout.flush()
    os.execv(command[0], command)


def main(command):
    os.environ.pop(REMEMBERED, None)  # of a playbook that started this command
    try:
        return look(command)
    except NoLookError:
        return run_playbook(command)
    except KeyboardInterrupt:
        Terminal().error("User interrupted execution")
        return INTERRUPTED
    except BrokenPipeError:  # `make status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
