"""The loading workload as the runner starts it, from a real S3 server."""

import hashlib
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import model_source
from gpuval_workloads.common.result import WorkloadResult
from gpuval_workloads.loading import program, rclone

from tests.kit.model_server import ModelServer
from tests.kit.needs import tmpfs
from tests.kit.workload_process import Workload

MODULE = "gpuval_workloads.loading"
NAME = "models--gpuval--tiny-llama"
OPTIONS = program.parse_arguments(["--model-folder", NAME])
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """The tiny model with its manifest, as preloading leaves it."""
    model = model_source.resolve("tiny", tmp_path_factory.mktemp("model"))
    (model.root / "SHA256SUMS").write_text(model_source.make_manifest(model))
    return model.root


@pytest.fixture
def stored(store, original):
    """The model in the store, fresh for every test: a folder behind the S3 server."""
    folder = store.data / "gpuval" / "models" / NAME
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(original, folder)
    return folder


@pytest.fixture
def variables(tmp_path, store):
    config = tmp_path / "rclone.conf"
    config.write_text(store.config)
    return {
        "GPUVAL_RCLONE_CONFIG": str(config),
        "GPUVAL_MODELS_PREFIX": "gpuval/models",
        "GPUVAL_MODELS_DIR": str(tmp_path / "models"),
    }


@pytest.fixture
def load(tmp_path, variables, store):
    def run(*arguments, folder=NAME, **more):
        ended = Workload(tmp_path, MODULE, "--model-folder", folder, *arguments, **{**variables, **more}).end()
        for key in (store.secret_key, store.access_key):
            assert key not in ended.out + ended.err + str(ended.result)
        return ended

    return run


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    with tmpfs(folder, "size=2m"):
        yield folder


def names(ended):
    return {metric["name"] for metric in ended.result["metrics"]}


def test_a_model_is_loaded_verified_and_measured(load, stored, variables):
    ended = load()
    assert ended.code == 0, ended.err
    copy = Path(variables["GPUVAL_MODELS_DIR"], NAME)
    loaded = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert loaded == {path.name: path.read_bytes() for path in stored.iterdir() if path.name != "SHA256SUMS"}
    size = sum(map(len, loaded.values()))
    assert ended.metric("loading_bytes") == size
    assert ended.metric("loading_files_count") == len(loaded)
    assert ended.metric("loading_checksum_errors_count") == 0
    assert ended.metric("loading_bytes_per_second") == pytest.approx(size / ended.metric("loading_duration_seconds"))
    assert ended.metric("loading_verify_seconds") > 0
    assert ended.result["message"].startswith(f"{size / 1e6:.2f} MB in ")
    assert "bps" in ended.result["message"]


def test_what_is_present_and_verified_is_skipped_unless_asked_to_overwrite(load, stored):
    load()
    again = load()
    assert again.code == 0
    assert "already present and verified" in again.result["message"]
    assert not {"loading_duration_seconds", "loading_bytes_per_second"} & names(again)
    assert again.metric("loading_bytes") > 7_000_000  # what was verified: proof that there was something
    assert again.metric("loading_checksum_errors_count") == 0
    assert load("--overwrite").metric("loading_bytes") > 7_000_000


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_only_what_is_damaged_on_the_node_is_loaded_again(load, stored, variables, damage):
    load()
    path = Path(variables["GPUVAL_MODELS_DIR"], NAME, "tokenizer.json")
    good = path.read_bytes()
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(bytes([good[0] ^ 1]) + good[1:] if damage == "flip" else good[:100])
    ended = load()
    assert ended.code == 0
    assert ended.metric("loading_bytes") == len(good)
    assert path.read_bytes() == good


def test_a_byte_flipped_in_the_store_is_the_stores_and_is_not_trusted_later(load, stored, variables):
    path = stored / WEIGHTS
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        ended = load()
        assert ended.code == 1
        assert ended.result["state"] == "failure"
        assert ended.result["environment"]["fault"] == "store_incomplete"
        assert "loading_checksum_errors_count" not in names(ended)
        assert f"the store sends {WEIGHTS} with other bytes" in ended.result["message"]
        assert "model_preload_force=true" in ended.result["message"]
        assert not Path(variables["GPUVAL_MODELS_DIR"], NAME, WEIGHTS).exists()


def test_an_empty_source(load, stored):
    ended = load(folder="models--nobody--nothing")
    assert ended.code == 1
    assert "the store has no model under models:gpuval/models/models--nobody--nothing" in ended.result["message"]
    assert "gpuval.fleet.validate" in ended.result["message"]


def test_a_bucket_that_does_not_exist(load, stored):
    assert "no model under" in load(GPUVAL_MODELS_PREFIX="nobucket/models").result["message"]


def spoil(stored, how):
    sums = stored / "SHA256SUMS"
    if how == "no manifest":
        sums.unlink()
    elif how == "outside":
        sums.write_text(f"{'a' * 64}  ../../escape\n")
    elif how == "empty manifest":
        sums.write_text("")
    elif how == "missing file":
        (stored / WEIGHTS).unlink()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no manifest", "no SHA256SUMS"),
        ("outside", "want a relative path"),
        ("empty manifest", "names no file"),
        ("missing file", f"lacks {WEIGHTS}"),
    ],
)
def test_a_source_that_is_not_whole(load, stored, variables, how, words):
    spoil(stored, how)
    ended = load()
    assert ended.code == 1
    assert ended.result["environment"]["fault"] == "store_incomplete"  # no node's fault
    assert words in ended.result["message"]
    assert "model_preload" in ended.result["message"]
    assert not list(Path(variables["GPUVAL_MODELS_DIR"]).rglob("*.safetensors"))


def test_files_without_a_checksum_are_named_and_left_alone(load, stored, variables):
    (stored / "extra.bin").write_bytes(b"x")
    stray = Path(variables["GPUVAL_MODELS_DIR"], NAME, "stray.bin")
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"y")
    ended = load()
    assert ended.code == 0
    assert "warning: in the store but not in SHA256SUMS, not loaded: extra.bin" in ended.out
    assert "warning: on the node but not in SHA256SUMS, left alone: stray.bin" in ended.out
    assert stray.exists()
    assert not stray.with_name("extra.bin").exists()


@pytest.mark.parametrize("name", ["modeling_custom.py", "pytorch_model.BIN", "nested/weights.pt"])
def test_files_that_can_run_code_are_not_loaded_though_the_bucket_has_them(load, stored, variables, name):
    (stored / name).parent.mkdir(exist_ok=True)
    (stored / name).write_bytes(b"import os")
    with (stored / "SHA256SUMS").open("a") as sums:
        sums.write(f"{hashlib.sha256(b'import os').hexdigest()}  {name}\n")
    ended = load()
    assert ended.code == 0
    assert f"warning: can run code when they are read, not loaded: {name}" in ended.out
    assert not Path(variables["GPUVAL_MODELS_DIR"], NAME, name).exists()
    assert list(Path(variables["GPUVAL_MODELS_DIR"], NAME).glob("*.safetensors"))


def test_a_full_disk_is_seen_before_the_transfer(load, stored, small_disk):
    ended = load(GPUVAL_MODELS_DIR=str(small_disk))
    assert (ended.code, ended.result["state"]) == (2, "running")  # no verdict: a full disk is no broken one
    said = ended.err.splitlines()[-1]
    assert said.startswith("crash: disk full: the model needs 7.40 MB in ") and said.endswith(
        "or set gpuval_models_dir"
    )


def test_a_disk_that_fills_up_during_the_transfer(stored, small_disk, variables, monkeypatch):
    # What the disk had when we looked.
    monkeypatch.setattr(program.shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**9))
    result = WorkloadResult()
    environ = {**os.environ, **variables, "GPUVAL_MODELS_DIR": str(small_disk)}
    with pytest.raises(program.WorkloadCrash, match="disk full"):
        program.load(OPTIONS, environ, result)
    assert not list(small_disk.rglob("*.partial"))


def test_leftovers_of_an_interrupted_transfer_are_removed(load, stored, variables):
    folder = Path(variables["GPUVAL_MODELS_DIR"], NAME)
    folder.mkdir(parents=True)
    (folder / f"{WEIGHTS}.0123abcd.partial").write_bytes(b"half")
    (folder / "mine.partial").write_bytes(b"not ours")
    assert load().code == 0
    assert [path.name for path in folder.glob("*.partial")] == ["mine.partial"]


@pytest.mark.parametrize("which", ["secret", "access"])
def test_a_wrong_key_is_a_crash_that_says_so(load, stored, variables, store, which):
    config = Path(variables["GPUVAL_RCLONE_CONFIG"])
    key = store.secret_key if which == "secret" else store.access_key
    config.write_text(config.read_text().replace(key, "X" * len(key)))
    ended = load()
    assert ended.code == program.EXIT_TRANSPORT
    assert ended.result["state"] == "running"
    assert ended.result["environment"]["fault"] == "store_away"
    assert "refuses the read-only key" in ended.out.splitlines()[-1]
    assert "X" * len(key) not in ended.out + ended.err


def test_a_store_that_cannot_be_reached(variables, monkeypatch, capsys):
    monkeypatch.setattr(rclone, "AWAY_SECONDS", 1.0)
    monkeypatch.setattr(rclone, "PAUSE_SECONDS", 0.3)
    config = Path(variables["GPUVAL_RCLONE_CONFIG"])
    lines = [line for line in config.read_text().splitlines() if not line.startswith("endpoint")]
    with socket.socket() as closed:  # bound, but it does not listen
        closed.bind(("127.0.0.1", 0))
        config.write_text("\n".join([*lines, f"endpoint = http://127.0.0.1:{closed.getsockname()[1]}", ""]))
        with pytest.raises(SystemExit) as ended:
            program.load_or_exit(OPTIONS, {**os.environ, **variables}, WorkloadResult())
    assert ended.value.code == program.EXIT_TRANSPORT
    printed = capsys.readouterr()
    assert "asking the store again: it refuses connections" in printed.out
    assert "the store cannot be read: it refuses connections: check that its service runs" in printed.out


@pytest.mark.parametrize("away", [0.4, 0.6, 1.5])
def test_a_store_that_is_away_for_a_moment_is_waited_for(tmp_path, original, variables, monkeypatch, away):
    monkeypatch.setattr(rclone, "PAUSE_SECONDS", 0.5)
    own = ModelServer(tmp_path / "own")
    shutil.copytree(original, own.data / "gpuval" / "models" / NAME)
    Path(variables["GPUVAL_RCLONE_CONFIG"]).write_text(own.config)
    threading.Timer(away, own.start).start()
    result = WorkloadResult()
    try:
        program.load(OPTIONS, {**os.environ, **variables}, result)
    finally:
        own.stop()
    assert result.metric("loading_checksum_errors_count") == 0
    assert result.metric("loading_bytes") > 7_000_000


@pytest.mark.slow
def test_a_store_that_is_killed_in_the_middle_is_waited_for(tmp_path, variables, monkeypatch, capsys):
    own = ModelServer(tmp_path / "own")
    folder = own.data / "gpuval" / "models" / NAME
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(os.urandom(1 << 20) * 100)
    subprocess.run("sha256sum * > SHA256SUMS", shell=True, cwd=folder, check=True)
    Path(variables["GPUVAL_RCLONE_CONFIG"]).write_text(own.config)
    with monkeypatch.context() as patch:
        patch.setenv("RCLONE_BWLIMIT", "20M")  # for the server: 100 MB take 5 s
        own.start()

    def interrupt():
        own.stop()
        time.sleep(3)
        own.start()

    timer = threading.Timer(2, interrupt)
    timer.start()
    result = WorkloadResult()
    try:
        program.load(OPTIONS, {**os.environ, **variables}, result)
        timer.join()
    finally:
        own.stop()
    assert result.metric("loading_checksum_errors_count") == 0
    assert result.metric("loading_bytes") == 100 * (1 << 20) + 2
    assert result.metric("loading_duration_seconds") > 3


@pytest.mark.parametrize("folder", ["../x", "a/b", ".hidden", ""])
def test_a_model_folder_is_one_plain_name(load, folder):
    ended = load(folder=folder)
    assert ended.code == 1
    assert "not a model folder" in ended.result["message"]


@pytest.mark.parametrize("name", ["GPUVAL_MODELS_PREFIX", "GPUVAL_RCLONE_CONFIG", "GPUVAL_MODELS_DIR"])
def test_what_the_runner_sets_is_asked_for_by_name(load, name):
    assert name in load(**{name: ""}).result["message"]
