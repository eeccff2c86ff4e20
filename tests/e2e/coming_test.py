"""docs/coming-from-trl.md as it stands: its TRL script and its two lorad programs, their losses beside each other, and its
table of defaults. TRL's half runs where tools/references has installed it; its losses and defaults lie recorded in
tests/golden/trl/sft_page and are compared everywhere.

usage: coming_test.py [TEST...]
       coming_test.py record=tests/golden/trl/sft_page    (makes the recorded ones again)
"""

import ast
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import python_package
from docs_commands_test import blocks_of
from formats import write_model
from house import GOLDEN, House, ROOT, main, tell

PAGE = ROOT / "docs/coming-from-trl.md"
RECORDED = GOLDEN / "trl/sft_page"
MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
LOSS_RELATIVE_MAX = 1e-6  # 6e-8 was measured
SAVE_START = 'trainer.model.save_pretrained("start")'
INIT_FROM = 'init_from="start"'
NOT_THEIRS = "eval_batches_of_one"  # of the record: what the page's script does not do
OF_LORA = ["r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules"]


def relative(ours, theirs):
    return abs(ours - theirs) / abs(theirs)


def worst(ours, theirs):
    assert len(ours) == len(theirs) > 0, (ours, theirs)
    return max(relative(a, b) for a, b in zip(ours, theirs))


def write_blocks(folder):
    """The page's files, in a folder; returns {name: text}."""
    files = {block.words[1]: block.text + "\n" for block in blocks_of(PAGE) if len(block.words) == 2}
    assert {"train.jsonl", "test.jsonl", "sft.py", "train.py", "job.json"} <= set(files), set(files)
    for name, text in files.items():
        (folder / name).write_text(text)
    return files


def once(text, old, new):
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the page's program"
    return text.replace(old, new)


def advised(line):
    """A line that the page advises to add."""
    assert line in PAGE.read_text(), f"the page does not advise {line!r}"
    return line


def run_trl(folder, script):
    """What TRL logs of the page's script, by kind: [(step, value)]. Its model is the tests' small one."""
    python = python_package.references()
    if not (folder / MODEL).exists():
        write_model(folder / MODEL, tokenizer=True)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, cwd=folder, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads(max((folder / "out").glob("checkpoint-*/trainer_state.json")).read_text())
    log = state["log_history"]
    logged = {name: [[entry["step"], entry[name]] for entry in log if name in entry] for name in ("loss", "learning_rate", "eval_loss")}
    shutil.rmtree(folder / "out")
    return logged


@contextlib.contextmanager
def house_with_page():
    with House(None, "--workers", "cpu:1") as house:
        house.lora("model", "add", "smollm2-135m", "--path", write_model(house.folder / MODEL, tokenizer=True))
        yield house, write_blocks(house.folder)
    house.clear()


def run_train(house, script):
    """Runs the page's Python program; returns its job."""
    before = {job["name"] for job in house.objects("ls")}
    paths = [str(python_package.FOLDER), *map(str, python_package.NEEDS)]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=house.folder,
                          env={**os.environ, "LORAD_SERVER": house.address, "PYTHONPATH": ":".join(paths)})
    assert done.returncode == 0, done.stderr
    (job,) = {job["name"] for job in house.objects("ls")} - before
    return job


def run_submit(house, said):
    """Submits the page's job file; returns its job."""
    for name in ("train", "test"):
        if f"shop-{name}" not in [dataset["name"] for dataset in house.objects("dataset", "ls")]:
            house.lora("dataset", "add", f"shop-{name}", house.folder / f"{name}.jsonl")
    job = house.submit(said)
    house.wait([job])
    return job


def measured(house, job):
    """As run_trl's, without the evaluation before the first step, which TRL does not make."""
    steps, evaluations = house.objects("metrics", job), house.objects("metrics", job, "--evaluation")
    return {"loss": [[row["step"], row["loss"]] for row in steps],
            "learning_rate": [[row["step"], row["learning_rate"]] for row in steps],
            "eval_loss": [[row["step"], row["validation_loss"]] for row in evaluations if row["step"] > 0]}


def compare(ours, theirs):
    """The largest relative difference of losses."""
    for kind in ("loss", "learning_rate", "eval_loss"):
        assert [step for step, _ in ours[kind]] == [step for step, _ in theirs[kind]], (kind, ours, theirs)
    assert [rate for _, rate in ours["learning_rate"]] == [rate for _, rate in theirs["learning_rate"]], (ours, theirs)
    return max(worst([v for _, v in ours[kind]], [v for _, v in theirs[kind]]) for kind in ("loss", "eval_loss"))


def recorded():
    return json.loads((RECORDED / "expected.json").read_text())


def from_start(files):
    """The page's programs as it advises to change them: (TRL's script, ours, the job)."""
    advised("client.train(..., " + INIT_FROM)
    job = json.loads(files["job.json"])
    job["adapter"]["init_from"] = "start"
    return (once(files["sft.py"], "trainer.train()", advised(SAVE_START) + "\ntrainer.train()"),
            once(files["train.py"], '"smollm2-135m", ', f'"smollm2-135m", {INIT_FROM}, data='), job)


def test_the_programs_beside_the_recorded_losses():
    theirs = recorded()
    with house_with_page() as (house, files):
        _, script, job = from_start(files)
        house.lora("adapter", "import", "start", "--path", RECORDED / "start")
        names = [run_train(house, script), run_submit(house, job)]
        differences = [compare(measured(house, name), theirs["run"]) for name in names]
        assert max(differences) <= LOSS_RELATIVE_MAX, differences
        adapters = [house.adapter(name) for name in names]
        for file in ("adapter_model.safetensors", "adapter_config.json"):
            assert adapters[0].joinpath(file).read_bytes() == adapters[1].joinpath(file).read_bytes(), file
        assert house.folder.joinpath("lorad-adapter/adapter_model.safetensors").read_bytes() == \
            adapters[0].joinpath("adapter_model.safetensors").read_bytes()
        tell(f"    losses within {max(differences):.1e} of TRL's, learning rates to the last bit")

        # As they stand, from matrices of our own: the same until the first update counts (the first step's rate is 0), then not.
        names = [run_train(house, files["train.py"]), run_submit(house, json.loads(files["job.json"]))]
        runs = [measured(house, name) for name in names]
        assert runs[0] == runs[1]
        apart = [relative(a[1], b[1]) for a, b in zip(runs[0]["loss"], theirs["run"]["loss"])]
        assert max(apart[:2]) <= LOSS_RELATIVE_MAX and min(apart[2:]) > LOSS_RELATIVE_MAX, apart
        # And 2 x 2 is 4, not 2: the comparison notices it.
        job["training"]["gradient_accumulation_steps"] = 1
        other = measured(house, run_submit(house, job))
        assert len(other["loss"]) == 12 and relative(other["loss"][0][1], theirs["run"]["loss"][0][1]) > LOSS_RELATIVE_MAX

        # Evaluation is the mean over tokens; TRL's is that of batches, another one for another size of them.
        means = theirs[NOT_THEIRS]
        assert means[-1][0] == theirs["run"]["eval_loss"][-1][0]
        assert relative(means[-1][1], theirs["run"]["eval_loss"][-1][1]) > LOSS_RELATIVE_MAX


def test_trl_gives_what_is_recorded():
    python_package.references()
    theirs = recorded()
    with house_with_page() as (house, files):
        script, ours, _ = from_start(files)
        run = run_trl(house.folder, script)
        difference = compare(run, theirs["run"])
        assert difference <= LOSS_RELATIVE_MAX, difference
        house.lora("adapter", "import", "start", "--path", house.folder / "start")
        difference = compare(measured(house, run_train(house, ours)), run)
        assert difference <= LOSS_RELATIVE_MAX, difference
        tell(f"    losses within {difference:.1e} of those of TRL's run a moment ago")
        means = run_trl(house.folder, in_batches_of_one(script))["eval_loss"]
        assert worst([v for _, v in means], [v for _, v in theirs[NOT_THEIRS]]) <= LOSS_RELATIVE_MAX


def in_batches_of_one(script):
    return once(script, "eval_steps=2,", "eval_steps=2, per_device_eval_batch_size=1,")


def table_of_defaults():
    """[(theirs, its default, ours or None, its default)]"""
    text = PAGE.read_text()
    lines = text[text.index("| theirs |"):].split("\n\n")[0].splitlines()[2:]
    rows = []
    for line in lines:
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        assert len(cells) == 4, line
        rows.append((cells[0], ast.literal_eval(cells[1]), cells[2] or None, json.loads(cells[3]) if cells[2] else None))
    return rows


THEIR_DEFAULTS = """
import enum, json, sys
from peft import LoraConfig
from trl import SFTConfig
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
assert TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["llama"] == ["q_proj", "v_proj"]  # what None means for Llama's
args, lora, names = SFTConfig(use_cpu=True), LoraConfig(), json.loads(sys.argv[1])
values = {name: getattr(lora if name in sys.argv[2].split() else args, name) for name in names}
print(json.dumps({name: value.value if isinstance(value, enum.Enum) else value for name, value in values.items()}))
"""


def their_defaults():
    names = [row[0] for row in table_of_defaults()]
    done = subprocess.run([python_package.references(), "-c", THEIR_DEFAULTS, json.dumps(names), " ".join(OF_LORA)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_our_defaults_are_those_of_the_table():
    rows = table_of_defaults()
    assert len(rows) >= 20
    with house_with_page() as (house, _):
        house.lora("dataset", "add", "shop-train", house.folder / "train.jsonl")
        job = house.object("show", house.submit({"base_model": "smollm2-135m", "training_dataset": "shop-train"}))
        for theirs, _, ours, default in rows:
            if ours is None:
                continue
            found = [section[ours] for section in (job["adapter"], job["training"]) if ours in section]
            assert found and all(type(value) in (type(default), int, float) and value == default for value in found), (ours, default, found)
    # What the text says beside the table.
    said = {theirs: (a, b) for theirs, a, _, b in rows}
    assert said["learning_rate"][1] == 10 * said["learning_rate"][0] and (said["num_train_epochs"]) == (3.0, 1)


def test_their_defaults_are_those_of_the_table():
    kept = recorded()["defaults"]
    for theirs, default, _, _ in table_of_defaults():
        assert theirs in kept and kept[theirs] == default and type(kept[theirs]) is type(default), (theirs, default, kept.get(theirs))
    assert set(kept) == {row[0] for row in table_of_defaults()}


def test_trl_has_the_recorded_defaults():
    assert their_defaults() == recorded()["defaults"]


def record(folder):
    """Makes the recorded files of what TRL does here."""
    folder = pathlib.Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with house_with_page() as (house, files):
        script, _, _ = from_start(files)
        expected = {"made_by": "tests/e2e/coming_test.py, record=", "run": run_trl(house.folder, script)}
        (folder / "start").mkdir(exist_ok=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(house.folder / "start" / file, folder / "start" / file)
        expected[NOT_THEIRS] = run_trl(house.folder, in_batches_of_one(script))["eval_loss"]
        expected["defaults"] = their_defaults()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    python_package.FOLDER = python_package.unpack()
    for word in sys.argv[1:]:
        if word.startswith("record="):
            record(word.removeprefix("record="))
            sys.exit()
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
