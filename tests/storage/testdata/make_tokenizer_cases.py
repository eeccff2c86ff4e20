#!/usr/bin/env python3
"""Makes the small tokenizers of this folder and what Hugging Face's `tokenizers` does with them.

    python3 -m venv /tmp/oracle && /tmp/oracle/bin/pip install tokenizers==0.23.3
    /tmp/oracle/bin/python tests/storage/testdata/make_tokenizer_cases.py [KIND]...

Each KIND.json is a tokenizer with the components of a family of models and a few hundred merges, trained on the
sentences below. Each KIND.cases.jsonl has, for every text, ids, spans in bytes, and the text decoded again, with and
without special tokens. Without KIND all are made; the library's trainer breaks ties between letters by chance, so a
vocabulary with few letters (llama2, metaspace, gemma, phi3) is another one each time.
"""

import json
import pathlib
import random
import sys

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

FOLDER = pathlib.Path(__file__).parent / "tokenizers"

SENTENCES = [
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
    "How many clips did Natalia sell altogether in April and May? She sold 48/2 = 24 clips in May.",
    "The weather is fine, isn't it? They've said they'd come; I'm sure we'll see them at 10:30.",
    "def add(left, right):\n    return left + right\n\n\nprint(add(1, 22), add(333, 4444))\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straße, Fuß, Übermaß.",
    "Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë au delà des îles.",
    "Широкая электрификация южных губерний даст мощный толчок подъёму сельского хозяйства.",
    "いろはにほへと ちりぬるを。東京は今日も晴れです。カタカナとひらがな。",
    "我今天能为你做什么？你好，世界！一二三四五六七八九十。",
    "안녕하세요 세계, 오늘 날씨가 좋네요. مرحبا بالعالم. שלום עולם. नमस्ते दुनिया.",
    "Emoji: 😀 👍🏽 👩‍👩‍👧 🇩🇪 ❤️ and symbols: ½ ² ① Ⅷ € £ → ∑ √.",
]

PIECES = [
    "", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\x1c",
    "\x00", "\x7f", "\ufeff", "▁", "▁▁", "Ġ", "\u0300", "e\u0301", "a\u0316\u0301", "\u0344", "\u1112\u1161\u11ab", "각",
    "\u212b", "ﬁ", "ﷺ", "İ", "ǅ", "ŉ", "ſ", "①", "½", "٣", "৪", "Ⅷ", "😀", "👩‍👩‍👧", "🇩🇪", "❤️", "'s", "'S", "'ll",
    "'LL", "'ſ", "n't", "’s", "don't", "123", "1234567", "3.14", "aaaaaaaaaaaaaaaaaaaaaaaa", "!!!???", "...", "//", "_",
    "<", ">", "<s>", "</s>", "<unk>", "<0x41>", "<|end|>", "<|end|>  ", "  <|end|>", "<|en", "[SEP]", " [SEP] ", "word",
    " word ", "swordfish", "mask", "<mask>", "  <mask>  ", "Zürich", "東京", "你好", "мир", "שלום", "naïve", "ΑΣ",
]
# What the files of Gemma, Qwen3 and Phi list as added tokens, and what stands around them.
FAMILY_PIECES = [
    *PIECES, "\n\n\n", "\n" * 9, " \n", "\n ", "▁▁▁", "▁" * 9, " ▁", "▁ ", "    ", " " * 9, "\t\t", "<bos>", "<eos>", "<pad>",
    "<start_of_turn>user\n", "<end_of_turn>\n", " <end_of_turn> ", "<start_of_turn", "<table>", "</table> ", "<unused7>",
    "|||IP_ADDRESS|||", " |||IP_ADDRESS|||:",
    "<think>\n\n</think>\n\n", "<think>", " </think>\n", "<tool_call>\n{", "}\n</tool_call>", "<tool_response>",
    "<|im_start|>", "<|im_start|>user<|im_sep|>", " <|im_sep|>\n", "<|im_end|>\n", "  <|im_end|>  ", "<|endoftext|>",
    "<|user|>\n", "<|assistant|>\n", "<|assistant|>  x", "  <|system|>", "<|end|>\n", "<|end|>\u3000\n ", "I'M", "we'Re",
    "HTTPServer", "CamelCaseWord", "ÀÉÎ", "ǅabc", "mcDonald's", "12 345 6789", "a\u0301b'LL", "/\n/", "!\r\n\r\n", "0\u0660\u06f0",
]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
          r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# What Phi-4-mini's file has; those of Phi-4 and OLMo 2 have LLAMA3. All three take the matches for words by removing what
# is between them.
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def special(text, **options):
    return AddedToken(text, normalized=options.pop("normalized", False), special=True, **options)


def byte_level(pattern, use_regex=False, add_prefix_space=False, before=()):
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    last = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)
    return pre_tokenizers.Sequence([*before, *split, last])


def train(pre_tokenizer, normalizer=None, alphabet=True, first=(), size=420, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=list(first),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else [],
                                  limit_alphabet=1000 if alphabet else 70)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def with_bos(tokenizer, bos):
    return processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                         special_tokens=[(bos, tokenizer.token_to_id(bos))])


def byte_level_tokenizer(pre_tokenizer, post_processor, **options):
    tokenizer = train(pre_tokenizer, **options)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special("<s>"), special("</s>"), special("<|end|>")])
    if post_processor is not None:
        tokenizer.post_processor = post_processor(tokenizer)
    return tokenizer


def sentencepiece_tokenizer(metaspace):
    """A vocabulary of SentencePiece's kind: bytes for what it lacks."""
    first = ["<unk>", "<s>", "</s>", *BYTES]
    training = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer = train(training, alphabet=False, first=first, size=len(first) + 240, unk_token="<unk>", fuse_unk=True,
                      byte_fallback=True)
    # The bytes were special for the trainer alone.
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([special(text) for text in first[:3]])
    if metaspace is None:
        tokenizer.pre_tokenizer = None
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        tokenizer.decoder = decoders.Sequence(strip)
    else:
        tokenizer.pre_tokenizer = metaspace
        tokenizer.decoder = decoders.Metaspace(prepend_scheme=metaspace.prepend_scheme)
    tokenizer.post_processor = with_bos(tokenizer, "<s>")
    return tokenizer


def odd_tokenizer():
    """What the families leave out: every normalizer, a model that does not know all text, added tokens of all kinds."""
    normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\d+"), "#"),
         normalizers.Replace("ss", "ß")])
    pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex(r"[.,!?]"), "merged_with_previous"),
         pre_tokenizers.Split(Regex(r"\p{Han}"), "contiguous"), pre_tokenizers.Split(Regex(r"[a-zß#]+"), "removed", True),
         pre_tokenizers.Digits(individual_digits=False)])
    tokenizer = train(pre_tokenizer, normalizer=normalizer, alphabet=False, first=["<unk>"], size=260,
                      unk_token="<unk>", fuse_unk=True)
    tokenizer.add_special_tokens([special("<s>"), special("<mask>", lstrip=True), special("<|end|>", rstrip=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=True),
                          AddedToken("[SEP]", normalized=True, lstrip=True, rstrip=True),
                          AddedToken("Zürich", normalized=True)])
    return tokenizer


def digits_tokenizer():
    """SmolLM2's kind; some bytes are missing, and there is no token for the unknown."""
    tokenizer = byte_level_tokenizer(byte_level(None, use_regex=True, before=[pre_tokenizers.Digits(True)]), None)
    data = json.loads(tokenizer.to_str())
    for missing in "ĞÂ¬å":
        gone = {token for token in data["model"]["vocab"] if missing in token}
        data["model"]["merges"] = [pair for pair in data["model"]["merges"] if "".join(pair) not in gone]
        data["model"]["vocab"] = {token: i for token, i in data["model"]["vocab"].items() if token not in gone}
    # Published files of that time write a merge as one string.
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    ids = {}
    for token in sorted(data["model"]["vocab"], key=data["model"]["vocab"].get):
        ids[token] = len(ids)
    data["model"]["vocab"] = ids
    for i, token in enumerate(data["added_tokens"]):
        token["id"] = len(ids) + i
    return Tokenizer.from_str(json.dumps(data)), json.dumps(data, ensure_ascii=False)


def sentencepiece_vocabulary(first, training, size):
    """Merges of words as `training` has them, behind `first`, of which none is an added token."""
    tokenizer = train(training, normalizer=normalizers.Replace(" ", "▁"), alphabet=False, first=first, size=len(first) + size,
                      unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(data))


def gemma_tokenizer():
    """Runs of line ends and of blanks are tokens of their own, found before blanks become "▁"; no blank is put in front."""
    runs = ["\n" * n for n in range(1, 6)] + ["▁" * n for n in range(2, 6)]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>"]
    turns = ["<start_of_turn>", "<end_of_turn>"]
    others = ["<mask>", *(f"<unused{i}>" for i in range(9)), *runs, "<table>", "</table>", "<b>", "</b>"]
    tokenizer = sentencepiece_vocabulary([*specials, *others, *turns, *BYTES], pre_tokenizers.Split("▁", "merged_with_next"), 240)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([special(text) for text in [*specials, *turns]])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in others])
    tokenizer.post_processor = with_bos(tokenizer, "<bos>")
    return tokenizer


def phi3_tokenizer():
    """Llama 2's, whose added tokens take the white space behind them along; no token is put in front."""
    first = ["<unk>", "<s>", "</s>", *BYTES]
    tokenizer = sentencepiece_vocabulary(first, pre_tokenizers.Split("▁", "merged_with_next"), 240)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(strip)
    tokenizer.add_special_tokens([special("<unk>"), special("<s>"), special("<|endoftext|>")])
    tokenizer.add_tokens([AddedToken("</s>", normalized=False, rstrip=True)])
    names = ["assistant", "placeholder1", "system", "end", "user"]
    tokenizer.add_special_tokens([special(f"<|{name}|>", rstrip=True) for name in names])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
    return tokenizer


def tiktoken_tokenizer(pattern, post_processor, tokens, **options):
    """As files that were converted from tiktoken's are: words are the matches, all else is removed (nothing is left)."""
    split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = train(split, **options)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens)
    tokenizer.post_processor = post_processor
    return tokenizer


def qwen3_tokenizer():
    """Qwen2's with added tokens that are not special: what the model says, yet found whole."""
    tokenizer = byte_level_tokenizer(byte_level(QWEN2), untrimmed, normalizer=normalizers.NFC())
    tokenizer.add_special_tokens([special(text) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])
    tags = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in tags])
    return tokenizer


def new_families():
    yield "gemma", gemma_tokenizer()
    yield "qwen3", qwen3_tokenizer()
    yield "phi3", phi3_tokenizer()
    turns = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_sep|>")
    yield "phi4", tiktoken_tokenizer(LLAMA3, untrimmed(None), [special(text, lstrip=True, rstrip=True) for text in turns])
    yield "phi4_mini", tiktoken_tokenizer(
        O200K, processors.ByteLevel(add_prefix_space=True, trim_offsets=False),
        [special("<|endoftext|>"), *(special(f"<|{name}|>", rstrip=True) for name in ("end", "user", "assistant", "system"))])
    # An added token that is looked for in the normalized text, as OLMo 2's are.
    olmo2 = tiktoken_tokenizer(LLAMA3, untrimmed(None), [special("<|endoftext|>"), special("<|im_start|>", normalized=True)])
    olmo2.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True), AddedToken("<|user|>", normalized=True)])
    yield "olmo2", olmo2


def trimmed(add_prefix_space=True):
    return lambda tokenizer: processors.ByteLevel(add_prefix_space=add_prefix_space, trim_offsets=True)


def untrimmed(tokenizer):
    return processors.ByteLevel(add_prefix_space=False, trim_offsets=False)


def trimmed_with_bos(tokenizer):
    return processors.Sequence([processors.ByteLevel(trim_offsets=True), with_bos(tokenizer, "<s>")])


def kinds():
    yield "gpt2", byte_level_tokenizer(byte_level(None, use_regex=True, add_prefix_space=True), trimmed())
    yield "llama3", byte_level_tokenizer(byte_level(LLAMA3), trimmed_with_bos, ignore_merges=True)
    yield "qwen2", byte_level_tokenizer(byte_level(QWEN2), untrimmed, normalizer=normalizers.NFC())
    yield "tekken", byte_level_tokenizer(byte_level(TEKKEN), trimmed(False), ignore_merges=True)
    yield "llama2", sentencepiece_tokenizer(None)
    for scheme, split in [("first", False), ("always", True), ("never", True)]:
        yield f"metaspace_{scheme}", sentencepiece_tokenizer(
            pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split))
    yield "odd", odd_tokenizer()
    yield "smollm2", digits_tokenizer()


def texts(count, seed, pieces):
    rng = random.Random(seed)
    words = " ".join(SENTENCES).split(" ")
    yield from SENTENCES
    yield from pieces
    for _ in range(count):
        parts = [rng.choice(pieces) if rng.random() < 0.6 else rng.choice(["", " "]) + rng.choice(words)
                 for _ in range(rng.choice([2, 3, 5, 12]))]
        yield "".join(parts)


def case(tokenizer, text, add_special_tokens):
    encoding = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    place = [0]
    for character in text:
        place.append(place[-1] + len(character.encode()))
    return {
        "text": text,
        "add_special_tokens": add_special_tokens,
        "ids": encoding.ids,
        "spans": [place[at] for offsets in encoding.offsets for at in offsets],
        "decoded": tokenizer.decode(encoding.ids, skip_special_tokens=False),
        "decoded_skipping": tokenizer.decode(encoding.ids, skip_special_tokens=True),
    }


def main():
    FOLDER.mkdir(exist_ok=True)
    families = [(*named, PIECES) for named in kinds()] + [(*named, FAMILY_PIECES) for named in new_families()]
    for number, (kind, tokenizer, pieces) in enumerate(families):
        if sys.argv[1:] and kind not in sys.argv[1:]:
            continue
        tokenizer, source = tokenizer if isinstance(tokenizer, tuple) else (tokenizer, tokenizer.to_str())
        (FOLDER / f"{kind}.json").write_text(source + "\n")
        cases = [case(tokenizer, text, i % 2 == 0) for i, text in enumerate(texts(120, number, pieces))]
        lines = [json.dumps(one, ensure_ascii=False, separators=(",", ":")) for one in cases]
        (FOLDER / f"{kind}.cases.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
