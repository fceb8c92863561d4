"""Evidence from the keys of two sites to a second signature, by playbooks: the site that validated, and one that has
neither run nor inventory."""

import base64
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.kit.fleet import ANSIBLE_PLAYBOOK, ROOT
from tests.kit.project import Project

ENTRYPOINT = ROOT / "docker/validate/entrypoint.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with a run, a signing key and a signed bundle."""
    project = Project(tmp_path_factory.mktemp("site"), nodes={"localhost": {}})
    project.lay_out()
    try:
        assert project.play().code == 0
        project.key_lines = project.play("gpuval.fleet.keys", "-e", "ssh_keys_signing=true")
        assert project.key_lines.code == 0, project.key_lines
        project.made = project.play("gpuval.fleet.evidence")
        assert project.made.code == 0, project.made
        yield project
    finally:
        project.close()


@pytest.fixture
def elsewhere(site, tmp_path):
    """A folder of another party: the bundle, and the vendor's list of keys."""
    shutil.copytree(site.run_folder / "evidence_bundle", tmp_path / "evidence_bundle")
    shutil.copy(site.run_folder / "verify_bundle.py", tmp_path)
    shutil.copy(site.root / ".gpuval/signing/keys.json", tmp_path / "vendor.json")
    (tmp_path / "vendor.pem").write_text(json.loads((tmp_path / "vendor.json").read_text())["keys"][0]["public_key"])
    return tmp_path


def command(cwd, *words, **variables):
    environment = {
        "PATH": f"{ANSIBLE_PLAYBOOK.parent}:{os.environ['PATH']}", "HOME": str(cwd), "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(ROOT / "collections"), "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"), **variables,
    }  # fmt: skip
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout + done.stderr


def verify(cwd, *words, **variables):
    """Without an inventory, in another time zone."""
    words = ("-e", f"verify_folder={cwd}/evidence_bundle", *words)
    return command(cwd, "ansible-playbook", "gpuval.fleet.verify", *words, TZ="Pacific/Apia", **variables)


def test_the_bundle_is_verified_without_run_and_inventory(elsewhere):
    code, output = verify(elsewhere, "-e", f"verify_keys={elsewhere}/vendor.pem")
    assert code == 0, output
    assert ": verified" in output and "judged again: the same report" in output
    code, output = verify(elsewhere, "-e", json.dumps({"gpuval_signing_keys": [f"{elsewhere}/vendor.json"]}))
    assert code == 0, output
    code, output = verify(elsewhere)
    assert code != 0 and "signed by an unknown key" in output and "NOT VERIFIED" in output
    limited = ("-i", "node-1,", "--limit", "node-1", "-e", f"verify_keys={elsewhere}/vendor.pem")
    code, output = verify(elsewhere, *limited)
    assert code != 0 and "nothing would be done" in output, "Ansible would skip the play, and end with 0"


def test_an_edit_is_named(elsewhere):
    path = elsewhere / "evidence_bundle/run/report.json"
    path.write_text(path.read_text().replace("PARTIAL", "PASS"))
    code, output = verify(elsewhere, "-e", f"verify_keys={elsewhere}/vendor.pem")
    assert code != 0 and "run/report.json: changed" in output
    code, output = command(elsewhere, sys.executable, "-I", "verify_bundle.py", "evidence_bundle", "vendor.pem")
    assert code == 1 and "run/report.json: changed" in output


def test_the_customer_signs_too_and_the_script_checks_both(elsewhere):
    state = ("-e", f"gpuval_state_dir={elsewhere}/state")
    keys = ("gpuval.fleet.keys", "-i", "localhost,", *state)
    code, output = command(elsewhere, "ansible-playbook", *keys, "-e", "ssh_keys_signing=true")
    assert code == 0, output
    options = (*state, "-e", f"verify_keys={elsewhere}/vendor.pem", "-e", "verify_sign=true")
    code, output = verify(elsewhere, *options)
    assert code == 0 and "verified, and signed by this site" in output, output
    pem = json.loads((elsewhere / "state/signing/keys.json").read_text())["keys"][0]["public_key"]
    (elsewhere / "customer.pem").write_text(pem)
    script = (sys.executable, "-I", "verify_bundle.py", "evidence_bundle", "vendor.pem")
    code, output = command(elsewhere, *script, "customer.pem")
    assert code == 0 and "verified: root digest" in output
    assert command(elsewhere, *script)[0] == 1


def test_the_container_verifies(elsewhere):
    """Its entry point, as process of this machine; a bundle below the working directory."""
    words = (sys.executable, ENTRYPOINT, "verify", "evidence_bundle")
    code, output = command(elsewhere, *words, "--key", "vendor.pem")
    assert code == 0 and "judged again: the same report" in output, output
    assert command(elsewhere, *words, "--known", "vendor.json")[0] == 0
    code, output = command(elsewhere, *words)
    assert code == 1 and "signed by an unknown key" in output


def test_a_bundle_under_other_names_is_verified(site, elsewhere):
    refused = site.play("gpuval.fleet.evidence", "-e", "evidence_renamed=maybe")
    assert refused.code != 0 and "evidence_renamed" in refused.told, refused
    made = site.play("gpuval.fleet.evidence", "-e", '{"evidence_renamed": "yes"}')
    assert made.code == 0, made
    renamed, table = (site.run_folder / f"evidence_bundle_renamed{suffix}" for suffix in ("", ".names.json"))
    shutil.rmtree(elsewhere / "evidence_bundle")
    shutil.copytree(renamed, elsewhere / "evidence_bundle")
    code, output = verify(elsewhere, "-e", f"verify_keys={elsewhere}/vendor.pem")
    assert code == 0 and "judged again: the same report" in output and ", derived from " in output, output
    assert json.loads(table.read_text())["nodes"].keys() == {"localhost"}
    bundles = (site.run_folder / "evidence_bundle", renamed)
    reports = [json.loads((bundle / "run/report.json").read_text()) for bundle in bundles]
    channels = [[stage["confirmed_by"] for stage in report["nodes"][0]["stages"]] for report in reports]
    assert channels[0] == channels[1] == ["node"]
    facts = json.loads((site.run_folder / "nodes/localhost/facts.json").read_text())
    names = [facts["environment"]["os"]["boot_id"].encode(), str(site.root).encode()]
    for path in renamed.rglob("*"):  # localhost is also a common word, which stays in running text
        assert "localhost" not in path.name
        assert not path.is_file() or not [name for name in names if name in path.read_bytes()], path
    again = site.play("gpuval.fleet.evidence", "-e", '{"evidence_renamed": "1"}')
    assert again.code == 0 and again.recap("localhost")["changed"] == 0, again


def test_the_private_key_is_nowhere_but_in_its_file(site):
    assert "-----BEGIN PUBLIC KEY-----" in site.key_lines.output
    assert site.play("gpuval.fleet.deliver", "-e", "delivery_unmapped=keep").code == 0
    secret = (site.root / ".gpuval/signing/private.pem").read_bytes()
    body = secret.splitlines()[1]
    forms = {body, base64.b64encode(body), base64.b64decode(body)[-32:], base64.b64decode(body)[-32:].hex().encode()}
    for played in (site.key_lines, site.made):
        assert not [form for form in forms if form in played.output.encode()]
    holders = [
        path
        for path in site.root.rglob("*")
        if path.is_file() and not path.is_symlink() and any(form in path.read_bytes() for form in forms)
    ]
    assert holders == [site.root / ".gpuval/signing/private.pem"]
