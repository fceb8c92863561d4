"""What gpuval takes of ansible-core beyond its public interface is there as it expects it."""

import inspect
import sys

import pytest
from ansible._internal._datatag._tags import TrustedAsTemplate
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.errors import AnsibleError
from ansible.executor.process import worker
from ansible.executor.task_queue_manager import FinalQueue
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.plugins.loader import action_loader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
from ansible_collections.gpuval.fleet.plugins.plugin_utils.ssh import node_tasks, templates
from jinja2 import Environment


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
    assert calls <= set(vars(node_tasks._Answers))


def test_what_workers_need_is_imported_before_the_fork():
    source = inspect.getsource(node_tasks.NodeTasks._start)
    assert source.index("_load(task.action, ") < source.index("WorkerProcess(")
    node_tasks._load("gpuval.fleet.node", "launch_plan")
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
    templates.compile_once()
    templates.compile_once()  # a run has several groups of tasks
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
