"""Six steps of TRL's SFTTrainer and of transformers' Trainer on a tiny model, as a user runs each: loss and learning rate of each step.

SFTTrainer trains on the assistant's tokens, Trainer on all: its user renders and tokenizes the rows, and labels are the ids.

usage: six_steps.py TOKENIZER_DIR ROWS_JSONL OUTPUT_DIR -> OUTPUT_DIR/{model, init, rows.jsonl, expected.json}
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from trl import SFTConfig, SFTTrainer

SETTINGS = {"learning_rate": 3e-4, "warmup_steps": 3, "max_steps": 6, "batch_size": 4, "max_length": 256}
SCHEDULES = {"LINEAR": "linear", "COSINE": "cosine", "CONSTANT": "constant_with_warmup"}


def sft_trainer(model, tokenizer, rows, options):
    config = SFTConfig(max_length=SETTINGS["max_length"], assistant_only_loss=True, **options)
    return SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)


def plain_trainer(model, tokenizer, rows, options):
    def encoded(row):
        made = tokenizer.apply_chat_template(row["messages"], return_dict=True, truncation=True, max_length=SETTINGS["max_length"])
        return {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"], "labels": made["input_ids"]}

    dataset = Dataset.from_list(rows).map(encoded, remove_columns=list(rows[0]))
    return Trainer(model=model, args=TrainingArguments(**options), train_dataset=dataset, data_collator=DataCollatorForSeq2Seq(tokenizer))


# How lorad calls what each trains on.
TRAINERS = {"SFTTrainer": (sft_trainer, "ASSISTANT"), "Trainer": (plain_trainer, "ALL")}


def train(make, model, tokenizer, rows, schedule, output):
    trainer = make(model, tokenizer, rows, {
        "output_dir": str(output / "trainer"), "per_device_train_batch_size": SETTINGS["batch_size"], "max_steps": SETTINGS["max_steps"],
        "learning_rate": SETTINGS["learning_rate"], "lr_scheduler_type": schedule, "warmup_steps": SETTINGS["warmup_steps"],
        "logging_steps": 1, "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no",
        "train_sampling_strategy": "sequential"})
    rates = []
    trainer.create_optimizer_and_scheduler(SETTINGS["max_steps"])
    inner = trainer.optimizer.step

    def recorded(*arguments, **keywords):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        return inner(*arguments, **keywords)

    trainer.optimizer.step = recorded
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "learning_rates": [float(rate).hex() for rate in rates]}


def main():
    folder, source, output = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    disable_progress_bars()
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1024, initializer_range=0.1))
    model.save_pretrained(output / "model")
    rows = [json.loads(line) for line in source.read_text().splitlines()[:24]]
    (output / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {"settings": SETTINGS, "runs": []}
    for trainer, (make, train_on) in TRAINERS.items():
        for name, schedule in SCHEDULES.items():
            base = LlamaForCausalLM.from_pretrained(output / "model", dtype=torch.float32)
            adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
            generator = torch.Generator().manual_seed(2)
            for key, value in adapted.named_parameters():
                if "lora_" in key:
                    value.data = torch.randn(value.shape, generator=generator) * 0.1
            adapted.save_pretrained(output / "init")
            expected["runs"].append({"trainer": trainer, "train_on": train_on, "schedule": name,
                                     **train(make, adapted, tokenizer, rows, schedule, output)})
    (output / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    main()
