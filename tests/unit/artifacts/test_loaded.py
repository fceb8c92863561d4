"""Whether a node needs an archive: what counts is the engine that its stages will use."""

import pytest
from ansible_collections.gpuval.fleet.plugins.module_utils.node_steps.send_image import loaded

IMAGE = "sha256:" + "a" * 64


@pytest.fixture
def engines(tmp_path, monkeypatch):
    """Both engines are there, and docker alone has the image."""
    for name, answer in (("docker", f"echo {IMAGE}"), ("podman", "exit 125")):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{answer}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


@pytest.mark.parametrize(("runtime", "there"), [("auto", True), ("docker", True), ("podman", False)])
def test_the_image_of_another_engine_does_not_count(engines, runtime, there):
    assert loaded(IMAGE, runtime) is there


def test_an_engine_without_an_answer_has_nothing(engines):
    (engines / "docker").write_text("#!/bin/sh\nexit 0\n")
    assert loaded(IMAGE, "docker") is False
