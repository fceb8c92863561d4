"""A tiny Llama in Hugging Face format, made on the spot. It has random weights and makes no sense, but it has the
files, the shapes and the chat template of a real model, so that preloading, loading and serving are exercised without a
download. Eight attention heads of 64 let it be served with tensor parallelism on two, four or eight GPUs. About 7
MB."""

from __future__ import annotations

import json
import struct
from pathlib import Path

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, CONTEXT = 1024, 256, 512, 4, 2048
HEADS, KV_HEADS, HEAD_DIM = 8, 4, 64
BEGIN, END, PAD, TURN = "<|begin|>", "<|end|>", "<|pad|>", "<|turn|>"
SPECIAL = (BEGIN, END, PAD, TURN)

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn|>{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",  # for readers before transformers 4.56
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": CONTEXT,
    "mlp_bias": False,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": VOCABULARY,
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "additional_special_tokens": [TURN],
    "chat_template": CHAT_TEMPLATE,
    "clean_up_tokenization_spaces": False,
    "model_max_length": CONTEXT,
}
#: Weights of a layer in the order of their random generation, with rows and columns. Norms, all ones, are not listed.
LAYER = {
    "input_layernorm": None,
    "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
    "post_attention_layernorm": None,
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}

# The tokenizer's merges are learnt from this text: plain prose about the subject at hand.
PROSE = """
A machine that has just been delivered is a promise, and a promise is accepted when it has been tried. The fans
turn, the links come up, the driver loads, and still nobody knows whether the eighth card computes the same answer
as the first. So we give every node the same work: a model is trained from nothing, a large file is read from the
store, a server answers many questions at once, and each result is written down with its unit and with the moment at
which it was measured.

Training shows whether arithmetic can be trusted for an hour. The loss should fall; when it does not, the data, the
learning rate or a memory bank is at fault. A step that takes twice as long as its neighbours points to a hot card,
a narrow lane or a process that nobody asked for. Loading shows the network and the disk together: bytes divided by
seconds, no more and no less, followed by a checksum for every file, because speed without correctness is worth
nothing. Serving shows the whole system: the time until the first token, the time between tokens, the number of
requests that were finished and the number that failed.

Evidence that is missing is not evidence of health. A node that never answered is named in the report; a card that
was not counted is looked for; a figure that nobody measured is not replaced by a guess. When something is wrong the
message says what was expected, what was seen, where the part is and what to do next. The operator may be tired, the
room may be loud and the customer may be waiting, therefore the words are short and the numbers are plain.

Some faults hide. One cable out of a thousand is seated badly and loses a packet only under heavy load. One power
supply sags when all cards start at the same time. One clock drifts, and its log lines appear to come from the
future. Repeating a test can hide such a fault as easily as it can find it, hence a second attempt is always shown
beside the first one. What was computed wrongly once is not made right by computing it again.

Cold aisle, warm aisle, rack, tray, switch, port, cable, lane, bank, row, column, bit: every level has its own way
to break and its own person who can repair it. Good tools bring the right person to the right place. Great tools
also know when to be quiet. Ten nodes that pass need one line; one node that fails needs a page. At the end
everything that was put on a machine is taken away again: files, processes, containers, keys and ports, so that the
next user finds it as clean as the first one did.

How many tokens are generated per second? How long does the slowest request wait? Which of the links carries less
than half of what it should? Why did the third attempt succeed after two had failed? Who changed the firmware
between Monday and Thursday? Questions like these are asked of a cluster every day, and the answers should be found
in a table, not in a memory of somebody who has left. Write it down, keep it small, compare it with a known good
machine, and then decide.
"""


def write_tiny_llama(directory, seed=0):
    """Write the model's files into `directory` (created if missing), and return its path. The bytes depend only on the
    seed and the versions of numpy and tokenizers."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    ids = {f"{role}_id": tokenizer.token_to_id(token) for role, token in roles.items()}
    documents = {
        "config": {**CONFIG, **ids},
        "generation_config": {**ids, "do_sample": False},
        "tokenizer_config": {**TOKENIZER_CONFIG, **roles},
        "special_tokens_map": roles,
    }
    for name, document in documents.items():
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    _write_weights(folder / "model.safetensors", seed, silent_ids=_silent_ids(tokenizer))
    return folder


def _train_tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # noqa: PLC0415 - only when asked

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(PROSE.strip().split("\n"), trainer)
    return tokenizer


def _silent_ids(tokenizer) -> list[int]:
    """Token ids whose output row is zero, so that greedy decoding never picks them: special tokens (an early end would
    make the amount of work random), ids without a token, and bytes that are no text by themselves."""
    size = tokenizer.get_vocab_size()
    tokens = {i: tokenizer.decode([i], skip_special_tokens=True).strip() for i in range(size)}
    spoken = {i for i, token in tokens.items() if token and token.isascii() and token.isprintable()}
    return [i for i in range(VOCABULARY) if i not in spoken]


def _write_weights(path: Path, seed: int, silent_ids: list[int]) -> None:
    import numpy  # noqa: PLC0415 - only when asked

    generator = numpy.random.Generator(numpy.random.PCG64(seed))

    def matrix(rows: int, columns: int):
        return generator.standard_normal((rows, columns), dtype=numpy.float32) * numpy.float32(columns**-0.5)

    norm = numpy.ones(HIDDEN, dtype=numpy.float32)
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in LAYER.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape) if shape else norm
    tensors["model.norm.weight"] = norm
    head = matrix(VOCABULARY, HIDDEN)
    head[silent_ids] = 0.0
    tensors["lm_head.weight"] = head

    # The safetensors format: length of the header (u64), header in JSON padded to 8 bytes, then the data in order.
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    contents, offset = [_bfloat16_bytes(tensor) for tensor in tensors.values()], 0
    for (name, tensor), data in zip(tensors.items(), contents):
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"".join([struct.pack("<Q", len(text)), text, *contents]))


def _bfloat16_bytes(tensor) -> bytes:
    """Little-endian bfloat16, rounded to nearest even; NumPy has no such type."""
    import numpy  # noqa: PLC0415 - only when asked

    bits = tensor.astype("<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(numpy.dtype("<u2")).tobytes()
