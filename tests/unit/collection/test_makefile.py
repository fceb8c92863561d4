"""`make help` shows the main targets by group; every target is run as it is, with programs that take notes."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.splitter import parse_kv
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import settings

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOKS = ROOT / "collections" / "ansible_collections" / "gpuval" / "fleet" / "playbooks"
ALL = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
PROGRAMS = ("ansible-playbook", "ansible-lint", "ansible-galaxy", "antsibull-changelog", "jupyter", "lint-imports",
            "mkdocs", "molecule", "mypy", "python", "ruff", "yamllint", "zizmor")  # fmt: skip
#: Writes its name and arguments, one in a line, and an empty line.
NOTES = """#!/bin/sh
{ basename "$0"; printf '%s\\n' "$@" ''; } >> notes
"""
#: As the real one where nothing is remembered of an inventory: `tools/look.py` runs the command after it.
LOOK = """#!/bin/sh
test "$1" = tools/look.py && shift && exec "$@"
"""
OLD_PYTHON = """#!/bin/sh
case $1 in --version) echo Python 3.10.12;; -c) exit 1;; esac
"""
#: In place of tools/install.py, which has tests of its own.
PYTHON = """#!/bin/sh
test "$1" = tools/install.py || exit 0
environment=${2%/*}
mkdir -p "$environment" && touch "$2" && echo "$3 into $environment"
"""
GIVEN = {
    "NODE": "gpu-1", "STAGE": "training", "WATCH": "1", "ALL": "1", "LINES": "1", "NAME": "site", "BEFORE": "b",
    "AFTER": "a", "IDS": "i", "FILE": "f", "N": "20", "TRANSFERS": "8", "SERIAL": "S 1", "SKU": "h200",
    "METRIC": "training_*,loading_*", "SINCE": "2026-01-01", "OUTPUT": "o.csv", "NODES": "gpu[01-16],x",
    "SSH_USER": "me", "KEY": "k", "GPUS": "8", "JOB": "jobs/shell.yml", "REPO": "models", "TAGS": "pyt,a:b=1",
    "LIST": "1", "BUNDLE": "b", "RUNS": "run-1,run-2", "FOLDER": "b", "SIGNING": "1", "ROTATE": "1", "SIGN": "1",
    "RENAMED": "1", "KUBECONFIG": "k", "CONTEXT": "c", "SELECTOR": "a=b", "STORE": "192.0.2.1", "SLURM": "1",
    "PARTITION": "gpu", "REGISTRY": "r.example:5000/gpuval",
    "RECURRING": "1", "REMOVE": "1",
}  # fmt: skip


def make(*arguments, cwd=ROOT, check=True):
    command = ["make", "--no-print-directory", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "ARGS")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done


def program(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def project(tmp_path):
    """A checkout whose programs take notes, with its environments in place."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    (tmp_path / "collections/ansible_collections/gpuval/fleet").mkdir(parents=True)
    for environment in (".venv", ".venv-node"):
        (tmp_path / environment / "bin").mkdir(parents=True)
        for mark in (".ready", ".tests", ".gangs", ".notebook", ".docs"):
            (tmp_path / environment / mark).touch()
    for name in PROGRAMS:
        program(tmp_path / ".venv/bin" / name, NOTES)
    program(tmp_path / ".venv/bin/python", LOOK + NOTES.removeprefix("#!/bin/sh\n"))
    return tmp_path


def notes(project):
    """The programs that ran, each with its arguments."""
    file = project / "notes"
    return [entry.split("\n") for entry in file.read_text().split("\n\n") if entry.strip()] if file.exists() else []


def extra_variables(arguments):
    return [value for option, value in zip(arguments, arguments[1:], strict=False) if option == "-e"]


def listed(target):
    return re.findall(r"^  ([a-z-]+) ", make(target).stdout, re.MULTILINE)


def test_help_shows_the_main_targets_in_four_groups():
    assert re.findall(r"^([A-Z][a-z]+)$", make("help").stdout, re.MULTILINE) == ["Use", "Look", "Develop", "Release"]
    assert len(listed("help")) <= 16
    assert set(listed("help")) < set(listed("help-all")) == set(ALL)


@pytest.mark.parametrize("given", [{}, GIVEN], ids=["alone", "with variables"])
@pytest.mark.parametrize("target", [*ALL, "compiled-tests", "from-bundle"])
def test_a_target_runs_as_the_makefile_has_it(project, target, given):
    needs = {"window": ("N",), "baseline-diff": ("BEFORE", "AFTER"), "shell": ("NODE",), "follow": ("NODE",),
             "job": ("JOB",), "mad": ("REPO",), "accept": ("RUNS",), "verify": ("FOLDER",)}  # fmt: skip
    given = given or {name: GIVEN[name] for name in needs.get(target, ())}
    make(
        target, f"PYTHON={project}/.venv/bin/python", *(f"{name}={value}" for name, value in given.items()), cwd=project
    )
    assert notes(project) or target in ("help", "help-all", "setup", "distclean")
    for name, *arguments in notes(project):
        if name != "ansible-playbook":
            continue
        assert arguments[:2] == ["-i", "inventories/local"]
        assert (PLAYBOOKS / f"{arguments[2].removeprefix('gpuval.fleet.')}.yml").is_file()
        extra = extra_variables(arguments)
        assert len(arguments) == 3 + 2 * len(extra), "nothing but the playbook and its variables"
        for one in extra:
            variables = DataLoader().load(one) if one.startswith("{") else parse_kv(one)
            assert set(variables) <= set(settings.declared().options)


def test_history_passes_what_was_given(project):
    make(
        "history",
        *(f"{name}={GIVEN[name]}" for name in ("NODE", "SERIAL", "SKU", "METRIC", "SINCE", "OUTPUT")),
        cwd=project,
    )
    ((_name, *arguments),) = notes(project)
    given = [
        DataLoader().load(value) for option, value in zip(arguments, arguments[1:], strict=False) if option == "-e"
    ]
    assert {name: value for one in given for name, value in one.items()} == {
        "history_node": "gpu-1",
        "history_serial": "S 1",
        "history_sku": "h200",
        "history_metric": "training_*,loading_*",
        "history_since": "2026-01-01",
        "history_output": f"{project}/o.csv",
    }


def test_setup_with_an_old_python_says_what_it_needs_and_works_with_a_right_one(project):
    shutil.rmtree(project / ".venv")
    shutil.rmtree(project / ".venv-node")
    old = program(project / "python3.10", OLD_PYTHON)
    refused = make("setup", f"PYTHON={old}", cwd=project, check=False)
    assert refused.returncode != 0
    assert (
        f"gpuval needs Python 3.11 or newer, and {old} is Python 3.10.12: install one, then make setup"
        in refused.stderr
    )
    done = make("setup", f"PYTHON={program(project / 'python3.12', PYTHON)}", cwd=project)
    assert (project / ".venv/.ready").exists() and (project / ".venv-node/.ready").exists()
    assert sorted(done.stdout.splitlines()) == ["controller into .venv", "node into .venv-node"]


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("setup", ["controller", "node"]),
        ("validate", ["controller", "node"]),
        ("rerun", ["controller", "node"]),
        ("test", ["controller", "node", "development", "gangs"]),
    ],
)
@pytest.mark.parametrize("jobs", [(), ("-j4",)], ids=["", "jobs"])
def test_both_environments_are_made_at_once(project, target, installed, jobs):
    """Each waits for the other to begin."""
    both = PYTHON + (
        'touch "$environment.begun"; case $environment in .venv) other=.venv-node;; *) other=.venv;; esac\n'
        "for _ in $(seq 600); do test -e $other.begun && break; sleep 0.05; done; test -e $other.begun || exit 1\n"
        'cp -r programs "$environment/bin" 2>/dev/null; exit 0\n'
    )
    (project / ".venv/bin").rename(project / "programs")
    for environment in (".venv", ".venv-node"):
        shutil.rmtree(project / environment)
    done = make(target, *jobs, f"PYTHON={program(project / 'python3.12', both)}", cwd=project)
    assert "jobserver" not in done.stderr
    assert sorted(re.findall(r"^([a-z]+) into", done.stdout, re.MULTILINE)) == sorted(installed)


def test_a_remote_inventory_needs_no_environment_of_a_node(project):
    shutil.rmtree(project / ".venv-node")
    make("validate", "INVENTORY=inventories/mine", cwd=project)
    assert not (project / ".venv-node").exists()


def test_rerun_validates_what_is_named_with_the_settings_of_its_run(project):
    naming = """case "$*" in *runs_rerun=*) echo gpu-2 > "${*##*runs_rerun=}/nodes";; esac\n"""
    program(project / ".venv/bin/ansible-playbook", NOTES + naming)
    make("rerun", cwd=project)
    (_, *runs), (_, *validate) = notes(project)
    folder = extra_variables(runs)[0].removeprefix("runs_rerun=")
    chosen = ["--limit", f"@{folder}/nodes", "-e", f"@{folder}/settings.json"]
    assert validate == ["-i", "inventories/local", "gpuval.fleet.validate", *chosen]
    assert not Path(folder).exists()


@pytest.mark.parametrize(("given", "used"), [("C", "C.UTF-8"), ("", ""), ("de_DE.UTF-8", "de_DE.UTF-8")])
def test_a_locale_that_ansible_refuses_is_replaced(project, monkeypatch, given, used):
    monkeypatch.setenv("LC_ALL", given)
    shown = program(project / "shown", '#!/bin/sh\necho "<$LC_ALL>"\n')
    assert f"<{used}>" in make("locks", f"PYTHON={shown}", cwd=project).stdout


def test_setup_that_fails_shows_why_and_begins_again_the_next_time(project):
    for environment in (".venv", ".venv-node"):
        shutil.rmtree(project / environment)
    failing = PYTHON.replace("mkdir", "test $environment = .venv && { echo no such host >&2; exit 1; }\nmkdir")
    failed = make("setup", f"PYTHON={program(project / 'python3.12', failing)}", cwd=project, check=False)
    assert failed.returncode == 2
    assert "no such host" in failed.stderr
    assert ".venv is not ready, for the reason above\n" in failed.stderr
    assert not (project / ".venv/.ready").exists()
    assert (project / ".venv-node/.ready").exists()  # it need not be made again
    again = make("setup", f"PYTHON={program(project / 'python3.12', PYTHON)}", cwd=project)
    assert again.stdout.splitlines() == ["controller into .venv"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["validate", "INVENTROY=inventories/mine"], "no such variable: INVENTROY. Known are AFTER ALL ARGS"),
        (["status", "node=gpu-1"], "no such variable: node."),
        (["shell"], "make shell needs NODE=, a node of the run"),
        (["window"], "make window needs N=, how many nodes work at once"),
        (["baseline-diff", "BEFORE=a"], "make baseline-diff needs AFTER=, a baseline file"),
        (["valdiate"], "no such target: valdiate (is it validate?): `make help` shows the main ones"),
        (["validate", "gpu-1"], "no such target: gpu-1: `make help`"),
        (["validate", "INVENTORY="], "INVENTORY= is empty: give the path of an inventory"),
        (["validate", "ARGS=-e gpuval_gpu_count = 8"], "ARGS has spaces around `=`: write -e NAME=VALUE"),
    ],
)
def test_a_mistake_in_the_arguments_of_make_is_named_and_nothing_runs(project, arguments, told):
    done = make(*arguments, cwd=project, check=False)
    assert done.returncode == 2
    assert told in done.stderr
    assert notes(project) == []


@pytest.mark.parametrize(
    ("inventory", "sources"),
    [
        ("requirements,Makefile", ["requirements", "Makefile"]),
        ("requirements,gpu-1", ["requirements,gpu-1"]),
        ("localhost,", ["localhost,"]),
        ("Makefile,", ["Makefile,"]),
    ],
)
def test_existing_paths_with_commas_between_them_are_several_sources(project, inventory, sources):
    make("runs", f"INVENTORY={inventory}", cwd=project)
    expected = [word for source in sources for word in ("-i", source)]
    assert notes(project) == [["ansible-playbook", *expected, "gpuval.fleet.runs"]]


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        (["job", "JOB=my jobs/a.yml"], {"gpuval_jobs": ["{cwd}/my jobs/a.yml"]}),
        (["verify", "FOLDER=my bundle"], {"verify_folder": "{cwd}/my bundle"}),
        (["hostfile", "FILE=/srv/of nodes"], {"run_hostfile": "/srv/of nodes"}),
        (["baseline-diff", "BEFORE=b 1", "AFTER=a 2"], {"baseline_before": "{cwd}/b 1", "baseline_after": "{cwd}/a 2"}),
    ],
)
def test_a_path_with_spaces_stays_one_path(project, arguments, variables):
    make(*arguments, cwd=project)
    given = {name: value for one in extra_variables(notes(project)[0]) for name, value in json.loads(one).items()}
    assert given == json.loads(json.dumps(variables).replace("{cwd}", str(project)))


def test_a_checkout_in_a_path_with_spaces_is_refused_at_once(project, tmp_path):
    moved = project.rename(tmp_path.with_name("my checkout"))
    done = make("runs", cwd=moved, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"Makefile:8: *** the path of the checkout has spaces: move {moved} to a path without.  Stop."
    ]


def test_an_inventory_with_a_space_in_its_path_and_a_run_are_passed_whole(project):
    make("report", "INVENTORY=/srv/my nodes", "RUN=20261124-1", cwd=project)
    assert notes(project) == [
        ["ansible-playbook", "-i", "/srv/my nodes", "-e", "gpuval_run_id=20261124-1", "gpuval.fleet.report"]
    ]


@pytest.mark.parametrize(
    ("arguments", "passed"),
    [
        (["KUBECONFIG=", "CONTEXT=a b"], ["--kubeconfig", "", "--context", "a b"]),
        (
            ["SLURM=1", "PARTITION=gpu,big", "STORE=192.0.2.1"],
            ["--store", "192.0.2.1", "--partition", "gpu,big", "--slurm", "1"],
        ),
        (["NODES=a"], ["--nodes", "a"]),
    ],
)
def test_inventory_asks_the_cluster_that_the_command_names(project, monkeypatch, arguments, passed):
    for name in ("KUBECONFIG", "CONTEXT", "STORE", "REGISTRY"):
        monkeypatch.setenv(name, "of the shell")
    make("inventory", *arguments, cwd=project)
    text = (project / "notes").read_text()
    assert text == "\n".join(["python", "tools/inventory.py", *passed, "", ""])


def test_build_pushes_only_to_a_registry_that_the_command_names(project, monkeypatch):
    monkeypatch.setenv("REGISTRY", "of.the.shell/gpuval")
    make("build", cwd=project)
    make("build", "REGISTRY=r.example:5000/gpuval", cwd=project)
    plain, pushing = notes(project)
    assert plain[1:] == ["-i", "inventories/local", "gpuval.fleet.build"]
    assert json.loads(extra_variables(pushing)[0]) == {"container_image_registry": "r.example:5000/gpuval"}
