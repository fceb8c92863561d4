"""Environments are made by real venv, uv and pip, from small wheels; PyTorch's build is that of the machine."""

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.hardware.tree import Tree
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import files

from tests.kit.needs import lacking
from tests.kit.wheels import locked, write_wheel

ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).with_name("uv")
VARIABLES = ("PIP_", "UV_", "SSL_CERT_FILE")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A checkout with locked packages and PyTorch, whose wheels lie in a folder of the site, and an environment."""
    if not UV.exists():
        lacking("needs uv in .venv (make setup)")
    root = tmp_path_factory.mktemp("made")
    (root / "tools").mkdir()
    shutil.copy(ROOT / "tools/install.py", root / "tools")
    (root / "collections").symlink_to(ROOT / "collections")
    wheels, requirements = root / "wheels", root / "requirements"
    (requirements / "locked").mkdir(parents=True)
    write_wheel(wheels, "torch", "9.0")
    write_wheel(wheels, "torch", "9.0+cpu")
    (requirements / "locked/uv.txt").write_text(locked(write_wheel(wheels, "uv", program=UV)))
    (requirements / "locked/node.txt").write_text(locked(write_wheel(wheels, "gpuval_tiny")))
    (requirements / "node.txt").write_text("# of a node\ngpuval-tiny==1.0\ntorch==9.0\n")
    (requirements / "locked/docs.txt").write_text(locked(write_wheel(wheels, "gpuval_docs")))
    (requirements / "docs.txt").write_text("gpuval-docs==1.0\n")
    command = [sys.executable, "tools/install.py", ".venv/.ready", "docs"]
    done = subprocess.run(
        command, cwd=root, env=environ(root), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == "Installing requirements/docs.txt into .venv"
    assert last.startswith("  .venv: done after ")
    assert (root / ".venv/.ready").exists()
    return root


def environ(root):
    """This machine's variables, with the wheels of a checkout in place of its indexes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    own = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(root / "wheels")}
    return {**kept, **own, "UV_CACHE_DIR": str(root / "cache")}


@pytest.fixture
def site(made, tmp_path, monkeypatch):
    """The tool in a copy of the checkout, for a machine without GPUs."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True, copy_function=os.link)
    for name in os.environ.keys() - environ(tmp_path).keys():
        monkeypatch.delenv(name)
    for name, value in environ(tmp_path).items():
        monkeypatch.setenv(name, value)
    tool = load(tmp_path / "tools/install.py")
    monkeypatch.setattr(tool, "gpu_vendor", lambda tree: "")
    tool.root, tool.environment = tmp_path, tmp_path / ".venv"
    return tool


def load(path):
    spec = importlib.util.spec_from_file_location("install_environment", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pure = load(ROOT / "tools/install.py")


def installed(environment):
    """Version by package."""
    folders = environment.glob("lib/python3*/site-packages/*.dist-info")
    return dict(folder.name.removesuffix(".dist-info").split("-") for folder in folders)


def forget_uv(site):
    (site.root / "wheels/uv-1.0-py3-none-any.whl").unlink()
    (site.environment / "bin/uv").unlink()
    shutil.rmtree(*site.environment.glob("lib/python3*/site-packages/uv-1.0.dist-info"))


def make(site, name="node"):
    return site.main([str(site.environment / f".{name}"), name])


def test_uv_installs_by_hash_and_compiles(site):
    assert make(site) == 0
    packages = installed(site.environment)
    assert (packages["gpuval_tiny"], packages["torch"]) == ("1.0", "9.0+cpu")
    assert [*site.environment.glob("lib/python3*/site-packages/__pycache__/gpuval_tiny.*.pyc")]
    assert [
        path.read_text() for path in site.environment.glob("lib/python3*/site-packages/gpuval_tiny*/INSTALLER")
    ] == ["uv"]


def test_pip_installs_where_uv_cannot_be_had(site, capsys):
    forget_uv(site)
    assert make(site) == 0
    packages = installed(site.environment)
    assert (packages["gpuval_tiny"], packages["torch"]) == ("1.0", "9.0+cpu")
    said = capsys.readouterr().out.splitlines()[1]
    assert said == (
        f"  {site.environment}: no uv (ERROR: No matching distribution found for uv==1.0): pip installs, which takes "
        "minutes"
    )


def test_pip_installs_where_uv_fails(site, monkeypatch, capsys):
    monkeypatch.setenv("UV_CACHE_DIR", "/dev/null/cache")
    assert make(site) == 0
    assert f"  {site.environment}: uv failed (" in capsys.readouterr().out
    assert installed(site.environment)["torch"] == "9.0+cpu"


def test_a_package_with_another_hash_is_refused(site, capsys):
    spoil(site.root / "requirements/locked/node.txt")
    assert make(site) == 1
    assert "gpuval_tiny" not in installed(site.environment)
    said = capsys.readouterr().err
    assert "Hash mismatch for `gpuval-tiny==1.0`" in said
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in said
    last = said.splitlines()[-1]
    assert last == f"{site.environment} is not ready: requirements/locked/node.txt could not be installed, see above"


def test_a_uv_with_another_hash_is_refused(site):
    shutil.rmtree(site.environment / "lib")  # nothing of it may be there
    (site.environment / ".ready").unlink()
    spoil(site.root / "requirements/locked/uv.txt")
    assert make(site) == 0
    assert not (site.environment / "bin/uv").exists()
    assert installed(site.environment)["torch"] == "9.0+cpu"
    assert "gpuval_docs" not in installed(site.environment)


def spoil(file):
    """Another hash in a locked file; the files of the copy are links."""
    text = file.read_text()
    file.unlink()
    file.write_text(text[:-9] + "00000000\n")


def test_a_ready_environment_is_kept(site):
    assert make(site) == 0
    assert {"gpuval_docs", "gpuval_tiny"} <= installed(site.environment).keys()


def test_an_environment_whose_python_is_gone_is_made_again(site):
    python = site.environment / "bin/python"
    python.unlink()
    python.symlink_to("/no/such/python")
    assert make(site) == 0
    assert "gpuval_docs" not in installed(site.environment)
    assert "gpuval_tiny" in installed(site.environment)


def test_a_command_waits_for_another_that_makes_the_environment_and_uses_its_work(site):
    mark = site.environment / ".node"
    command = [sys.executable, site.root / "tools/install.py", mark, "node"]
    with files.locked(site.root / ".venv.lock", 0, None):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == f"Installing requirements/node.txt into {site.environment}\n"
        mark.touch()
        os.utime(mark, (time.time(), time.time()))  # exactly
        assert process.poll() is None
    assert process.communicate(timeout=60)[0].startswith(f"  {site.environment}: done after")
    assert process.returncode == 0
    assert "gpuval_tiny" not in installed(site.environment)


def test_without_a_gpu_the_build_for_gpus_is_never_taken(site, capsys):
    (site.root / "wheels/torch-9.0+cpu-py3-none-any.whl").unlink()
    assert make(site) == 1
    assert "torch" not in installed(site.environment)
    assert (
        "PyTorch 9.0 for a machine without GPUs could not be installed, see above: name an index that has it "
        "(PIP_EXTRA_INDEX_URL=URL) or another build (UV_TORCH_BACKEND=cpu, cu130, ...)"
    ) in capsys.readouterr().err


def test_a_machine_with_nvidia_gpus_gets_what_the_site_has(site, monkeypatch):
    (site.root / "wheels/torch-9.0+cpu-py3-none-any.whl").unlink()
    monkeypatch.setattr(site, "gpu_vendor", lambda tree: "nvidia")
    assert make(site) == 0
    assert installed(site.environment)["torch"] == "9.0"


def test_a_machine_with_amd_gpus_gets_nothing_from_pip(site, monkeypatch, capsys):
    forget_uv(site)
    monkeypatch.setattr(site, "gpu_vendor", lambda tree: "amd")
    assert make(site) == 1
    assert "torch" not in installed(site.environment)
    assert "it needs uv\n" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["PIP_INDEX_URL", "UV_INDEX_URL"])
def test_the_index_of_the_site_is_used_by_both_and_that_of_pytorch_has_the_rest(site, monkeypatch, variable):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    simple = {"site": ["uv", "gpuval_tiny", "torch-9.0-"], "pytorch": ["torch-9.0+cpu"]}
    for index, names in simple.items():
        for name in names:
            (wheel,) = (site.root / "wheels").glob(f"{name}*")
            folder = site.root / index / wheel.name.split("-")[0].replace("_", "-")
            folder.mkdir(parents=True)
            (folder / "index.html").write_text(f'<a href="{wheel.as_uri()}">{wheel.name}</a>')
    shutil.rmtree(*site.environment.glob("lib/python3*/site-packages/uv-1.0.dist-info"))
    monkeypatch.setenv(variable, (site.root / "site").as_uri())
    monkeypatch.setattr(site, "CPU_INDEX", (site.root / "pytorch").as_uri())
    assert make(site) == 0
    assert installed(site.environment)["torch"] == "9.0+cpu"
    assert installed(site.environment)["uv"] == "1.0"


def test_a_slow_program_shows_that_it_works(monkeypatch, capsys):
    monkeypatch.setattr(pure, "PROGRESS_SECONDS", 0.1)
    assert pure.execute(["sleep", "0.5"], ".venv: uv") == ""
    assert capsys.readouterr().out.startswith("  .venv: uv works, 0 s\n")


def test_a_failure_gives_the_output():
    assert pure.execute(["sh", "-c", "echo first; echo then >&2; exit 3"], "") == "first\nthen"
    assert pure.execute(["false"], "") == "false failed with status 1"
    assert pure.execute(["/no/such/program"], "") == "/no/such/program: No such file or directory"


CPU = ("--no-deps", "torch==2.13.0+cpu")


@pytest.mark.parametrize(
    ("vendor", "backend", "has_sources", "attempts"),
    [
        ("", "", True, [CPU, ("--index-url", pure.CPU_INDEX, *CPU)]),
        ("", "", False, [("--index-url", pure.CPU_INDEX, *CPU)]),
        ("nvidia", "", False, [("-r", "node.txt")]),
        ("nvidia", "", True, [("-r", "node.txt")]),
        ("amd", "", True, [("--torch-backend", "auto", "-r", "node.txt")]),
        ("", "cu130", True, [("--torch-backend", "cu130", "-r", "node.txt")]),
        ("nvidia", "cpu", False, [("--torch-backend", "cpu", "-r", "node.txt")]),
    ],
)
def test_the_build_of_pytorch(vendor, backend, has_sources, attempts):
    assert pure.torch_attempts("2.13.0", "node.txt", vendor, backend, has_sources) == attempts


@pytest.mark.parametrize(
    ("files", "vendor"),
    [
        ({}, ""),
        ({"0000:01:00.0": ("0x10de", "0x030200")}, "nvidia"),
        ({"0000:01:00.0": ("0x10de", "0x040300")}, ""),  # its sound
        ({"0000:01:00.0": ("0x1002", "0x120000")}, "amd"),
        ({"0000:01:00.0": ("0x1002", "0x030000")}, ""),  # the graphics of a CPU
        ({"0000:01:00.0": ("0x1da3", "0x120000")}, ""),  # its PyTorch is on no index
        ({"0000:01:00.0": ("0x1002", "0x030000"), "0000:02:00.0": ("0x10de", "0x030000")}, "nvidia"),
    ],
)
def test_gpus_are_those_that_a_run_would_find(tmp_path, files, vendor):
    for address, (vendor_id, device_class) in files.items():
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor_id)
        (folder / "class").write_text(device_class)
    assert pure.gpu_vendor(Tree(str(tmp_path))) == vendor


@pytest.mark.parametrize(("device", "vendor"), [("dxg", "nvidia"), ("nvidia0", "nvidia"), ("nvidiactl", "")])
def test_gpus_without_a_pci_bus_are_found(tmp_path, device, vendor):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / device).touch()
    assert pure.gpu_vendor(Tree(str(tmp_path))) == vendor


LISTED = """:env:.find-links='/env/a /env/b'
:env:.timeout='180'
global.cert='/etc/site.pem'
global.extra-index-url='\\nhttps://one.example/simple\\nhttps://two.example/simple'
global.find-links='/global'
global.index-url='https://global.example/simple'
global.trusted-host=''
install.index-url='https://install.example/simple'
wheel.index-url='https://wheel.example/simple'
"""


def test_uv_gets_what_pip_is_configured_with():
    settings = pure.site_settings(LISTED, {})
    assert settings == {
        "cert": "/etc/site.pem",
        "extra-index-url": "https://one.example/simple https://two.example/simple",
        "find-links": "/env/a /env/b",
        "index-url": "https://install.example/simple",
    }
    for_both = pure.variables(settings, {"HOME": "/root"})
    assert {name: value for name, value in for_both.items() if not name.startswith("PIP_")} == {
        "HOME": "/root",
        "SSL_CERT_FILE": "/etc/site.pem",
        "UV_DEFAULT_INDEX": "https://install.example/simple",
        "UV_FIND_LINKS": "/env/a,/env/b",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
    }


def test_pip_gets_what_uv_is_configured_with():
    environ = {
        "UV_INDEX_URL": "https://mirror.example/simple",
        "UV_INDEX": "own=https://own.example/simple?a=b https://two.example/simple",
        "UV_FIND_LINKS": "/a,/b",
    }
    assert pure.variables(pure.site_settings("", environ), environ) == {
        **environ,
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_EXTRA_INDEX_URL": "https://own.example/simple?a=b https://two.example/simple",
        "PIP_FIND_LINKS": "/a /b",
    }


def test_each_keeps_its_own_configuration():
    environ = {"UV_INDEX_URL": "https://uv.example/simple", "PIP_INDEX_URL": "https://pip.example/simple"}
    settings = pure.site_settings(":env:.index-url='https://pip.example/simple'", environ)
    assert pure.variables(settings, environ) == environ


def test_the_version_of_pytorch_is_found_through_files_that_are_named():
    (version,) = {pure.torch_version(name) for name in ("node", "development")}
    assert version[0].isdigit()
    assert pure.torch_version("controller") == pure.torch_version("gangs") == ""


def test_an_environment_that_cannot_be_made_says_so(tmp_path):
    file = tmp_path / ".venv"
    file.touch()
    command = [sys.executable, ROOT / "tools/install.py", file / ".ready", "controller"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"{file} is not ready: Python could not make it (on Debian and Ubuntu: apt install python3-venv)"
    )
