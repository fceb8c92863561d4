"""The model's way into the store, by the prepare playbook: made, served, uploaded, loaded back; skipped; sent anew."""

import subprocess


def prepare(fleet, *arguments):
    """Run the playbook; returns its output and whether the model was uploaded."""
    done = fleet.play("gpuval.fleet.prepare", *arguments, seconds=300)
    assert done.code == 0, done
    assert "model models--gpuval--tiny-llama: in the store, " in done.output
    return done.output, "uploading to the store from tiny" in done.output


def test_round_trip_then_whole_then_another_revision(new_fleet):
    with new_fleet("preload") as fleet:
        output, uploaded = prepare(fleet, "-e", "model_preload_round_trip=true")
        assert uploaded
        assert output.count("requests done, 0 failed") == 2
        assert "loaded back" in output
        model = fleet.store_data / "models/models--gpuval--tiny-llama"
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=model, check=True, timeout=60)

        weights = model / "model.safetensors"
        good = weights.read_bytes()
        weights.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        assert not prepare(fleet)[1], "only the nodes' checksums read every byte"

        (model / "tokenizer.json").unlink()
        assert prepare(fleet)[1], "a model that lacks a file is not whole"
        assert prepare(fleet, "-e", "gpuval_model_revision=other")[1], "another revision is another model"
        assert weights.read_bytes() == good, "nothing of the one before stays"
