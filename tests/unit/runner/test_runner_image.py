"""The image stage with an engine that is a script: whose fault it is, and which image is taken."""

import hashlib
import json
import stat

import pytest
from gpuval_runner import download
from gpuval_runner import plan as plans
from gpuval_runner.containers import brought
from gpuval_runner.containers.images import bring_images, loaded_names, plain
from gpuval_runner.layout import NodeDirectory

from tests.kit.runner import Node, stage

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
DATA = b"an archive"
SHA256 = hashlib.sha256(DATA).hexdigest()
#: References are files in names/, ids files in ids/; what loading does is in the file `loads`.
ENGINE = """#!/bin/sh
here=$(dirname "$0"); echo "$*" >> "$here/asked"
id() { cat "$here/names/$(echo "$1" | tr /:@ ___)" 2>/dev/null || { [ -e "$here/ids/$1" ] && echo "$1"; }; }
case "$1" in
info) cat "$here/info";;
image) i=$(id "$3") || { echo "Error: No such image" >&2; exit 1; }; printf '[{"Id": "%s", "Config": {}}]' "$i";;
tag) i=$(id "$2"); touch "$here/ids/$i"; echo "$i" > "$here/names/$(echo "$3" | tr /:@ ___)";;
rmi) rm -f "$here/names/$(echo "$2" | tr /:@ ___)";;
load) . "$here/loads";;
pull) cat "$here/pulls" >&2; exit 1;;
ps) exit 0;;
esac
"""


class Engine:
    def __init__(self, folder):
        self.folder = folder
        for name in ("names", "ids"):
            (folder / name).mkdir(parents=True)
        self.put("docker", ENGINE).chmod(stat.S_IRWXU)
        self.put("info", json.dumps({"ServerVersion": "1"}))

    def put(self, name, text):
        (self.folder / name).write_text(text)
        return self.folder / name

    def has(self, identity, *references):
        (self.folder / "ids" / identity).touch()
        for reference in references:
            self.put(f"names/{reference.replace(':', '_').replace('/', '_')}", identity)

    def means(self, reference):
        try:
            return (self.folder / "names" / reference.replace(":", "_").replace("/", "_")).read_text().strip()
        except FileNotFoundError:
            return None

    def asked(self):
        return (self.folder / "asked").read_text()


@pytest.fixture
def engine(tmp_path, monkeypatch):
    made = Engine(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    return made


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path / "base", "r1")
    yield made
    made.close()


def bring(node, monkeypatch, images, code=1):
    node.put_plan(stage("image"), runtime="docker", images=images)
    result = node.files.root / "result.json"
    monkeypatch.setenv("GPUVAL_RESULT_FILE", str(result))
    assert bring_images(node.files) == code
    return json.loads(result.read_text())


def archived(node, identity=A):
    node.files.images.mkdir(parents=True, exist_ok=True)
    (node.files.images / f"{SHA256}.tar").write_bytes(DATA)
    return {"id": identity, "archive": {"key": "k", "sha256": SHA256, "bytes": len(DATA)}}


def test_what_was_to_be_built_on_the_node_is_never_asked_of_a_registry(engine, node, monkeypatch):
    told = bring(node, monkeypatch, {"own:1": {"id": None, "archive": None, "pull": False}})
    assert "gpuval.fleet.build" in told["message"]
    assert told["environment"]["fault"] == "no_image"
    assert "pull" not in engine.asked()
    engine.has(A, "own:1")
    bring(node, monkeypatch, {"own:1": {"id": None, "archive": None, "pull": False}}, code=0)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("Error response from daemon: manifest for x:1 not found: manifest unknown", "no_image"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "no_image"),
        ("denied: requested access to the resource is denied", "no_image"),
        ("Get https://registry/v2/: dial tcp: lookup registry: no such host", "delivery"),
        ('Error: short-name "x" did not resolve to an alias and no unqualified-search registries', "no_image"),
        ("Get https://registry/v2/: dial tcp 192.0.2.9:443: connect: connection refused", "delivery"),
        ("toomanyrequests: You have reached your pull rate limit", "delivery"),
        ("denied: Permission 'downloadArtifacts' denied on resource x", "delivery"),
        ("write /var/lib/docker/tmp/x: no space left on device", None),
        ("writing blob: open /var/tmp/storage1: permission denied: check the owner", None),
        ("failed to register layer: rename: stat /var/lib/docker/x does not exist", None),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock", None),
    ],
)
def test_the_fault_of_a_registry_is_not_the_nodes(engine, node, monkeypatch, said, fault):
    engine.put("pulls", said)
    assert bring(node, monkeypatch, {"x:1": {"id": None, "archive": None}})["environment"].get("fault") == fault


def test_no_archive_is_a_fault_of_the_delivery_and_a_broken_engine_is_not(engine, node, monkeypatch):
    image = archived(node)
    (node.files.images / f"{SHA256}.tar").unlink()
    told = bring(node, monkeypatch, {"x:1": image})
    assert "no signed URL" in told["message"]
    assert told["environment"]["fault"] == "delivery"
    archived(node)
    engine.put("loads", "echo 'write: no space left on device'; exit 1")
    told = bring(node, monkeypatch, {"x:1": image})
    assert "no room" in told["message"]
    assert told["environment"]["fault"] == "disk_full"
    engine.put("loads", "echo 'archive/tar: invalid tar header'; exit 1")
    assert "fault" not in bring(node, monkeypatch, {"x:1": image})["environment"]


def test_a_store_that_does_not_send_the_archive_is_the_fault_named(engine, node, monkeypatch):
    monkeypatch.setattr(download, "MAX_FAILURES", 1)
    image = archived(node)
    (node.files.images / f"{SHA256}.tar").unlink()
    node.put_store("http://127.0.0.1:9", [], downloads={"k": "http://127.0.0.1:9/k?X-Amz-Signature=5ecret"})
    told = bring(node, monkeypatch, {"x:1": image})
    assert told["environment"]["fault"] == "store_away"
    assert "the store does not answer" in told["message"]
    assert "127.0.0.1" not in told["message"]


def test_a_tag_is_not_pulled_for_an_id(engine, node, monkeypatch):
    told = bring(node, monkeypatch, {"x:1": {"id": A, "archive": None}})
    assert "name@sha256" in told["message"]
    assert "pull" not in engine.asked()


def test_what_had_the_name_before_is_not_mistaken_for_what_was_loaded(engine, node, monkeypatch):
    """An engine with ids of its own cannot compare them: only what it says it loaded counts."""
    engine.put("info", json.dumps({"ServerVersion": "1", "DriverStatus": [["driver-type", "io.containerd.x"]]}))
    engine.has(B, "x:1")
    engine.has(C, "y:1")
    engine.put("loads", "echo 'Loaded image: y:1'; echo 'Loaded image: z:1'")
    told = bring(node, monkeypatch, {"x:1": archived(node)})
    assert "holds no image x:1 (it has y:1, z:1)" in told["message"]
    engine.put("loads", "echo 'Loaded image: y:1'")
    told = bring(node, monkeypatch, {"x:1": archived(node)}, code=0)
    assert told["environment"]["images"]["x:1"] == engine.means("x:1") == C
    assert json.loads(node.files.known_images.read_text()) == {A: C}


def test_a_name_that_stands_for_another_image_comes_back_to_it(engine, node, monkeypatch):
    engine.has(A)
    engine.has(B, "x:1")
    bring(node, monkeypatch, {"x:1": {"id": A, "archive": None}}, code=0)
    assert engine.means("x:1") == A
    assert brought.remove_images(node.files) == ([], [])
    assert engine.means("x:1") == B
    assert "rmi" not in engine.asked()


def test_a_name_that_went_to_another_image_since_is_left_alone(engine, node, monkeypatch):
    engine.put("loads", f"echo {A} > \"$here/names/x_1\"; echo 'Loaded image: x:1'")
    bring(node, monkeypatch, {"x:1": archived(node)}, code=0)
    engine.has(C, "x:1")
    assert brought.remove_images(node.files) == ([], [])
    assert engine.means("x:1") == C
    engine.has(A, "x:1")
    assert brought.remove_images(node.files) == (["image x:1"], [])
    assert engine.means("x:1") is None


def test_what_engines_say_they_loaded():
    said = "abc\nLoaded image: a/b:1\nLoaded image ID: sha256:00\nLoaded image(s): localhost/c:1,d:2\n"
    assert loaded_names(said) == ["a/b:1", "sha256:00", "localhost/c:1", "d:2"]
    assert plain("docker.io/library/c") == plain("localhost/c:latest") == "c:latest"


def test_clean_ends_containers_although_the_plan_is_damaged(engine, node):
    node.files.plan.write_text("{")
    told = node.ask("clean")
    assert "label=gpuval.run=r1" in engine.asked()
    assert told["left"] == []


def test_clean_names_containers_that_may_be_left(engine, node):
    node.files.plan.write_text("{")
    engine.put("docker", "#!/bin/sh\necho broken >&2; exit 1\n")
    assert any("broken" in one for one in node.ask("clean")["left"])


def test_a_plan_says_whether_a_registry_has_an_image(node):
    node.put_plan(stage("a"), images={"x:1": {"id": None, "archive": None, "pull": False}})
    assert plans.load(NodeDirectory(node.files.root).plan).images["x:1"].pull is False
