"""What every shipped stage requires, as its role declares it: each is missing in turn, and the launch names it."""

import subprocess
import sys

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gpuval.fleet.plugins.module_utils import node_launch
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.runs import plans, settings
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch import launch_inputs

#: By stage the modules and commands without which its program cannot work.
MODULES = {
    **{name: ["torch"] for name in ("diagnostics", "fingerprint", "training", "combined_load")},
    **{name: ["torch"] for name in ("collective", "collective_nvlink", "fabric", "fabric_nvlink")},
    "deepspeed": ["torch", "deepspeed"],
    "inference": ["transformers", "torch", "fastapi", "uvicorn", "pydantic", "openai", "accelerate"],
}
COMMANDS = {"loading": "rclone", "storage": "fio", "rdma": "ib_write_bw", "rdma_rails": "ib_write_bw"}
STAGES = [stage for stage in extensions.found("stages") if stage != "image"]
#: What Ansible itself sets in a play.
PLAY = {"ansible_play_hosts_all": ["node-1"]}
#: The programs of these need the runner's Python alone.
WITHOUT_PYTHON = {"facts", "endpoints", "storage"}


@pytest.fixture(scope="module")
def defaults():
    files = settings.ROLES.glob("*/defaults/main.yml")
    loaded = (DataLoader().load_from_file(str(file), trusted_as_template=True) for file in files)
    return {name: value for values in loaded for name, value in values.items()}


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python that has all modules, as empty files."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in {name for names in MODULES.values() for name in names}:
        write_module(site, name)
    return folder / "bin" / "python", site


def write_module(site, name, text="", version="9.0"):
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").write_text(text)
    for file in ("cli/__init__.py", "cli/serving.py") if name == "transformers" else ():
        (site / name / file).parent.mkdir(exist_ok=True)
        (site / name / file).write_text("")
    (site / f"{name}-0.dist-info").mkdir(exist_ok=True)
    (site / f"{name}-0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


@pytest.fixture
def declared(defaults):
    def of(stage, **variables):
        templar = Templar(loader=DataLoader(), variables={**defaults, **PLAY, **variables})
        workload = defaults[f"{stage}_workload"]
        if isinstance(workload, str):  # that of another stage, changed
            workload = templar.template(workload)
        requires = templar.template(workload.get("requires", []))
        declaration = {"command": [word for word in ("{python}", "x") if word in str(workload["command"])]}
        plans.stage(stage, {"command": ["x"], "requires": requires}, [])
        return {stage: {**declaration, "requires": requires}}

    return of


@pytest.fixture
def ask(declared, python, tmp_path):
    """The launch's message for a stage on a node with all commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in {*COMMANDS.values()}:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)

    def asked(stage, executable=python[0], **variables):
        asked_for = launch_inputs.requirements({"stages": [stage]}, declared(stage, **variables), "host")
        for trial in asked_for:
            trial["environment"] = {"PATH": str(folder)}
            for need in trial["needs"]:
                need.pop("where", None)  # as on a node with InfiniBand
        return node_launch.lacking({"plan": {"python": str(executable)}, "requirements": asked_for}).get("message", "")

    return asked


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_with_all_that_it_requires_is_launched(ask, stage):
    assert ask(stage) == ""


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_interpreter(ask, stage):
    message = ask(stage, "/no/such/python")
    expected = f"{stage} needs /no/such/python of gpuval_workload_python, which cannot be started (No such file"
    assert (message == "") if stage in WITHOUT_PYTHON else (expected in message)


@pytest.mark.parametrize(("stage", "module"), [(stage, name) for stage, names in MODULES.items() for name in names])
@pytest.mark.parametrize("how", ["missing", "broken", "raises"])
def test_a_module_that_cannot_be_imported(ask, python, stage, module, how):
    _executable, site = python
    if how == "missing":
        (site / module).rename(site / "away")
    else:
        text = {"broken": "import opentelemetry_of_no_one", "raises": "raise ImportError('hub>=1 is required')"}[how]
        write_module(site, module, text)
    try:
        message = ask(stage)
    finally:
        if how == "missing":
            (site / "away").rename(site / module)
        write_module(site, module)
    assert f"{stage} needs " in message
    words = {"missing": module, "broken": "opentelemetry_of_no_one", "raises": "hub>=1 is required"}[how]
    assert words in message
    assert "-m pip install" in message


@pytest.mark.parametrize(("version", "refused"), [("4.57.1", True), ("5.0.0", False)])
def test_another_version_than_the_server_has(ask, python, version, refused):
    write_module(python[1], "transformers", version=version)
    try:
        message = ask("inference")
    finally:
        write_module(python[1], "transformers")
    assert ("transformers>=5 (transformers 4.57.1 is installed" in message) == refused


@pytest.mark.parametrize(("stage", "name"), COMMANDS.items())
@pytest.mark.parametrize("how", ["missing", "not executable", "of another machine"])
def test_a_command_that_cannot_be_started(ask, tmp_path, stage, name, how):
    program = tmp_path / "bin" / name
    if how == "missing":
        program.unlink()
    elif how == "not executable":
        program.chmod(0o644)
    else:
        program.write_bytes(b"\x7fELF\x02\x01")
    assert f"{stage} needs {name} (" in ask(stage)


@pytest.mark.parametrize("stage", ["rdma", "rdma_rails"])
def test_nodes_without_ports_need_no_perftest(ask, tmp_path, declared, stage):
    (tmp_path / "bin" / "ib_write_bw").unlink()
    assert ask(stage, gpuval_nic_count=0) == ""
    (need,) = declared(stage)[stage]["requires"]
    assert need["where"] == "/sys/class/infiniband/*"


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("auto", "vllm.entrypoints.openai.api_server or transformers>=5"),
        ("vllm", "vllm.entrypoints.openai.api_server"),
        ("transformers", "transformers>=5"),
    ],
)
def test_the_server_that_was_chosen_is_tried(declared, server, names):
    (need,) = declared("inference", inference_server=server)["inference"]["requires"]
    assert node_launch.readable(need) == names
    assert declared("inference", inference_server="command")["inference"]["requires"] == []


def test_a_dataset_needs_what_loading_needs(defaults, declared):
    assert "loading_workload | combine(" in defaults["loading_dataset_workload"]
    named = {"gpuval_environment": {"GPUVAL_RCLONE": "/opt/rclone"}}
    assert declared("loading", **named)["loading"]["requires"][0]["start"] == "/opt/rclone version"
