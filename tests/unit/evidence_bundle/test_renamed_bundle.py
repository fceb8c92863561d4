"""`make evidence RENAMED=1` through its step, on a run of 1.0.0: the second bundle, and what stays at the site."""

import json
import shutil

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.evidence_bundle import (
    derived,
    renaming,
    signing_keys,
    statement,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.kit.actions import run_action, vars_of
from tests.kit.bundled_runs import edit, judged_run, make

from .conftest import add_signature

pytestmark = pytest.mark.usefixtures("shipped_proofs")

JUMP, ADDRESS = "jump-7.example", "10.99.3.7"


def known_to(run):
    """Variables of a play over the run's nodes, with a jump host, as an inventory has them."""
    values = {"ansible_host": ADDRESS, "ansible_ssh_common_args": f"-J me@{JUMP}"}
    return vars_of(dict.fromkeys(run.read_run()["nodes"], values))


def make_renamed(run, **options):
    return make(run, renamed=True, task_vars=known_to(run), **options)


def verify(folder, state_dir):
    return run_action("verify_bundle", {"folder": str(folder), "state_dir": str(state_dir)})


def payload_of(folder):
    return statement.verify_bundle.read_envelope((folder / statement.STATEMENT).read_bytes())[0]


def content_of(folder):
    """By path below the run's folder, of all that belongs to bundles."""
    paths = [path for path in folder.rglob("*") if "evidence" in str(path.relative_to(folder)) and path.is_file()]
    return {path.relative_to(folder): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory, shipped_proofs):
    folder = tmp_path_factory.mktemp("site")
    signing_keys.ensure_key(folder, rotate=False)
    return folder


@pytest.fixture
def run(tmp_path, state_dir):
    """A run whose log names a jump host that only the inventory knows, at a site with a key that signs."""
    run = judged_run("ssh", tmp_path)
    log = next((run.path / "nodes").glob("*/facts.log"), None) or next((run.path / "nodes").glob("*/*.log"))
    log.write_text(log.read_text() + f"\nthrough {JUMP} to {ADDRESS}\n")
    for step in ("judge_run", "report_run"):
        outcome = run_action(step, {"run_id": run.path.name, "results_dir": str(run.results)})
        assert not outcome.failed, outcome.text
    shutil.copytree(state_dir, tmp_path / "state")
    return run


def test_the_renamed_bundle_verifies_and_has_no_name_but_the_first_bundles_digest(run):
    state = run.results.parent / "state"
    made = make_renamed(run)
    assert not made.failed and made.result["changed"], made.text
    first, second, table = (run.path / name for name in ("evidence_bundle", derived.FOLDER, derived.NAMES_FILE))
    for folder in (first, second):
        verified = verify(folder, state)
        assert not verified.failed and ": verified" in verified.text, verified.text
        assert "judged again: the same report" in verified.text
    predicates = [json.loads(payload_of(folder))["predicate"] for folder in (first, second)]
    root_digest = verify(first, state).result["root_digest"]
    assert "derived_from" not in predicates[0] and predicates[1]["derived_from"] == root_digest
    assert f"derived from {root_digest}" in verified.text and verified.result["root_digest"] != root_digest
    names = {*run.read_run()["nodes"], JUMP, ADDRESS}
    assert any(JUMP.encode() in path.read_bytes() for path in first.rglob("*.log"))
    for path in (path for path in second.rglob("*") if path.is_file()):
        content = path.read_text(errors="surrogateescape")
        assert not [name for name in names if name in content or name in str(path.relative_to(second))], path
    originals = json.loads(table.read_text())
    assert table.stat().st_mode & 0o777 == 0o600
    back = {shown: name for name, shown in originals["nodes"].items()}
    assert {back[name]: verdict for name, verdict in predicates[1]["nodes"].items()} == predicates[0]["nodes"]
    assert {JUMP, ADDRESS} <= {*originals["placeholders"].values()}


def test_a_second_command_changes_nothing_until_bundle_key_or_names_change(run):
    state = run.results.parent / "state"
    first = run.path / "evidence_bundle"
    planned = make_renamed(run, check_mode=True)
    assert planned.result["changed"] and not first.exists() and not (state / renaming.KEY_FILE).exists()
    assert not make(run).failed
    planned = make_renamed(run, check_mode=True)
    assert planned.result["changed"] and "renamed ones" in planned.text and not (state / renaming.KEY_FILE).exists()
    assert not make_renamed(run).failed
    second = run.path / derived.FOLDER
    add_signature(second, Ed25519PrivateKey.generate())  # of the other party
    made = content_of(run.path)
    for check_mode in (True, False):
        again = make_renamed(run, check_mode=check_mode)
        assert again.result["changed"] is False and content_of(run.path) == made, again.text
    edit(second / "run/run.json", "h200", "h100")
    assert make_renamed(run, check_mode=True).result["changed"]
    assert make_renamed(run).result["changed"] and content_of(run.path) == made, "damage is repaired"
    digest = json.loads(payload_of(second))["predicate"]["derived_from"]
    (state / renaming.KEY_FILE).write_bytes(b"k" * renaming.KEY_BYTES)
    assert make_renamed(run).result["changed"] and content_of(run.path).keys() != made.keys()
    assert json.loads(payload_of(second))["predicate"]["derived_from"] == digest
    run.add_problems([{"node": None, "stage": None, "reason": "a problem that came later"}])
    run_action("judge_run", {"run_id": run.path.name, "results_dir": str(run.results)})
    assert make_renamed(run).result["changed"]
    assert json.loads(payload_of(second))["predicate"]["derived_from"] != digest
    assert not [path for path in run.path.iterdir() if path.name.startswith(".evidence")]


def test_a_name_that_the_inventory_has_later_is_replaced_too(run):
    task_vars = vars_of({name: {} for name in run.read_run()["nodes"]})
    assert not make(run, renamed=True, task_vars=task_vars).failed
    logs = {path: path.read_text() for path in (run.path / derived.FOLDER).rglob("*.log")}
    assert any(JUMP in text for text in logs.values())
    assert make_renamed(run).result["changed"]
    assert not [path for path in logs if JUMP in path.read_text()]


def test_what_cannot_be_made_says_why_and_leaves_what_was_there(run):
    state = run.results.parent / "state"
    assert not make_renamed(run).failed
    made = content_of(run.path)
    (state / renaming.KEY_FILE).write_bytes(b"short")
    refused = make_renamed(run)
    assert refused.failed and "not 32 bytes: restore it" in refused.text and content_of(run.path) == made
    (state / renaming.KEY_FILE).write_bytes(b"k" * renaming.KEY_BYTES)
    (state / renaming.KEY_FILE).chmod(0o644)
    refused = make_renamed(run)
    assert refused.failed and "chmod 600" in refused.text and content_of(run.path) == made
    (state / renaming.KEY_FILE).chmod(0o600)
    shutil.copy(run.path / derived.FOLDER / statement.STATEMENT, run.path / "evidence_bundle")
    made = content_of(run.path)
    refused = make_renamed(run)
    assert refused.failed and "a file differs from the statement" in refused.text and content_of(run.path) == made


def test_renamed_maybe_is_refused(run):
    outcome = make(run, renamed="maybe", task_vars=known_to(run))
    assert outcome.failed and "renamed" in outcome.text and not (run.path / "evidence_bundle").exists()


def test_a_site_without_a_signing_key_makes_both_unsigned(run):
    shutil.rmtree(run.results.parent / "state/signing")
    made = make_renamed(run)
    assert not made.failed and "not signed" in made.text
    for name in ("evidence_bundle", derived.FOLDER):
        assert "not signed" in verify(run.path / name, run.results.parent / "state").text
    signing_keys.ensure_key(run.results.parent / "state", rotate=False)
    assert make_renamed(run).result["changed"]
    assert not verify(run.path / derived.FOLDER, run.results.parent / "state").failed
