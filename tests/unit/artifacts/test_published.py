"""Images of a release: named by digest for docker, podman and clusters, and nowhere in a checkout."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.core import schemas

ROOT = Path(__file__).resolve().parents[3]
FLEET = ROOT / "collections/ansible_collections/gpuval/fleet"
TRAINING = f"ghcr.io/gpuval/training@sha256:{'1' * 64}"
RELEASE = {"schema": "gpuval.published/1", "vendors": {"nvidia": {"training": TRAINING}}}


@pytest.fixture
def release(tmp_path, monkeypatch):
    path = tmp_path / "published.yml"
    path.write_text(yaml.safe_dump(RELEASE))
    document = images.read_published(path)
    monkeypatch.setattr(images, "read_published", lambda: document)


def default(**settings):
    defaults = yaml.safe_load((FLEET / "roles/gpuval/defaults/main.yml").read_text())
    known = {"gpuval_sku": "h200", "gpuval_runtime": "docker", "gpuval_placement": "ssh", "gpuval_pods": {}, **settings}
    known |= {name: defaults[name] for name in ("gpuval_extensions", "gpuval_results_dir", "gpuval_state_dir")}
    known["gpuval_scheduler"] = trust_as_template(defaults["gpuval_scheduler"])
    return Templar(DataLoader(), variables=known).template(trust_as_template(defaults["gpuval_images"]))


def test_a_checkout_promises_no_image():
    assert images.read_published()["vendors"] == {}
    assert default() == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {"training"}),
        ({"gpuval_sku": "nvidia"}, {"training"}),
        ({"gpuval_runtime": "auto", "gpuval_placement": "kubernetes"}, {"training"}),
        ({"gpuval_runtime": "auto"}, set()),
        ({"gpuval_sku": "auto"}, set()),
        ({"gpuval_sku": "mi300x"}, set()),
        ({"gpuval_runtime": "auto", "gpuval_placement": "kubernetes", "gpuval_pods": {"image": "mine:1"}}, set()),
    ],
)
def test_the_images_of_a_release_are_the_default_where_containers_are_asked_for(release, settings, expected):
    found = default(**settings)
    assert set(found) == expected
    assert all(item.way == "registry" and "@sha256:" in item.reference for item in images.parse(found))


@pytest.mark.parametrize("reference", ["ghcr.io/gpuval/training:1.0.0", f"training@sha256:{'1' * 64}"])
def test_an_image_without_registry_or_digest_is_refused(reference):
    with pytest.raises(schemas.Invalid):
        schemas.validate("published", {**RELEASE, "vendors": {"amd": {"training": reference}}}, what="x")


def test_a_release_joins_its_vendors_and_refuses_to_name_none(tmp_path):
    code = "import sys; sys.path.insert(0, 'tools'); import publish_images as tool; from pathlib import Path; "
    code += "tool.merge(*map(Path, sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(tmp_path / "made"), str(tmp_path / "published.yml")]
    (tmp_path / "made").mkdir()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "names no published image" in done.stderr
    for vendor in ("nvidia", "amd"):
        part = {**RELEASE, "vendors": {vendor: {"training": TRAINING}}}
        (tmp_path / f"made/{vendor}.yml").write_text(yaml.safe_dump(part))
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    assert set(images.read_published(tmp_path / "published.yml")["vendors"]) == {"nvidia", "amd"}


def test_the_collection_of_the_image_validate_names_the_images_of_its_release(tmp_path):
    """Pushed before it, and none that its own archive could know."""
    code = "import json, sys; sys.path.insert(0, 'tools'); import publish_images as tool; from pathlib import Path; "
    code += "files = tool.controller_files(Path(sys.argv[1]), json.loads(sys.argv[2])); "
    code += "print(json.dumps({name: str(path) for name, path in files.items()}))"
    command = [sys.executable, "-c", code, str(tmp_path), json.dumps({"nvidia": {"training": TRAINING}})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    files = json.loads(done.stdout)
    assert Path(files["validate/controller.txt"]).samefile(ROOT / "requirements/locked/controller.txt")
    with tarfile.open(files["validate/gpuval-fleet.tar.gz"]) as archive:
        published = yaml.safe_load(archive.extractfile("images/published.yml"))
        assert archive.getmember("node/gpuval_node").issym()
    assert published["vendors"] == {"nvidia": {"training": TRAINING}}
    assert images.read_published()["vendors"] == {}, "the checkout's own is unchanged"
