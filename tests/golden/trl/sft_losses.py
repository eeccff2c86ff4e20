"""Six steps of TRL's SFTTrainer on a tiny model, as a user runs it: loss and learning rate of each.

usage: sft_losses.py TOKENIZER_DIR ROWS_JSONL OUTPUT_DIR -> OUTPUT_DIR/{model, init, rows.jsonl, expected.json}
"""

import json
import os
import pathlib
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer

SETTINGS = {"learning_rate": 3e-4, "warmup_steps": 3, "max_steps": 6, "batch_size": 4, "max_length": 256}
SCHEDULES = {"LINEAR": "linear", "COSINE": "cosine", "CONSTANT": "constant_with_warmup"}


def train(model, tokenizer, rows, schedule, output):
    config = SFTConfig(output_dir=str(output / "trainer"), max_length=SETTINGS["max_length"], per_device_train_batch_size=SETTINGS["batch_size"],
                       max_steps=SETTINGS["max_steps"], learning_rate=SETTINGS["learning_rate"], lr_scheduler_type=schedule,
                       warmup_steps=SETTINGS["warmup_steps"], logging_steps=1, report_to="none", use_cpu=True, bf16=False,
                       save_strategy="no", train_sampling_strategy="sequential", assistant_only_loss=True)
    trainer = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
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
    expected = {"settings": SETTINGS, "runs": {}}
    for name, schedule in SCHEDULES.items():
        base = LlamaForCausalLM.from_pretrained(output / "model", dtype=torch.float32)
        adapted = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))
        generator = torch.Generator().manual_seed(2)
        for key, value in adapted.named_parameters():
            if "lora_" in key:
                value.data = torch.randn(value.shape, generator=generator) * 0.1
        adapted.save_pretrained(output / "init")
        expected["runs"][name] = train(adapted, tokenizer, rows, schedule, output)
    (output / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    main()
