"""`make status`, `runs`, `window` and `follow` without Ansible: the answers of the playbooks, or the playbooks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import folder as run_folder
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import publishing

from tests.kit.builders import make_record
from tests.kit.run_commands import at_work, killed, started

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOKS = ROOT / "collections/ansible_collections/gpuval/fleet/playbooks"
sys.path.insert(0, str(ROOT / "tools"))
import look as look_tool  # noqa: E402

NEEDS_PLAYBOOK = 77
#: `tools/look.py` with the memory of a test.
PROGRAM = f"""
import pathlib, sys
sys.path.insert(0, {str(ROOT / "tools")!r})
import look
look.MEMORY = pathlib.Path(sys.argv[1])
sys.exit(look.main(sys.argv[2:]))
"""


class Site:
    """An inventory with its own results and state, and one run of it that is at work."""

    def __init__(self, path):
        self.path, self.results = path, path / "results"
        self.memory = path / "remembered"
        (path / "needed").write_text(f"#!/bin/sh\nexit {NEEDS_PLAYBOOK}\n")
        (path / "needed").chmod(0o755)
        self.inventory, self.settings = path / "a", path / "group_vars/all.yml"
        self.inventory.write_text("[all]\nnode-1 ansible_connection=local\n")
        self.settings.parent.mkdir()
        self.settings.write_text(f"gpuval_results_dir: {self.results}\ngpuval_state_dir: {path}/state\n")
        self.folder = at_work(started(self.results, "r1"))
        run = self.folder.read_run()
        updates = {"node-1": publishing.NodeUpdate(None, self.folder.read_launch("node-1"))}
        seconds = {"run_seconds": 9, "begun_seconds": 9, "silence_seconds": 90}
        document = publishing.watch_document(run, updates, [], window=(0, 0), ended=False, **seconds)
        run_folder.write_json(self.folder.watch_file, document)
        record = make_record("node-1", "facts", run_id="r1", message="2 GPUs", state="success")
        run_folder.write_json(self.folder.evidence_file("node-1", "facts"), record)

    def ask(self, *words, by_playbook=True):
        """Run a playbook as the Makefile does, or what ends with NEEDS_PLAYBOOK in place of it."""
        program = Path(sys.executable).with_name("ansible-playbook") if by_playbook else self.path / "needed"
        command = [str(program), "-i", str(self.inventory), *words]
        return subprocess.run(
            [sys.executable, "-X", "importtime", "-c", PROGRAM, str(self.memory), *command],
            cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def remember(self, **settings):
        file = look_tool.memory_of([str(self.inventory)])
        look_tool.prepare_memory(file)
        place = {"results_dir": str(self.results), "run_id": "", "folder": "", "store": None, "has_warnings": False}
        file.write_text(f"{json.dumps(place)}\n{json.dumps(settings)}\n")

    def recall(self):
        return look_tool.recall(look_tool.memory_of([str(self.inventory)]))


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("ANSIBLE_NOCOLOR", "1")
    monkeypatch.chdir(ROOT)  # whose ansible.cfg counts
    monkeypatch.setattr(look_tool, "MEMORY", tmp_path / "remembered")
    return Site(tmp_path)


def without_ages(text):
    """Lines without what passes between two looks."""
    return [" ".join(word for word in line.split() if ":" not in word and word != "s") for line in text.splitlines()]


def test_a_look_prints_what_the_playbook_prints_and_imports_no_ansible(site):
    by_playbook = site.ask("gpuval.fleet.status")
    assert by_playbook.returncode == 0, by_playbook.stdout
    quick = site.ask("gpuval.fleet.status", by_playbook=False)
    assert quick.returncode == 0, quick.stderr[-2000:]
    assert without_ages(quick.stdout) == without_ages(by_playbook.stdout) != []
    assert "run r1 is in progress" in quick.stdout and "2 GPUs" in quick.stdout
    modules = {line.rpartition("|")[2].strip() for line in quick.stderr.splitlines() if line.startswith("import time:")}
    assert not {name for name in modules if name.partition(".")[0] in ("ansible", "boto3", "jinja2", "kubernetes")}


def test_runs_and_windows_need_no_playbook_either(site):
    site.remember()
    runs = site.ask("gpuval.fleet.runs", by_playbook=False)
    assert (runs.returncode, runs.stdout.count("r1 ")) == (0, 1)
    moved = site.ask(
        "gpuval.fleet.window", "-e", "run_window_nodes=3", "-e", "run_window_transfers=", by_playbook=False
    )
    assert moved.returncode == 0 and "run r1: 3 node(s) at once, from the next round" in moved.stdout
    assert json.loads((site.folder.state / "window.json").read_text())["nodes"] == 3


def test_a_log_is_followed_over_the_way_that_the_probe_remembered(site):
    site.folder.write_launch("node-1", {**site.folder.read_launch("node-1"), "directory": "/var/lib/gpuval/r1"})
    way = site.path / "way"
    words = ["gpuval.fleet.reach", "-e", "run_reach=follow", "-e", '{"run_reach_node": "node-1"}', "-e",
             f"run_reach_file={way}"]  # fmt: skip
    site.remember()
    assert site.ask(*words, by_playbook=False).returncode == NEEDS_PLAYBOOK, (
        "Ansible knows how to reach a node that was not probed"
    )
    site.remember(ways={"node-1": [["ssh", "-p", "2222", "me@192.0.2.7"], ""]})
    assert site.ask(*words, by_playbook=False).returncode == 0
    assert "ssh -p 2222 me@192.0.2.7" in way.read_text() and "/var/lib/gpuval/r1/logs/facts.log" in way.read_text()


def test_a_failure_is_the_playbooks_line_and_code(site):
    site.remember()
    done = site.ask("gpuval.fleet.runs", "-e", "gpuval_run_id=r9", by_playbook=False)
    assert done.returncode == 0, "runs lists all"
    done = site.ask("gpuval.fleet.window", "-e", "run_window_nodes=1", "-e", "gpuval_run_id=r9", by_playbook=False)
    assert done.returncode == 2 and "FAILED: Move the window of the run: no run in " in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["gpuval.fleet.status", "-e", "gpuval_results_dir=elsewhere"],
        ["gpuval.fleet.status", "-e", "@site.yml"],
        ["gpuval.fleet.status", "-v"],
        ["gpuval.fleet.status", "--check"],
        ["gpuval.fleet.status", "-e", "status_watch=false"],
        ["gpuval.fleet.status", "-e", "status_nodes="],
        ["gpuval.fleet.status", "-e", "status_nodes=node-1 status_lines=true"],
        ["gpuval.fleet.status", "-e", "status_nodes=node-1, node-1"],
        ["gpuval.fleet.status", "-e", '{"status_nodes": ["node-1"]}'],
        ["gpuval.fleet.status", "-e", "gpuval_run_id={{run}}"],
        ["gpuval.fleet.window", "-e", "run_window_nodes=many"],
        ["gpuval.fleet.window", "-e", "run_window_nodes=1_0"],
        ["gpuval.fleet.window", "-e", '{"run_window_nodes": 0}'],
        ["gpuval.fleet.validate"],
        ["gpuval.fleet.history"],
    ],
    ids=" ".join,
)
def test_what_a_look_does_not_know_is_asked_of_the_playbook(site, words):
    site.remember()
    assert site.ask(*words, by_playbook=False).returncode == NEEDS_PLAYBOOK


@pytest.mark.parametrize(
    "change", ["settings", "inventory", "new file", "environment", ".env", "lookup", "program", "gone"]
)
def test_settings_are_forgotten_when_something_they_may_come_from_changes(site, change, monkeypatch):
    monkeypatch.setenv("SITE_BUCKET", "one")
    site.settings.write_text(site.settings.read_text() + "gpuval_bucket: \"{{ lookup('env', 'SITE_BUCKET') }}\"\n")
    site.remember()
    assert site.recall()
    if change == "settings":
        site.settings.write_text("gpuval_results_dir: /elsewhere\n")
    elif change == "inventory":
        site.inventory.write_text("[all]\nnode-1 gpuval_results_dir=/elsewhere\n")
    elif change == "new file":
        (site.path / "group_vars/more.yml").write_text("a: 1\n")
    elif change == "environment":
        monkeypatch.setenv("SITE_BUCKET", "two")
    elif change == ".env":
        (site.path / ".env").write_text("AWS_REGION=eu-1\n")
        (site.path / ".env").chmod(0o600)
        assert site.ask("gpuval.fleet.status").returncode == 0
        assert "settings from .env: gpuval_s3_region (" in site.ask("gpuval.fleet.status", by_playbook=False).stdout
        monkeypatch.setenv("AWS_REGION", "eu-2")
    elif change == "lookup":
        site.settings.write_text("gpuval_results_dir: \"{{ lookup('pipe', 'date +%s') }}\"\n")
        assert look_tool.fingerprint([str(site.inventory)]) is None
    elif change == "program":
        site.inventory.chmod(0o755)
        assert look_tool.fingerprint([str(site.inventory)]) is None
    else:
        site.inventory.unlink()
        assert look_tool.fingerprint([str(site.inventory)]) is None
    assert site.recall() == {}


@pytest.mark.parametrize(
    "template",
    [
        "lookup(kind, 'x')",
        "lookup('env', name)",
        "'a' if '/etc/hosts' is exists else 'b'",
        "now().year",
        "['a', 'b'] | random",
    ],
)
def test_settings_that_may_change_without_their_file_are_not_remembered(site, template):
    site.settings.write_text(f'gpuval_bucket: "{{{{ {template} }}}}"\n')
    assert look_tool.fingerprint([str(site.inventory)]) is None


def test_all_files_of_an_inventory_in_a_folder_count(site):
    folder = site.path / "site"
    folder.mkdir()
    (folder / "hosts.yml").write_text("plugin: gpuval.fleet.node_list\npath: ../nodes.csv  # all\n")
    assert look_tool.fingerprint([str(folder)]) is None, "its list is missing"
    (site.path / "nodes.csv").write_text("name\nnode-1\n")
    before = look_tool.fingerprint([str(folder)])
    assert before == look_tool.fingerprint([str(folder)])
    (site.path / "nodes.csv").write_text("name\nnode-2\n")
    assert look_tool.fingerprint([str(folder)]) not in (None, before)
    (folder / "group_vars").symlink_to(site.path / "group_vars")
    assert look_tool.fingerprint([str(folder)]) is None, "what a link leads to may change"
    (folder / "group_vars").unlink()
    (folder / "more").write_text("#!/bin/sh\n")
    (folder / "more").chmod(0o755)
    assert look_tool.fingerprint([str(folder)]) is None, "Ansible runs it"


def test_the_nodes_of_a_cluster_come_from_elsewhere(site):
    site.inventory.write_text("plugin: gpuval.fleet.kubernetes_nodes\n")
    assert look_tool.fingerprint([str(site.inventory)]) is None


def test_a_damaged_memory_counts_as_none(site):
    site.remember()
    file = look_tool.memory_of([str(site.inventory)])
    file.write_text(file.read_text() + '{"results_dir": "/els')
    assert site.recall() == {}
    look_tool.prepare_memory(file)
    assert not file.exists(), "the next playbook would add to it in vain"


def test_an_inventory_with_a_warning_is_not_remembered(site):
    site.settings.write_text(site.settings.read_text() + "gpuval_profil: quick\n")
    done = site.ask("gpuval.fleet.status")
    assert "gpuval_profil" in done.stderr and done.returncode == 0
    assert "[WARNING]" in site.ask("gpuval.fleet.status").stderr, "each look warns"


def test_keys_of_a_store_are_not_kept_and_such_a_store_is_read_by_the_playbook(site):
    keys = "gpuval_s3_endpoint: http://127.0.0.1:9\ngpuval_s3_access_key: PLANTED\ngpuval_s3_secret_key: SECRET\n"
    site.settings.write_text(site.settings.read_text() + keys + "gpuval_hf_token: TOKEN\n")
    assert site.ask("gpuval.fleet.status").returncode == 0
    (file,) = site.memory.glob("*/*")
    assert not {word for word in ("PLANTED", "SECRET", "TOKEN") if word in file.read_text()}
    assert site.ask("gpuval.fleet.status", by_playbook=False).returncode == 0, "its controller keeps the folder current"
    killed(site.folder)
    assert site.ask("gpuval.fleet.status", by_playbook=False).returncode == NEEDS_PLAYBOOK


def test_the_way_through_a_proxy_which_may_have_a_password_is_not_kept(site):
    closed = "ansible_host=127.0.0.1 ansible_port=9"
    proxy = """ansible_ssh_common_args='-o "ProxyCommand nc -P PLANTED %h %p"'"""
    site.inventory.write_text(f"[all]\nnode-1 ansible_connection=local\nnode-2 {closed}\nnode-3 {closed} {proxy}\n")
    site.ask("gpuval.fleet.probe")
    assert site.recall()["ways"].keys() == {"node-1", "node-2"}
    (file,) = site.memory.glob("*/*")
    assert "PLANTED" not in file.read_text() and file.parent.stat().st_mode & 0o077 == 0


def test_a_damaged_record_is_read_from_the_store(site):
    site.remember()
    site.folder.evidence_file("node-1", "facts").write_text("{")
    assert site.ask("gpuval.fleet.status", by_playbook=False).returncode == NEEDS_PLAYBOOK


def test_each_look_names_the_task_of_its_playbook():
    for playbook, (step, name, options) in look_tool.LOOKS.items():
        files = [PLAYBOOKS / f"{playbook}.yml", PLAYBOOKS.parent / f"roles/run/tasks/{playbook}.yml"]
        plays = [play for file in files if file.exists() for play in yaml.safe_load(file.read_text())]
        tasks = [task for play in plays for task in play.get("tasks", [play])]
        (task,) = (task for task in tasks if task.get("gpuval.fleet.controller", {}).get("step") == step)
        assert task["name"] == name
        assert {option for option, _kind in options.values()} <= task["gpuval.fleet.controller"].keys()
