"""The models of the bucket, as `make models LIST=1` shows them."""

import hashlib

from tests.kit.actions import run_action


def test_the_models_of_the_bucket_with_size_and_digest(embedded, tmp_path):
    store, options = embedded.store(), {"store": {"bucket": "gpuval", "state_dir": str(tmp_path)}}
    empty = run_action("preload_model", {**options, "list": True})
    assert empty.lines == ["0 model(s) in bucket gpuval"]

    assert not run_action("preload_model", options).failed
    sums = (embedded.objects / "models/models--gpuval--tiny-llama/SHA256SUMS").read_bytes()
    store.put("models/models--org--half/config.json", b"{}")
    store.put("models/models--org--half/SHA256SUMS", f"{'0' * 64}  weights.safetensors\n".encode())
    store.put("models/models--org--odd/config.json", b"\xff")
    listed = run_action("preload_model", {**options, "list": True})
    tiny, half, odd, count = listed.lines
    assert tiny.startswith("models--gpuval--tiny-llama: 6 files, 7.")
    assert tiny.endswith(f" MB, sha256 {hashlib.sha256(sums).hexdigest()}, from tiny")
    assert half == "models--org--half: 1 files, 2 B, lacks weights.safetensors"
    assert odd == "models--org--odd: 1 files, 1 B, lacks SHA256SUMS"
    assert count == "3 model(s) in bucket gpuval"
