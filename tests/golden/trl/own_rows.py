"""What SFTTrainer makes of a few rows with the tests' own tokenizer and template (tests/e2e/formats.py): own_rows.jsonl, which is
committed, so that it is compared everywhere.

usage: own_rows.py GSM8K_JSONL SCRATCH_DIR -> own_rows.jsonl beside this file: first the template and the rows, then a line for each sequence
"""

import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))

import formats
import sft_rows
from transformers import AutoTokenizer

ROWS = 8
LENGTHS = (1024, 280)
MARKED = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}{% generation %}"
          "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def spans(labels):
    """Where labels are trained on: [begin, end) of each run."""
    places = [i for i, label in enumerate(labels) if label != -100]
    return [[place, next(i for i in range(place, len(labels) + 1) if i == len(labels) or labels[i] == -100)]
            for place in places if place == 0 or labels[place - 1] == -100]


def main():
    source, scratch = map(pathlib.Path, sys.argv[1:])
    formats.write_model(scratch / "model", tokenizer=True)
    tokenizer = AutoTokenizer.from_pretrained(scratch / "model")
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer.chat_template = MARKED
    pairs = [[m["content"] for m in json.loads(line)["messages"]] for line in source.read_text().splitlines()[:ROWS]]
    lines = [{"chat_template": MARKED, "rows": {kind: list(sft_rows.rows_of(kind, pairs)) for kind, _, _ in sft_rows.RUNS}}]
    for kind, mask, told in sft_rows.RUNS:
        rows = list(sft_rows.rows_of(kind, pairs))
        for max_length in LENGTHS:
            for row in sft_rows.trained_rows(tokenizer, rows, max_length, told, scratch):
                assert all(label in (-100, token) for token, label in zip(row["input_ids"], row["labels"]))
                lines.append({"kind": kind, "mask": mask, "max_length": max_length, "input_ids": row["input_ids"], "trained": spans(row["labels"])})
    (HERE / "own_rows.jsonl").write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


if __name__ == "__main__":
    main()
