"""The tiny Llama: the same bytes every time, and a model that its users accept."""

import hashlib
import json
import struct
import subprocess
import sys

import pytest
from ansible_collections.gpuval.fleet.plugins.plugin_utils.artifacts import tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def header(folder):
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), len(data) - 8 - length


def test_the_same_seed_gives_the_same_bytes(folder, tmp_path):
    again = tiny_model.write_tiny_llama(tmp_path / "again")
    other = tiny_model.write_tiny_llama(tmp_path / "other", seed=1)
    assert digests(again) == digests(folder)
    changed = {name for name, digest in digests(other).items() if digest != digests(folder)[name]}
    assert changed == {"model.safetensors"}


def test_the_weights_fill_their_file(folder):
    tensors, size = header(folder)
    assert tensors.pop("__metadata__") == {"format": "pt"}
    ends = sorted(entry["data_offsets"] for entry in tensors.values())
    assert ends[0][0] == 0
    assert all(before[1] == after[0] for before, after in zip(ends, ends[1:]))
    assert ends[-1][1] == size
    assert tensors["lm_head.weight"]["shape"] == [tiny_model.VOCABULARY, tiny_model.HIDDEN]


def test_bfloat16_is_rounded_to_nearest_even():
    numpy = pytest.importorskip("numpy")
    values = numpy.array([1.0, -2.5, 3.1415927, 1.00390625, 1.01171875], dtype=numpy.float32)
    bits = numpy.frombuffer(tiny_model._bfloat16_bytes(values), dtype="<u2").astype("<u4") << 16
    assert bits.view("<f4").tolist() == [1.0, -2.5, 3.140625, 1.0, 1.015625]


def test_heads_divide_over_two_four_and_eight_gpus(folder):
    config = json.loads((folder / "config.json").read_text())
    assert all(config["num_attention_heads"] % count == 0 for count in (2, 4, 8))
    assert config["vocab_size"] >= len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])


SAY_WORDS = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
messages = [{"role": "user", "content": "Which node is broken?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens=24, do_sample=False)[0, inputs["input_ids"].shape[1]:]
print(len(output), tokenizer.decode(output))
"""


@pytest.mark.slow
def test_transformers_loads_it_and_says_words(folder):
    pytest.importorskip("transformers")
    # A process of its own: PyTorch cannot be imported where ansible has patched sys.intern.
    command = [sys.executable, "-c", SAY_WORDS, str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    count, _, text = said.partition(" ")
    assert count == "24"  # it never ends early
    assert text.isascii()
    assert len(text.strip()) > 24
