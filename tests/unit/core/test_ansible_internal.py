"""An ansible-core that is too old is refused in one sentence, and the installed one is as the collection expects it."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible._internal._datatag._tags import TrustedAsTemplate
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.errors import AnsibleError
from ansible.executor.process import worker
from ansible.executor.task_queue_manager import FinalQueue
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.plugins.loader import action_loader
from ansible.template import Templar
from ansible.utils.collection_loader import _collection_finder
from ansible.vars.manager import VariableManager
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import ansible_internal, step_options
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import node_tasks
from jinja2 import Environment

COLLECTION = Path(ansible_internal.__file__).parents[3]
ROOT = COLLECTION.parents[3]


def test_an_old_ansible_core_is_told_from_what_is_needed_with_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ansible._internal._datatag._tags", None)  # as in 2.18
    with pytest.raises(AnsibleError, match=r"needs ansible-core 2\.19 .* of Python 3.11 or newer, pip install '"):
        importlib.reload(ansible_internal)


def test_the_version_is_that_of_the_collection_and_no_other_file_goes_past_it():
    required = yaml.safe_load((COLLECTION / "meta" / "runtime.yml").read_text())["requires_ansible"]
    assert required == f">={ansible_internal.OLDEST}.0"


#: What Ansible's guide for developers shows of plugins and modules.
PUBLISHED = {"_connection", "_diff", "_display", "_shell", "_task", "_templar"}
#: Modules whose objects come into the hands of a plugin; ActionBase is the interface of actions and their steps.
MODULES = (
    "executor.process.worker executor.task_queue_manager executor.task_result inventory.manager parsing.dataloader "
    "playbook.base playbook.play playbook.task playbook.play_context plugins.callback template "
    "vars.manager"
)


def private_attributes_of_ansible():
    modules = [importlib.import_module(f"ansible.{name}") for name in MODULES.split()]
    names = set().union(*(re.findall(r"\b_[a-z]\w*", inspect.getsource(module)) for module in modules))
    return names - PUBLISHED


def private_names(path, private):
    """What a file uses of ansible-core: imports of private modules and names, and private attributes."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            words = [*(node.module or "").split("."), *(name.name for name in node.names)]
        elif isinstance(node, ast.Import):
            words = [word for name in node.names for word in name.name.split(".")]
        else:
            words = []
        if words[:1] == ["ansible"] and (words[1] == "executor" or any(re.match("_[^_]", word) for word in words)):
            yield ".".join(words)
        is_foreign = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") not in ("self", "cls", "os")
        if is_foreign and node.attr in private:
            yield ast.unparse(node)


def test_no_other_file_of_the_product_uses_a_private_name_of_ansible():
    private = private_attributes_of_ansible()
    assert {"_variable_manager", "_loader", "_role", "_inventory", "_return_data"} <= private
    files = [path for path in COLLECTION.glob("plugins/**/*.py") if path.name != "ansible_internal.py"]
    used = {path.name: names for path in files if (names := set(private_names(path, private)))}
    assert used == {}


def test_worker_processes_take_what_we_give_them():
    parameters = inspect.signature(worker.WorkerProcess.__init__).parameters
    given = {"final_q", "task_vars", "host", "task", "play_context", "loader", "variable_manager", "shared_loader_obj"}
    assert set(parameters) - {"self"} == given | {"worker_id", "cliargs"}
    assert hasattr(worker, "current_worker")


def test_a_worker_keeps_what_further_workers_need():
    source = inspect.getsource(worker.WorkerProcess)
    for name in ("_variable_manager", "_loader", "_play_context", "_shared_loader_obj", "_cliargs"):
        assert f"self.{name} = " in source


def test_variables_are_made_for_a_host_and_a_task():
    parameters = inspect.signature(VariableManager.get_vars).parameters
    assert {"play", "host", "task", "_hosts", "_hosts_all"} <= set(parameters)
    assert {"block", "role", "variable_manager", "loader"} <= set(inspect.signature(Task.load).parameters)


def test_our_queue_answers_to_every_call_of_ansibles_own():
    calls = {name for name in vars(FinalQueue) if name.startswith("send_")}
    assert calls <= set(vars(ansible_internal._ResultQueue))


def test_what_workers_need_is_imported_before_the_fork():
    source = inspect.getsource(ansible_internal.PlayWorker.start)
    assert source.index("_load(task.action)") < source.index("WorkerProcess(")
    source = inspect.getsource(node_tasks.NodeTasks._start)
    assert source.index('load_step(step, "node_steps")') < source.index("self._worker.start(")
    ansible_internal._load("gpuval.fleet.node")
    step_options.load_step("launch_plan", "node_steps")
    module = sys.modules["ansible_collections.gpuval.fleet.plugins.action.node"]
    assert action_loader.get("gpuval.fleet.node", class_only=True) is module.ActionModule
    assert "ansible_collections.gpuval.fleet.plugins.plugin_utils.node_steps.launch_plan" in sys.modules
    for kind in ("filter", "test"):
        assert any(name.startswith(f"ansible.plugins.{kind}.core_") for name in sys.modules)


def test_a_template_is_compiled_once_and_workers_find_it_compiled(monkeypatch):
    compiled = []
    generate = AnsibleEnvironment._generate
    monkeypatch.setattr(
        AnsibleEnvironment, "_generate", lambda *words, **more: compiled.append(1) or generate(*words, **more)
    )
    monkeypatch.setattr(AnsibleEnvironment, "compile", Environment.compile)
    ansible_internal.compile_once()
    ansible_internal.compile_once()  # a run has several groups of tasks
    text = TrustedAsTemplate().tag("{{ number | int + 1 }} \\ {{ '\\\\1' }}")
    plain = Templar(loader=DataLoader(), variables={"number": 1})
    assert plain.template(text) == Templar(loader=DataLoader(), variables={"number": 1}).template(text)
    assert Templar(loader=DataLoader(), variables={"number": "4"}).template(text).startswith("5 ")
    assert len(compiled) == 1
    unescaped = plain.template(text, escape_backslashes=False)
    assert len(compiled) == 2
    assert unescaped != plain.template(text)
    with pytest.raises(AnsibleError, match="missing"):
        plain.template(TrustedAsTemplate().tag("{{ missing }}"))


def load_module(folder):
    name = "ansible_collections.gpuval.fleet.plugins.some"
    module = type(sys)("some")
    _collection_finder._AnsibleCollectionLoader(name, [str(folder)]).exec_module(module)
    return module


def test_the_collection_is_imported_with_bytecode_and_a_changed_file_is_compiled_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "some.py").write_text("WORD = 'source'\n")
    assert load_module(tmp_path).WORD == "source"
    (bytecode,) = tmp_path.glob("__pycache__/some.*.pyc")
    bytecode.write_bytes(bytecode.read_bytes().replace(b"source", b"cached"))
    assert load_module(tmp_path).WORD == "cached"
    (tmp_path / "some.py").write_text("WORD = 'another source'\n")
    assert load_module(tmp_path).WORD == "another source"


def test_other_collections_are_imported_as_ansible_imports_them(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(ansible_internal, "OWN", "ansible_collections.another.")
    (tmp_path / "some.py").write_text("WORD = 'source'\n")
    assert load_module(tmp_path).WORD == "source"
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize(("library", "is_frozen"), [("json", True), ("duckdb", False)])
def test_a_command_ends_without_a_look_for_garbage_and_without_a_word_of_its_libraries(library, is_frozen):
    report = "atexit.register(lambda: print(gc.get_freeze_count() > 0))"  # the last to register is the first to run
    imports = f"import tests.conftest, {library}; from {ansible_internal.__name__} import task_id"
    done = subprocess.run(
        [sys.executable, "-c", f"import atexit, gc; {report}; {imports}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{is_frozen}\n", "")
