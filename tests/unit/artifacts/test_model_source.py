"""Where models come from, and their way into a real store."""

import hashlib
import multiprocessing
import os
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import hub, model_source
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts.model_source import ModelError
from gpuval_workloads.loading import manifest

from tests.kit import model_hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path):
    """A model as the hub's cache keeps it: snapshots of links into blobs."""
    root = tmp_path / "models--acme--Rocket-7B"
    snapshot = root / "snapshots" / COMMIT
    (root / "blobs").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(COMMIT)
    for index, (name, content) in enumerate({"config.json": b"{}", "sub/model.safetensors": b"weights"}.items()):
        blob = root / "blobs" / f"blob{index}"
        blob.write_bytes(content)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (snapshot / "model.lock").write_text("")
    (snapshot / ".cache").mkdir()
    (snapshot / ".cache" / "junk").write_text("")
    return root


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("tiny", "models--gpuval--tiny-llama"),
        ("meta-llama/Llama-3.1-8B-Instruct", "models--meta-llama--Llama-3.1-8B-Instruct"),
        ("hf:meta-llama/Llama-3.1-8B-Instruct@main", "models--meta-llama--Llama-3.1-8B-Instruct"),
        ("/data/models--acme--Rocket-7B", "models--acme--Rocket-7B"),
        (f"/data/models--acme--Rocket-7B/snapshots/{COMMIT}", "models--acme--Rocket-7B"),
        ("/data/my model (new)", "models--local--my-model-new"),
    ],
)
def test_folders_are_named_as_the_hubs_cache_does(source, folder):
    assert model_source.folder_name(source) == folder


@pytest.mark.parametrize("source", ["", " ", "hf:nonsense", "hf:a/b/c"])
def test_no_known_form_is_an_error_that_names_them(source):
    with pytest.raises(ModelError, match="use tiny, org/name"):
        model_source.folder_name(source)


def test_links_are_followed_and_caches_left_out(hub_cache, tmp_path):
    model = model_source.resolve(str(hub_cache), tmp_path / "scratch")
    assert model.folder == "models--acme--Rocket-7B"
    assert sorted(model.files) == ["config.json", "sub/model.safetensors"]
    assert COMMIT in model.origin
    assert model_source.make_manifest(model) == "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in (("config.json", b"{}"), ("sub/model.safetensors", b"weights"))
    )


def test_files_that_can_run_code_reach_no_node(hub_cache, tmp_path):
    for name in ("modeling_rocket.py", "pytorch_model.bin", "rng.PT", "scaler.pkl", "sub/kernel.so"):
        (hub_cache / "snapshots" / COMMIT / name).write_text("import os")
    model = model_source.resolve(str(hub_cache), tmp_path / "scratch")
    assert sorted(model.files) == ["config.json", "sub/model.safetensors"]
    assert model.origin.endswith("; 5 files that can run code left out")
    (hub_cache / "snapshots" / COMMIT / "sub/model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"weights only in files that can run code .*: convert them to safetensors"):
        model_source.resolve(str(hub_cache), tmp_path / "scratch")


@pytest.fixture
def serve(monkeypatch):
    """A hub that answers so, as the one of this process."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with ExitStack() as stack:

        def start(**answers):
            its = stack.enter_context(model_hub.ModelHub(**answers))
            monkeypatch.setattr(constants, "ENDPOINT", its.url)
            of_files = f"{its.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
            monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", of_files)
            return its

        yield start


def test_files_that_can_run_code_are_not_downloaded(tmp_path, serve):
    asked = serve(contents=dict.fromkeys(("config.json", "a.safetensors", "run.py", "w.bin", "w.pkl", "w.pt"), b"{}"))
    model = model_source.resolve("hf:acme/rocket", tmp_path)
    assert sorted(model.files) == ["a.safetensors", "config.json"]
    assert not [path for path in asked.asked if path.endswith((".py", ".bin", ".pkl", ".pt"))]
    assert model.origin == f"hub acme/rocket, revision {model_hub.COMMIT}"


@pytest.mark.parametrize(
    ("answers", "token", "words"),
    [
        ({"about": model_hub.NOT_FOUND}, "", "acme/rocket is not on the hub, or is private: check the name, or give a"),
        ({"about": model_hub.GATED}, "", "acme/rocket is gated: accept its licence"),
        ({"about": model_hub.BAD_TOKEN}, "hf_planted", r"refuses the token \(HTTP 401\): give a token that may read"),
        ({"files": model_hub.BAD_TOKEN}, "", r"refuses access \(HTTP 401\): give a token"),
        ({"about": (429, {})}, "", r"limits requests \(HTTP 429\)"),
        ({"about": (503, {})}, "", r"could not be downloaded from 127.0.0.1:\d+ \(HTTP 503\): check the"),
        # the client waits as long as the hub says, and repeats
        ({"files": (429, {"Retry-After": "3600"})}, "", r"limits requests \(HTTP 429\)"),
        ({"files": model_hub.STALL}, "", r"could not be downloaded from .* \(nothing arrived for 8 s\)"),
    ],
)  # fmt: skip
def test_a_hub_that_refuses_or_is_silent(tmp_path, serve, answers, token, words):
    serve(**answers)
    is_silent = answers.get("files") in (model_hub.STALL, (429, {"Retry-After": "3600"}))
    began, silence_seconds = time.monotonic(), 8 if is_silent else 60
    with pytest.raises(ModelError, match=words) as caught:
        model_source.resolve("hf:acme/rocket", tmp_path, token=token, silence_seconds=silence_seconds)
    assert time.monotonic() - began < 90
    assert "hf_planted" not in str(caught.value)
    assert not multiprocessing.active_children()


def test_a_slow_download_shows_its_progress(tmp_path, serve, monkeypatch):
    monkeypatch.setattr(hub, "PROGRESS_SECONDS", 1.0)
    serve(files=model_hub.STALL)
    lines = []
    with pytest.raises(ModelError):
        model_source.resolve("hf:acme/rocket", tmp_path, silence_seconds=5, say=lines.append)
    assert re.fullmatch(r"acme/rocket: .* B downloaded, nothing new for \d s", lines[-1])


def test_a_manifest_is_what_sha256sum_says_and_nodes_accept(tmp_path):
    model = model_source.resolve("tiny", tmp_path)
    text = model_source.make_manifest(model)
    checked = subprocess.run(["sha256sum", "-c", "--strict"], input=text, cwd=model.root, text=True, check=False)
    assert checked.returncode == 0
    assert set(manifest.parse(text)) == set(model.files)


def test_a_revision_that_is_not_there(hub_cache, tmp_path):
    with pytest.raises(ModelError, match=f"no snapshot v2 .it has {COMMIT}"):
        model_source.resolve(str(hub_cache), tmp_path, revision="v2")


def test_a_broken_link_is_named(hub_cache, tmp_path):
    (hub_cache / "blobs" / "blob1").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is a link that leads nowhere"):
        model_source.resolve(str(hub_cache), tmp_path)


@pytest.mark.parametrize(("made", "words"), [(False, "does not exist"), (True, r"no config\.json")])
def test_a_folder_that_is_no_model(tmp_path, made, words):
    folder = tmp_path / "thing"
    if made:
        folder.mkdir()
    with pytest.raises(ModelError, match=words):
        model_source.resolve(str(folder), tmp_path / "scratch")


def test_a_hub_that_cannot_be_reached(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match="could not be downloaded") as caught:
        model_source.resolve("hf:acme/rocket", tmp_path, token="hf_planted")
    assert "hf_planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("listed", "sizes", "missing"),
    [
        ({"a": 1, "b": 2}, None, []),
        ({"a": 1}, None, ["b"]),
        ({}, None, ["a", "b"]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["b"]),
        ({"a": 1, "b": 2, "more": 3}, {"a": 1}, []),
    ],
)
def test_missing_goes_by_name_and_by_size_where_it_is_known(listed, sizes, missing):
    assert model_source.missing({"a": "x", "b": "y"}, listed, sizes) == missing


def test_a_model_is_uploaded_whole_with_links_resolved(hub_cache, tmp_path, embedded):
    model = model_source.resolve(str(hub_cache), tmp_path / "scratch")
    model_source.upload(model, embedded.connection())
    listed = {entry.key: entry.size for entry in Store(embedded.connection()).list(f"models/{model.folder}/")}
    assert listed == {
        f"models/{model.folder}/config.json": 2,
        f"models/{model.folder}/sub/model.safetensors": 7,
    }
    copy = embedded.data / "gpuval" / "models" / model.folder / "sub" / "model.safetensors"
    assert copy.read_bytes() == b"weights"
    assert not copy.is_symlink()


@pytest.mark.slow
def test_the_read_only_side_refuses_an_upload(hub_cache, tmp_path, embedded):
    model = model_source.resolve(str(hub_cache), tmp_path / "scratch")
    reader = embedded.reader()
    with pytest.raises(StoreError, match="the copy failed") as caught:
        model_source.upload(model, reader)
    assert reader.secret_key not in str(caught.value)


def test_keys_are_in_no_argument_and_in_no_file_afterwards(hub_cache, tmp_path, embedded, monkeypatch):
    seen = []
    real = subprocess.run

    def spy(command, **options):
        config = Path(command[command.index("--config") + 1])
        seen.append((command, config, config.stat().st_mode & 0o777))
        return real(command, **options)

    monkeypatch.setattr(subprocess, "run", spy)
    model = model_source.resolve(str(hub_cache), tmp_path / "scratch")
    connection = embedded.connection()
    model_source.upload(model, connection)
    ((command, config, mode),) = seen
    assert connection.secret_key not in " ".join(command)
    assert mode == 0o600
    assert not config.exists()
