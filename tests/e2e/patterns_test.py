"""Adapters in PEFT's words: patterns of ranks and alphas, layers, exclusions, expressions; given in the job, by --peft and by
init_from; alone and among strangers; merged, and read by PEFT. (golden_test.py has their losses beside PEFT's.)

usage: patterns_test.py [TEST ...]
"""

import json
import os
import pathlib
import subprocess

from formats import read_safetensors
from golden import differences, folder_of, words_of
from house import GOLDEN, House, Skipped, main, tell

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lorad/references"
RUNS = [("qwen3", "patterns"), ("qwen3", "all_linear"), ("qwen3", "regex"), ("phi3", "all_linear")]


def prepare(house):
    for model in {model for model, _ in RUNS}:
        house.lora("model", "add", model, "--path", folder_of(model) / "model")
    for model, run in RUNS:
        house.lora("dataset", "add", f"{model}-{run}".replace("_", "-"), folder_of(model, run) / "train.jsonl")


def a_job(model, run, adapter, steps=4, **training):
    return {"base_model": model, "training_dataset": f"{model}-{run}".replace("_", "-"), "adapter": adapter,
            "training": {"max_steps": steps, "batch_size": 3, "max_length": 256, "learning_rate": 2e-3, **training}}


def words(model, run):
    peft = json.loads((folder_of(model, run) / "expected.json").read_text())["peft"]
    return {"rank": peft["r"], "alpha": peft["lora_alpha"], "use_rslora": peft.get("use_rslora", False), "seed": 7, **words_of(peft)}


def weights(house, job):
    return (house.adapter(job) / "adapter_model.safetensors").read_bytes()


def submit_peft(house, job, peft):
    path = house.folder / "job.json"
    path.write_text(json.dumps(job))
    return house.run("submit", "-f", path, "--peft", peft)


def test_shown():
    """`adapter show` and `ls` say what an imported config says, and which module has which rank, as its file has them."""
    with House(None, "--workers", "none") as house:
        for run in ("patterns", "regex", "r4_all"):
            folder = folder_of("qwen3", run) / "init"
            house.lora("adapter", "import", f"of-{run}".replace("_", "-"), "--path", folder)
        theirs = json.loads((folder_of("qwen3", "patterns") / "init/adapter_config.json").read_text())
        shown = house.object("adapter", "show", "of-patterns")["config"]
        for field in ("rank_pattern", "alpha_pattern", "layers_to_transform", "exclude_modules"):
            assert shown[field] == theirs[field] and shown[field], (field, shown)
        tensors = read_safetensors(folder_of("qwen3", "patterns") / "init/adapter_model.safetensors")
        ranks = {(key.split(".")[6], int(key.split(".")[4])): shape[0] for key, (shape, _) in tensors.items() if ".lora_A." in key}
        told = {(module["target"], layer): module["rank"] for module in shown["modules"] for layer in module["layers"]}
        assert told == ranks and len(set(ranks.values())) > 1, (told, ranks)
        text = house.lora("adapter", "show", "of-patterns").out
        for words in ("rank pattern", "alpha pattern", "layers", "without", "in layers "):
            assert words in text, text
        regex = house.lora("adapter", "show", "of-regex").out
        assert house.object("adapter", "show", "of-regex")["config"]["target_regex"] in regex, regex
        plain = house.object("adapter", "show", "of-r4-all")
        assert plain["config"]["rank"] == 4 and plain["config"].get("modules", []) == [], plain
        assert "pattern" not in house.lora("adapter", "show", "of-r4-all").out
        listed = house.lora("adapter", "ls").out
        assert all(line in listed for line in ("of-patterns", "of-regex", "of-r4-all")), listed
    house.clear()


def test_said_by_peft():
    """--peft says what the words say; what the job says itself goes before it, what is not implemented is named."""
    with House() as house:
        prepare(house)
        for model, run in RUNS:
            init = folder_of(model, run) / "init"
            by_words = house.submit(a_job(model, run, words(model, run)))
            submitted = submit_peft(house, a_job(model, run, {"seed": 7}), init)
            assert submitted.status == 0, submitted
            by_peft = submitted.out.strip()
            first, second = house.wait([by_words, by_peft])
            assert first["adapter"]["modules"] == second["adapter"]["modules"] != []
            assert weights(house, by_words) == weights(house, by_peft)
            written = json.loads((house.adapter(by_peft) / "adapter_config.json").read_text())
            theirs = json.loads((init / "adapter_config.json").read_text())
            for config in (written, theirs):
                for field in ("base_model_name_or_path", "lora_dropout"):
                    config.pop(field)
                if isinstance(config["target_modules"], list):
                    config["target_modules"].sort()
            assert written == theirs, (written, theirs)
        own = house.object("show", submit_peft(house, a_job("qwen3", "patterns", {"rank_pattern": {"v_proj": 9}}),
                                               folder_of("qwen3", "patterns") / "init/adapter_config.json").out.strip())
        assert own["adapter"]["rank_pattern"] == {"v_proj": 9} and own["adapter"]["alpha_pattern"]["q_proj"] == 32
        assert "rank 9, alpha 8, in layers 0, 2" in house.lora("show", own["name"]).out
        odd = house.folder / "odd"
        odd.mkdir()
        config = json.loads((folder_of("qwen3", "regex") / "init/adapter_config.json").read_text())
        (odd / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True, "modules_to_save": ["lm_head"]}))
        refused = submit_peft(house, a_job("qwen3", "regex", {}), odd)
        assert refused.status != 0 and "use_dora = true is not implemented" in refused.err, refused
        assert "adapter.peft_config" in refused.err and 'modules_to_save = ["lm_head"]' in refused.err, refused
        (odd / "adapter_config.json").write_text("")  # cut by a full disk, say
        for path in (odd, odd / "adapter_config.json", "/dev/null"):
            refused = submit_peft(house, a_job("qwen3", "regex", {}), path)
            assert refused.status == 2 and "is empty; is it the file that PEFT wrote" in refused.err, refused
    house.clear()


def test_goes_on():
    """From what PEFT wrote, and from a checkpoint of its own, with no field said."""
    with House() as house:
        prepare(house)
        for model, run in RUNS:
            name = f"{model}-{run}".replace("_", "-")
            house.lora("adapter", "import", name, "--path", folder_of(model, run) / "init")
            first = house.submit(a_job(model, run, {"init_from": name}))
            house.wait([first])
            second = house.submit(a_job(model, run, {"init_from": f"{first}/4"}))
            (job,) = house.wait([second])
            shapes = {name: shape for name, (shape, _) in read_safetensors(folder_of(model, run) / "init/adapter_model.safetensors").items()}
            got = {name: shape for name, (shape, _) in read_safetensors(house.adapter(second) / "adapter_model.safetensors").items()}
            assert got == shapes
            assert sum(max(len(m["layers"]), 1) for m in job["adapter"]["modules"]) <= len(shapes) // 2
        refused = house.run("submit", "-f", "-", stdin=json.dumps(a_job("qwen3", "regex", {"init_from": "qwen3-regex", "rank": 6})))
        assert refused.status != 0 and "must mean the modules and ranks of 'qwen3-regex'" in refused.err, refused
    house.clear()


def test_company():
    """The bits of each are those that it has alone, and none of them changes those of a plain job."""
    jobs = [a_job("qwen3", run, words("qwen3", run) | {"dropout": 0.1, "seed": seed}, steps=6, seed=seed)
            for seed, run in enumerate(("patterns", "all_linear", "regex"))]
    jobs += [a_job("qwen3", "patterns", {"rank": rank, "target_modules": targets, "dropout": 0.1}, steps=6)
             for rank, targets in ((4, ["q_proj", "v_proj"]), (64, ["down_proj", "k_proj"]))]

    def train(together):
        with House(None, "--workers", "none") as house:
            prepare(house)
            if not together:
                house.start_worker("--threads", 1)
            names = []
            for job in jobs:
                names.append(house.submit(job))
                if not together:
                    house.wait(names[-1:])
            if together:
                house.start_worker("--threads", 2)
            packed = [job["adapters_per_microbatch"] for job in house.wait(names)]
            assert min(packed) > 1.5 if together else max(packed) == 1, packed
            found = [weights(house, name) for name in names]
        house.clear()
        return found

    for job, alone, packed in zip(jobs, train(False), train(True), strict=True):
        assert alone == packed, f"{job['adapter']}: other bits in company"
    tell(f"    {len(jobs)} adapters equal, bit for bit")


def test_merged():
    """Every module with its own scale."""
    with House() as house:
        model = GOLDEN / "llama_gqa_untied/model"
        house.lora("model", "add", "base", "--path", model)
        house.lora("dataset", "add", "rows", GOLDEN / "llama_gqa_untied/r8_all/train.jsonl")
        job = house.submit({"base_model": "base", "training_dataset": "rows",
                            "adapter": {"rank": 4, "alpha": 64, "target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1],
                                        "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"mlp.down_proj": 12}},
                            "training": {"max_steps": 4, "batch_size": 3, "max_length": 256, "learning_rate": 1e-2}})
        house.wait([job])
        adapter = read_safetensors(house.adapter(job) / "adapter_model.safetensors")
        house.lora("checkpoint", "get", job, "--merged", "-o", house.folder / "merged")
        base = read_safetensors(model / "model.safetensors")
        merged = read_safetensors(house.folder / "merged/model.safetensors")
        scales = {"model.layers.1.self_attn.q_proj": 64 / 2, "model.layers.1.mlp.down_proj": 12 / 4}
        for name, (shape, values) in base.items():
            module = name.removesuffix(".weight")
            if module not in scales:
                assert values == merged[name][1], name
                continue
            (rank, wide), a = adapter[f"base_model.model.{module}.lora_A.weight"]
            _, b = adapter[f"base_model.model.{module}.lora_B.weight"]
            moved = 0
            for i in range(shape[0]):
                for j in range(wide):
                    change = scales[module] * sum(b[i * rank + k] * a[k * wide + j] for k in range(rank))
                    moved = max(moved, abs(change))
                    assert abs(merged[name][1][i * wide + j] - values[i * wide + j] - change) <= 1e-6, name
            assert moved > 1e-3, name
    house.clear()


def test_refused():
    with House() as house:
        prepare(house)
        house.lora("dataset", "add", "rows", folder_of("phi3", "r4_all") / "train.jsonl")
        for model, adapter, told in (
                ("qwen3", {"target_modules": ["q_porj"]}, "adapter.target_modules: must be among"),
                ("qwen3", {"target_modules": ["q_porj"]}, "did you mean q_proj?"),
                ("qwen3", {"target_modules": ["layers.5.self_attn.q_proj"]}, "adapter.target_modules: "),
                ("qwen3", {"target_regex": "q_proj"}, "adapter.target_regex: the expression \"q_proj\" matches no module"),
                ("qwen3", {"target_regex": "(([a-z0-9._]+)+)+[0-9]{9}"}, "adapter.target_regex: the regular expression"),
                ("qwen3", {"target_regex": ".*"}, "adapter.target_regex: means "),
                ("qwen3", {"rank_pattern": {"k_proj": 4}}, "adapter.rank_pattern: \"k_proj\" matches no module that is trained"),
                ("qwen3", {"rank_pattern": {"q_proj": 4.5}}, "adapter.rank_pattern.q_proj: line 1: must be a whole number"),
                ("qwen3", {"alpha_pattern": ["q_proj"]}, "adapter.alpha_pattern: line 1: must be an object of numbers"),
                ("qwen3", {"exclude_modules": ["mlp"], "target_modules": ["all-linear"]}, "adapter.exclude_modules: the model has no module \"mlp\""),
                ("qwen3", {"layers_to_transform": [3]}, "adapter.layers_to_transform: layer 3 has no module"),
                ("phi3", {}, "adapter.target_modules: must be said")):
            refused = house.run("submit", "-f", "-", stdin=json.dumps(a_job(model, "patterns", adapter) | {"training_dataset": "rows"}))
            assert refused.status != 0 and told in refused.err, refused
        other = house.folder / "other"
        other.mkdir()
        config = json.loads((folder_of("qwen3", "regex") / "init/adapter_config.json").read_text())
        for name, change, told in (("loha", {"peft_type": "LOHA"}, 'peft_type "LOHA" is not implemented'),
                                   ("unused", {"rank_pattern": {"x_proj": 2}}, 'no tensors for "x_proj" of rank_pattern'),
                                   ("wrong", {"rank_pattern": {"v_proj": 2}}, "but its rank in rank_pattern is 2")):
            (other / "adapter_config.json").write_text(json.dumps(config | change))
            weight_file = folder_of("qwen3", "regex") / "init/adapter_model.safetensors"
            (other / "adapter_model.safetensors").write_bytes(weight_file.read_bytes())
            refused = house.run("adapter", "import", name, "--path", other)
            assert refused.status != 0 and told in refused.err, refused
    house.clear()


def test_read_by_peft():
    """What was trained and written here, as PEFT reads it, beside what PEFT trained and wrote."""
    python = CACHE / "venv/bin/python"
    if not python.exists():
        raise Skipped(f"there is no {python}: tools/references makes it")
    with House() as house:
        prepare(house)
        for model, run in RUNS:
            name = f"{model}-{run}".replace("_", "-")
            house.lora("adapter", "import", name, "--path", folder_of(model, run) / "init")
            hyper = json.loads((folder_of(model, run) / "expected.json").read_text())["hyper"]
            job = house.submit(a_job(model, run, {"init_from": name}, steps=12, schedule=hyper["schedule"].upper(), shuffle=False,
                                     **{field: hyper[field] for field in ("warmup_steps", "weight_decay", "max_grad_norm")}))
            house.wait([job])
            assert differences(house, job, model, run)["matrix"] < 1e-4
            done = subprocess.run([python, GOLDEN / "trl/adapter_logits.py", folder_of(model) / "model", house.adapter(job),
                                   folder_of(model, run) / "final"], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-3000:]
            logits = json.loads(done.stdout)
            assert logits["same_modules"] and not logits["missing"], logits
            assert logits["difference"] < 1e-3 < logits["moved"], logits
            tell(f"    {name}: {logits['modules']} modules, logits within {logits['difference']:.1e}; moved by {logits['moved']:.2f}")
    house.clear()


if __name__ == "__main__":
    main([test_shown, test_said_by_peft, test_goes_on, test_company, test_merged, test_refused, test_read_by_peft])
