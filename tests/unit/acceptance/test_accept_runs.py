"""The step of `make accept`: what it reads, writes and prints, and each mistake in its settings."""

import hashlib
import json
import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import signing_keys, statement

from tests.kit.accepted_site import AcceptedSite, crashed
from tests.kit.actions import run_action, vars_of

NAMES = ["node-001", "node-002", "node-003"]


def day(before):
    return (datetime.now(timezone.utc) - timedelta(days=before)).date().isoformat()


@pytest.fixture
def site(tmp_path):
    site = AcceptedSite(tmp_path / "results", 3, str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    site.run("first", day(4), faults={NAMES[0]: crashed})
    return site


def accept(site, runs, *, check_mode=False, inventory=None, limit=None, **options):
    variables = {
        **({"ansible_limit": limit} if limit else {}),
        **vars_of({name: {} for name in site.machines}),
        "ansible_inventory_sources": [inventory or site.inventory],
    }
    options = {"results_dir": str(site.results), "runs": runs, **options}
    return run_action("accept_runs", options, task_vars=variables, check_mode=check_mode)


def test_the_file_the_block_and_the_exit_status(site):
    outcome = accept(site, "first")
    path = site.results / "site/acceptance.json"
    assert outcome.failed and outcome.result["changed"]
    assert "FINAL ACCEPTANCE: FAIL" in outcome.lines
    assert "- Nodes: 3 expected, 2 PASS, 1 FAIL, 0 INCOMPLETE; 0 of them accepted after a repair" in outcome.lines
    assert outcome.result["acceptance_file"] == str(path)
    assert json.loads(path.read_text())["verdict"] == "FAIL"
    site.replace_gpu(NAMES[0], 3)
    site.run("second", day(3))
    accepted = accept(site, ["first", "second"])
    assert not accepted.failed
    assert "FINAL ACCEPTANCE: PASS" in accepted.lines
    assert json.loads(path.read_text())["verdict"] == "PASS"
    before = path.read_bytes()
    again = accept(site, "first,second")
    assert (again.result["changed"], path.read_bytes()) == (False, before)


def test_the_letter_names_the_digest_of_the_acceptance_and_is_written_again_if_it_is_lost(site):
    accept(site, "first")
    path = site.results / "site/acceptance.json"
    letter = path.with_name("acceptance.html")
    text = letter.read_text()
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text
    assert "2 of 3 ordered nodes are accepted." in text
    assert all(f'data-node="{name}"' in text for name in NAMES)
    assert "no bundle" in text
    letter.unlink()
    assert accept(site, "first").result["changed"]
    assert letter.read_text() == text


def test_the_letter_names_the_sealed_evidence_bundle_of_the_report(site, tmp_path):
    report = site.results / "site/first/report.json"
    bundle = report.with_name("evidence_bundle")
    copied = bundle / "run/report.json"
    copied.parent.mkdir(parents=True)
    copied.write_bytes(report.read_bytes())
    (bundle / "judgement.json").write_text("{}")
    assert bundle_in(accept(site, "first")) is None, "it is not sealed"

    keyid = signing_keys.ensure_key(tmp_path / "state", False, {})[0]["keyid"]
    root_digest = statement.seal(bundle, {})
    envelope = bundle / statement.STATEMENT
    key = signing_keys.read_private_key(tmp_path / "state", {})
    envelope.write_bytes(statement.sign(envelope.read_bytes(), key))
    outcome = accept(site, "first", state_dir=str(tmp_path / "state"))
    assert bundle_in(outcome) == {"root_digest": root_digest, "signatures": [{"keyid": keyid, "state": "verified"}]}
    letter = Path(outcome.result["acceptance_file"]).with_name("acceptance.html").read_text()
    assert root_digest in letter

    (bundle / "judgement.json").write_text("[]")
    assert f"{bundle} is damaged: judgement.json" in accept(site, "first").lines[-1]
    copied.write_text("{}")
    statement.seal(bundle, {})
    assert bundle_in(accept(site, "first")) is None, "it is of another judgement"


def bundle_in(outcome):
    return json.loads(Path(outcome.result["acceptance_file"]).read_text())["runs"][0].get("bundle")


def test_check_mode_says_the_same_and_writes_nothing(site):
    outcome = accept(site, "first", check_mode=True)
    assert outcome.failed and outcome.result["changed"]
    assert "FINAL ACCEPTANCE: FAIL" in outcome.lines
    assert not [*site.results.glob("site/acceptance.*")]


@pytest.mark.parametrize(
    ("runs", "options", "words"),
    [
        ("", {}, "needs RUNS=a,b,..."),
        ("frist", {}, "RUNS: no run frist: is it first?"),
        ("first,later", {}, "RUNS: no run later"),
        ("first", {"window_days": 0}, "accept_window_days from 1 to 3650"),
        ("first", {"window_days": "soon"}, "window_days"),
        ("first", {"window_days": 10**9}, "accept_window_days from 1 to 3650"),
        ("first", {"declared": [{"node": "node-001"}]}, "gpuval_repairs: an entry has node, part, action, at, by"),
        (
            "first",
            {
                "declared": [
                    {"node": "node-01", "part": "gpu:3", "action": "x", "at": "2026-11-04T09:00:00Z", "by": "K"}
                ]
            },
            "gpuval_repairs: no run has node-01; is it node-001?",
        ),
    ],
)
def test_what_is_mistyped_is_named(site, runs, options, words):
    outcome = accept(site, runs, **options)
    assert outcome.result is None
    assert words in outcome.text


def test_a_run_of_another_inventory_is_refused(site, tmp_path):
    (tmp_path / "other").mkdir()
    assert "is one of the inventory" in accept(site, "first", inventory=str(tmp_path / "other")).text


def test_a_first_run_of_some_nodes_is_refused(site):
    site.run("part", day(5), NAMES[:2], part_of="first")
    assert "run part, the first of RUNS, left out nodes or work" in accept(site, "part,first").text


def change_report(site, run_id, **fields):
    path = site.results / f"site/{run_id}/report.json"
    report = json.loads(path.read_text())
    report["run"].update(fields)
    report["run"] = {key: value for key, value in report["run"].items() if value is not ...}
    path.write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"criteria": ...}, "run first names no criteria: `make report RUN=first`"),
        ({"finished_at": f"{day(-2)}T10:00:00Z"}, "which cannot be: set the clock of its controller"),
        ({"created_at": f"{day(3)}T10:00:00Z"}, "which cannot be: set the clock of its controller"),
        ({"finished_at": None}, "run first has no final report, and every run counts"),
    ],
)
def test_a_report_that_cannot_count_is_named(site, fields, words):
    change_report(site, "first", **fields)
    assert words.replace("`make report RUN=first`", "`make report") in accept(site, "first").text.replace(
        f" INVENTORY={site.inventory}", ""
    ).replace("`make report RUN=first`", "`make report")


def test_a_run_without_a_report_is_not_passed_over(site):
    site.run("second", day(2))
    (site.results / "site/second/report.json").unlink()
    assert "run second has no final report, and every run counts" in accept(site, "first").text


def test_a_run_that_is_too_old_accepts_nothing_and_is_named(site):
    site.run("old", day(40), left_out=[NAMES[2]])
    site.run("now", day(2), NAMES[2:], part_of="old")
    lines = accept(site, "old,now").lines
    assert any(line.startswith(f"- {NAMES[1]} INCOMPLETE not_named: its last whole run first") for line in lines)
    shutil.rmtree(site.results / "site/first")
    text = accept(site, "old,now").text
    assert "over 14 days ago" in text
    assert "over 60 days ago" not in accept(site, "old,now", window_days=60).text


def test_a_limit_is_refused_since_it_would_leave_out_nodes_of_the_inventory(site):
    assert "accept takes no --limit" in accept(site, "first", limit=NAMES[1]).text


def test_the_first_run_may_lack_nodes_that_were_busy(site):
    change_report(site, "first", narrowed_by=["busy"])
    assert accept(site, "first").result is not None
    change_report(site, "first", narrowed_by=["limit"])
    assert "left out nodes or work" in accept(site, "first").text


def test_a_folder_of_a_run_with_another_name_is_an_error(site):
    (site.results / "site/first").rename(site.results / "site/moved")
    assert "site/moved/report.json is damaged (it is the report of run first)" in accept(site, "moved").text
