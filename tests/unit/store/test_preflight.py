"""The store before a run: uploads as nodes upload, reading as nodes read, the clocks; all findings at once."""

import errno
from types import SimpleNamespace

import psutil
import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.store import Connection, Store, StoreError
from ansible_collections.gpuval.fleet.plugins.plugin_utils.records.evidence import RunEvidence
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import embedded as embedded_store
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import preflight
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.backend import S3Service as Service
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store.embedded import EmbeddedStore
from ansible_collections.gpuval.fleet.plugins.plugin_utils.watch.exchange import StorePoller

from tests.kit.actions import run_action, vars_of
from tests.kit.odd_s3 import OddS3
from tests.kit.run_commands import lay_out, opened
from tests.kit.s3_service import S3Service


@pytest.fixture
def odd():
    with OddS3() as service:
        yield service


def serve(odd, folder, **options):
    return run_action("serve_store", {"store": odd.options(folder, **options)})


def test_a_service_and_the_embedded_store_pass_and_keep_nothing_of_it(tmp_path):
    embedded = EmbeddedStore(tmp_path / "store", "gpuval")
    try:
        done = run_action("serve_store", {"store": {"bucket": "gpuval", "state_dir": str(tmp_path)}})
    finally:
        embedded.stop()
    assert not done.failed and "takes uploads by signed URL and can be read" in done.text, done.text
    keys = ("WRITER", "w-secret"), ("READER", "r-secret")
    with S3Service(tmp_path, *keys) as service:
        (service.data / "gpuval").mkdir()
        named = dict(zip(("access_key", "secret_key", "read_access_key", "read_secret_key"), keys[0] + keys[1]))
        done = run_action(
            "serve_store",
            {"store": {"bucket": "gpuval", "endpoint": service.endpoint, "state_dir": str(tmp_path), **named}},
        )
        assert not done.failed, done.text
        assert "gpuval_s3_read_access_key can write" in done.text, "both keys of this service may do all"
        assert not list(service.data.rglob("preflight-*"))
        wrong = {"store": {"bucket": "gpuval", "endpoint": service.endpoint, "state_dir": str(tmp_path), **named}}
        wrong["store"]["read_secret_key"] = "not-this-one"
        done = run_action("serve_store", wrong)
        assert done.failed and "the read-only key cannot list models/" in done.text, done.text
        assert not [key for key in ("w-secret", "not-this-one") if key in done.text]
    assert not list(embedded.objects.rglob("preflight-*"))


def test_uploads_by_signed_url_that_fail_are_found_before_a_node_tries_one(odd, tmp_path):
    odd.upload_status = 500
    done = serve(odd, tmp_path)
    assert done.failed
    assert "preflight: the store answers an upload by signed URL with HTTP 500. Check" in done.lines[-1]
    assert "Signature" not in done.text


def test_a_read_only_key_that_lists_and_cannot_read_is_found(odd, tmp_path):
    odd.readers_denied = ("READER",)
    done = serve(odd, tmp_path)
    assert done.failed and "lists models/ and cannot read what is in it" in done.lines[-1]
    assert "s3:GetObject for gpuval_s3_read_access_key" in done.lines[-1]
    assert not serve(odd, tmp_path, read_access_key="", read_secret_key="").failed, "runs without loading need none"


def test_objects_that_stay_although_the_service_answers_200_are_found(odd, tmp_path):
    assert "can write" not in serve(odd, tmp_path).text
    odd.undeletable = True
    text = serve(odd, tmp_path).text
    assert "cannot delete objects: the store keeps 1 of 1 objects that were to be deleted: models/preflight-" in text
    assert "AccessDenied. Allow s3:DeleteObject" in text


def test_all_findings_are_shown_at_once(odd, tmp_path, monkeypatch):
    odd.upload_status = 403
    odd.seconds_ahead = -3600

    def unable(*_):
        raise preflight.StoreError("denied")

    monkeypatch.setattr(preflight.Store, "delete", unable)
    done = serve(odd, tmp_path)
    found = [line for line in done.lines if "preflight:" in line]
    assert len(found) == 2, done.lines
    assert "cannot delete objects: denied. Allow s3:DeleteObject" in found[0]
    assert "HTTP 403. the controller's clock is 1 h ahead of the store's: set it" in found[1]


@pytest.mark.parametrize(("ahead", "words"), [(3600, "1 h behind"), (-600, "10 min ahead of"), (20, "")])
def test_a_clock_that_is_off_is_named(odd, tmp_path, ahead, words):
    odd.seconds_ahead = ahead
    done = serve(odd, tmp_path)
    assert not done.failed
    assert (f"the controller's clock is {words} the store's: set it" in done.text) == bool(words), done.text


def test_uploads_that_fail_during_a_run_are_reported_once_and_when_they_work_again(odd):
    said, store = [], Store(Connection("gpuval", odd.endpoint, access_key="WRITER", secret_key="w"))
    watched = SimpleNamespace(info={"folder": "run"}, store=store, say=said.append, evidence=RunEvidence(launches={}))
    poller = StorePoller(watched, Service(store.connection), None)
    for status, now in ((200, 0), (500, 10), (500, 40), (500, 80), (200, 120)):
        odd.upload_status = status
        poller.answered(now)
    failed, again = said
    assert failed.startswith("the store answers an upload by signed URL with HTTP 500: nodes keep their records")
    assert again == "the store takes uploads by signed URL again after 110 s"
    (problem,) = watched.evidence.problems
    assert problem["node"] is None and "with HTTP 500 at 20" in problem["reason"]


def test_a_store_that_goes_away_is_not_blamed_on_the_keys(tmp_path):
    embedded = EmbeddedStore(tmp_path, "gpuval")
    embedded.start()
    store = embedded.store()
    embedded.stop()
    found = preflight.findings(embedded, store)
    assert found[0].startswith("the store does not answer an upload by signed URL")
    assert not [line for line in found if "delete" in line.lower()]


SSH, HERE = {"ansible_connection": "ssh"}, {"ansible_connection": "ansible.builtin.local"}


@pytest.mark.parametrize(
    ("stages", "nodes", "address", "started", "ends"),
    [
        (["facts", "loading"], (SSH, SSH), "", False, True),
        (["facts", "dataset_texts"], (SSH, SSH), "", False, True),
        (["facts", "loading"], (SSH, SSH), "", True, False),
        (["facts", "loading"], (SSH, SSH), "127.0.0.2", False, False),
        (["facts", "loading"], (SSH, HERE), "", False, False),
        (["facts", "loading"], (HERE, HERE), "", False, False),
        (["facts", "training"], (SSH, SSH), "", False, False),
    ],
)
def test_a_run_whose_nodes_cannot_load_their_model_ends_before_anything_starts(
    tmp_path, monkeypatch, stages, nodes, address, started, ends
):
    reached = []
    monkeypatch.setattr(preflight, "examine", lambda *_: reached.append(1) or exit_early())
    results, hostvars = lay_out(tmp_path), dict(zip(("node-1", "node-2"), nodes))
    workloads = {name: {"command": ["true"]} for name in stages}
    folder = opened(results, "r1", profile_stages=stages, workloads=workloads, task_vars=vars_of(hostvars))
    if started:
        folder.advance("working")
    store = {"bucket": "b", "state_dir": str(tmp_path / "state"), "results_dir": str(results), "address": address}
    done = run_action("serve_store", {"store": store, "run_id": "r1"}, task_vars=vars_of(hostvars))
    assert done.failed and bool(reached) is not ends
    if ends:
        assert done.lines[-1].startswith(
            "preflight: the embedded store listens on the controller's loopback only, so the nodes cannot load"
        )
        assert "set gpuval_store_address to" in done.lines[-1] and not (tmp_path / "state/store").exists()


def exit_early():
    raise StoreError("the end of this test")


def test_a_service_without_keys_names_their_settings(odd, tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    done = serve(odd, tmp_path, access_key="", secret_key="")
    assert done.failed and "set gpuval_s3_access_key and gpuval_s3_secret_key" in done.lines[-1]
    assert "gpuval_s3_endpoint" not in done.lines[-1]


def test_a_full_disk_is_named_and_the_store_that_was_started_for_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded_store, "shortage", lambda _place: 2_000_000)
    monkeypatch.setattr(preflight, "upload", lambda *_: 500)
    done = run_action("serve_store", {"store": {"bucket": "gpuval", "state_dir": str(tmp_path)}})
    embedded = EmbeddedStore(tmp_path / "store", "gpuval")
    ran = embedded.stop()
    assert done.failed and not ran
    assert "preflight: the disk of the store lacks 2.00 MB: free space at " in done.lines[-1]
    with (
        pytest.raises(StoreError, match=r"lacks 5\.00 MB: .*500 \.\.\. PutObject"),
        embedded.naming_full_disk(3_000_000),
    ):
        raise StoreError("500 ... PutObject")


def test_a_start_that_a_full_disk_breaks_off_leaves_no_server(tmp_path, monkeypatch):
    started = []

    def written(_store, state):
        started.append(psutil.Process(state.writer.pid))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EmbeddedStore, "_write", written)
    done = run_action("serve_store", {"store": {"bucket": "gpuval", "state_dir": str(tmp_path)}})
    assert done.failed and "No space left on device: free space, or set gpuval_state_dir to" in done.lines[-1]
    assert len(started) == 1 and not started[0].is_running()
