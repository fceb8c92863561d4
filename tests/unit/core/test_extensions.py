"""Folders of `gpuval_extensions`: what they may hold, who may own them, and how their code is loaded."""

import os
import re
import stat

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.engines._engine import ContainerEngine
from ansible_collections.gpuval.fleet.plugins.module_utils.engines.podman import Podman
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import extensions
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.errors import SettingError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core.paths import ROLES


@pytest.fixture
def folder(tmp_path):
    """A folder with one of each kind, which this process uses."""
    made = tmp_path / "site"
    for name in ("stages/burn/defaults", "schedulers/flux"):
        (made / name).mkdir(parents=True)
    (made / "stages/burn/defaults/main.yml").write_text("burn_workload: {command: [sleep, 1]}\n")
    (made / "schedulers/flux/__init__.py").write_text("from .jobs import Flux\n")
    (made / "schedulers/flux/jobs.py").write_text("class Flux:\n    name = 'flux'\n")
    for name, text in (
        ("profiles/night.yml", "schema: gpuval.profile/1\n"),
        ("engines/crun.py", "class Crun:\n    name = 'crun'\n"),
    ):
        (made / name).parent.mkdir()
        (made / name).write_text(text)
    for path in (made, *made.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield made
    extensions.use(())


def problem_of(folder, *forbidden):
    extensions.use([folder], forbidden)
    with pytest.raises(SettingError) as error:
        extensions.check()
    assert str(error.value).startswith("gpuval_extensions /")
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        ("stages", "burn", "stages/burn"),
        ("profiles", "night", "profiles/night.yml"),
        ("schedulers", "flux", "schedulers/flux"),
        ("engines", "crun", "engines/crun.py"),
    ],
)
def test_each_kind_is_found_behind_what_ships(folder, kind, name, path):
    extensions.use(())
    shipped = extensions.found(kind)
    extensions.use([folder])
    found = extensions.found(kind)
    assert list(found) == [*shipped, name]
    assert found[name] == folder / path
    assert not extensions.is_shipped(found[name])
    assert all(map(extensions.is_shipped, shipped.values()))


def test_the_stages_that_ship_are_the_roles_that_declare_one():
    shipped = extensions.found("stages")
    assert all(path == ROLES / name for name, path in shipped.items())
    assert {"facts", "training", "loading", "inference", "diagnostics", "rdma_rails"} <= shipped.keys()
    assert len(shipped) == 18
    assert "run" not in shipped


def test_classes_of_a_package_and_of_a_file_are_loaded_once(folder):
    extensions.use([folder])
    scheduler, engine = (
        extensions.load_class(*names, object) for names in (("schedulers", "flux"), ("engines", "crun"))
    )
    assert (scheduler.name, engine.name) == ("flux", "crun")
    assert extensions.load_class("schedulers", "flux", object) is scheduler
    assert ".plugins.module_utils.engines.gpuval_extension_" in engine.__module__, "what ships is beside it"


def test_loading_writes_no_bytecode_which_a_group_could_change(folder, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    umask = os.umask(0o002)
    try:
        extensions.use([folder])
        extensions.load_class("schedulers", "flux", object)
    finally:
        os.umask(umask)
    assert not list(folder.rglob("__pycache__"))


def test_what_ships_is_loaded_by_its_name_also_beside_an_extension_that_cannot_be_used(folder):
    extensions.use([folder.with_name("away")])
    assert extensions.load_class("engines", "podman", ContainerEngine) is Podman


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("class Crun: pas\n", "NameError: name 'pas' is not defined: correct it"),
        ("class Other: pass\n", "no class has name = 'crun' and implements ContainerEngine: add it"),
    ],
)
def test_code_that_cannot_be_loaded_is_named(folder, text, problem):
    (folder / "engines/crun.py").write_text(text)
    with pytest.raises(SettingError, match=f"{re.escape(str(folder))}/engines/crun.py: {problem}"):
        extensions.use([folder])
        extensions.load_class("engines", "crun", ContainerEngine)


def test_the_digest_is_of_names_and_contents_alone(folder):
    def digest():
        extensions.use(())
        extensions.folders.cache_clear()
        extensions.use([folder])
        return extensions.digests()

    before = digest()
    assert before.keys() == {"site"}
    assert re.fullmatch("[0-9a-f]{64}", before["site"])
    os.utime(folder / "engines/crun.py", (1, 1))
    (folder / "engines/__pycache__").mkdir(mode=0o755)
    (folder / "engines/__pycache__/crun.pyc").write_bytes(b"1")
    (folder / "README.md").write_text("for people\n")
    assert digest() == before
    (folder / "engines/crun.py").write_text("class Crun: x = 1\n")
    changed = digest()
    assert changed != before
    (folder / "engines/crun.py").rename(folder / "engines/kata.py")
    assert digest() not in (before, changed)


def make_writable(folder):
    (folder / "stages/burn/defaults/main.yml").chmod(0o664)


def make_link(folder):
    (folder / "engines/kata.py").symlink_to(folder / "engines/crun.py")


def let_others_write_bytecode(folder):
    (folder / "schedulers/flux/__pycache__").mkdir()
    (folder / "schedulers/flux/__pycache__").chmod(0o777)


def link_bytecode(folder):
    (folder / "engines/__pycache__").symlink_to("/tmp")


def name_badly(folder):
    (folder / "engines/crun.py").rename(folder / "engines/Crun-1.py")


def take_the_name_of_a_stage(folder):
    (folder / "stages/burn").rename(folder / "stages/training")


def take_the_name_of_a_role(folder):
    (folder / "stages/burn").rename(folder / "stages/report")


def mistype_a_kind(folder):
    (folder / "profiles").rename(folder / "profile")


def leave_a_file_where_folders_are(folder):
    (folder / "stages/notes.txt").write_text("")


def remove_all(folder):
    for name in ("stages", "profiles", "schedulers", "engines"):
        (folder / name).rename(folder / f".{name}")


def remove_the_folder(folder):
    folder.rename(folder.with_name("away"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (make_writable, r"/site/stages/burn/defaults/main.yml: others can write it, and it is code: chmod go-w /.*"),
        (make_link, "/site/engines/kata.py: neither a file nor a folder: replace the link by what it leads to"),
        (let_others_write_bytecode, "/site/schedulers/flux/__pycache__: others can write it, and it is code"),
        (link_bytecode, "/site/engines/__pycache__: neither a file nor a folder: replace the link by what it leads to"),
        (name_badly, "/site/engines/Crun-1.py: engines has a file NAME.py, of small letters.*: rename or move it"),
        (take_the_name_of_a_stage, "gpuval ships one by the name training: rename it"),
        (take_the_name_of_a_role, "gpuval ships one by the name report: rename it"),
        (mistype_a_kind, "/site/profile: no kind of extension; is it profiles?"),
        (leave_a_file_where_folders_are, "/site/stages/notes.txt: stages has a folder NAME"),
        (remove_all, "/site: no folder stages, profiles, schedulers, engines in it: name the folder above those"),
        (remove_the_folder, "/site: there is no such folder on the controller"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_extension_that_cannot_be_used_is_refused_in_one_line(folder, change, problem):
    change(folder)
    assert re.search(problem, problem_of(folder))


def test_what_others_can_replace_is_refused_all_the_way_up(folder):
    folder.parent.chmod(0o777)
    assert re.search(f"{folder.parent}: others can write it", problem_of(folder))
    folder.parent.chmod(0o777 | stat.S_ISVTX)
    extensions.folders.cache_clear()
    extensions.found.cache_clear()
    extensions.use([folder])
    extensions.check()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_owns_is_refused(folder):
    os.chown(folder / "engines/crun.py", 12345, -1)
    assert "crun.py: another user (uid 12345) owns it: chown it to yours or root" in problem_of(folder)


def test_nothing_that_nodes_can_write_is_code(folder):
    assert "holds what nodes reported: move the extension elsewhere" in problem_of(folder, folder.parent)
    (folder.parent / "run.json").write_text("{}")
    assert "holds what nodes reported: move the extension elsewhere" in problem_of(folder)


def test_two_extensions_share_no_name(folder, tmp_path):
    other = tmp_path / "other"
    (other / "engines").mkdir(parents=True)
    for path in (other, other / "engines"):
        path.chmod(0o755)
    (other / "engines/crun.py").write_text("")
    (other / "engines/crun.py").chmod(0o644)
    extensions.use([folder, other])
    with pytest.raises(SettingError, match=f"{other}/engines/crun.py: {folder}.* exists by the name crun: rename"):
        extensions.found("engines")
