"""What the action says before anything is read, and how it gets a repository."""

import base64
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad import checkout
from ansible_collections.gpuval.fleet.plugins.plugin_utils.mad.documents import MadError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.steps import mad_jobs

from tests.kit import mad_repository
from tests.kit.actions import run_action
from tests.kit.git_server import GitServer
from tests.kit.mad_repository import SECRET, model
from tests.kit.planted_secrets import CommandLines, leaks


@pytest.mark.parametrize(
    ("sku", "vendor"),
    [("auto", ""), ("cpu", "CPU"), ("amd", "AMD"), ("h200", "NVIDIA"), ("MI300X", "AMD"), ("odd", "")],
)
def test_the_sku_says_the_vendor(sku, vendor):
    assert mad_jobs._vendor(sku) == vendor


def options_of(given):
    given["output"] = Path(given["output"]) if given.get("output") else None
    return mad_jobs.MadJobsOptions(state_dir=Path("/srv/state"), **given)


WITHOUT = {"registry": "", "keep_folder": "", "output": ""}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"registry": "https://registry.example"}, "gpuval_mad_registry: is no registry: write HOST"),
        ({"keep_folder": "kept"}, "gpuval_mad_keep_folder: is no absolute path"),
        ({"output": "/nowhere/perf.csv"}, "gpuval_mad_output: /nowhere/perf.csv: its folder is missing"),
        ({"runtime": "host"}, "gpuval_runtime is host, and models run in containers"),
        ({"repository": ""}, "gpuval_mad_repository is empty"),
    ],
)
def test_settings_with_which_no_model_can_run_are_refused(changed, message):
    with pytest.raises(MadError) as caught:
        mad_jobs._check(
            options_of({"repository": "/srv/models", **WITHOUT, **changed}),
        )
    assert message in str(caught.value)


def test_images_alone(tmp_path):
    options = {"repository": str(mad_repository.write(tmp_path / "repository")), "tags": ["tiny_train"]}
    options |= {"state_dir": str(tmp_path), "sku": "amd", "skip_run": True}
    done = run_action("mad_jobs", options).result
    assert (done["jobs"], len(done["images"])) == ([], 1)


def test_what_is_left_out_is_warned_of(tmp_path):
    models = [model(name="good", data="hub"), model(timeout="2h", n_gpus="all"), 3]
    root = mad_repository.write(tmp_path / "repository", **{"models.json": models, "data.json": None})
    done = run_action("mad_jobs", {"repository": str(root), "state_dir": str(tmp_path), "sku": "amd", "tags": ["pyt"]})
    assert len(done.result["jobs"]) == 1
    for text in ("model tiny_train: timeout: ", "model tiny_train: n_gpus: ", "models.json: entry 3: "):
        assert text in done.text
    assert "data.json is missing: the scripts of good fetch their data" in done.text


def test_models_on_a_cluster_need_images(tmp_path):
    options = {"repository": str(mad_repository.write(tmp_path / "repository")), "tags": ["tiny_train"]}
    options |= {"state_dir": str(tmp_path), "placement": "kubernetes", "runtime": "host"}
    done = run_action("mad_jobs", options)
    assert done.failed
    assert "set gpuval_mad_registry to one that the controller pushes to and the nodes pull from, or name" in done.text
    done = run_action("mad_jobs", {**options, "context": {"MAD_CONTAINER_IMAGE": "team/ready:3"}})
    assert [one["reference"] for one in done.result["images"].values()] == ["team/ready:3"]
    done = run_action("mad_jobs", {**options, "registry": "r.example:5000/mad/", "sku": "mi300x"})
    (image,) = done.result["images"].values()
    assert image["reference"] == "r.example:5000/mad/ci-tiny_train_tiny.ubuntu.amd:latest"
    assert image["build"]


@pytest.fixture
def source(tmp_path):
    """A repository with two commits."""
    root = tmp_path / "source"
    root.mkdir()

    def git(*arguments):
        command = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch", "main")
    for text in ("one", "two"):
        (root / "models.json").write_text(text)
        git("add", "models.json")
        git("commit", "--quiet", "-m", text)
        git("branch", text)
    return root


def test_the_user_may_name_a_revision_of_a_repository_on_this_machine(source, tmp_path):
    root = mad_jobs._root(options_of({"repository": f"file://{source}", "revision": "one"}), tmp_path)
    assert [(path.name, path.read_text()) for path in root.iterdir()] == [("models.json", "one")]


@pytest.fixture
def public(tmp_path, monkeypatch):
    """A server of public repositories."""
    with GitServer(tmp_path / "served") as server:
        for name, text in server.environment.items():
            monkeypatch.setenv(name, text)
        yield server


def test_a_repository_comes_with_its_submodules(public, tmp_path):
    """As `docker/primus` of MAD needs them."""
    primus = public.add("Primus", {"primus-cli": "true\n"})
    files = {**mad_repository.FILES, "models.json": json.dumps([model(dockercontext=".")])}
    del files[".git/config"]
    public.add("models", files, {"scripts/Primus": primus})
    options = {
        "repository": f"{public.url}/models.git",
        "tags": ["all"],
        "sku": "amd",
        "state_dir": str(tmp_path / "s"),
    }
    (image,) = run_action("mad_jobs", {**options, "tags": ["tiny_train"]}).result["images"].values()
    assert (Path(image["folder"]) / "scripts/Primus/primus-cli").read_text() == "true\n"


@pytest.mark.parametrize(
    ("url", "transport"),
    [
        ('ext::sh -c "touch executed"', "ext"),
        ("file://{here}", "file"),
        ("{here}", "file"),
        ("http://127.0.0.1:9/lib.git", "http"),
        ("git://127.0.0.1:9/lib.git", "git"),
    ],
)
def test_a_submodule_comes_over_https_or_ssh_alone(public, source, tmp_path, monkeypatch, url, transport):
    """Also where git's settings allow it, and where the user names a repository on this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file:git:http:ext")
    commit = subprocess.check_output(["git", "-C", source, "rev-parse", "HEAD"], text=True).strip()
    public.add("net", {"train.py": ""}, {"lib": f"{url.format(here=source)} {commit}"})
    for address, transports in (
        (f"{public.url}/net.git", checkout.TRANSPORTS),
        (f"file://{public.root}/net.git", checkout.ALL_TRANSPORTS),
    ):
        with pytest.raises(
            MadError, match=rf"git submodule failed: .*'{transport}' not allowed.*: use https:// or SSH"
        ):
            checkout.clone(address, tmp_path / f"code-{address[:5]}", what="url", transports=transports)
    assert not list(tmp_path.rglob("executed"))


def test_a_redirect_to_this_machines_disk_or_in_clear_is_not_followed(public, tmp_path):
    public.add("net", {"train.py": ""})
    public.redirect = "http://127.0.0.1:9"
    with pytest.raises(MadError, match=r"url: git fetch failed: .*rotocol \"http\" "):
        checkout.clone(f"{public.url}/net.git", tmp_path / "code", what="url")


class PrivateHost(BaseHTTPRequestHandler):
    """Asks for a password, and has nothing for those who know it."""

    def do_GET(self):
        given = self.headers.get("Authorization", "")
        self.server.seen.append(given)
        self.send_response(404 if given else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="x"')
        self.end_headers()

    def log_message(self, *_):
        """No lines."""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_password_goes_to_the_host_of_the_address_alone(tmp_path, host):
    """Git asks for another host when an address redirects to it, or a submodule is there."""
    with ThreadingHTTPServer(("127.0.0.1", 0), PrivateHost) as server, CommandLines() as lines:
        server.seen = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        login = checkout.Login("me", SECRET)
        url = f"http://127.0.0.1:{server.server_port}/x"
        with pytest.raises(MadError) as caught:
            words = ("ls-remote", url.replace("127.0.0.1", host))
            checkout._git(tmp_path, "url", *words, url=url, login=login, transports="http")
        server.shutdown()
    given = f"Basic {base64.b64encode(f'me:{SECRET}'.encode()).decode()}"
    assert (given in server.seen) == (host == "127.0.0.1")
    assert leaks({"it": SECRET}, lines.text + str(caught.value).encode() + repr(login).encode()) == []


@pytest.fixture
def private(tmp_path, monkeypatch):
    """A server with the code of a model and its submodule; `make` writes the model's job with a password."""
    with GitServer(tmp_path / "served", "reader", SECRET) as server:
        for name, text in server.environment.items():
            monkeypatch.setenv(name, text)
        lib = server.add("lib", {"lib.py": "print()\n"})
        server.commit = server.add("net", {"train.py": "import lib\n"}, {"lib": lib})

        def make(password, url=f"{server.url}/net.git"):
            models = {"models.json": [model(cred="TINY_HUB", url=url)]}
            given = {"credential.json": {"TINY_HUB": {"username": "reader", "password": password}}}
            root = mad_repository.write(tmp_path / "repository", **models, **given)
            options = {"repository": str(root), "tags": ["tiny_train"], "sku": "amd"}
            return run_action("mad_jobs", {**options, "state_dir": str(tmp_path / "state")})

        server.make = make
        yield server


def planted(tmp_path):
    """Files that hold the password, but for the one that brings it."""
    found = [path for path in tmp_path.rglob("*") if path.is_file() and leaks({"it": SECRET}, path.read_bytes())]
    return [path for path in found if path != tmp_path / "repository/credential.json"]


def test_private_code_and_its_submodules_are_cloned_by_the_models_credential(private, tmp_path):
    with CommandLines() as lines:
        done = private.make(SECRET)
    (image,) = done.result["images"].values()
    (code,) = Path(image["folder"]).glob("gpuval_mad/*/model")
    assert {path.name for path in code.iterdir()} == {".gitmodules", "train.py", "lib", "run.sh"}
    assert (code / "lib/lib.py").read_text() == "print()\n"
    assert private.commit in Path(done.result["jobs"][0]).read_text()
    assert private.seen == {"", private.wanted}
    assert leaks({"it": SECRET}, lines.text + repr(done).encode()) == [] == planted(tmp_path)


def test_a_wrong_password_names_the_model_and_no_secret(private, tmp_path):
    wrong = f"{SECRET}-of-yesterday"
    with CommandLines() as lines:
        done = private.make(wrong)
    assert done.failed
    assert "models.json: model tiny_train: url: git fetch failed: " in done.text
    assert "Authentication failed" in done.text
    assert done.lines[-1].endswith("check username and password in credential.json")
    assert leaks({"it": SECRET}, lines.text + repr(done).encode()) == [] == planted(tmp_path)


def test_a_private_repository_without_a_login_says_what_it_needs(private, tmp_path):
    with pytest.raises(
        MadError, match=r"gpuval_mad_repository: git fetch failed: .*: the repository needs a login: name a cred"
    ):
        mad_jobs._root(options_of({"repository": f"{private.url}/net.git"}), tmp_path)


def test_a_password_never_goes_over_a_network_in_clear(private):
    done = private.make(SECRET, "http://git.example.com/net.git")
    assert done.failed
    assert "model tiny_train: url: 'http://git.example.com/net.git' is no address of a repository" in done.text


def test_a_key_is_for_ssh(tmp_path):
    login = checkout.Login("me", key_file="/home/me/a key")
    assert login.options("ssh://host/x") == []
    assert login.environment()["GIT_SSH_COMMAND"].endswith("-l me -i '/home/me/a key' -o IdentitiesOnly=yes")


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
        mad_jobs._root(options_of(options), tmp_path)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_clone_has_a_deadline(source, tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "SECONDS", 0.001)
    with pytest.raises(MadError, match=r"git (init|fetch) took more than 0\.001 s"):
        checkout.clone(f"file://{source}", tmp_path / "code", what="url", transports="file")
