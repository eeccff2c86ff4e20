"""Reads and writes the files of Hugging Face and PEFT with nothing but Python's own library."""

import array
import json
import math
import pathlib
import random
import struct

TYPES = {"F32": ("f", 4), "I64": ("q", 8), "I32": ("i", 4)}


def read_safetensors(path):
    """{name: (shape, values)} of a file of F32, BF16 (as floats) and integer tensors."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        content = data[8 + length + begin:8 + length + end]
        if entry["dtype"] == "BF16":  # the upper half of an F32
            content = array.array("I", (half << 16 for half in array.array("H", content))).tobytes()
        values = array.array("f" if entry["dtype"] == "BF16" else TYPES[entry["dtype"]][0])
        values.frombytes(content)
        tensors[name] = (entry["shape"], values)
    return tensors


def write_safetensors(path, tensors, metadata=None):
    """The other way, tensors of F32: {name: (shape, values)}."""
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name in sorted(tensors):
        shape, values = tensors[name]
        assert math.prod(shape) == len(values), name
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + 4 * len(values)]}
        offset += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(tensors):
            file.write(array.array("f", tensors[name][1]).tobytes())


def frobenius_difference(a, b):
    """Relative: |a - b| / |b|."""
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)) / sum(y * y for y in b))


def write_model(directory, hidden=32, layers=2, heads=2, kv_heads=1, ffn=96, vocabulary=384, positions=1024, seed=1,
                tokenizer=False, head=0.08):
    """A Llama of random weights, small enough to train hundreds of steps in seconds. head: the deviation of lm_head's
    weights. What is to be learned by heart needs a larger one: of a head of 0.08 all logits lie within about 2.5 of each
    other, whatever is trained before it, and which of two tokens is ahead is then a matter of rounding."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True)
    head_dim = hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": ffn,
        "vocab_size": vocabulary, "max_position_embeddings": positions, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 2,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    generator = random.Random(seed)

    def matrix(rows, columns, deviation=0.08):
        return [rows, columns], array.array("f", (generator.gauss(0, deviation) for _ in range(rows * columns)))

    def ones(size):
        return [size], array.array("f", [1.0] * size)

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, hidden), "lm_head.weight": matrix(vocabulary, hidden, head),
               "model.norm.weight": ones(hidden)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        tensors[layer + "input_layernorm.weight"] = ones(hidden)
        tensors[layer + "post_attention_layernorm.weight"] = ones(hidden)
        tensors[layer + "self_attn.q_proj.weight"] = matrix(heads * head_dim, hidden)
        tensors[layer + "self_attn.k_proj.weight"] = matrix(kv_heads * head_dim, hidden)
        tensors[layer + "self_attn.v_proj.weight"] = matrix(kv_heads * head_dim, hidden)
        tensors[layer + "self_attn.o_proj.weight"] = matrix(hidden, heads * head_dim)
        tensors[layer + "mlp.gate_proj.weight"] = matrix(ffn, hidden)
        tensors[layer + "mlp.up_proj.weight"] = matrix(ffn, hidden)
        tensors[layer + "mlp.down_proj.weight"] = matrix(hidden, ffn)
    write_safetensors(directory / "model.safetensors", tensors, {"format": "pt"})
    if tokenizer:
        write_tokenizer(directory)
    return directory


def byte_characters():
    """The printable character that byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b if b in plain else next(shifted)) for b in range(256)]


def write_tokenizer(directory):
    """A byte-level BPE with a handful of merges, and the chat template of SmolLM2's family."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    characters = byte_characters()
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("a", "n"), ("\u0120", "the")]
    tokens = specials + sorted(characters) + [a + b for a, b in merges]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": text, **special} for i, text in enumerate(specials)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": [f"{a} {b}" for a, b in merges]},
    }
    template = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
                "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>",
        "chat_template": template}))


def token_rows(generator, count, shortest=17, longest=900, vocabulary=384):
    """Rows of tokens, lengths log-uniform so that most are short and some are long; the two limits always occur."""
    lengths = [shortest, longest] + [round(math.exp(generator.uniform(math.log(shortest), math.log(longest)))) for _ in range(count - 2)]
    generator.shuffle(lengths)
    rows = []
    for length in lengths:
        ids = [generator.randrange(3, vocabulary) for _ in range(length)]
        prompt = generator.randrange(0, max(1, length // 3))
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows
