"""Prints how fast `tokenizers` is on the rows that //tests/bench:tokenizer measures: TOKENIZER ROWS."""

import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizers  # noqa: E402  (the variable is read when it is loaded)


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def main():
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as rows:
        texts = ["".join(text + "\n" for text in strings(json.loads(line))) for line in rows]
    total = sum(len(text.encode()) for text in texts)
    begin = time.process_time()
    tokens = sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)
    speed = total / (time.process_time() - begin) / 1e6
    name = f"tokenizers {tokenizers.__version__}, rows"
    print(f"{name:34} {speed:8.1f} MB/s {len(texts):10} texts {tokens:10} tokens")


if __name__ == "__main__":
    main()
