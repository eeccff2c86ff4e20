"""The Python package without a daemon: what arguments, LoraConfigs, SFTConfigs and rows come to.

usage: python_names_test.py [TEST...]
"""

import dataclasses
import enum
import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types

import python_package
from house import main, tell

FOLDER = python_package.load()

import lorad  # noqa: E402
from backports import zstd  # noqa: E402
from lorad import names, needless, rows  # noqa: E402
from lorad.v1 import datasets_pb2, jobs_pb2  # noqa: E402

Training = jobs_pb2.TrainingConfig


def violations_of(call, *arguments, **keywords):
    """{field: description} of the InvalidError that the call raises."""
    try:
        call(*arguments, **keywords)
    except lorad.InvalidError as error:
        assert all(str(v) in str(error) for v in error.violations), error
        return {v.field: v.description for v in error.violations}
    raise AssertionError("nothing was wrong")


def job_of(**fields):
    keywords = {name: fields.pop(name) for name in ("peft_config", "args") if name in fields}
    return names.build("m", fields, **keywords).job


def test_the_names_are_those_of_the_command_line():
    text = (python_package.CHECKOUT / "client/inputs/job_names.cc").read_text()
    table = text[text.index("kNames = {{"):text.index("}};")]
    table = table.replace("kPerDevice", '"per_device_train_batch_size"').replace("kAccumulation", '"gradient_accumulation_steps"')
    theirs = {name: (section, field) for section, name, field in re.findall(r'\{"(\w*)", "(\w+)", "(\w+)"\}', table)}
    assert len(theirs) == int(re.search(r"JobName, (\d+)>", text)[1]), "the table is not read whole"
    assert names.NAMES == theirs, set(names.NAMES.items()) ^ set(theirs.items())
    likely = text[text.index("kLikelyNames = {{"):text.index("}};", text.index("kLikelyNames = {{"))]
    likely = {name: field for _, name, field in re.findall(r'\{"(\w*)", "(\w+)", "(\w+)"\}', likely)}
    assert len(likely) == int(re.search(r"JobName, (\d+)> kLikelyNames", text)[1]), "the table is not read whole"
    assert names.LIKELY == likely, set(names.LIKELY.items()) ^ set(likely.items())
    assert names.suggest("lr") == "; did you mean learning_rate?"


def test_the_needless_names_are_those_of_the_command_line():
    text = (python_package.CHECKOUT / "client/inputs/needless_names.cc").read_text()
    literal = r'(?:R"\((?:.*?)\)"|(?:"(?:[^"\\]|\\.)*"\s*)+)'

    def value_of(expression):
        if expression.startswith("k"):
            return constants[expression]
        if expression.startswith("R"):
            return expression[3:-2]
        return "".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\.)*"', expression))

    constants = {name: value_of(said) for name, said in re.findall(rf"constexpr char (k\w+)\[\] =\s*({literal});", text)}
    rows = re.findall(rf'\{{"(adapter|training)", "(\w+)",\s*(k\w+|{literal}),\s*(k\w+|{literal})\}},', text)
    theirs = {name: (value_of(values), value_of(why)) for _, name, values, why in rows}
    assert len(theirs) == text.count('    {"adapter", ') + text.count('    {"training", '), "the table is not read whole"
    fixed = {name: (json.loads(values), why) for name, (values, why) in theirs.items() if values}
    assert needless.FIXED == fixed, [name for name in {*fixed, *needless.FIXED} if fixed.get(name) != needless.FIXED.get(name)]
    assert needless.NAMES == {*theirs}, needless.NAMES ^ {*theirs}
    text = (python_package.CHECKOUT / "client/inputs/job_names.cc").read_text()
    meanings = text[text.index("kMeanings = {{"):text.index("}};", text.index("kMeanings = {{"))]
    rows = re.findall(rf'\{{"(\w+)", ({literal}), "(\w+)", ({literal})\}},', meanings)
    theirs = {(name, json.loads(value_of(said))): (field, json.loads(value_of(means))) for name, said, field, means in rows}
    assert needless.MEANINGS == theirs and len(rows) == meanings.count('    {"'), rows


def test_needless_names():
    plain = job_of(rank=4)
    for name, (values, why) in needless.FIXED.items():
        for value in values:
            ours = {"rank": 4} | ({"eval_steps": 5} if value == "steps" else {})
            meant = next((dict([means]) for said, means in needless.MEANINGS.items() if said == (name, value)), {})
            assert job_of(**ours, **{name: value}) == job_of(**ours, **meant), (name, value)
        assert violations_of(job_of, **{name: "anything else"})[name].endswith(f"got 'anything else': {why}"), name
    for name in needless.NOTES + needless.IGNORED:
        assert job_of(rank=4, **{name: "anything"}) == plain, name
    assert "batch_size counts rows" in violations_of(job_of, packing=True)["packing"]
    assert "batch_size counts rows" in violations_of(job_of, args=SFTConfig(packing=True))["SFTConfig.packing"]
    # What is said by name goes before an SFTConfig, and says no more than one thing.
    assert job_of(assistant_only_loss=True, args=SFTConfig()).training.train_on == Training.ASSISTANT
    assert job_of(completion_only_loss=True, args=SFTConfig(completion_only_loss=False)).training.train_on == Training.ASSISTANT
    ordered = dataclasses.make_dataclass("Ordered", [("train_sampling_strategy", str, "sequential")])
    shuffled = job_of(train_sampling_strategy="random", args=ordered()).training
    assert shuffled.HasField("shuffle") and shuffled.shuffle
    assert "one field" in violations_of(job_of, train_on="ALL", completion_only_loss=True)["completion_only_loss"]
    assert "leave one out" in violations_of(job_of, save_strategy="steps", args=SFTConfig(save_strategy="no"))["save_strategy"]
    steps = {"gradient_accumulation_kwargs": {"num_steps": 8}}
    assert "num_steps" in violations_of(job_of, accelerator_config=steps)["accelerator_config"]
    config = dataclasses.make_dataclass("Config", [("accelerator_config", object, dataclasses.field(default_factory=lambda: types.SimpleNamespace(**steps)))])
    assert "num_steps" in violations_of(job_of, args=config())["Config.accelerator_config"]
    told = dataclasses.make_dataclass("Told", [("metric_for_best_model", str, None), ("greater_is_better", bool, None)])
    assert job_of(args=told("eval_loss", False)) == job_of(args=told(None, None))
    assert "lowest" in violations_of(job_of, args=told("accuracy", False))["Told.metric_for_best_model"]


def test_strategies():
    def steps_of(**said):
        request = names.build("m", {name: value for name, value in said.items() if name != "args"}, None, said.get("args"))
        training = request.job.training
        steps = {"checkpoint_every_steps": training.checkpoint_every_steps if training.HasField("checkpoint_every_steps") else None,
                 "eval_every_steps": training.eval_every_steps}
        return tuple((steps | dict.fromkeys(request.by_epoch, "epoch")).values())

    by_steps = SFTConfig(eval_strategy=Strategy.STEPS, eval_steps=5)
    older = dataclasses.make_dataclass("Older", [("evaluation_strategy", str, "steps"), ("eval_steps", int, 6)])
    for said, want in (({"eval_strategy": "no", "save_strategy": "no"}, (0, 0)), ({"evaluation_strategy": Strategy.NO}, (None, 0)),
                       ({"eval_strategy": "steps", "eval_steps": 7}, (None, 7)), ({"eval_strategy": Strategy.STEPS, "eval_every_steps": 7}, (None, 7)),
                       ({"evaluation_strategy": "steps", "logging_steps": 7}, (None, 7)), ({"logging_steps": 7}, (None, 0)),
                       ({"save_strategy": "steps"}, (None, 0)), ({"save_strategy": "steps", "save_steps": 3}, (3, 0)),
                       ({"args": SFTConfig(eval_steps=5)}, (500, 0)), ({"args": by_steps}, (500, 5)),
                       ({"args": older()}, (500, 6)), ({"args": older("no")}, (500, 0)),
                       ({"eval_strategy": "epoch", "save_strategy": Strategy.EPOCH}, ("epoch", "epoch")),
                       ({"eval_steps": "epoch", "evaluation_strategy": "epoch", "save_steps": "epoch"}, ("epoch", "epoch")),
                       ({"args": SFTConfig(eval_strategy=Strategy.EPOCH, eval_steps=9, save_strategy=Strategy.EPOCH)}, ("epoch", "epoch")),
                       ({"eval_steps": 7, "args": SFTConfig(eval_strategy=Strategy.EPOCH)}, (500, 7)),
                       # What is said by name goes before an SFTConfig, which says the rest.
                       ({"eval_strategy": "no", "args": by_steps}, (500, 0)), ({"eval_strategy": "steps", "args": by_steps}, (500, 5)),
                       ({"eval_strategy": "steps", "eval_steps": 7, "args": SFTConfig()}, (500, 7)),
                       ({"save_strategy": "no", "args": SFTConfig()}, (0, 0))):
        assert steps_of(**said) == want, (said, steps_of(**said))
    lacking = "needs eval_steps beside it: how many steps from one evaluation to the next"
    neither = dataclasses.make_dataclass("Neither", [("learning_rate", float, 1e-4)])
    for said, want in (({"eval_strategy": "steps"}, {"eval_strategy": lacking}),
                       ({"evaluation_strategy": "steps", "args": neither()}, {"evaluation_strategy": lacking}),
                       ({"eval_strategy": "no", "eval_steps": 5},
                        {"eval_strategy": "says 'no', which is 0, but eval_steps says 5: they are one field; leave one out"}),
                       ({"evaluation_strategy": "steps", "args": SFTConfig()},
                        {"evaluation_strategy": "says 'steps', but SFTConfig.eval_strategy says 'no': say eval_steps, or leave one out"})):
        assert violations_of(job_of, **said) == want, said
    for field, said in (("eval_strategy", {"eval_strategy": "best"}), ("SFTConfig.eval_strategy", {"args": SFTConfig(eval_strategy=Strategy.BEST)}),
                        ("SFTConfig.save_strategy", {"args": SFTConfig(save_strategy=Strategy.BEST)})):
        assert "come by steps or epochs" in violations_of(job_of, **said)[field], said
    assert "one field" in violations_of(job_of, eval_strategy="epoch", eval_steps=5)["eval_strategy"]
    assert set(violations_of(job_of, eval_steps="epochs", max_steps="epoch")) == {"eval_steps", "max_steps"}


def test_what_is_said_of_the_machine():
    """By name it is refused where lorad does something else; an SFTConfig says it of the machine it was made on."""
    for name, value, what in (("bf16", False, "--worker-precision fp32"), ("fp16", True, "bf16 on GPUs"), ("use_cpu", True, "--workers cpu:1")):
        assert what in violations_of(job_of, **{name: value})[name], name
    assert "bf16 on GPUs" in violations_of(job_of, args=SFTConfig(fp16=True))["SFTConfig.fp16"]
    request = names.build("m", {}, None, SFTConfig(bf16=False, use_cpu=True))
    assert request.job == job_of(args=SFTConfig()) and not names.build("m", {}, None, SFTConfig()).warnings
    cpu, bf16 = sorted(request.warnings, reverse=True)
    assert bf16 == f"SFTConfig.bf16: is False, which changes nothing: {needless.FIXED['bf16'][1]}", bf16
    assert cpu == f"SFTConfig.use_cpu: is True, which changes nothing: {needless.FIXED['use_cpu'][1]}", cpu
    plain = dataclasses.make_dataclass("TrainingArguments", [("bf16", bool, False)])  # as transformers have it
    assert not names.build("m", {}, None, plain()).warnings


def test_the_typed_fields_are_all_that_is_taken():
    text = (FOLDER / "lorad/names.py").read_text()
    typed = re.findall(r"^        (\w+): ", text[text.index("class JobFields"):text.index("\nSection")], re.MULTILINE)
    taken = {*names.FIELDS, *names.NAMES, names.SEED}
    assert len(typed) == len(set(typed)) and set(typed) == taken, set(typed) ^ taken


def test_our_names():
    job = job_of(rank=16, alpha=32, target_modules={"v_proj", "q_proj"}, rank_pattern={"q_proj": 4}, learning_rate=2e-4,
                 epochs=2, schedule="cosine", train_on="all", shuffle=False, seed=7, labels={"team": "math"}, priority=-3,
                 display_name="sums", max_grad_norm=0)
    assert job.adapter.rank == 16 and job.adapter.alpha == 32 and list(job.adapter.target_modules) == ["q_proj", "v_proj"]
    assert dict(job.adapter.rank_pattern) == {"q_proj": 4} and job.adapter.seed == job.training.seed == 7
    assert job.training.learning_rate == 2e-4 and job.training.epochs == 2 and job.training.schedule == Training.COSINE
    assert job.training.train_on == Training.ALL and job.training.HasField("shuffle") and not job.training.shuffle
    assert job.training.HasField("max_grad_norm") and not job.training.HasField("batch_size"), job
    assert (job.display_name, job.priority, dict(job.labels)) == ("sums", -3, {"team": "math"})
    assert job_of(rank=None) == job_of(), "None is as if it were not said"


def test_their_names():
    job = job_of(r=16, lora_alpha=32, lora_dropout=0.1, num_train_epochs=3.0, per_device_train_batch_size=2,
                 gradient_accumulation_steps=4, max_seq_length=256, lr_scheduler_type="constant_with_warmup", warmup_steps=3,
                 adam_beta1=0.8, adam_beta2=0.9, adam_epsilon=1e-6, save_steps=5, eval_steps=6, data_seed=9, seed=7,
                 run_name="sums", target_modules="all-linear", save_total_limit=3, load_best_model_at_end=False)
    assert (job.adapter.rank, job.adapter.alpha, job.adapter.dropout) == (16, 32, 0.1)
    assert list(job.adapter.target_modules) == ["all-linear"] and job.display_name == "sums"
    t = job.training
    assert (t.epochs, t.batch_size, t.max_length, t.schedule) == (3, 8, 256, Training.CONSTANT)
    assert (t.beta1, t.beta2, t.eps, t.checkpoint_every_steps, t.eval_every_steps) == (0.8, 0.9, 1e-6, 5, 6)
    assert (t.seed, job.adapter.seed, t.checkpoint_keep_last) == (9, 7, 3)
    assert "best=True" in violations_of(job_of, load_best_model_at_end=True)["load_best_model_at_end"]
    assert job_of(r=8, rank=8) == job_of(rank=8)


def test_every_mistake_at_once():
    found = violations_of(job_of, r=8, rank=16, learning_rat=1e-4, epochs=1.5, batch_size="eight", schedule="wavy",
                          target_modules=".*q", shuffle=1, max_steps=True, gradient_accumulation_steps=2)
    assert set(found) == {"rank", "learning_rat", "epochs", "batch_size", "schedule", "target_modules", "shuffle", "max_steps",
                          "gradient_accumulation_steps"}, found
    assert "one field" in found["rank"] and found["learning_rat"].endswith("did you mean learning_rate?")
    assert "CONSTANT, LINEAR, COSINE" in found["schedule"] and "target_regex" in found["target_modules"]
    assert found["epochs"] == "must be a whole number, got 1.5; max_steps ends a job within an epoch"
    assert found["batch_size"] == "must be a whole number, got 'eight'" and found["shuffle"] == "must be True or False, got 1"
    for field, value, what in (("display_name", 5, "a text"), ("dropout", "x", "a number"), ("target_modules", 5, "a list of texts"),
                               ("rank_pattern", ["q"], "a mapping of texts to whole numbers"), ("max_steps", True, "a whole number")):
        assert violations_of(job_of, **{field: value}) == {field: f"must be {what}, got {value!r}"}, field
    swapped = violations_of(names.build, [{"text": "a"}], {})
    assert swapped == {"base_model": "must be the name of a registered model, got list; it comes first, then the data"}
    assert "constant_with_warmup" in violations_of(job_of, schedule="constant", warmup_ratio=0.1)["schedule"]
    assert "whole number" in violations_of(job_of, per_device_train_batch_size=0, gradient_accumulation_steps=1)[
        "per_device_train_batch_size"]
    assert violations_of(job_of, rank=float("nan")) == {"rank": "must be a whole number, got nan"}
    assert violations_of(job_of, labels=["math"]) == {"labels": "must be a mapping, such as {'team': 'math'}, got ['math']"}
    try:
        job_of(seed=-1)
    except lorad.InvalidError as error:
        assert [v.field for v in error.violations] == ["seed"], error
    else:
        raise AssertionError("a seed below 0 was taken")


class Strategy(str, enum.Enum):
    NO, STEPS, EPOCH, BEST = "no", "steps", "epoch", "best"


@dataclasses.dataclass
class SFTConfig:
    """As TRL's, the fields that matter here."""
    output_dir: str = "out"
    learning_rate: float = 2e-5
    num_train_epochs: float = 3.0
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    max_steps: int = -1
    max_length: int | None = 1024
    warmup_steps: float = 0
    warmup_ratio: float | None = None
    lr_scheduler_type: str = "linear"
    optim: str = "adamw_torch_fused"
    save_strategy: Strategy = Strategy.STEPS
    save_steps: float = 500
    save_total_limit: int | None = None
    load_best_model_at_end: bool = False
    eval_strategy: Strategy = Strategy.NO
    eval_steps: float | None = None
    logging_steps: float = 10
    seed: int = 42
    data_seed: int | None = None
    run_name: str | None = None
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    packing: bool = False
    neftune_noise_alpha: float | None = None
    bf16: bool | None = True
    fp16: bool = False
    use_cpu: bool = False
    debug: list = dataclasses.field(default_factory=list)
    include_for_metrics: list = dataclasses.field(default_factory=list)


def test_an_sft_config():
    t = job_of(args=SFTConfig()).training
    assert (t.epochs, t.batch_size, t.max_length, t.learning_rate, t.schedule) == (3, 8, 1024, 2e-5, Training.LINEAR)
    assert (t.max_steps, t.checkpoint_every_steps, t.eval_every_steps, t.seed, t.warmup_steps) == (0, 500, 0, 42, 0)
    job = job_of(args=SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=7, warmup_steps=0.1, save_total_limit=2,
                                eval_strategy=Strategy.STEPS, save_strategy=Strategy.NO, run_name="x", data_seed=3))
    t = job.training
    assert (t.batch_size, t.max_steps, t.warmup_ratio, t.eval_every_steps, t.checkpoint_every_steps) == (4, 7, 0.1, 10, 0)
    assert (t.seed, job.adapter.seed, job.display_name, t.checkpoint_keep_last) == (3, 42, "x", 2)
    assert "best=True" in violations_of(job_of, args=SFTConfig(load_best_model_at_end=True))["SFTConfig.load_best_model_at_end"]
    t = job_of(args=SFTConfig(), learning_rate=1e-3, epochs=1, batch_size=4, seed=1).training
    assert (t.learning_rate, t.epochs, t.batch_size, t.seed) == (1e-3, 1, 4, 1), "what is said goes before the config"
    found = violations_of(job_of, args=SFTConfig(packing=True, neftune_noise_alpha=5.0, max_length=None, num_train_epochs=1.5,
                                                 save_strategy=Strategy.BEST, optim="lion_32bit", include_for_metrics=["loss"]))
    assert set(found) == {f"SFTConfig.{name}" for name in (
        "packing", "neftune_noise_alpha", "max_length", "num_train_epochs", "save_strategy", "optim", "include_for_metrics")}, found
    assert "args" in violations_of(job_of, args={"learning_rate": 1})


def test_what_an_sft_config_trains_on():
    def trained(rows_format, **fields):
        request = names.build("m", fields.pop("said", {}), None, SFTConfig(**fields))
        request.train_on(rows_format)
        return Training.TrainOn.Name(request.job.training.train_on)

    chat, pairs = datasets_pb2.Dataset.MESSAGES, datasets_pb2.Dataset.PROMPT_COMPLETION
    assert trained(chat) == "ALL" and trained(chat, assistant_only_loss=True) == "ASSISTANT"
    assert trained(pairs) == "ASSISTANT" and trained(pairs, completion_only_loss=False) == "ALL"
    assert trained(chat, said={"train_on": "assistant"}) == "ASSISTANT"


class LoraConfig:
    """As PEFT's."""
    def to_dict(self):
        return {"peft_type": Strategy.NO, "r": 4, "target_modules": {"v_proj", "q_proj"}, "rank_pattern": {}}


def test_a_lora_config():
    text = job_of(peft_config=LoraConfig()).adapter.peft_config
    assert json.loads(text) == {"peft_type": "no", "r": 4, "target_modules": ["q_proj", "v_proj"], "rank_pattern": {}}
    assert "peft_config" in violations_of(job_of, peft_config=3)


def test_the_configs_of_the_libraries():
    python = python_package.references()
    script = """
import sys; sys.path.append(sys.argv[1]); sys.path += sys.argv[2:]
from peft import LoraConfig
from trl import SFTConfig
import lorad
from lorad import names, sft
import dataclasses
job = names.build("m", {"batch_size": 4}, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM"),
                  SFTConfig(use_cpu=True, bf16=False, max_steps=5, lr_scheduler_type="cosine", warmup_steps=2)).job
t = job.training
assert (t.batch_size, t.max_steps, t.warmup_steps, t.learning_rate, t.max_length) == (4, 5, 2, 2e-5, 1024), t
assert '"peft_type": "LORA"' in job.adapter.peft_config, job
try:
    names.build("m", {}, None, SFTConfig(use_cpu=True, bf16=False, packing=True, neftune_noise_alpha=3, label_smoothing_factor=0.1))
    raise SystemExit("nothing was refused")
except lorad.InvalidError as error:
    assert {v.field for v in error.violations} == {"SFTConfig.packing", "SFTConfig.neftune_noise_alpha",
                                                   "SFTConfig.label_smoothing_factor"}, error
gone = {*sft.TAKEN, *sft.READ} - {f.name for f in dataclasses.fields(SFTConfig)}
print("names of older versions alone:", *sorted(gone))
"""
    needs = [path for path in python_package.NEEDS if path.name != "typing_extensions"]
    done = subprocess.run([python, "-c", script, FOLDER, *needs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    tell(f"    {done.stdout.strip()}")


def lines_of(data, columns=None):
    return b"".join(rows.json_lines(data, columns))


ROWS = [{"prompt": "2 + 2 =", "completion": " 4"}, {"prompt": "gr\u00fc\u00df \U0001f600", "completion": "a\nb"}]


# A frame of zstd's that holds no rows.
SKIPPED = b"\x5e\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"note"


def without(*names):
    """As if these modules were not installed."""
    return python_package.stand_ins(dict.fromkeys(names))


def test_rows_of_every_kind():
    want = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    (folder / "a.jsonl").write_bytes(want)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(want))
    (folder / "a.json").write_text(json.dumps(ROWS, indent=1))
    table = "\ufeffprompt,completion\n" + "".join('"{prompt}","{completion}"\n'.format(**row) for row in ROWS)
    (folder / "a.csv").write_text(table)
    (folder / "a.csv.gz").write_bytes(gzip.compress(table.encode()))
    (folder / "a.jsonl.zst").write_bytes(SKIPPED + zstd.compress(want[:10]) + zstd.compress(want[10:]))
    (folder / "a.csv.zst").write_bytes(zstd.compress(table.encode()))
    files = [folder / name for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.json", "a.csv", "a.csv.gz", "a.csv.zst")]
    for data in (ROWS, tuple(ROWS), iter(ROWS), *files, str(folder / "a.jsonl")):
        assert lines_of(data) == want, data
    renamed = {"prompt": "question", "completion": "answer"}
    theirs = [{"question": row["prompt"], "answer": row["completion"]} for row in ROWS]
    assert lines_of(theirs, renamed) == want
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in theirs))
    assert lines_of(folder / "b.jsonl", renamed) == want
    spool = rows.Spool(ROWS)
    assert spool.size == len(want) and spool.file.seek(0) == 0 and spool.file.read() == want
    spool.close()


def test_rows_that_are_wrong():
    for columns in (5, ["prompt"], {"prompt": 1}):
        assert "must be a mapping" in str(python_package.error_of(lorad.InvalidError, lines_of, ROWS, columns)), columns
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    for name, content, where, what in [
            ("ragged.csv", b"a,b\n1,2\n1\n", ":3", "1 fields, the header 2"),
            ("twice.csv", b"a,a\n1,2\n", ":1", "twice"),
            ("semicolons.csv", b"q;a\n1;2\n", ":1", "pandas.read_csv(path, sep=';')"),
            ("commas.tsv", b"q,a\n1,2\n", ":1", "between columns, not '\\t'"),
            ("empty.csv", b"", ":1", "no header"),
            ("nul.csv", b"a,b\n1,\0\n", ":2", ""),
            ("latin.csv", b"a,b\n\xff,1\n", ":2", "iconv -f LATIN1 -t UTF-8"),
            ("latin.json", b"[\"\xff\"]", "", "iconv -f LATIN1 -t UTF-8"),
            ("rows.arrow", b"ARROW1..", "", "read_feather"),
            ("utf16.jsonl", "{}".encode("utf-16"), "", "iconv -f UTF-16"),
            ("utf16.csv", "a,b\n1,2\n".encode("utf-16"), "", "iconv -f UTF-16"),
            ("rows.parquet.gz", gzip.compress(b"PAR1...."), "", "Parquet packed by gzip"),
            ("rows.parquet.zst", zstd.compress(b"PAR1...."), "", "unpack it with `zstd -d`"),
            ("rows.jsonl.zst", b"\x28\xb5\x2f\xfd....", "", "no whole zstd file"),
            ("cut.jsonl.zst", zstd.compress(b"{}\n" * 1000)[:-1], "", "ended before the end"),
            ("more.jsonl.zst", zstd.compress(b"{}\n") + b"xxxx", "", "no whole zstd file"),
            ("cut.json", b"[{}", "", "delimiter"),
            ("cut.jsonl.gz", gzip.compress(b"{}\n" * 1000)[:20], "", "no whole gzip file"),
            ("spoilt.jsonl.gz", gzip.compress(b"{}\n" * 1000)[:10] + b"\xff" * 10, "", "no whole gzip file"),
            ("numbers.json", b"[1]", "[0]", "mapping")]:
        path = folder / name
        path.write_bytes(content)
        found = violations_of(lines_of, path)
        ((field, said),) = found.items()
        assert field == f"{path}{where}" and what in said, found
    with without("compression.zstd", "backports.zstd", "pyarrow"):
        for name, content, what in (("lacking.zst", zstd.compress(b"{}"), "pip install backports.zstd"),
                                    ("lacking.parquet", b"PAR1....", "pip install pyarrow")):
            (folder / name).write_bytes(content)
            assert what in violations_of(lines_of, folder / name)[str(folder / name)], name
    (folder / "none.jsonl").write_bytes(b"")
    for none, where in (([], "data"), (iter(()), "data"), (folder / "none.jsonl", str(folder / "none.jsonl"))):
        assert violations_of(rows.Spool, none)[where].startswith("has no rows: give one"), where
    assert "data[1]" in violations_of(lines_of, [{}, {"x": float("nan")}])
    assert "data[0]" in violations_of(lines_of, ["text"]) and "data[0]" in violations_of(lines_of, [{"x": object()}])
    assert "no column 'q'" in violations_of(lines_of, [{"a": 1}], {"prompt": "q"})["data[0]"]
    assert "one name" in violations_of(lines_of, [{"q": 1, "prompt": 2}], {"prompt": "q"})["data[0]"]
    assert "'train'" in violations_of(lines_of, {"train": ROWS})["data"]
    assert "no file" in violations_of(lines_of, folder / "gone.jsonl")["data"]
    assert "int" in violations_of(lines_of, 3)["data"]
    assert "is empty" in violations_of(lines_of, "")["data"]
    series = types.SimpleNamespace(iloc=None, to_dict=dict)  # of pandas, whose texts are no rows
    assert "got SimpleNamespace" in violations_of(lines_of, series)["data"]


def test_rows_of_datasets_and_pandas():
    python = python_package.references()
    script = """
import json, pathlib, sys, tempfile; sys.path.append(sys.argv[1]); sys.path += sys.argv[2:]
import datasets, pandas, numpy
from lorad import rows
def lines(data): return b"".join(rows.json_lines(data)).decode()
def text(rows): return "".join(json.dumps(row) + "\\n" for row in rows)
plain = [{"prompt": "2 + 2 =", "completion": " 4"}, {"prompt": "x", "completion": "y"}]
chat = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 1}]}]
tokens = [{"input_ids": [1, 2], "labels": [-100, 2]}]
holes = [{"instruction": "a", "output": "b", "input": None}, {"instruction": "c", "output": "d", "input": "e"}]
whole = [{k: v for k, v in row.items() if v is not None} for row in holes]
for given, want in ((plain, plain), (chat, chat), (tokens, tokens), (holes, whole)):
    assert lines(datasets.Dataset.from_list(given)) == text(want), lines(datasets.Dataset.from_list(given))
    assert lines(pandas.DataFrame(given)) == text(want), lines(pandas.DataFrame(given))
assert lines(datasets.Dataset.from_list(plain).to_iterable_dataset()) == text(plain)
assert lines(datasets.Dataset.from_list(tokens).with_format("numpy")) == text(tokens)
assert lines(pandas.DataFrame({"input_ids": [numpy.array([1, 2])], "labels": [numpy.array([-100, 2])]})) == text(tokens)
assert lines(pandas.DataFrame({"a": range(2500)})).count("\\n") == 2500
folder = pathlib.Path(tempfile.mkdtemp())
def parquet(rows, **how):
    datasets.Dataset.from_list(rows).to_parquet(folder / "rows.bin", **how)  # told by its bytes, not by its name
    return folder / "rows.bin"
for given, want in ((plain, plain), (chat, chat), (tokens, tokens), (holes, whole)):
    assert lines(parquet(given)) == text(want), lines(parquet(given))
many = [{"prompt": str(i), "completion": "x"} for i in range(2500)]
assert lines(parquet(many, batch_size=700)) == text(many)
assert b"".join(rows.json_lines(parquet(many), {"question": "prompt"})).decode().count('"question"') == 2500
pandas.DataFrame(plain).to_parquet(folder / "of_pandas.parquet")
assert lines(folder / "of_pandas.parquet") == text(plain)
def error_of(path):
    try: lines(path)
    except ValueError as error: return str(error)
    raise SystemExit(f"{path} was taken")
whole_file = parquet(many).read_bytes()
for cut in (whole_file[:-9], b"PAR1....", whole_file[:100] + b"x" * 400 + whole_file[500:]):
    (folder / "cut.parquet").write_bytes(cut)
    assert "cut.parquet: is no whole Parquet file: " in error_of(folder / "cut.parquet"), error_of(folder / "cut.parquet")
pandas.DataFrame({"prompt": ["a"], "completion": pandas.to_datetime(["2026-01-01"])}).to_parquet(folder / "dates.parquet")
assert "dates.parquet[0]: a datetime has no JSON" in error_of(folder / "dates.parquet").replace("Timestamp", "datetime"), error_of(folder / "dates.parquet")
from lorad.tables import Table
frame = Table(["step", "loss"], [{"step": 1, "loss": 2.0}]).to_pandas()
assert list(frame.columns) == ["step", "loss"] and frame.loss[0] == 2.0
"""
    needs = [path for path in python_package.NEEDS if path.name != "typing_extensions"]
    done = subprocess.run([python, "-c", script, FOLDER, *needs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tables():
    table = lorad.Table(["step", "loss"], [{"step": 1, "loss": 2.0}, {"step": 10, "loss": 1.23456789}])
    assert str(table) == "step     loss\n   1        2\n  10  1.23457", str(table)
    assert table.column("step") == [1, 10] and len(table) == 2 and table[0]["loss"] == 2.0


def test_the_wheel():
    wanted = {"lorad/py.typed", "lorad/v1/jobs_pb2.py", "lorad/v1/jobs_pb2.pyi", "lorad/v1/jobs_pb2_grpc.py"}
    record = next(FOLDER.glob("lorad-*.dist-info/RECORD")).read_text()
    files = {str(p.relative_to(FOLDER)) for p in FOLDER.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert files == {line.split(",")[0] for line in record.splitlines()} and wanted <= files, files
    assert f"\nVersion: {lorad.__version__}\n" in next(FOLDER.glob("lorad-*.dist-info/METADATA")).read_text()
    text = (python_package.CHECKOUT / "client/main.cc").read_text()
    assert f'kVersion[] = "{lorad.__version__}"' in text, "the package and the command line are of two versions"


if __name__ == "__main__":
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
