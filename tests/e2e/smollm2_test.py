"""The reference run on the real model, through the command line: tokens, labels, losses and matrices."""

import json
import os
import subprocess

from formats import frobenius_difference, read_safetensors
from house import GOLDEN, House, ROOT, main, tell

LOSS_RELATIVE_MAX = 2e-5
MATRIX_RELATIVE_MAX = 5e-4
FOLDER = GOLDEN / "smollm2_gsm8k_r4_qv"


def test_smollm2():
    expected = json.loads((FOLDER / "expected.json").read_text())
    hyper = expected["hyper"]
    fetch = (ROOT / "tools/fetch-smollm2").resolve()
    environment = {**os.environ, "HOME": os.path.expanduser("~")}
    model = subprocess.run([fetch], check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout.strip()
    with House() as house:
        house.lora("model", "add", "smollm2-135m", "--path", model)
        house.lora("dataset", "add", "gsm8k", FOLDER / "train.jsonl")
        house.lora("adapter", "import", "init", "--path", FOLDER / "init")

        *rows, report = house.objects("dataset", "validate", FOLDER / "train.jsonl", "--model", "smollm2-135m",
                                      "--max-length", hyper["max_length"], "--print-rows", "0:3")
        assert report["rows"] == 40 and report["errors"] == []
        for row, want in zip(rows, expected["tokenization"], strict=True):
            assert row["input_ids"] == want["ids"], f"row {row['row']}: token ids differ"
            assert row["labels"] == want["labels"], f"row {row['row']}: labels differ"

        job = house.submit({
            "base_model": "smollm2-135m", "training_dataset": "gsm8k",
            "adapter": {"rank": hyper["rank"], "alpha": hyper["alpha"], "target_modules": hyper["target_modules"],
                        "init_from": "init"},
            "training": {"epochs": hyper["epochs"], "batch_size": hyper["batch_size"], "max_length": hyper["max_length"],
                         "learning_rate": hyper["learning_rate"], "schedule": hyper["schedule"],
                         "warmup_steps": hyper["warmup_steps"], "weight_decay": hyper["weight_decay"],
                         "max_grad_norm": hyper["max_grad_norm"], "shuffle": hyper["shuffle"]}})
        house.wait([job])
        steps = house.objects("metrics", job)
        assert len(steps) == hyper["steps"]
        losses = [abs(s["loss"] - e) / e for s, e in zip(steps, expected["loss"])]
        norms = [abs(s["grad_norm"] - e) / e for s, e in zip(steps, expected["grad_norm"])]
        tell("    step: loss, gradient norm differ by: " + "; ".join(f"{i}: {a:.1e}, {b:.1e}" for i, (a, b) in enumerate(zip(losses, norms), 1)))
        assert [s["tokens"] for s in steps] == expected["tokens"]
        got = read_safetensors(house.adapter(job) / "adapter_model.safetensors")
        want = read_safetensors(FOLDER / "final/adapter_model.safetensors")
        assert sorted(got) == sorted(want)
        matrices = {name: frobenius_difference(got[name][1], want[name][1]) for name in want}
        worst = sorted(matrices, key=matrices.get)[-3:]
        tell(f"    losses within {max(losses):.1e}, matrices within {max(matrices.values()):.1e}; worst: "
             + ", ".join(f"{name} {matrices[name]:.1e}" for name in worst))
        assert max(losses) < LOSS_RELATIVE_MAX and max(matrices.values()) < MATRIX_RELATIVE_MAX
    house.clear()


if __name__ == "__main__":
    main([test_smollm2])
