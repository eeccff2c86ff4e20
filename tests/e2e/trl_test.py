"""Rows and chat templates as TRL and transformers have them, by what tools/references made on this machine (it is skipped where
that was never run): ids, labels, losses and learning rates of SFTTrainer through the command line, texts and assistant spans of
conversations, and the logits of PEFT's merge_and_unload.

usage: trl_test.py [TEST ...]
"""

import json
import os
import pathlib
import shutil
import subprocess

from formats import read_safetensors, write_model, write_safetensors
from house import BINARIES, GOLDEN, House, Skipped, main, tell

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lorad/references"
LOSS_RELATIVE_MAX = 2e-5
LOGIT_MAX = 1e-6
TOKENIZERS = ("smollm2", "llama3", "qwen", "mistral")
CHECK = BINARIES / "tests/golden/chat_cases_check"


def references(name):
    path = CACHE / name
    if not path.exists():
        raise Skipped(f"there is no {path}: tools/references makes it")
    return path


def model_with(tokenizer, folder):
    """A tiny model that has the tokenizer and its template."""
    write_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 152000}))
    (folder / "model.safetensors").rename(folder / "of-fewer-tokens")
    (folder / "random_weights.json").write_text('{"seed": 1}')
    for file in references(f"tokenizers/{tokenizer}").iterdir():
        if not file.name.startswith("."):
            shutil.copy(file, folder)
    return folder


def compare(house, model, rows, max_length, mask, expected):
    *ours, report = house.objects("dataset", "validate", rows, "--model", model, "--max-length", max_length, "--overflow", "SKIP",
                                  "--train-on", mask, "--print-rows", "0:1000")
    assert report["errors"] == [] and report["sequences"] == len(ours)
    assert len(ours) == len(expected), f"{rows.name}, {max_length}, {mask}: {len(ours)} rows, TRL has {len(expected)}"
    trained = 0
    for row, want in zip(ours, expected):
        where = f"{model}, {rows.name}, max_length {max_length}, {mask}: row {row['row']}"
        assert row["input_ids"] == want["input_ids"], f"{where}: other ids than TRL's"
        # The first token has none before it: nobody trains on it, whatever its label.
        assert row["labels"][1:] == want["labels"][1:], f"{where}: other labels than TRL's"
        trained += sum(label != -100 for label in row["labels"][1:])
    assert trained == report["trained_tokens"]
    return report["skipped_rows"]


def test_rows():
    """Messages with all and with the assistant's tokens, prompts and completions as strings and as messages, cut and whole."""
    folders = {name: references(f"sft/{name}/.complete").parent for name in TOKENIZERS}
    skipped = compared = 0
    with House(None, "--workers", "none") as house:
        for name, folder in folders.items():
            house.lora("model", "add", name, "--path", model_with(name, house.folder / name))
            for reference in sorted(folder.glob("*.trl.jsonl")):
                kind, max_length, mask = reference.name.split(".")[:3]
                expected = [json.loads(line) for line in reference.read_text().splitlines()]
                skipped += compare(house, name, folder / f"{kind}.jsonl", max_length, mask, expected)
                compared += len(expected)
    assert skipped > 0, "no row was cut before what is trained on: the reference is not what it was"
    tell(f"    {compared} rows of {len(folders)} tokenizers as TRL's, {skipped} left out as TRL does")
    house.clear()


def test_losses():
    """Six steps of SFTTrainer and of Trainer under each schedule: losses as theirs, learning rates to the last bit."""
    folder = references("six_steps/expected.json").parent
    expected = json.loads((folder / "expected.json").read_text())
    settings = expected["settings"]
    worst = 0.0
    with House() as house:
        shutil.copytree(folder / "model", house.folder / "model")
        for file in references("tokenizers/smollm2").glob("[!.]*"):
            shutil.copy(file, house.folder / "model")
        house.lora("model", "add", "tiny", "--path", house.folder / "model")
        house.lora("dataset", "add", "rows", folder / "rows.jsonl")
        house.lora("adapter", "import", "init", "--path", folder / "init")
        assert {want["trainer"] for want in expected["runs"]} == {"SFTTrainer", "Trainer"}
        for want in expected["runs"]:
            job = house.submit({"base_model": "tiny", "training_dataset": "rows", "adapter": {"init_from": "init"},
                                "training": {"schedule": want["schedule"], "train_on": want["train_on"], "shuffle": False, **settings}})
            house.wait([job])
            steps = house.objects("metrics", job)
            assert len(steps) == len(want["losses"]) == settings["max_steps"]
            for step, loss, rate in zip(steps, want["losses"], want["learning_rates"]):
                difference = abs(step["loss"] - loss) / loss
                where = f"{want['trainer']}, {want['schedule']}, step {step['step']}"
                assert difference <= LOSS_RELATIVE_MAX, f"{where}: loss {step['loss']}, the trainer's {loss}"
                assert float(step["learning_rate"]).hex() == rate, f"{where}: rate {step['learning_rate']}, {rate}"
                worst = max(worst, difference)
    tell(f"    losses within {worst:.1e} of SFTTrainer's and Trainer's, learning rates to the last bit")
    house.clear()


MERGED_RUNS = [
    "llama_gqa_untied/r8_all", "llama_gqa_untied/r4_qv_rslora", "qwen2_bias_tied/r16_attn", "qwen3/r4_all", "qwen3/patterns",
    "qwen3/regex", "qwen3_yarn/r4_all", "mistral_window/r4_all", "mistral3_tower/r4_all", "gemma/r4_all", "gemma2/r4_all",
    "gemma3/r4_all", "gemma3_tower/r4_all", "phi3/r4_all", "phi3/all_linear", "smollm3/r4_all", "olmo2/r4_all", "olmo3/r4_all",
    "granite/r4_all"]


def as_float32(model, folder):
    """A model of tests/golden with its weights, which bfloat16 has exactly, as float32: then a merge rounds nothing away."""
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", read_safetensors(model / "model.safetensors"), {"format": "pt"})
    shutil.copy(model / "config.json", folder)
    return folder


def test_merged():
    """The logits of merged directories beside PEFT's merge_and_unload, for every family; transformers reads them as they are."""
    python = references("venv/bin/python")
    with House() as house:
        for model in sorted({run.split("/")[0] for run in MERGED_RUNS}):
            house.lora("model", "add", model.replace("_", "-"), "--path", as_float32(GOLDEN / model / "model", house.folder / model))
        jobs = {}
        for run in MERGED_RUNS:
            model, name = run.split("/")[0].replace("_", "-"), run.replace("/", "-").replace("_", "-")
            house.lora("dataset", "add", name, GOLDEN / run / "train.jsonl")
            house.lora("adapter", "import", name, "--path", GOLDEN / run / "init")
            jobs[run] = house.submit({"base_model": model, "training_dataset": name, "adapter": {"init_from": name},
                                      "training": {"max_steps": 3, "max_length": 256, "learning_rate": 1e-2}})
        house.wait(jobs.values())
        directories = []
        for run, job in jobs.items():
            folder = house.folder / run.replace("/", "-")
            folder.mkdir()
            house.lora("checkpoint", "get", job, "-o", folder / "adapter")
            house.lora("checkpoint", "get", job, "--merged", "-o", folder / "merged")
            directories += [house.folder / run.split("/")[0], folder / "adapter", folder / "merged"]
        done = subprocess.run([python, GOLDEN / "trl/merged_logits.py", *directories], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        results = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(results) == len(jobs)
        for run, logits in zip(jobs, results):
            assert logits["difference"] <= LOGIT_MAX, f"{run}: logits differ by {logits['difference']}"
            assert logits["moved"] > 1e3 * LOGIT_MAX, f"{run}: the adapter moves no logit by more than {logits['moved']}"
            tell(f"    {run}: logits of up to {logits['largest']:.1f} within {logits['difference']:.1e}; the adapter moves them by "
                 f"{logits['moved']:.2f}")
    house.clear()


def test_chat_templates():
    """Every original and training template in TRL's wheel, 200 random conversations each."""
    cases = references("chat_cases.jsonl")
    with open(cases) as stdin:
        done = subprocess.run([CHECK], stdin=stdin, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    tell("    " + done.stdout.strip().replace("\n", "\n    "))
    # The check can fail: a text and a mark, each off by one.
    lines = cases.read_text().splitlines()
    rendered = next(case for case in map(json.loads, lines) if case.get("generated"))
    for change in ({"text": rendered["text"] + "."}, {"generated": rendered["generated"][1:]}):
        done = subprocess.run([CHECK], input=json.dumps(rendered | change), capture_output=True, text=True)
        assert done.returncode == 1, "a case that was changed passed"


if __name__ == "__main__":
    main([test_rows, test_losses, test_merged, test_chat_templates])
