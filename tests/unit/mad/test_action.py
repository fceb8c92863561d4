"""What the action says before anything is read, and how it gets a repository."""

import subprocess

import pytest
from ansible_collections.gpuval.fleet.plugins.action import mad_jobs
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import checkout
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.errors import MadError

from tests.kit.mad_repository import SECRET


@pytest.mark.parametrize(
    ("sku", "vendor"),
    [("auto", ""), ("cpu", "CPU"), ("amd", "AMD"), ("h200", "NVIDIA"), ("MI300X", "AMD"), ("odd", "")],
)
def test_the_sku_says_the_vendor(sku, vendor):
    assert mad_jobs._vendor(sku) == vendor


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"placement": "kubernetes"}, "models run on SSH hosts only: on a cluster push"),
        ({"runtime": "host"}, "gpuval_runtime is host, and models run in containers"),
        ({"repository": ""}, "gpuval_mad_repository is empty"),
    ],
)
def test_settings_with_which_no_model_can_run_are_refused(changed, message):
    with pytest.raises(MadError) as caught:
        mad_jobs._check({"placement": "ssh", "runtime": "auto", "repository": "/srv/models", **changed})
    assert message in str(caught.value)


@pytest.fixture
def source(tmp_path):
    """A repository with two commits, a hook and a submodule's address that is a command."""
    root = tmp_path / "source"
    root.mkdir()

    def git(*arguments):
        command = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "--initial-branch", "main")
    git("commit", "--quiet", "--allow-empty", "-m", "none")
    git("update-index", "--add", "--cacheinfo", f"160000,{git('rev-parse', 'HEAD')},x")
    for text in ("one", "two"):
        (root / "models.json").write_text(text)
        (root / ".gitmodules").write_text('[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "touch executed"\n')
        git("add", "models.json", ".gitmodules")
        git("commit", "--quiet", "-m", text)
        git("branch", text)
    return root


def test_a_revision_is_cloned_without_submodules(source, tmp_path):
    options = {"repository": f"file://{source}", "revision": "one"}
    root = mad_jobs._root(options, tmp_path)
    assert (root / "models.json").read_text() == "one"
    assert sorted(path.name for path in root.iterdir()) == [".gitmodules", "models.json", "x"]


def test_a_submodule_that_is_a_command_is_not_run(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MadError, match=r"url: git submodule failed: .*'ext' not allowed"):
        checkout.clone(f"file://{source}", tmp_path / "code", what="url", submodules=True)
    assert not list(tmp_path.rglob("executed"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repository": "/srv/models", "revision": "main"}, "gpuval_mad_revision: gpuval_mad_repository is a folder"),
        ({"repository": f"https://me:{SECRET}@host/x.git", "revision": ""}, "credentials in an address end up in logs"),
        ({"repository": "file:///nowhere", "revision": ""}, "gpuval_mad_repository: git fetch failed"),
        ({"repository": "file:///nowhere", "revision": "--upload-pack=x"}, "'--upload-pack=x' is no revision"),
    ],
)
def test_an_address_that_cannot_be_used_is_named(tmp_path, options, message):
    with pytest.raises(MadError) as caught:
        mad_jobs._root(options, tmp_path)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_clone_has_a_deadline(source, tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "SECONDS", 0.001)
    with pytest.raises(MadError, match=r"git init took more than 0\.001 s"):
        checkout.clone(f"file://{source}", tmp_path / "code", what="url")
