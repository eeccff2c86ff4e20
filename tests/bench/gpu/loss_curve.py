"""The loss of a real model on GSM8K, step by step, through the running daemon and by PEFT in the same run: same rows in
the same order, same first adapter. On a GPU lorad trains in bf16 and PEFT twice, in bf16 and in float32, so that one sees
how far bf16 alone leads from float32; on a CPU both train in float32.

usage: loss_curve.py MODEL_DIR ROWS.jsonl [--steps N] [--device cuda:0|cpu] [--svg FILE] [--json FILE]

The daemon tokenizes ROWS (any format of docs/formats/dataset.md) with the model's own template; PEFT gets the ids and
labels that came out.
"""

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests/e2e"))

from house import House, tell  # noqa: E402

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RANK, BATCH, LEARNING_RATE, MAX_LENGTH = 16, 8, 2e-4, 512
WIDTH, HEIGHT, MARGIN = 720, 360, 48


def tokenized(house, rows):
    """{"input_ids", "labels"} of every row, as the daemon trains on them."""
    count = len(rows.read_text().splitlines())
    *printed, report = house.objects("dataset", "validate", rows, "--model", "model", "--max-length", MAX_LENGTH,
                                     "--print-rows", f"0:{count}")
    assert report["error_count"] == 0, report
    return [{"input_ids": row["input_ids"], "labels": row["labels"]} for row in printed]


def by_peft(house, arguments, rows, dtype):
    path = house.folder / "tokenized.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    on_gpu = arguments.device.startswith("cuda")
    setting = {"model": str(arguments.model), "rows": str(path), "steps": arguments.steps, "batch_size": BATCH,
               "learning_rate": LEARNING_RATE, "rank": RANK, "device": "cuda" if on_gpu else "cpu",
               "dtype": dtype, "init": str(house.folder / "init")}
    script = pathlib.Path(__file__).with_name("peft_curve.py")
    done = subprocess.run([sys.executable, script, json.dumps(setting)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"PEFT's run failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])["losses"]


def by_lorad(house, arguments, rows):
    house.add_dataset("rows", rows)
    house.lora("adapter", "import", "init", "--path", house.folder / "init")
    job = house.submit({
        "base_model": "model", "training_dataset": "rows",
        "adapter": {"rank": RANK, "alpha": 2 * RANK, "target_modules": TARGETS, "init_from": "init"},
        "training": {"max_steps": arguments.steps, "batch_size": BATCH, "max_length": MAX_LENGTH, "learning_rate": LEARNING_RATE,
                     "schedule": "CONSTANT", "weight_decay": 0.0, "max_grad_norm": 1.0, "shuffle": False}})
    house.wait([job])
    return [step["loss"] for step in house.objects("metrics", job)]


def drawn(curves, title):
    """{name: losses} as a picture."""
    highest = max(max(losses) for losses in curves.values())
    lowest = min(min(losses) for losses in curves.values())
    steps = len(next(iter(curves.values())))

    def point(step, loss):
        x = MARGIN + (WIDTH - 2 * MARGIN) * step / max(steps - 1, 1)
        y = MARGIN + (HEIGHT - 2 * MARGIN) * (highest - loss) / max(highest - lowest, 1e-9)
        return f"{x:.1f},{y:.1f}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{MARGIN}" y="{MARGIN / 2:.0f}">{title}</text>']
    for loss in (highest, (highest + lowest) / 2, lowest):
        x, y = point(0, loss).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - MARGIN}" y2="{y}" stroke="#ddd"/><text x="4" y="{y}">{loss:.3f}</text>')
    for step in range(0, steps, max(steps // 5, 1)):
        x = point(step, lowest).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - MARGIN / 2:.0f}">{step + 1}</text>')
    styles = [("#bbbbbb", "5"), ("#d95f02", "2.4"), ("#1b4f9c", "1.2")][-len(curves):]
    for i, ((name, losses), (colour, width)) in enumerate(zip(curves.items(), styles, strict=True)):
        points = " ".join(point(step, loss) for step, loss in enumerate(losses))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        parts.append(f'<text x="{WIDTH - 3 * MARGIN}" y="{MARGIN + 16 * i}" fill="{colour}">{name}</text>')
    return "\n".join(parts + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("rows", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    workers = arguments.device if arguments.device.startswith("cuda") else "cpu:1"
    with House(None, "--workers", workers) as house:
        house.lora("model", "add", "model", "--path", arguments.model.resolve())
        rows = tokenized(house, arguments.rows.resolve())
        dtypes = ["float32", "bfloat16"] if arguments.device.startswith("cuda") else ["float32"]
        curves = {f"PEFT, {dtype}": by_peft(house, arguments, rows, dtype) for dtype in dtypes}
        curves["lorad"] = by_lorad(house, arguments, rows)
    house.clear()
    (_, reference), *others = curves.items()
    tell(f"PEFT, float32: loss {reference[0]:.4f} to {reference[-1]:.4f} in {arguments.steps} steps")
    for name, losses in others:
        differences = [abs(a - b) / b for a, b in zip(losses, reference, strict=True)]
        tell(f"{name}: loss {losses[0]:.4f} to {losses[-1]:.4f}, from float32 by {sum(differences) / len(differences):.1e} in the mean, "
             f"{max(differences):.1e} at most")
    if arguments.json:
        arguments.json.write_text(json.dumps(curves) + "\n")
    if arguments.svg:
        arguments.svg.write_text(drawn(curves, f"loss a step, {arguments.model.name}, {arguments.rows.name}"))


if __name__ == "__main__":
    main()
