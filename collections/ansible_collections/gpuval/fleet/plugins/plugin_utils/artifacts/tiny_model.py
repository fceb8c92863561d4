"""A tiny Llama in Hugging Face format, made on the spot, about 7 MB: random weights, but the files, shapes and chat
template of a real model, to exercise preloading, loading and serving without a download. Eight attention heads of 64
serve with tensor parallelism on two, four or eight GPUs."""

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

#: Text from which the tokenizer's merges are learnt: plain prose about GPU nodes.
PROSE = Path(__file__).with_name("tiny_model_prose.txt")


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
    tokenizer.train_from_iterator(PROSE.read_text(encoding="utf-8").strip().split("\n"), trainer)
    return tokenizer


def _silent_ids(tokenizer) -> list[int]:
    """Return the token ids whose output row is to be zero, so that greedy decoding never picks them: special tokens (an
    early end would make the work random), ids without a token, and bytes that are no text by themselves."""
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
    """Return a float array as little-endian bfloat16, rounded to nearest even; NumPy has no such type."""
    import numpy  # noqa: PLC0415 - only when asked

    bits = tensor.astype("<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(numpy.dtype("<u2")).tobytes()
