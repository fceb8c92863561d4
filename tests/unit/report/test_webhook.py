"""The end of a run reaches a webhook signed, once, within its deadline, and never changes a verdict."""

import json
import socket
import time
from datetime import datetime

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas
from ansible_collections.gpuval.fleet.plugins.plugin_utils.report import webhook
from ansible_collections.gpuval.fleet.plugins.plugin_utils.store import certificates

from tests.kit.actions import run_action
from tests.kit.builders import healthy, judge, make_record, make_run, write_report
from tests.kit.run_commands import placed
from tests.kit.webhook_receiver import WebhookReceiver

KEY = "0123456789abcdef0123456789abcdef"
ENDED = "2026-11-02T11:00:00Z"
SECRET = "https://store.example/x?X-Amz-Signature=planted0123456789"


def report_of(bad=1, message="killed by SIGKILL", **fields):
    names = [f"bad-{number}" for number in range(bad)]
    run = make_run(["good", *names], gpu_count=8, finished_at=ENDED, **fields)
    evidence = healthy(run)
    for name in names:
        evidence.records[name]["training"] = make_record(name, state="crash", message=message, metrics=[])
    return judge(run, evidence)


def deliver(receiver):
    return webhook.deliver(receiver.url, KEY, webhook.event_of(report_of()))


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(webhook, "PAUSES_SECONDS", (0.01, 0.01, 0.01))


def test_the_event_is_a_cloud_event_with_nodes_and_actions():
    event = webhook.event_of(report_of())
    schemas.validate("event", event["data"], what="event")
    # CloudEvents 1.0: required attributes are non-empty strings; names are small letters and digits
    assert all(event[name] for name in ("id", "source", "specversion", "type"))
    assert all(name.isalnum() and name.islower() for name in event)
    assert (event["specversion"], event["type"], event["subject"]) == ("1.0", "io.gpuval.run.judged", "run-1")
    assert datetime.fromisoformat(event["time"]).tzinfo
    (node,) = event["data"]["nodes"]
    assert (node["name"], node["verdict"], node["class"]) == ("bad-0", "FAIL", "training_crash")
    assert (node["stage"], node["action"], node["parts"]) == ("training", "retest", [])
    assert node["reason"] == "crash: killed by SIGKILL"


def test_the_same_content_has_the_same_id_and_another_verdict_another():
    report = report_of()
    later = {**report, "run": {**report["run"], "judged_at": "2026-11-03T10:00:00Z"}}
    assert webhook.event_of(report)["id"] == webhook.event_of(later)["id"]
    assert webhook.event_of(report)["id"] != webhook.event_of(report_of(0))["id"]


def test_an_event_is_small_and_names_no_secret():
    event = webhook.event_of(report_of(200, f"PUT {SECRET} failed " + "x" * 5000))
    schemas.validate("event", event["data"], what="event")
    assert len(json.dumps(event).encode()) < 64 << 10
    assert (len(event["data"]["nodes"]), event["data"]["nodes_left_out"]) == (50, 150)
    assert "planted0123456789" not in json.dumps(event)


def test_it_arrives_signed():
    with WebhookReceiver() as receiver:
        event = webhook.event_of(report_of())
        assert webhook.deliver(receiver.url, KEY, event) == webhook.Delivery(1)
        assert receiver.events == [event]
        headers, _ = receiver.requests[0]
        assert headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
        assert receiver.signed_by(KEY.encode())
        assert not receiver.signed_by(b"another key, as long")


def test_a_known_signature():
    """Worked out with openssl: printf 'e-1.1700000000.{}' | openssl dgst -sha256 -hmac KEY -binary | base64."""
    headers = webhook.headers_of("e-1", b"{}", KEY, 1_700_000_000)
    assert headers["webhook-signature"] == "v1,GN4j1AA69Vvbu+YWhu65c57sNLypOrk47llNtEJ5tfQ="


@pytest.mark.parametrize("first", [503, 429, "drop"])
def test_a_passing_failure_is_tried_again_with_the_same_event(first):
    with WebhookReceiver(first, first, 204) as receiver:
        sent = deliver(receiver)
        assert sent == webhook.Delivery(3)
        assert len({body for _, body in receiver.requests}) == 1
        assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1
        assert all(receiver.signed_by(KEY.encode(), number) for number in range(3))


@pytest.mark.parametrize("status", [400, 501])
def test_a_refusal_is_not_tried_again(status):
    with WebhookReceiver(status) as receiver:
        sent = deliver(receiver)
        assert sent == webhook.Delivery(1, f"HTTP {status}")


def test_a_redirect_is_not_followed():
    with WebhookReceiver() as other, WebhookReceiver((302, {"Location": other.url})) as receiver:
        sent = deliver(receiver)
        assert (sent.attempts, sent.problem) == (1, "HTTP 302")
        assert other.requests == []


@pytest.mark.parametrize("answer", ["stall", "drip"])
def test_no_answer_holds_an_attempt_up(answer, monkeypatch):
    monkeypatch.setattr(webhook, "ATTEMPT_SECONDS", 0.2)
    with WebhookReceiver(answer) as receiver:
        sent = deliver(receiver)
    assert sent.attempts == len(webhook.PAUSES_SECONDS) + 1
    assert "no answer within" in sent.problem or "timed out" in sent.problem


def test_a_receiver_that_is_not_there():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        sent = webhook.deliver(url, KEY, webhook.event_of(report_of()))
    assert sent.attempts == 4
    assert "refused" in sent.problem


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """A certificate for 127.0.0.1: the files of its authority, of itself and of its key."""
    files = certificates.CertificateFiles(tmp_path_factory.mktemp("certificates"))
    certificates.ensure(files, ["127.0.0.1"])
    return [str(path) for path in (files.authority, files.server, files.server_key)]


@pytest.mark.parametrize("trusted", [True, False])
def test_tls_is_verified(authority, trusted, monkeypatch):
    ca_file, certificate, key = authority
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", ca_file)
    with WebhookReceiver(certificate=(certificate, key)) as receiver:
        sent = deliver(receiver)
        assert sent.attempts == 1, "another attempt finds the same certificate"
        assert len(receiver.requests) == trusted
        assert ("CERTIFICATE_VERIFY_FAILED" in sent.problem) is not trusted


def folder_of(tmp_path, report, **fields):
    path = placed(tmp_path / "results", "run-1").path
    write_report(report, path)
    run = make_run(["good", "bad-0"], gpu_count=8, **{"finished_at": ENDED, **fields})
    (path / "run.json").write_text(json.dumps(run))
    return path


def notify(folder, receiver, **options):
    given = {"run_id": "run-1", "results_dir": str(folder.parents[1]), "url": receiver.url, "key": KEY}
    return run_action("notify_run", {**given, **options})


def test_the_end_of_a_run_is_sent_once(tmp_path):
    folder = folder_of(tmp_path, report_of())
    with WebhookReceiver() as receiver:
        first, again = notify(folder, receiver), notify(folder, receiver)
        assert (first.result["changed"], first.result["delivered"], first.result["attempts"]) == (True, True, 1)
        assert (again.result["changed"], again.result["delivered"], again.result["attempts"]) == (False, True, 0)
        write_report(report_of(0), folder)
        assert notify(folder, receiver).result["changed"], "another verdict is another event"
        assert [event["data"]["verdict"] for event in receiver.events] == ["FAIL", "PASS"]


def test_what_was_not_accepted_is_a_warning_and_is_sent_by_the_next_command(tmp_path):
    folder = folder_of(tmp_path, report_of())
    with WebhookReceiver(400, 204) as receiver:
        outcome = notify(folder, receiver)
        assert not outcome.failed
        assert outcome.result["delivered"] is False
        assert "the webhook 127.0.0.1 did not accept the end of the run: HTTP 400 (1 attempt(s))" in outcome.text
        assert "t0ken" not in outcome.text and KEY not in outcome.text
        assert notify(folder, receiver).result["delivered"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "short"}, "gpuval_webhook_key has less than 16 characters"),
        ({"url": "http://192.0.2.1/"}, "gpuval_webhook_url leads to 192.0.2.1 without TLS"),
    ],
)
def test_settings_that_cannot_be_used_are_a_warning(tmp_path, options, said):
    folder = folder_of(tmp_path, report_of())
    with WebhookReceiver() as receiver:
        outcome = notify(folder, receiver, **options)
        assert not outcome.failed
        assert said in outcome.text
        assert receiver.requests == []


def test_a_damaged_report_is_a_warning(tmp_path):
    folder = folder_of(tmp_path, report_of())
    (folder / "report.json").write_text("{")
    with WebhookReceiver() as receiver:
        outcome = notify(folder, receiver)
    assert not outcome.failed and "is damaged" in outcome.text


def test_a_run_that_goes_on_and_one_of_another_controller_send_nothing(tmp_path):
    with WebhookReceiver() as receiver:
        folder = folder_of(tmp_path / "a", report_of(), finished_at=None)
        assert notify(folder, receiver).result["attempts"] == 0
        folder = folder_of(tmp_path / "b", report_of())
        (folder / ".state").mkdir(exist_ok=True)
        (folder / ".state/from_store.json").write_text("{}")
        assert notify(folder, receiver).result["attempts"] == 0
        assert receiver.requests == []
