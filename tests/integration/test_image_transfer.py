"""An archive of an image over the management connection: sent once, gone on with, repaired, and never taken unread."""

import hashlib
import io
import json
import os
import tarfile

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import images
from ansible_collections.gpuval.fleet.plugins.plugin_utils.node_steps.send_image import PIECE_BYTES

from tests.kit.fleet import Fleet

REFERENCE = "gpuval-test-transfer:1"
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: gpuval.fleet.gpuval}
    - ansible.builtin.import_role:
        name: gpuval.fleet.run
        tasks_from: open
    - ansible.builtin.import_role:
        name: gpuval.fleet.run
        tasks_from: send
      vars:
        run_send_seconds: 120
"""


def archive(path, size):
    """As `docker save` writes it, with a layer that does not repeat itself."""
    config = json.dumps({"architecture": "amd64", "os": "linux"}).encode()
    manifest = json.dumps([{"Config": "c.json", "RepoTags": [REFERENCE], "Layers": ["l.tar"]}]).encode()
    with tarfile.open(path, "w") as tar:
        for name, data in (("c.json", config), ("l.tar", os.urandom(size)), ("manifest.json", manifest)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return "sha256:" + hashlib.sha256(config).hexdigest(), path.read_bytes()


class Sending:
    def __init__(self, root):
        state = root / "state"
        (state / "images").mkdir(parents=True)
        identity, self.data = archive(root / "made.tar", PIECE_BYTES + 5_000_000)
        self.sha256 = hashlib.sha256(self.data).hexdigest()
        self.kept = images.archive_file(state, self.sha256)
        (root / "made.tar").rename(self.kept)
        key = images.object_keys("training", identity)[0]
        known = {"id": identity, "sha256": self.sha256, "bytes": len(self.data), "key": key, "architecture": "amd64"}
        images.remember(state, {"name": "training", "reference": REFERENCE, **known})
        self.play_file = root / "send.yml"
        self.play_file.write_text(PLAY)
        declared = {"training": {"reference": REFERENCE, "archive": str(self.kept)}}
        self.fleet = Fleet(
            root, settings={"gpuval_images": declared, "gpuval_image_transfer": "ssh", "gpuval_runtime": "auto"}
        )
        self.node = self.fleet.node_base("node-1") / "images"
        self.path, self.part = self.node / f"{self.sha256}.tar", self.node / f"{self.sha256}.tar.part"

    def send(self, *arguments):
        done = self.fleet.play(str(self.play_file), *arguments)
        assert done.code == 0, done
        return done

    def whole(self):
        return self.path.read_bytes() == self.data and not self.part.exists()


@pytest.fixture
def sending(tmp_path):
    return Sending(tmp_path)


def test_an_archive_is_sent_once(sending):
    assert f"sent_bytes: {len(sending.data)}" in sending.send("-v").output
    assert sending.whole()
    assert sending.path.stat().st_mode & 0o777 == 0o600
    assert "sent_bytes: 0" in sending.send("-v").output


def test_what_was_cut_off_is_gone_on_with(sending):
    sending.node.mkdir(parents=True, mode=0o700)
    sending.part.write_bytes(sending.data[:-1_000_000])
    done = sending.send("-v")
    assert "sent_bytes: 1000000" in done.output, done
    assert sending.whole()


@pytest.mark.parametrize("place", ["path", "part"])
def test_what_is_damaged_is_sent_again(sending, place):
    sending.node.mkdir(parents=True, mode=0o700)
    damaged = bytearray(sending.data)
    damaged[1000] ^= 1
    getattr(sending, place).write_bytes(damaged)
    sending.send()
    assert sending.whole()


def test_a_start_that_is_damaged_is_found_out_and_sent_again(sending):
    sending.node.mkdir(parents=True, mode=0o700)
    sending.part.write_bytes(b"x" * 1000 + sending.data[1000:2000])
    sending.send()
    assert sending.whole()


def test_an_archive_that_the_controller_lost_is_named_and_stops_no_other(sending):
    sending.kept.unlink()
    done = sending.send()
    assert "gpuval.fleet.build again" in done.told
    assert not sending.path.exists()


def test_a_node_that_reaches_the_store_is_sent_nothing(sending):
    done = sending.send("-v", "-e", "gpuval_image_transfer=auto")
    assert "gets its images from the store" in done.output
    assert not sending.node.exists()
