"""Everything a user can get wrong: one clear error each, exit status 1, and nothing that was stored before is lost."""

import array
import json
import os
import random
import re
import shutil
import struct
import subprocess

from formats import read_safetensors, token_rows, write_model, write_safetensors
from house import Failure, House, LORA, LORAD, WORKER, Skipped, main, tell

# One line, then a line for each violation. A reason is UPPER_SNAKE, the message says something.
ERROR = re.compile(r"error: [A-Z][A-Z_]+: \S.{10,}\n(  .+\n)*")


def refused(house, what, wanted, *command, status=1):
    """The command must fail with one clear error that matches `wanted`."""
    result = house.run(*command)
    problem = None
    if result.status != status:
        problem = f"exit status {result.status}, not {status}"
    elif not ERROR.fullmatch(result.err):
        problem = "not one clear error"
    elif not re.search(wanted, result.err):
        problem = f"does not say {wanted!r}"
    if problem:
        raise Failure(f"{what}: {problem}\n{result}")
    tell(f"    {what}: {result.err.strip()[:170]}")


def all_of(house, cases):
    """Runs [(what, wanted, command...)] and names every case that fails, not only the first."""
    failures = []
    for what, wanted, *command in cases:
        try:
            refused(house, what, wanted, *command)
        except Failure as failure:
            failures.append(str(failure))
    if failures:
        raise Failure(f"{len(failures)} of {len(cases)}:\n" + "\n".join(failures))


def stored(house):
    """All that was acknowledged."""
    return [sorted(json.dumps(o, sort_keys=True) for o in house.objects(*kind))
            for kind in (["model", "ls"], ["dataset", "ls"], ["adapter", "ls"])]


def a_model(house, name, change):
    """A copy of the good model with something wrong; returns its directory."""
    directory = house.folder / "models" / name
    shutil.copytree(house.folder / "model", directory)
    change(directory)
    return directory


def config(**fields):
    def change(directory):
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return change


def text(file, old, new):
    def change(directory):
        path = directory / file
        content = path.read_text()
        assert old in content, (file, old)
        path.write_text(content.replace(old, new))
    return change


def index(weight_map):
    def change(directory):
        (directory / "model.safetensors").unlink()
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return change


def template(jinja):
    def change(directory):
        path = directory / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": jinja}))
    return change


def header(edit):
    """Rewrites the header of the safetensors file, leaving the bytes."""
    def change(directory):
        path = directory / "model.safetensors"
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        new = edit(data[8:8 + length].decode()).encode()
        path.write_bytes(struct.pack("<Q", len(new)) + new + data[8 + length:])
    return change


def json_header(edit):
    def change(content):
        parsed = json.loads(content)
        edit(parsed)
        return json.dumps(parsed)
    return header(change)


def raw(edit):
    def change(directory):
        path = directory / "model.safetensors"
        path.write_bytes(edit(path.read_bytes()))
    return change


def tensors(edit):
    def change(directory):
        path = directory / "model.safetensors"
        found = read_safetensors(path)
        edit(found)
        write_safetensors(path, found)
    return change


NORM = "model.norm.weight"


def overlap(parsed):
    begin, end = parsed[NORM]["data_offsets"]
    parsed[NORM]["data_offsets"] = [begin - 4, end - 4]


BAD_MODELS = [
    ("header longer than the file", "model.safetensors", raw(lambda b: struct.pack("<Q", len(b) * 2) + b[8:])),
    ("header over the limit", "model.safetensors", raw(lambda b: struct.pack("<Q", 1 << 40) + b[8:])),
    ("header that is not JSON", "model.safetensors", header(lambda t: t[:-2])),
    ("overlapping bytes", "model.norm.weight|overlap", json_header(overlap)),
    ("missing bytes", "model.safetensors", raw(lambda b: b[:-64])),
    ("surplus bytes", "model.safetensors", raw(lambda b: b + b"\0" * 64)),
    ("unknown type", "F99", json_header(lambda p: p[NORM].update(dtype="F99"))),
    ("a type that weights cannot have", "I64|I32", json_header(lambda p: p[NORM].update(dtype="I32"))),
    ("missing tensor", "model.norm.weight", tensors(lambda t: t.pop(NORM))),
    ("surplus tensor", "model.extra.weight", tensors(lambda t: t.update({"model.extra.weight": ([2], array.array("f", [1, 2]))}))),
    ("wrong shape", "model.norm.weight", tensors(lambda t: t.update({NORM: ([16, 2], t[NORM][1])}))),
    ("duplicate key", "twice|duplicate", header(lambda t: t.replace('{"', '{"' + NORM + '": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "', 1))),
    ("no weights", "safetensors", lambda d: (d / "model.safetensors").unlink()),
    ("no config", "config.json", lambda d: (d / "config.json").unlink()),
    ("config that is not JSON", "config.json: not JSON: parse error at line 2, column", text("config.json", "{", "[")),
    ("config that nests too deep", "config.json: nested deeper", text("config.json", '"silu"', "[" * 200000 + "]" * 200000)),
    ("tokenizer that nests too deep", "tokenizer.json: nested deeper", text("tokenizer.json", '"merges"', '"deep": ' + "[" * 200000 + "]" * 200000 + ', "merges"')),
    ("an index that names a missing file", "model-1.safetensors.*not there", index({"model.norm.weight": "model-1.safetensors"})),
    ("config is a directory", "MODEL_INVALID.*config.json", lambda d: ((d / "config.json").unlink(), (d / "config.json").mkdir())),
    ("unknown architecture", "MambaForCausalLM", config(architectures=["MambaForCausalLM"], model_type="mamba")),
    ("a mixture of experts", "MixtralForCausalLM.*mixtures of experts", config(architectures=["MixtralForCausalLM"], model_type="mixtral")),
    ("a dynamic rope", "\"dynamic\" is not implemented .default, linear", config(rope_scaling={"rope_type": "dynamic", "factor": 4.0})),
    ("exact GELU", "gelu.*gelu_pytorch_tanh", config(hidden_act="gelu")),
    ("a window of 0", "sliding_window is 0", config(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=0)),
    ("a window where there is none", "has no window", config(sliding_window=8)),
    ("a list of kinds that is too short", "layer_types has 1 entries", config(layer_types=["full_attention"])),
    ("attention to both sides", "use_bidirectional_attention", config(use_bidirectional_attention=True)),
    ("quantized weights", "quantization", config(quantization_config={"quant_method": "gptq"})),
    ("heads that do not divide", "num_key_value_heads|num_attention_heads", config(num_attention_heads=3, num_key_value_heads=2)),
    ("tokenizer: unknown model", "WordPiece", text("tokenizer.json", '"type": "BPE"', '"type": "WordPiece"')),
    ("tokenizer: unknown pre-tokenizer", "Metaspaces|BertPre", text("tokenizer.json", '"type": "Digits"', '"type": "BertPreTokenizer"')),
    ("tokenizer: not JSON", "tokenizer.json", text("tokenizer.json", '"version"', 'version')),
    ("tokenizer: an end-of-text token that is not there", "tokenizer_config.json: eos_token \"<nope>\"",
     text("tokenizer_config.json", '"eos_token": "<|im_end|>"', '"eos_token": "<nope>"')),
    ("template: unknown construct", "call", template("{% call f() %}x{% endcall %}{{ messages }}")),
    ("template: unknown filter", "frobnicate", template("{{ messages | frobnicate }}")),
    ("template: not closed", "chat.template|endfor|template", template("{% for m in messages %}{{ m }}")),
]


def test_models():
    with House(None, "--workers", "none") as house:
        write_model(house.folder / "model", tokenizer=True)
        house.lora("model", "add", "good", "--path", house.folder / "model")
        before = stored(house)
        cases = [(f"model: {what}", wanted, "model", "add", "bad", "--path", a_model(house, f"m{i}", change))
                 for i, (what, wanted, change) in enumerate(BAD_MODELS)]
        cases += [("model: no such directory", "nowhere", "model", "add", "bad", "--path", house.folder / "nowhere"),
                  ("model: an empty path", "path: must be given", "model", "add", "bad", "--path", ""),
                  ("model: bad name", "name", "model", "add", "Bad Name!", "--path", house.folder / "model"),
                  ("model: the name is taken", "good", "model", "add", "good", "--path", a_model(house, "other", lambda d: None)),
                  ("model: unknown", "nobody", "model", "show", "nobody"), ("model: rm unknown", "nobody", "model", "rm", "nobody"),
                  ("model: update unknown", "nobody", "model", "update", "nobody", "--stages", 2),
                  ("model: too many stages", "stages.*must be from 1 to", "model", "add", "many", "--path", house.folder / "model", "--stages", 99)]
        all_of(house, cases)
        assert stored(house) == before
    house.clear()


GOOD_TOKENS = '{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}\n'
GOOD_ROW = '{"text": "one two three"}\n'
BAD_DATASETS = [
    ("bad UTF-8", "line 2.*UTF-8|UTF-8.*line 2", GOOD_ROW.encode() + b'{"text": "\xff\xfe"}\n'),
    ("bad JSON", r"line 2.*column|line 2, ", GOOD_ROW + '{"text": "a",, }\n'),
    ("a row that is no object", "line 1", "[1, 2]\n"),
    ("unknown format", "line 1|format", '{"words": "a"}\n'),
    ("two formats", "line 2", GOOD_ROW + '{"prompt": "a", "completion": "b"}\n'),
    ("empty", "empty|no rows", ""),
    ("row over the limit", "line 2", GOOD_ROW + '{"text": "' + "x" * (64 << 20) + '"}\n'),
    ("nesting over the limit", "line 1", '{"messages": ' + "[" * 5000 + "]" * 5000 + "}\n"),
    ("labels of another length", "line 1", '{"input_ids": [5, 6, 7], "labels": [5, 6]}\n'),
    ("ids that are no integers", "line 1", '{"input_ids": [5.5], "labels": [1]}\n'),
    ("messages without a role", "line 1", '{"messages": [{"content": "a"}]}\n'),
]


def test_datasets():
    with House(None, "--workers", "none") as house:
        write_model(house.folder / "model", tokenizer=True)
        house.lora("model", "add", "good", "--path", house.folder / "model")
        house.add_dataset("good", [{"text": "one"}])
        before = stored(house)
        cases = []
        for i, (what, wanted, content) in enumerate(BAD_DATASETS):
            path = house.folder / f"bad{i}.jsonl"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            cases.append((f"dataset: {what}", wanted, "dataset", "add", f"bad-{i}", path))
        good = house.folder / "good.jsonl"
        cases += [("dataset: no such file", "nowhere", "dataset", "add", "bad", house.folder / "nowhere"),
                  ("dataset: a directory", "file", "dataset", "add", "bad", house.folder),
                  ("dataset: the name is taken", "good", "dataset", "add", "good", good),
                  ("dataset: bad name", "name", "dataset", "add", "UPPER", good),
                  ("dataset: unknown", "nobody", "dataset", "show", "nobody"),
                  ("validate: unknown model", "nobody", "dataset", "validate", good, "--model", "nobody")]
        rejected = house.folder / "rejected.jsonl"
        rejected.write_text('{"messages": [{"role": "user", "content": "only a question"}]}\n')
        cases.append(("validate: a conversation without an answer", "line 1", "dataset", "validate", rejected, "--model", "good"))
        ids = house.folder / "ids.jsonl"
        ids.write_text('{"input_ids": [5, 100000], "labels": [5, 6]}\n')
        untrained = house.folder / "untrained.jsonl"
        untrained.write_text(GOOD_TOKENS + '{"input_ids": [5, 6, 7], "labels": [-100, -100, -100]}\n')
        cases.append(("validate: no trained token", "line 2", "dataset", "validate", untrained, "--model", "good"))
        cases.append(("validate: an id beyond the vocabulary", "line 1", "dataset", "validate", ids, "--model", "good"))
        all_of(house, cases)
        assert stored(house) == before
    house.clear()


def test_templates_that_misbehave():
    """Found only when rows are rendered: an endless loop, and a template that refuses the conversation."""
    with House(None, "--workers", "none") as house:
        write_model(house.folder / "model", tokenizer=True)
        rows = house.folder / "rows.jsonl"
        rows.write_text('{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}\n')
        endless = ("{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{{ a }}"
                   "{% endfor %}{% endfor %}{% endfor %}")
        wary = "{{ raise_exception('only even conversations please') }}"
        for name, jinja in (("endless", endless), ("wary", wary)):
            added = house.run("model", "add", name, "--path", a_model(house, name, template(jinja)))
            if added.status != 0:  # refused at once is as good
                assert ERROR.fullmatch(added.err), added
                continue
            refused(house, f"template: {name}", "line 1" if name == "endless" else "even conversations", "dataset", "validate", rows, "--model", name)
    house.clear()


FIELDS = [
    ("adapter.rank", -1), ("adapter.rank", 513), ("adapter.alpha", 0), ("adapter.alpha", -1), ("adapter.dropout", 1.0),
    ("adapter.dropout", 0.99999998), ("adapter.alpha", 1e-320), ("training.eps", 1e-320), ("display_name", "\u009b31mred"),
    ("adapter.dropout", -0.1), ("adapter.target_modules", ["q_proj", "nonsense"]), ("adapter.target_modules", ["q_proj", "q_proj"]),
    ("adapter.init_from", "nobody"), ("training.epochs", 0), ("training.max_steps", -2), ("training.batch_size", 0),
    ("training.max_length", 0), ("training.max_length", 1 << 20), ("training.learning_rate", -1.0), ("training.warmup_steps", -1),
    ("training.weight_decay", -0.5), ("training.beta1", 1.0), ("training.beta2", -0.1), ("training.eps", 0.0),
    ("training.max_grad_norm", -1.0), ("training.checkpoint_every_steps", -1),
    ("training.checkpoint_keep_last", -1), ("training.checkpoint_keep_best", 1), ("training.eval_every_steps", -1), ("priority", 101),
    ("base_model", "nobody"), ("training_dataset", "nobody"), ("validation_dataset", "nobody"), ("base_model", ""),
    ("display_name", "x" * 10000), ("labels.team", "y" * 10000),
]


def with_field(job, path, value):
    job = json.loads(json.dumps(job))
    *parents, last = path.split(".")
    place = job
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return job


def test_jobs():
    with House(None, "--workers", "none") as house:
        write_model(house.folder / "model")
        house.lora("model", "add", "good", "--path", house.folder / "model")
        house.add_dataset("rows", token_rows(random.Random(1), 5, longest=100))
        house.add_dataset("text", [{"text": "this model has no tokenizer"}])
        job = {"base_model": "good", "training_dataset": "rows", "adapter": {"rank": 4}, "training": {"max_steps": 2, "max_length": 512}}
        cases = []
        for i, (field, value) in enumerate(FIELDS):
            path = house.folder / f"job{i}.json"
            path.write_text(json.dumps(with_field(job, field, value)))
            cases.append((f"job: {field} = {str(value)[:20]}", re.escape(field) if not field.startswith("labels") else "labels", "submit", "-f", path))
        both = house.folder / "both.json"
        both.write_text(json.dumps(with_field(with_field(with_field(job, "adapter.rank", 600), "training.epochs", 0), "base_model", "nobody")))
        cases.append(("job: all violations at once", r"(?s)(?=.*\n  adapter\.rank: )(?=.*\n  training\.epochs: )(?=.*\n  base_model: )", "submit", "-f", both))
        unread = house.folder / "unread.json"
        unread.write_text("{")
        deep = house.folder / "deep.json"
        deep.write_text('{"labels": ' + "[" * 200000 + "]" * 200000 + "}")
        yaml, toml = house.folder / "list.yaml", house.folder / "twice.toml"
        yaml.write_text("- base_model: good\n")
        toml.write_text('base_model = "good"\nbase_model = "good"\n')
        for command in ("submit", "estimate"):
            cases += [(f"job: {command} YAML that is a list", "BAD_JOB_FILE.*line 1, column 1: .*not a list", command, "-f", yaml),
                      (f"job: {command} TOML with a key twice", "BAD_JOB_FILE.*line 2, column", command, "-f", toml),
                      (f"job: {command} YAML taken for JSON", "BAD_JOB_FILE.*not JSON", command, "-f", yaml, "--format", "json")]
        cases += [("job: not JSON", "line 1, column", "submit", "-f", unread), ("job: nests too deep", "line 1: nested deeper", "submit", "-f", deep), ("job: no such file", "nowhere", "submit", "-f", "nowhere"),
                  ("job: unknown", "job-nobody", "show", "job-nobody"), ("job: cancel unknown", "job-nobody", "cancel", "job-nobody"),
                  ("job: metrics of unknown", "job-nobody", "metrics", "job-nobody"), ("job: events of unknown", "job-nobody", "events", "job-nobody"),
                  ("job: watch unknown", "job-nobody", "watch", "job-nobody", "--until-done"), ("job: bad filter", "filter", "ls", "--filter", "colour = RED"),
                  ("checkpoint: unknown job", "job-nobody", "checkpoint", "get", "job-nobody", "-o", house.folder / "out")]
        all_of(house, cases)
        assert house.objects("ls") == []
        for command in ("submit", "estimate"):
            refused(house, f"job: {command} of an unknown format", "USAGE.*json, yaml or toml", command, "-f", yaml, "--format", "xml", status=2)
        refused(house, "usage: a word that is near a command", "no such command: lora wach; did you mean `lora watch`\\?", "wach", status=2)
        refused(house, "usage: a group without a command", "a command is missing; see `lora dataset --help`", "dataset", status=2)
        for status, reason, command in ((1, "INVALID_FIELDS", ["submit", "-f", both]), (1, "JOB_NOT_FOUND", ["show", "job-aaaaaaaa"]), (2, "USAGE", ["wach"])):
            result = house.run(*command, "--json")
            error = json.loads(result.err)["error"]
            if (result.status, error["reason"], result.out) != (status, reason, "") or (command[-1] == both and len(error["violations"]) < 3):
                raise Failure(f"errors under --json: {command}\n{result}")
        for command in (["submit"], ["frobnicate"], ["ls", "--frobnicate"], ["dataset"], ["metrics", "a", "--after-step", "x"]):
            refused(house, f"usage: lora {' '.join(command)}", "USAGE", *command, status=2)
    house.clear()


def test_jobs_found_bad_later():
    """Rows that only the model can judge, shapes that do not fit, memory that never can."""
    with House(None, "--workers", "cpu:1") as house:
        write_model(house.folder / "model")
        house.lora("model", "add", "good", "--path", house.folder / "model")
        house.add_dataset("text", [{"text": "this model has no tokenizer"}])
        house.add_dataset("ids", [{"input_ids": [5, 6], "labels": [5, 6]}, {"input_ids": [5, 100000], "labels": [5, 6]}])
        house.add_dataset("long", [{"input_ids": [5] * 100, "labels": [5] * 100}])
        house.add_dataset("rows", token_rows(random.Random(1), 5, longest=100))
        for dataset, wanted, training in (("text", "tokenizer", {}), ("ids", "vocabulary|100000", {}), ("long", "max_length|64|long", {"max_length": 64, "overflow": "ERROR"})):
            path = house.folder / "later.json"
            path.write_text(json.dumps({"base_model": "good", "training_dataset": dataset, "training": {"max_length": 512, "max_steps": 1, **training}}))
            refused(house, f"rows: {dataset}, asked for beforehand", wanted, "submit", "-f", path, "--validate-only")
            result = house.run("submit", "-f", path)
            if result.status == 0:  # acknowledged before its rows were checked: then it fails with the row
                (job,) = house.wait([result.out.strip()], state="FAILED")
                assert job["error"]["category"] == "USER" and re.search(wanted, job["error"]["message"]), job["error"]
                watched = house.run("watch", "--until-done", job["name"])
                assert watched.status == 1, watched
        job = house.submit({"base_model": "good", "training_dataset": "rows", "adapter": {"rank": 4}, "training": {"max_steps": 1, "max_length": 512}})
        house.wait([job])
        adapter = house.adapter(job)
        other = write_model(house.folder / "other", hidden=48, heads=3)
        house.lora("model", "add", "other", "--path", other)
        house.lora("adapter", "import", "start", "--path", adapter)
        unfit = house.folder / "unfit.json"
        unfit.write_text(json.dumps({"base_model": "other", "training_dataset": "rows", "adapter": {"rank": 4, "init_from": "start"}, "training": {"max_steps": 1, "max_length": 512}}))
        refused(house, "init_from whose shapes do not fit", "shape|fit|start", "submit", "-f", unfit)

        broken = house.folder / "broken"
        shutil.copytree(adapter, broken)
        (broken / "adapter_model.safetensors").write_bytes((adapter / "adapter_model.safetensors").read_bytes()[:-10])
        dora = house.folder / "dora"
        shutil.copytree(adapter, dora)
        config_path = dora / "adapter_config.json"
        config_path.write_text(json.dumps({**json.loads(config_path.read_text()), "use_dora": True}))
        deep = house.folder / "deep"
        shutil.copytree(adapter, deep)
        deep_config = (deep / "adapter_config.json").read_text()
        (deep / "adapter_config.json").write_text('{"deep": ' + "[" * 200000 + "]" * 200000 + ", " + deep_config.lstrip()[1:])
        all_of(house, [("adapter: cut off", "adapter_model.safetensors", "adapter", "import", "b", "--path", broken),
                       ("adapter: nests too deep", ": adapter_config.json: nested deeper", "adapter", "import", "x", "--path", deep),
                       ("adapter: an option that is not there", ": adapter_config.json: use_dora", "adapter", "import", "d", "--path", dora),
                       ("adapter: no such directory", "adapter_config.json", "adapter", "import", "n", "--path", house.folder / "nowhere"),
                       ("adapter: the name is taken", "start", "adapter", "import", "start", "--path", adapter)])
    house.clear()
    with House(None, "--workers", "cpu:1", "--worker-memory", str(8 << 20)) as house:
        write_model(house.folder / "model")
        house.lora("model", "add", "good", "--path", house.folder / "model")
        house.add_dataset("rows", token_rows(random.Random(1), 5, longest=900))
        house.wait_for_worker()
        path = house.folder / "big.json"
        path.write_text(json.dumps({"base_model": "good", "training_dataset": "rows", "adapter": {"rank": 512}, "training": {"max_steps": 1, "max_length": 1024}}))
        result = house.run("submit", "-f", path)
        if result.status == 0:
            (job,) = house.wait([result.out.strip()], state="FAILED")
            assert re.search("memory", job["error"]["message"]), job["error"]
        else:
            assert ERROR.fullmatch(result.err) and "memory" in result.err, result
    house.clear()


def test_what_is_in_use_stays():
    with House(None, "--workers", "none") as house:
        write_model(house.folder / "model")
        house.lora("model", "add", "good", "--path", house.folder / "model")
        house.add_dataset("rows", token_rows(random.Random(1), 5, longest=100))
        name = house.submit({"base_model": "good", "training_dataset": "rows", "training": {"max_steps": 1, "max_length": 512}})
        all_of(house, [("model in use", "IN_USE|in use|uses", "model", "rm", "good"), ("dataset in use", "IN_USE|in use|uses", "dataset", "rm", "rows"),
                       ("job that is live", "JOB_LIVE|live|cancel", "rm", name)])
        house.lora("cancel", name)
        house.wait([name], state="CANCELLED")
        house.lora("rm", name)
        house.lora("dataset", "rm", "rows")
        house.lora("model", "rm", "good")
        assert stored(house) == [[], [], []]
    house.clear()


def test_the_same_request_twice():
    with House(None, "--workers", "none") as house:
        write_model(house.folder / "model")
        house.lora("model", "add", "good", "--path", house.folder / "model")
        house.add_dataset("rows", token_rows(random.Random(1), 5, longest=100))
        job = {"base_model": "good", "training_dataset": "rows", "training": {"max_steps": 1, "max_length": 512}}
        path = house.folder / "job.json"
        path.write_text(json.dumps(job))
        first = house.lora("submit", "-f", path, "--request-id", "once").out
        house.stop()
        house.start()
        assert house.lora("submit", "-f", path, "--request-id", "once").out == first
        path.write_text(json.dumps({**job, "priority": 5}))
        refused(house, "the same request_id, other content", "REQUEST_ID_REUSED", "submit", "-f", path, "--request-id", "once")
        assert len(house.objects("ls")) == 1
    house.clear()


def test_second_daemon_and_taken_port():
    with House(None, "--workers", "none") as house:
        house.add_dataset("rows", [{"text": "one"}])

        def start(*options):
            return subprocess.run([LORAD, "serve", "--workers", "none", *options], capture_output=True, text=True, timeout=60)

        second = start("--data-dir", str(house.data_dir), "--listen", "127.0.0.1:0")
        assert second.returncode == 1 and ERROR.search(second.stderr) and "lorad listening" not in second.stdout, second
        tell(f"    second daemon: {second.stderr.strip()[-170:]}")
        taken = start("--data-dir", str(house.folder / "other"), "--listen", house.address)
        assert taken.returncode == 1 and ERROR.search(taken.stderr) and house.address.split(":")[1] in taken.stderr, taken
        tell(f"    taken port: {taken.stderr.strip()[-170:]}")
        open_bind = start("--data-dir", str(house.folder / "other"), "--listen", "0.0.0.0:0")
        assert open_bind.returncode == 1 and ERROR.search(open_bind.stderr), open_bind
        tell(f"    a bind beyond loopback: {open_bind.stderr.strip()[-170:]}")
        assert len(house.objects("dataset", "ls")) == 1

        no_folder = start("--data-dir", str(house.log_path), "--listen", "127.0.0.1:0")
        assert no_folder.returncode == 1 and "error: DATA_DIR_INVALID: " in no_folder.stderr, no_folder
        wrong = start("--data-dir", str(house.folder / "other"), "--microbatch-tokens", "1")
        assert wrong.returncode == 2 and ERROR.fullmatch(wrong.stderr) and "USAGE" in wrong.stderr, wrong
        wrong = start("--data-dir", str(house.folder / "other"), "--points-per-hour", "3601")
        assert wrong.returncode == 2 and "USAGE: --points-per-hour: must be from 0 to 3600, got 3601" in wrong.stderr, wrong
        assert "--points-per-hour POINTS:FLOAT in [0 - 3600]=1\n" in start("--help").stdout
        for seconds in ("0.5", "-1", "2592001", "a minute", ""):
            wrong = start("--data-dir", str(house.folder / "other"), "--minimum-run", seconds)
            said = f"USAGE: --minimum-run: must be a whole number from 0 to 2592000, got {seconds}"
            assert wrong.returncode == 2 and said in wrong.stderr, wrong
        assert "--minimum-run SECONDS:INT in [0 - 2592000]=900\n" in start("--help").stdout
        for key in ("Team", "a b", "", "x" * 64):
            wrong = start("--data-dir", str(house.folder / "other"), "--share-label", key)
            assert wrong.returncode == 2 and re.search("USAGE: --share-label: keys must ", wrong.stderr), (key, wrong)
    house.clear()


def test_options_and_names():
    """Nonsense is refused by whoever is told it, with what is the least and why."""
    with House(None, "--workers", "none") as house:
        for server in ("", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0"):
            said = subprocess.run([LORA, "--server", server, "cluster"], capture_output=True, text=True, timeout=60)
            assert said.returncode == 2 and re.search("USAGE: .*HOST:PORT.*1 to 65535", said.stderr), said
        for command in (["show"], ["watch"], ["dataset", "rm"], ["events"]):
            refused(house, f"{command[0]} of what is no text", r"INVALID_ARGUMENT: .*UTF-8.*a\ufffdb", *command, os.fsdecode(b"a\xffb"))
        for options in (["--memory", "0"], ["--memory", "1KiB"]):
            said = subprocess.run([WORKER, "--coordinator", house.address, *options], capture_output=True, text=True, timeout=60)
            assert said.returncode == 2 and "at least 1MiB" in said.stderr and ERROR.fullmatch(said.stderr), said
        for name in ("two words", "a\nb", "\x1b[31m", "x" * 64):
            said = subprocess.run([WORKER, "--coordinator", house.address, "--name", name], capture_output=True, text=True, timeout=60)
            assert said.returncode == 1 and re.search(r"[Hh]ello\.worker must", said.stderr), said
        assert house.objects("worker", "ls") == []
        little = subprocess.run([LORAD, "serve", "--data-dir", str(house.folder / "other"), "--listen", "127.0.0.1:0", "--worker-memory", "1"],
                                capture_output=True, text=True, timeout=60)
        assert little.returncode != 0 and "error: WORKER_MEMORY_TOO_SMALL: " in little.stderr and "at least 1MiB" in little.stderr, little
    house.clear()


def test_store_that_is_gone():
    """Started over, an empty store would make leftovers of all datasets and checkpoints, and remove them."""
    with House(None, "--workers", "none") as house:
        house.add_dataset("rows", [{"text": "one"}])
        house.kill()
        files = {file: file.read_bytes() for file in house.data_dir.glob("lorad.sqlite*")}
        store = house.data_dir / "lorad.sqlite"
        assert len(files[house.data_dir / "lorad.sqlite-wal"]) > 0  # which alone is no store either
        for empty, left in ((False, ()), (True, ()), (False, files), (True, files)):
            for file, content in files.items():
                file.write_bytes(content) if file in left else file.unlink(missing_ok=True)
            store.write_bytes(b"") if empty else store.unlink(missing_ok=True)
            started = subprocess.run(list(map(str, house.command())), capture_output=True, text=True, timeout=60)
            assert started.returncode == 1 and re.search("error: STORE_MISSING: .*lorad.sqlite", started.stderr), started
            assert len(list((house.data_dir / "datasets").iterdir())) == 1
            assert all(file == store or file.read_bytes() == files[file] for file in left), left
        tell(f"    {started.stderr.strip()[-250:]}")
        for file, content in files.items():
            file.write_bytes(content)
        house.start()
        assert len(house.objects("dataset", "ls")) == 1
    house.clear()


def test_client_gone_in_mid_stream():
    """An upload whose client is killed leaves nothing behind, and the name is free."""
    with House(None, "--workers", "none") as house:
        fifo = house.folder / "slow.jsonl"
        os.mkfifo(fifo)
        client = subprocess.Popen([LORA, "--server", house.address, "dataset", "add", "rows", fifo], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with open(fifo, "wb", buffering=0) as pipe:
            pipe.write(GOOD_ROW.encode() * 50000)
            client.kill()
            client.wait()
        assert house.objects("dataset", "ls") == []
        house.add_dataset("rows", [{"text": "one"}])
    house.clear()


def test_full_disk_in_mid_upload():
    """On a file system of 6 MiB of its own: one clear error, nothing half there, and it goes on once there is room."""
    house = House()
    mount = house.folder / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "lorad-e2e", mount], capture_output=True).returncode != 0:
        house.clear()
        raise Skipped("may not mount here")
    try:
        with House(mount, "--workers", "none") as small:
            small.add_dataset("first", [{"text": "one"}])
            before = stored(small)
            big = house.folder / "big.jsonl"
            big.write_text(GOOD_ROW * 400000)
            refused(small, "full disk", "(?i)space|disk|full|room", "dataset", "add", "big", big)
            assert stored(small) == before
            small.add_dataset("second", [{"text": "two"}])
            small.stop()
            small.start()
            assert len(small.objects("dataset", "ls")) == 2
    finally:
        subprocess.run(["umount", mount], check=True)
    house.clear()


if __name__ == "__main__":
    main([test_models, test_datasets, test_templates_that_misbehave, test_jobs, test_jobs_found_bad_later, test_what_is_in_use_stays,
          test_the_same_request_twice, test_second_daemon_and_taken_port, test_options_and_names,
          test_store_that_is_gone, test_client_gone_in_mid_stream, test_full_disk_in_mid_upload])
