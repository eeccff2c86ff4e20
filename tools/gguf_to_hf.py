"""Turns the GGUF file of SmolLM2-135M-Instruct into a Hugging Face directory with bfloat16 weights.

usage: gguf_to_hf.py MODEL.gguf DIRECTORY

Fails unless the weights are, bit for bit, those that the reference runs of tests/golden were made with.
"""

import hashlib
import json
import pathlib
import struct
import sys

import numpy
from gguf import GGUFReader
from gguf.quants import dequantize

# SHA-256 over the bfloat16 bytes of all tensors in the order of their sorted Hugging Face names.
WEIGHTS_SHA256 = "5d9bacfb6e704b2142088ab0e2548bc0de0a6b3a3179fcde6595ff2a6b30c1ec"
SPECIAL_TOKEN = 3  # a token type of GGUF's ("control")

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def hugging_face_name(name):
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight"""
    if name in NAMES:
        return NAMES[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def unpermute(weight, heads):
    """llama.cpp stores a head's rows as (D/2, 2), Hugging Face as (2, D/2)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(values):
    """float32 -> the upper 16 bits, rounded to nearest even."""
    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def read_tensors(reader, heads, kv_heads):
    tensors = {}
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        weight = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if tensor.name.endswith("attn_q.weight"):
            weight = unpermute(weight, heads)
        elif tensor.name.endswith("attn_k.weight"):
            weight = unpermute(weight, kv_heads)
        tensors[hugging_face_name(tensor.name)] = to_bfloat16(weight)
    return dict(sorted(tensors.items()))


def write_safetensors(path, tensors):
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.tobytes())


def config(field):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "initializer_range": 0.041666666666666664,
        "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": field("llama.attention.head_count"),
        "num_hidden_layers": field("llama.block_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": int(field("llama.rope.freq_base")),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": field("llama.vocab_size"),
    }


def special_tokens(field):
    types = field("tokenizer.ggml.token_type")
    texts = field("tokenizer.ggml.tokens")
    return [(index, texts[index]) for index, kind in enumerate(types) if kind == SPECIAL_TOKEN]


def added_token(text):
    return {"content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def tokenizer(field):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, **added_token(text)} for index, text in special_tokens(field)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(field("tokenizer.ggml.tokens"))},
            "merges": field("tokenizer.ggml.merges"),
        },
    }


def tokenizer_config(field):
    texts = field("tokenizer.ggml.tokens")
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(index): added_token(text) for index, text in special_tokens(field)},
        "bos_token": texts[field("tokenizer.ggml.bos_token_id")],
        "chat_template": field("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": texts[field("tokenizer.ggml.eos_token_id")],
        "model_max_length": field("llama.context_length"),
        "pad_token": texts[field("tokenizer.ggml.padding_token_id")],
        # Read tokenizer.json as it is: transformers 5 makes a GPT2Tokenizer of vocabulary and merges alone, without Digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": texts[field("tokenizer.ggml.unknown_token_id")],
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    source, directory = sys.argv[1], pathlib.Path(sys.argv[2])
    reader = GGUFReader(source)

    def field(name):
        return reader.fields[name].contents()

    tensors = read_tensors(reader, field("llama.attention.head_count"), field("llama.attention.head_count_kv"))
    digest = hashlib.sha256()
    for tensor in tensors.values():
        digest.update(tensor.tobytes())
    if digest.hexdigest() != WEIGHTS_SHA256:
        sys.exit(f"gguf_to_hf: the weights' sha256 is {digest.hexdigest()}, not {WEIGHTS_SHA256}")

    directory.mkdir()
    write_safetensors(directory / "model.safetensors", tensors)
    write_json(directory / "tokenizer.json", tokenizer(field))
    write_json(directory / "tokenizer_config.json", tokenizer_config(field))
    write_json(directory / "config.json", config(field))


if __name__ == "__main__":
    main()
