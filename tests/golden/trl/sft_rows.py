"""What TRL's SFTTrainer makes of rows of GSM8K, as a user runs it: ids and labels, truncated and dropped as it does.

usage: sft_rows.py TOKENIZER_DIR GSM8K_JSONL COUNT OUTPUT_DIR
       -> OUTPUT_DIR/FORMAT.jsonl, the rows, and OUTPUT_DIR/FORMAT.MAX_LENGTH.MASK.trl.jsonl, a line {"input_ids", "labels"} each
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

from datasets import Dataset, disable_progress_bars
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

LENGTHS = (1024, 150)
# (format, mask): how lorad calls what is trained on, and what TRL is told.
RUNS = [("messages", "ALL", {}), ("messages", "ASSISTANT", {"assistant_only_loss": True}),
        ("prompt", "ASSISTANT", {}), ("prompt", "ALL", {"completion_only_loss": False}), ("prompt_messages", "ASSISTANT", {})]


def rows_of(kind, pairs):
    for question, answer in pairs:
        user, assistant = {"role": "user", "content": question}, {"role": "assistant", "content": answer}
        if kind == "messages":
            yield {"messages": [user, assistant]}
        elif kind == "prompt_messages":
            yield {"prompt": [user], "completion": [assistant]}
        else:  # a blank at the end of the prompt: the answer's first token straddles it
            yield {"prompt": f"Question: {question}\nAnswer: ", "completion": answer}


def trained_rows(tokenizer, rows, max_length, told, output):
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                         num_attention_heads=1, num_key_value_heads=1))
    config = SFTConfig(output_dir=str(output / "trainer"), max_length=max_length, report_to="none", use_cpu=True, bf16=False, **told)
    trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    return [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in trainer.train_dataset]


def main():
    folder, source, count, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), pathlib.Path(sys.argv[4])
    disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    pairs = []
    for line in pathlib.Path(source).read_text().splitlines()[:count]:
        row = json.loads(line)
        pairs.append((row["question"], row["answer"]) if "question" in row else [m["content"] for m in row["messages"]])
    output.mkdir(parents=True, exist_ok=True)
    for kind, mask, told in RUNS:
        rows = list(rows_of(kind, pairs))
        (output / f"{kind}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for max_length in LENGTHS:
            encoded = trained_rows(tokenizer, rows, max_length, told, output)
            (output / f"{kind}.{max_length}.{mask}.trl.jsonl").write_text("".join(json.dumps(row) + "\n" for row in encoded))


if __name__ == "__main__":
    main()
