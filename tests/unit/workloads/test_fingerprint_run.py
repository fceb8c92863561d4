"""The stage as it runs on a node: real processes, a real wrong bit."""

import pytest

from tests.kit.reported import assert_covered
from tests.kit.workload_process import TorchWorkload

pytest.importorskip("torch")

MODULE = "gpuval_workloads.fingerprint"
HASHES = {f"fingerprint_{name}_sha256" for name in ("training", "decoding", "matmul")}


def run(directory, *arguments):
    directory.mkdir()
    return TorchWorkload(directory, MODULE, "--seconds", "1", "--processes", "2", *arguments).end()


def test_parts_and_runs_agree(tmp_path):
    first = run(tmp_path / "first")
    assert first.code == 0, first.err
    assert first.result["state"] == "success"
    assert first.metric("fingerprint_processes_count") == 2
    for part in ("rank:0", "rank:1"):
        assert first.metric("fingerprint_mismatch_count", part) == 0
        assert first.metric("fingerprint_repeats_count", part) >= 2
        assert first.metric("fingerprint_training_fp32_loss_error_ratio", part) < 1e-5
    assert set(first.result["fingerprints"]) == HASHES
    assert_covered("fingerprint", first)
    second = TorchWorkload(tmp_path, MODULE, "--seconds", "0.1", "--processes", "1").end()
    assert second.result["fingerprints"] == first.result["fingerprints"]  # neither time nor number of parts matters
    assert second.result["environment"]["fingerprint_group"] == first.result["environment"]["fingerprint_group"]
    assert second.metric("fingerprint_repeats_count", "rank:0") >= 2


@pytest.mark.parametrize(("where", "words"), [("rank:1", "of"), ("rank:0@2", "and from its own other repeats")])
def test_a_wrong_bit_is_found_and_the_part_is_named(tmp_path, where, words):
    ended = run(tmp_path / "run", "--inject-bit-flip", where)
    part, innocent = where.partition("@")[0], "rank:0" if where == "rank:1" else "rank:1"
    assert ended.code == 1, ended.err
    assert ended.result["state"] == "failure"
    assert ended.result["message"].startswith(
        f"{part}: first differs at 'training fp32, before step 1, layers.0.ffn.up.weight' from what the host knows"
    )
    assert words in ended.result["message"]
    assert innocent not in ended.result["message"]
    assert ended.metric("fingerprint_mismatch_count", part) > 10
    assert ended.metric("fingerprint_mismatch_count", innocent) == 0
    assert ended.metric("fingerprint_training_fp32_loss_error_ratio", part) < 1e-5  # the loss does not show it
    assert set(ended.result["fingerprints"]) == HASHES  # those of the part that is right


def test_a_part_that_is_not_there_cannot_be_flipped(tmp_path):
    ended = run(tmp_path / "run", "--inject-bit-flip", "rank:5")
    assert (ended.code, ended.result["message"]) == (1, "--inject-bit-flip names part 5 of 2")
