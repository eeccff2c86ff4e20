"""The bits that the service has always given: the adapters of a set of jobs, packed, alone and killed on the way, hash as
adapter_bytes.json says for this machine's numerics id (docs/determinism.md). Under an id that the file does not know the
test is skipped and prints the entry; isolation_test still compares the ways with each other.

The arithmetic cannot be told to act as another kind of CPU: our loops ask the processor itself which set it has.

usage: adapter_bytes_test.py [TEST ...]
"""

import hashlib
import json
import pathlib
import re

from house import GOLDEN, House, Skipped, main, tell

KNOWN = pathlib.Path(__file__).with_name("adapter_bytes.json")

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
MODELS = {"llama": "llama_gqa_untied", "qwen2": "qwen2_bias_tied", "mistral": "llama_gqa_untied"}
ROWS = {"llama-rows": "llama_gqa_untied/r8_all", "llama-validation": "llama_gqa_untied/r4_qv_rslora",
        "qwen2-rows": "qwen2_bias_tied/r16_attn", "qwen2-validation": "qwen2_bias_tied/r8_mlp",
        "mistral-rows": "llama_gqa_untied/r8_all", "mistral-validation": "llama_gqa_untied/r4_qv_rslora"}
# A Mistral without a window has Llama's table, and had it before there were other families (commit 50648341).
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}


def a_job(name, model, adapter, **training):
    return {"display_name": name, "base_model": model, "training_dataset": f"{model}-rows", "validation_dataset": f"{model}-validation",
            "adapter": {"alpha": 2 * adapter["rank"], **adapter},
            "training": {"max_steps": 24, "batch_size": 3, "max_length": 256, "learning_rate": 2e-3, "weight_decay": 0.01,
                         "shuffle": True, "warmup_steps": 3, "checkpoint_every_steps": 5, "eval_every_steps": 8, **training}}


JOBS = [
    a_job("plain", "llama", {"rank": 4, "target_modules": ["q_proj", "v_proj"], "seed": 1}, seed=1),
    a_job("dropout", "llama", {"rank": 8, "dropout": 0.1, "target_modules": ATTENTION + MLP, "seed": 2}, batch_size=2, schedule="COSINE", seed=2),
    a_job("rslora", "llama", {"rank": 16, "use_rslora": True, "dropout": 0.25, "target_modules": MLP, "seed": 3}, batch_size=5, schedule="CONSTANT", seed=3),
    a_job("odd", "llama", {"rank": 13, "dropout": 0.05, "target_modules": ["k_proj", "o_proj", "down_proj"], "seed": 4}, max_grad_norm=0.3, seed=4),
    a_job("in-order", "llama", {"rank": 2, "target_modules": ATTENTION, "seed": 5}, shuffle=False, eval_every_steps=0, seed=5),
    a_job("biased", "qwen2", {"rank": 8, "dropout": 0.1, "target_modules": ATTENTION, "seed": 6}, schedule="COSINE", seed=6),
    a_job("mistral", "mistral", {"rank": 4, "target_modules": ["q_proj", "v_proj"], "seed": 1}, seed=1),
    a_job("tied", "qwen2", {"rank": 32, "target_modules": ATTENTION + MLP, "seed": 7}, batch_size=1, max_grad_norm=0, seed=7),
]


def write_mistral(folder):
    """The Llama's weights under Mistral's name."""
    llama = GOLDEN / MODELS["mistral"] / "model"
    folder.mkdir(exist_ok=True)
    config = json.loads((llama / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "pretraining_tp"} | MISTRAL))
    (folder / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    return folder


def prepare(house):
    for name, folder in MODELS.items():
        path = write_mistral(house.folder / "mistral") if name == "mistral" else GOLDEN / folder / "model"
        house.lora("model", "add", name, "--path", path)
    for name, folder in ROWS.items():
        house.lora("dataset", "add", name, GOLDEN / folder / "train.jsonl")


def hashes(house, names):
    found = {}
    for job in house.wait(names, seconds=240):
        adapter = (house.adapter(job["name"]) / "adapter_model.safetensors").read_bytes()
        found[job["display_name"]] = hashlib.sha256(adapter).hexdigest()
    return found


def check(house, found):
    """Against the committed hashes of the numerics id that the house's worker has."""
    (numerics,) = {worker["numerics_id"] for worker in house.objects("worker", "ls")}
    known = json.loads(KNOWN.read_text()).get(numerics)
    if known is None:
        of = re.search(rf"numerics {numerics} \((.+)\)", house.log())[1]
        raise Skipped(f"unknown numerics id: {numerics}; its entry would be\n" + json.dumps({numerics: {"of": of, "adapters": found}}, indent=1))
    different = [name for name, hash in known["adapters"].items() if found[name] != hash]
    assert not different, f"other bytes than before of {', '.join(different)}: {json.dumps(found, indent=1)}"
    tell(f"    {len(found)} adapters as before under {known['of']}")


def test_packed():
    """Submitted before their worker comes, the jobs of a model share microbatches."""
    with House(None, "--workers", "none", "--microbatch-tokens", 2048) as house:
        prepare(house)
        names = [house.submit(job) for job in JOBS]
        house.start_worker("--device", "cpu", "--threads", 2)
        found = hashes(house, names)
        sharing = [job["adapters_per_microbatch"] for job in house.objects("ls")]
        assert max(sharing) > 1.5, f"adapters per microbatch {sharing}: the jobs were not packed"
        check(house, found)
    house.clear()


def test_alone():
    with House(None, "--workers", "cpu:1", "--worker-threads", 1) as house:
        prepare(house)
        found = {}
        for job in JOBS:
            found.update(hashes(house, [house.submit(job)]))
        check(house, found)
    house.clear()


def test_killed():
    """The daemon and its worker are killed when the first job has done a third, and again at two thirds."""
    with House(None, "--workers", "cpu:1", "--worker-threads", 2, "--microbatch-tokens", 1000) as house:
        prepare(house)
        names = [house.submit(job) for job in JOBS]
        for step in (8, 16):
            house.wait(names[:1], until=lambda job: job["step"] >= step or job["state"] == "SUCCEEDED")
            house.kill()
            house.start()
        found = hashes(house, names)
        assert max(job["attempts"] for job in house.objects("ls")) > 1, "no job was taken up again"
        check(house, found)
    house.clear()


if __name__ == "__main__":
    main([test_packed, test_alone, test_killed])
