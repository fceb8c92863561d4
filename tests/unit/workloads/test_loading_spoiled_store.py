"""The loading workload from a real S3 server behind a proxy that spoils what passes: no fault of the node."""

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import model_source
from gpuval_workloads.common.result import WorkloadFailure
from gpuval_workloads.loading import manifest, program, rclone

from tests.kit.spoiling_proxy import SpoilingProxy, of_weights
from tests.kit.workload_process import Workload

NAME = "models--gpuval--tiny-llama"
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def stored(store, tmp_path_factory):
    """The tiny model in the store, as preloading leaves it."""
    model = model_source.resolve("tiny", tmp_path_factory.mktemp("model"))
    (model.root / "SHA256SUMS").write_text(model_source.make_manifest(model))
    return shutil.copytree(model.root, store.data / "gpuval" / "models" / NAME)


@pytest.fixture
def proxy(store):
    with SpoilingProxy(store.port) as started:
        yield started


@pytest.fixture
def short_waits(monkeypatch):
    for name, value in {"AWAY_SECONDS": 1.0, "PAUSE_SECONDS": 0.2, "RETRIES": 2, "RETRY_SECONDS": 0}.items():
        monkeypatch.setattr(rclone, name, value)
    monkeypatch.setattr(rclone, "LOW_LEVEL_RETRIES", 1)


@pytest.fixture
def variables(tmp_path, store, proxy):
    (tmp_path / "rclone.conf").write_text(config_for(store, f"http://127.0.0.1:{proxy.port}"))
    return {
        **os.environ,
        "GPUVAL_RCLONE_CONFIG": str(tmp_path / "rclone.conf"),
        "GPUVAL_MODELS_PREFIX": "gpuval/models",
        "GPUVAL_MODELS_DIR": str(tmp_path / "models"),
    }


def config_for(store, endpoint):
    return store.config.replace(f"http://127.0.0.1:{store.port}", endpoint)


@pytest.fixture
def load(variables, stored, short_waits, monkeypatch):
    """Run the workload in this process, where its waits are short; returns its exit code and its result."""

    def run():
        results = []

        def keep(main):
            result = program.WorkloadResult()
            results.append(result)
            try:
                main(result)
            except WorkloadFailure as failure:
                result.state, result.message = "failure", str(failure)
                result.environment.update({"fault": failure.fault} if failure.fault else {})
                return 1
            except SystemExit as ended:
                return ended.code
            return 0

        monkeypatch.setattr(program, "run_workload", keep)
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            code = program.main(["--model-folder", NAME])
        return code, results[0]

    return run


def fault_of(result):
    return result.environment.get("fault")


def weights_on_node(variables):
    return Path(variables["GPUVAL_MODELS_DIR"], NAME, WEIGHTS)


@pytest.mark.parametrize("applies", [None, of_weights, lambda _method, _path: True], ids=["objects", "weights", "all"])
@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("500", "it answers HTTP 500: read the log"),
        ("503", "it answers HTTP 503: read the log"),
        ("403", "the store refuses the read-only key"),
        ("skewed", "the store refuses the read-only key"),
        ("reset", "its connections break off"),
        ("truncate", "its connections break off"),
        ("away", "its connections break off"),
    ],
)
def test_a_store_that_cannot_be_read_is_the_fault_named(load, proxy, variables, how, cause, applies):
    proxy.spoil(how, applies)
    code, result = load()
    assert proxy.spoiled
    assert (code, result.state, fault_of(result)) == (3, "running", "store_away")
    assert cause in result.message
    assert f":{proxy.port}" not in result.message
    assert "loading_checksum_errors_count" not in {metric["name"] for metric in result.metrics}
    assert not weights_on_node(variables).exists()


@pytest.mark.parametrize("how", ["500", "503", "reset", "truncate", "flip", "away"])
def test_what_fails_once_is_loaded_all_the_same(load, proxy, variables, stored, how):
    proxy.spoil(how, of_weights, count=1)
    code, result = load()
    assert (code, result.state, fault_of(result)) == (0, "running", None), result.message
    assert proxy.spoiled == 1
    assert weights_on_node(variables).read_bytes() == (stored / WEIGHTS).read_bytes()
    assert result.metric("loading_checksum_errors_count") == 0
    assert result.metric("loading_transfer_errors_count") == (how == "flip")
    assert (f"arrived damaged and was loaded again: {WEIGHTS}" in result.message) == (how == "flip")
    assert result.metric("loading_bytes_per_second") > 0


@pytest.mark.parametrize(
    ("how", "code", "fault", "words"),
    [
        ("flip", 1, "store_incomplete", f"the store sends {WEIGHTS} with other bytes"),
        ("flip_anew", 3, "store_away", f"{WEIGHTS} came with other bytes each time"),
        ("404", 3, "store_away", "a file that it listed is gone"),
    ],
)
def test_a_file_that_never_arrives_right_is_not_the_nodes_fault(load, proxy, variables, how, code, fault, words):
    proxy.spoil(how, of_weights)
    ended, result = load()
    assert (ended, fault_of(result)) == (code, fault), result.message
    assert words in result.message
    assert "loading_checksum_errors_count" not in {metric["name"] for metric in result.metrics}
    assert not weights_on_node(variables).exists()


def test_two_kb_per_second_are_a_stall(load, proxy, monkeypatch):
    monkeypatch.setattr(rclone, "STALL_SECONDS", 4.0)
    monkeypatch.setattr(rclone, "STATS_SECONDS", 1)
    proxy.spoil("slow", of_weights)
    code, result = load()
    assert (code, fault_of(result)) == (3, "store_away")
    assert "it sends next to nothing" in result.message


@pytest.mark.parametrize(
    ("endpoint", "cause"),
    [
        ("http://127.0.0.1:9", "it refuses connections"),
        ("http://store.invalid", "its name is unknown here"),
        ("https://127.0.0.1:{port}", "it does not answer in TLS"),
    ],
)
def test_a_store_that_is_not_reached(load, proxy, store, variables, endpoint, cause):
    Path(variables["GPUVAL_RCLONE_CONFIG"]).write_text(config_for(store, endpoint.format(port=proxy.port)))
    code, result = load()
    assert (code, fault_of(result)) == (3, "store_away")
    assert cause in result.message
    assert "127.0.0.1" not in result.message and "store.invalid" not in result.message


def test_a_certificate_of_another_authority(load, store, variables, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=store"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with SpoilingProxy(store.port, context) as proxy:
        Path(variables["GPUVAL_RCLONE_CONFIG"]).write_text(config_for(store, f"https://127.0.0.1:{proxy.port}"))
        code, result = load()
    assert (code, fault_of(result)) == (3, "store_away")
    assert "certificate is not trusted" in result.message


def test_a_byte_that_the_nodes_disk_changes_stays_the_nodes_fault(load, variables, tmp_path):
    """An rclone that writes right bytes to a disk which keeps others."""
    broken = tmp_path / "rclone"
    broken.write_text(
        f'#!/bin/sh\n{shutil.which("rclone") or rclone.find_rclone(os.environ)} "$@" || exit\n'
        f'file="{weights_on_node(variables)}"\n'
        '[ -f "$file" ] && printf x | dd of="$file" bs=1 seek=4000 conv=notrunc 2>/dev/null\nexit 0\n'
    )
    broken.chmod(0o755)
    variables["GPUVAL_RCLONE"] = str(broken)
    code, result = load()
    assert (code, result.state, fault_of(result)) == (1, "failure", None)
    assert f"wrong checksum: {WEIGHTS} arrived right and was read back wrong" in result.message
    assert result.metric("loading_checksum_errors_count") == 1


@pytest.mark.parametrize(
    ("complaint", "code", "fault", "words"),
    [
        ("write /m/x.partial: input/output error", 1, None, "the node's disk takes no files"),
        ("open /m/x.partial: read-only file system", 1, None, "the node's disk takes no files"),
        ("open /m/x.partial: permission denied", 1, "environment", "set gpuval_models_dir to a folder"),
        ("mkdir /m/x: not a directory", 1, "environment", "set gpuval_models_dir to a folder"),
        ("api error InternalError: open /data/x: input/output error", 3, "store_away", "the store cannot be read"),
    ],
)
def test_what_rclone_reports_of_the_nodes_disk_is_not_the_stores(
    load, variables, tmp_path, complaint, code, fault, words
):
    """An rclone whose copy ends as with such a disk."""
    failing = tmp_path / "rclone"
    failing.write_text(
        f"#!/bin/sh\ncase \"$*\" in *--files-from-raw*) echo '{complaint}'; exit 1;; esac\n"
        f'exec {rclone.find_rclone(os.environ)} "$@"\n'
    )
    failing.chmod(0o755)
    variables["GPUVAL_RCLONE"] = str(failing)
    ended, result = load()
    assert (ended, fault_of(result)) == (code, fault)
    assert words in result.message


def test_a_model_cache_below_a_file_is_no_fault_of_the_node(load, variables, tmp_path):
    (tmp_path / "file").write_text("")
    variables["GPUVAL_MODELS_DIR"] = str(tmp_path / "file" / "models")
    code, result = load()
    assert (code, fault_of(result)) == (1, "environment")
    assert "set gpuval_models_dir to a folder that the node's user may write" in result.message


@pytest.mark.parametrize(
    ("seen", "origin"),
    [
        (("a", None), manifest.STORE),
        (("a", "b", "c"), manifest.NODE),
        (("a", "b", "a"), manifest.NODE),
        (("a", "b", None), manifest.NODE),
        (("a", "b", "b", "b"), manifest.STORE),
        (("a", "b", "b", "c"), manifest.NETWORK),
        (("a", "b", "b", "a", "b"), manifest.NODE),
        (("a", "b", "b", "a", None), manifest.NODE),
        (("a", "b", "b", "a", "a"), manifest.HEALED),
    ],
)
def test_what_damaged_a_file(seen, origin):
    assert manifest.origin_of(*seen) == origin


def test_a_stage_that_is_ended_while_it_waits_for_the_store_names_it(variables, proxy, stored, tmp_path):
    proxy.spoil("slow", of_weights)
    workload = Workload(tmp_path, "gpuval_workloads.loading", "--model-folder", NAME, **variables)
    for _ in range(2):  # the first was printed before it was written
        workload.wait_for_line("transferred ")
    workload.process.terminate()
    assert workload.end().result["environment"]["fault"] == "store_away"
