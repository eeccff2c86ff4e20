"""The Python package against a daemon: from rows to an adapter, through restarts, with everybody's objects.

usage: python_test.py [TEST...]
"""

import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import types

import python_package
from formats import read_safetensors, write_model
from house import House, ROOT, Skipped, main, tell

FOLDER = python_package.load()

import lorad  # noqa: E402

ROWS = [{"prompt": f"{a} + {b} =", "completion": f" {a + b}"} for a in range(4) for b in range(4)]
STEPS = 4000  # of a job that outlives its daemon twice
SMALL = {"batch_size": 2, "max_length": 64}
NOTEBOOK = ROOT / "examples/python/first_adapter.ipynb"


@contextlib.contextmanager
def house_with_model(*options):
    with House(None, "--workers", "cpu:1", *options) as house:
        model = write_model(house.folder / "models/smollm2-135m", tokenizer=True)
        with lorad.connect(house.address) as client:
            client.models.add("smollm2-135m", model)
            yield house, client
    house.clear()


class Record(lorad.Callback):
    """What a callback was told."""
    def __init__(self):
        self.steps, self.evaluations, self.begun, self.ended = [], [], 0, 0

    def on_begin(self, job):
        self.begun += 1

    def on_step(self, job, metrics):
        self.steps.append(metrics)

    def on_evaluation(self, job, metrics):
        self.evaluations.append(metrics)

    def on_end(self, job):
        self.ended += 1


def test_from_rows_to_an_adapter():
    with house_with_model() as (house, client):
        record, shown = Record(), io.StringIO()
        with contextlib.redirect_stderr(shown):
            job = client.train("smollm2-135m", ROWS, validation_data=ROWS[:4], rank=4, lora_alpha=8, learning_rate=1e-3,
                               max_steps=6, eval_every_steps=3, labels={"team": "math"}, **SMALL)
            assert job.wait(callbacks=[record], timeout=300) is job
        assert f"{job.name}  SUCCEEDED  step 6/6  loss" in shown.getvalue(), shown.getvalue()
        assert job.done and job.state == "SUCCEEDED" and "SUCCEEDED step 6/6" in repr(job)

        metrics, evaluations = job.metrics(), job.evaluations()
        assert metrics.column("step") == [1, 2, 3, 4, 5, 6] and all(loss > 0 for loss in metrics.column("loss"))
        assert evaluations.column("step") == [0, 3, 6] and record.evaluations == evaluations, evaluations
        assert record.steps == metrics and (record.begun, record.ended) == (1, 1)
        told = house.objects("metrics", job.name)
        assert [row["loss"] for row in metrics] == [row["loss"] for row in told]

        folder = job.adapter(house.folder / "mine")
        assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        for path in folder.iterdir():
            assert path.read_bytes() == (house.adapter(job.name) / path.name).read_bytes(), path.name
        assert json.loads((folder / "adapter_config.json").read_text())["r"] == 4
        assert job.adapter(folder, step=job.checkpoints()[0].step) == folder, "the same again is fine"
        (folder / "adapter_config.json").write_text("{}")
        error = python_package.error_of(lorad.AlreadyExistsError, job.adapter, folder)
        assert error.reason == "DIRECTORY_EXISTS" and f"another adapter_config.json than step 6 of {job.name}" in str(error), error
        assert json.loads((job.adapter(folder, replace=True) / "adapter_config.json").read_text())["r"] == 4
        assert [event.reason for event in job.events()].count("STATE_CHANGED") > 3

        (stored,) = [d for d in client.datasets.list() if d.rows == len(ROWS)]
        assert client.datasets.add(ROWS).name == stored.name and len(client.datasets.list()) == 2, "stored once"
        path = house.folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        assert client.datasets.add(path).sha256 == stored.sha256
        assert [j.name for j in client.jobs("labels.team = math")] == [job.name] and client.job(job.name).done
        for data in (stored, stored.name, str(path), path):
            assert client.check("smollm2-135m", data, rank=2, max_steps=1, **SMALL) == []
        estimate = client.estimate("smollm2-135m", ROWS, rank=2, max_steps=3, **SMALL)
        assert estimate.total_steps == 3 and estimate.peak_memory_bytes.total > 0
        assert client.check("smollm2-135m", ROWS, batch_size=64, max_length=64, max_steps=1), "a batch of more than the data"
        paced = client.train("smollm2-135m", ROWS[:5], validation_data=ROWS[:2], rank=2, epochs=3, eval_strategy="epoch", **SMALL)
        of_epoch = -(-5 // SMALL["batch_size"])
        assert paced.wait(progress=False).evaluations().column("step") == [of_epoch * epoch for epoch in range(4)] and of_epoch > 1
        job.delete()
        python_package.error_of(lorad.NotFoundError, job.refresh)


def test_every_mistake_is_told_by_the_callers_names():
    with house_with_model() as (house, client):
        error = python_package.error_of(lorad.InvalidError, client.train, "smollm2-135m", "products", r=0, lora_dropout=2, learning_rate=-1)
        assert error.reason == "INVALID_FIELDS" and error.code == "INVALID_ARGUMENT"
        assert {v.field for v in error.violations} == {"data", "r", "lora_dropout", "learning_rate"}, error
        assert str(error).count("\n  ") == 4 and "\n  r: must be between 1 and 512, got 0" in str(error), error
        assert len(client.datasets.list()) == 0
        error = python_package.error_of(lorad.InvalidError, client.train, "smollm2-135m", ROWS, labels={"team": 3})
        assert "labels: keys and values must be text, got 'team': 3" in str(error), error
        error = python_package.error_of(lorad.InvalidError, client.datasets.add, [{"prompt": "a", "completion": "b"}, {"prompt": 1, "completion": "c"}])
        assert error.reason == "DATASET_INVALID" and "\n  data[1]: prompt must be" in str(error), error
        client.datasets.add(ROWS, "sums")
        assert python_package.error_of(lorad.AlreadyExistsError, client.datasets.add, ROWS[1:], "sums").reason == "DATASET_EXISTS"
        assert python_package.error_of(lorad.NotFoundError, client.job, "job-none").reason == "JOB_NOT_FOUND"
        named = [client.train("smollm2-135m", ROWS, max_steps=1, display_name=name, **SMALL)
                 for name in ('the "first"\\', "twice", "twice")]
        assert client.job('the "first"\\').name == named[0].name
        error = python_package.error_of(lorad.LoradError, client.job, "twice")
        assert error.reason == "AMBIGUOUS_NAME" and all(job.name in str(error) for job in named[1:]), error
        same = client.models.add("smollm2-135m", client.models.get("smollm2-135m").path)
        assert same == client.models.get("smollm2-135m")
        python_package.error_of(lorad.AlreadyExistsError, client.models.add, "smollm2-135m",
                 write_model(house.folder / "models/elsewhere", tokenizer=True))
        assert "no adapter_model.safetensors" in str(python_package.error_of(lorad.InvalidError, client.adapters.add, "mine", house.folder))
    error = python_package.error_of(lorad.UnavailableError, lorad.connect, "127.0.0.1:1", retry_seconds=0)
    assert "127.0.0.1:1" in str(error), error
    for address in ("nowhere", "http://127.0.0.1:7070", 7070):
        assert "HOST:PORT" in str(python_package.error_of(lorad.InvalidError, lorad.connect, address)), address


def test_jobs_that_do_not_succeed():
    with house_with_model() as (_, client):
        job = client.train("smollm2-135m", ROWS, rank=2, max_steps=100_000, **SMALL)
        python_package.error_of(TimeoutError, job.wait, progress=False, timeout=0.5)
        threading.Timer(1, job.cancel).start()
        assert python_package.error_of(lorad.JobFailedError, job.wait, progress=False, timeout=120).reason == "CANCELLED"
        assert job.cancel().state == "CANCELLED"
        ended = str(python_package.error_of(lorad.LoradError, job.pause))
        assert ended.startswith("JOB_ENDED: ") and ended.count("CANCELLED") == 1, ended
        assert python_package.error_of(lorad.LoradError, job.finish).reason == "JOB_ENDED"
        early = client.train("smollm2-135m", ROWS, rank=2, max_steps=100_000, **SMALL)
        next(info for info in early.watch(120) if info.step > 0)
        assert early.finish().info.finish_step > 0 and early.wait(progress=False, timeout=120).state == "SUCCEEDED"
        assert 0 < early.info.step == early.info.finish_step == early.info.last_checkpoint_step < 100_000, early.info
        with tempfile.TemporaryDirectory() as folder:
            assert "evaluated" in str(python_package.error_of(ValueError, early.adapter, folder, best=True))
        long = [{"prompt": "x" * 200, "completion": "y"}]
        failed = client.train("smollm2-135m", long, overflow="error", max_steps=1, **SMALL)
        error = python_package.error_of(lorad.JobFailedError, failed.wait, progress=False, timeout=120)
        assert error.metadata["category"] == "USER" and error.violations and failed.state == "FAILED", error


def test_a_daemon_that_is_killed_in_between():
    """Callbacks hear of each step once and in order, calls wait, and the same create makes one job."""
    with house_with_model() as (house, client):
        job = client.train("smollm2-135m", ROWS, rank=2, max_steps=STEPS, checkpoint_every_steps=500, **SMALL)
        record, failures = Record(), []

        def wait():
            try:
                job.wait(progress=False, callbacks=[record], timeout=400)
            except BaseException as error:
                failures.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        for step in (200, 1200):
            deadline = time.monotonic() + 120
            while len(record.steps) < step and waiting.is_alive() and time.monotonic() < deadline:
                time.sleep(0.02)
            assert waiting.is_alive() and len(record.steps) < STEPS, (failures, len(record.steps))
            house.kill()
            created = []
            threading.Timer(1.0, lambda: house.start("--listen", house.address)).start()
            created.append(client.train("smollm2-135m", ROWS, rank=2, max_steps=1, **SMALL))
        waiting.join(400)
        assert not failures and not waiting.is_alive(), failures
        assert [row["step"] for row in record.steps] == list(range(1, STEPS + 1)), "steps were told twice, or not at all"
        assert (record.begun, record.ended) == (1, 1) and job.state == "SUCCEEDED"
        assert len(client.jobs()) == 3
        tell(f"    killed twice; each of {STEPS} steps was told once")


def test_a_download_goes_on():
    """A stream that breaks off after each chunk is gone on with where it broke."""
    with house_with_model() as (house, client):
        job = client.train("smollm2-135m", ROWS, rank=256, target_modules="all-linear", max_steps=1, **SMALL).wait(progress=False)
        connection = job._connection
        stub, offsets = connection.checkpoints, []

        class Broken(lorad_calls().grpc.RpcError):
            def code(self):
                return lorad_calls().grpc.StatusCode.UNAVAILABLE

            def details(self):
                return "cut"

            def trailing_metadata(self):
                return ()

        def cut(request, timeout):
            offsets.append(request.offset)
            for number, answer in enumerate(stub.DownloadCheckpoint(request)):
                yield answer
                if number == 0 and len(offsets) <= 2:
                    raise Broken()

        connection.checkpoints = types.SimpleNamespace(GetCheckpoint=stub.GetCheckpoint, DownloadCheckpoint=cut)
        folder = job.adapter(house.folder / "mine")
        assert offsets[1] > 0 and len(offsets) >= 4, offsets
        whole = house.adapter(job.name)
        for path in folder.iterdir():
            assert path.read_bytes() == (whole / path.name).read_bytes(), path.name

        def spoilt(request, timeout):
            for answer in stub.DownloadCheckpoint(request):
                answer.chunk = b"\1" + answer.chunk[1:]
                yield answer

        connection.checkpoints.DownloadCheckpoint = spoilt
        assert python_package.error_of(lorad.LoradError, job.adapter, house.folder / "other").reason == "DAMAGED"
        assert not list((house.folder / "other").iterdir())


def lorad_calls():
    from lorad import calls
    return calls


class FakeRun:
    def __init__(self):
        self.rows, self.codes, self.metrics = [], [], []

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    def finish(self, exit_code):
        self.codes.append(exit_code)


class FakeWriter:
    def __init__(self, folder=None):
        self.folder, self.rows, self.closed = folder, [], False

    def add_scalar(self, name, value, step):
        self.rows.append((name, value, step))

    def close(self):
        self.closed = True

    def flush(self):
        self.rows.append("flushed")


def test_the_callbacks_of_others():
    with house_with_model() as (_, client):
        run, writers, inits = FakeRun(), [], []
        sys.modules["wandb"] = types.SimpleNamespace(init=lambda **said: inits.append(said) or run)
        sys.modules["torch"] = None  # torch.utils.tensorboard is not there, tensorboardX is
        sys.modules["tensorboardX"] = types.SimpleNamespace(SummaryWriter=lambda folder: writers.append(FakeWriter(folder)) or writers[-1])
        given = FakeWriter()
        try:
            job = client.train("smollm2-135m", ROWS, validation_data=ROWS[:2], rank=2, max_steps=3, display_name="sums", **SMALL)
            job.wait(progress=False, callbacks=[lorad.WandbCallback(project="p"), lorad.TensorBoardCallback(),
                                                lorad.TensorBoardCallback(writer=given)])
        finally:
            for name in ("wandb", "torch", "tensorboardX"):
                del sys.modules[name]
        losses = [(row["step"], row["loss"]) for row in job.metrics()]
        assert inits[0]["project"] == "p" and inits[0]["name"] == "sums" and inits[0]["config"]["adapter"]["rank"] == 2
        assert run.codes == [0] and run.metrics == [("*", "train/step")]
        assert [(row["train/step"], row["train/loss"]) for row in run.rows if "train/loss" in row] == losses
        assert [row["train/step"] for row in run.rows if "eval/loss" in row] == [0, 3]
        assert writers[0].folder == "runs/sums" and writers[0].closed and not given.closed and given.rows[-1] == "flushed"
        for writer in (*writers, given):
            assert [(step, value) for name, value, step in filter(lambda r: r != "flushed", writer.rows) if name == "train/loss"] == losses
        error = python_package.error_of(ImportError, job.wait, progress=False, callbacks=[lorad.WandbCallback()])
        assert "pip install wandb" in str(error)


class FakeAxes:
    def __init__(self):
        self.lines = []

    def plot(self, x, y, label, marker=None):
        self.lines.append((label, x, y))

    def __getattr__(self, name):
        return lambda *arguments: None


def test_a_plot_and_a_bar():
    with house_with_model() as (_, client):
        bars = []

        class Bar:
            def __init__(self, total, unit):
                self.total, self.n, self.shown, self.closed = total, 0, [], False
                self.initial = self.last_print_n = 0
                bars.append(self)

            def set_description_str(self, text, refresh):
                self.text = text

            def set_postfix_str(self, text, refresh):
                self.post = text

            def update(self, count):
                self.n += count

            def write(self, text):
                self.shown.append(text)

            def refresh(self):
                self.shown.append((self.text, self.n, self.total))

            def close(self):
                self.closed = True

        sys.modules["tqdm"] = types.ModuleType("tqdm")
        sys.modules["tqdm.auto"] = types.SimpleNamespace(tqdm=Bar)
        try:
            job = client.train("smollm2-135m", ROWS, validation_data=ROWS[:2], rank=2, max_steps=3, **SMALL).wait(progress=True)
            client.job(job.name).wait(progress=True)
        finally:
            del sys.modules["tqdm"], sys.modules["tqdm.auto"]
        assert bars[0].closed and bars[0].shown[-1] == (f"{job.name} SUCCEEDED", 3, 3), bars[0].shown
        assert (bars[0].initial, bars[1].initial, bars[1].n) == (0, 3, 3), "the speed is of steps that were not looked on"
        axes = FakeAxes()
        assert job.plot(axes) is axes
        assert axes.lines == [("training", [1, 2, 3], job.metrics().column("loss")),
                              ("validation", [0, 3], job.evaluations().column("validation_loss"))]


def test_the_objects_of_the_libraries():
    """PEFT's and TRL's objects train what their fields by name train, and the adapter goes back onto a model."""
    python = python_package.references()
    script = """
import pathlib, sys; sys.path.append(sys.argv[3]); sys.path += sys.argv[4:]
import lorad, datasets, pandas
from peft import LoraConfig
from trl import SFTConfig
from transformers import AutoModelForCausalLM
client, folder = lorad.connect(sys.argv[1]), pathlib.Path(sys.argv[2])
rows = [{"prompt": f"{a} + {b} =", "completion": f" {a + b}"} for a in range(4) for b in range(4)]
theirs = client.train("smollm2-135m", datasets.Dataset.from_list(rows),
    peft_config=LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"], use_rslora=True, task_type="CAUSAL_LM"),
    args=SFTConfig(use_cpu=True, bf16=False, max_steps=3, per_device_train_batch_size=2, gradient_accumulation_steps=2,
                   max_length=64, learning_rate=1e-3, lr_scheduler_type="cosine", seed=7))
ours = client.train("smollm2-135m", pandas.DataFrame(rows), rank=4, alpha=8, target_modules=["q_proj", "down_proj"],
    use_rslora=True, max_steps=3, batch_size=4, max_length=64, learning_rate=1e-3, schedule="cosine", seed=7)
assert theirs.info.training_dataset == ours.info.training_dataset
assert theirs.wait(progress=False).metrics().column("loss") == ours.wait(progress=False).metrics().column("loss")
assert theirs.adapter(folder / "theirs").joinpath("adapter_model.safetensors").read_bytes() == \\
    ours.adapter(folder / "ours").joinpath("adapter_model.safetensors").read_bytes()
assert len(theirs.metrics().to_pandas()) == 3
try:
    client.train("smollm2-135m", rows, peft_config=LoraConfig(r=4, use_dora=True))
    raise SystemExit("DoRA was taken")
except lorad.InvalidError as error:
    assert "use_dora" in str(error) and error.violations[0].field == "peft_config", error
model = theirs.peft(AutoModelForCausalLM.from_pretrained(client.models.get("smollm2-135m").path))
found = {name: value for name, value in model.named_parameters() if "lora_B" in name}
assert len(found) == 4 and all(value.abs().max() > 0 for value in found.values())
"""
    with house_with_model() as (house, _):
        needs = [path for path in python_package.NEEDS if path.name != "typing_extensions"]
        done = subprocess.run([python, "-c", script, house.address, house.folder, FOLDER, *needs], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert read_safetensors(house.folder / "theirs/adapter_model.safetensors")


def test_an_sft_config_trains_as_trl():
    """The SFTConfig by which TRL trained the references, handed to the package as it is, gives TRL's losses."""
    python, losses = python_package.references(), python_package.REFERENCES.parents[2] / "losses"
    if not (losses / "expected.json").exists():
        raise Skipped("tools/references has not been run here")
    script = """
import json, pathlib, sys; sys.path.append(sys.argv[3]); sys.path += sys.argv[4:]
import lorad
from trl import SFTConfig
client, folder = lorad.connect(sys.argv[1]), pathlib.Path(sys.argv[2])
expected = json.loads((folder / "expected.json").read_text())
said, worst = expected["settings"], 0.0
client.models.add("tiny", folder / "model")
assert client.adapters.add("init", folder / "init").rank == 4 and [a.name for a in client.adapters.list()] == ["init"]
names = {"LINEAR": "linear", "COSINE": "cosine", "CONSTANT": "constant_with_warmup"}
for schedule, want in expected["runs"].items():
    args = SFTConfig(max_length=said["max_length"], per_device_train_batch_size=said["batch_size"], max_steps=said["max_steps"],
                     learning_rate=said["learning_rate"], lr_scheduler_type=names[schedule], warmup_steps=said["warmup_steps"],
                     logging_steps=1, report_to="none", use_cpu=True, bf16=False, save_strategy="no",
                     train_sampling_strategy="sequential", assistant_only_loss=True)
    job = client.train("tiny", folder / "rows.jsonl", init_from="init", args=args).wait(progress=False)
    got = job.metrics()
    assert len(got) == len(want["losses"]) == said["max_steps"]
    worst = max([worst, *(abs(a - b) / b for a, b in zip(got.column("loss"), want["losses"]))])
    assert [rate.hex() for rate in got.column("learning_rate")] == want["learning_rates"], schedule
client.adapters.remove("init")
assert len(expected["runs"]) == 3 and worst <= 2e-5, worst
print(f"losses within {worst:.1e} of TRL's, learning rates to the last bit")
"""
    with house_with_model() as (house, _):
        needs = [path for path in python_package.NEEDS if path.name != "typing_extensions"]
        copy = house.folder / "references"
        shutil.copytree(losses, copy)
        for path in (losses.parent / "tokenizers/smollm2").glob("[!.]*"):
            shutil.copy(path, copy / "model")
        done = subprocess.run([python, "-c", script, house.address, copy, FOLDER, *needs], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        tell(f"    {done.stdout.strip()}")


NOTEBOOK_RUNNER = """
import json, pathlib, sys; sys.path.append(sys.argv[1]); sys.path += sys.argv[3:]
import importlib.util
ran, skipped, names = 0, [], {}
for cell in json.loads(pathlib.Path(sys.argv[2]).read_text())["cells"]:
    if cell["cell_type"] != "code":
        continue
    assert not cell["outputs"] and cell["execution_count"] is None, "the notebook is committed without outputs"
    lacking = [tag for tag in cell["metadata"].get("tags", []) if importlib.util.find_spec(tag) is None]
    if lacking:
        skipped += lacking
        continue
    exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    ran += 1
print(json.dumps({"ran": ran, "skipped": skipped}))
"""


def test_the_notebook():
    """Its cells run as they stand, those that need a library that is not here left out; first_run_test has the answer of its first."""
    with house_with_model() as (house, _):
        try:
            python, needs = python_package.references(), [path for path in python_package.NEEDS if path.name != "typing_extensions"]
        except Skipped:
            python, needs = sys.executable, python_package.NEEDS
        scratch = tempfile.mkdtemp(dir=house.folder)
        done = subprocess.run([python, "-c", NOTEBOOK_RUNNER, FOLDER, NOTEBOOK, *needs], capture_output=True, text=True, cwd=scratch,
                              env={**os.environ, "LORAD_SERVER": house.address})
        assert done.returncode == 0, done.stdout + done.stderr
        counts = json.loads(done.stdout.splitlines()[-1])
        tell(f"    {counts['ran']} cells ran, without {counts['skipped']}")
        assert counts["ran"] >= 4 and (pathlib.Path(scratch) / "vell-island-adapter/adapter_config.json").exists()
        assert done.stdout.count("must be") >= 2, done.stdout


MYPY = """[mypy]
strict = True
[mypy-lorad.v1.*]
ignore_errors = True
[mypy-grpc.*,google.*,pandas.*,pyarrow.*,tqdm.*,wandb.*,matplotlib.*,peft.*,torch.*,tensorboardX.*]
ignore_missing_imports = True
"""
TYPED = """import lorad
client = lorad.connect()
job: lorad.Job = client.train("m", [{"text": "x"}], rank=16, r=16, learning_rate=2e-4, target_modules="all-linear")
loss: float = job.wait().metrics()[0]["loss"]
steps: int = job.info.step
"""
MISTYPED = """import lorad
lorad.connect().train("m", [], rank="sixteen")
lorad.connect().train("m", [], rang=16)
lorad.connect().job("j").wait(progres=True)
"""


def test_the_types():
    mypy = os.environ.get("LORAD_MYPY")  # a mypy with types-protobuf beside it
    if not mypy:
        raise Skipped("LORAD_MYPY names no mypy")
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    for name, text in (("mypy.ini", MYPY), ("typed.py", TYPED), ("mistyped.py", MISTYPED)):
        (folder / name).write_text(text)

    def check(*arguments):
        command = [mypy, "--config-file", folder / "mypy.ini", "--cache-dir", folder / "cache", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=folder, env={**os.environ, "MYPYPATH": str(FOLDER)})

    done = check("-p", "lorad")
    assert done.returncode == 0, done.stdout
    assert check("typed.py").returncode == 0, check("typed.py").stdout
    said = check("mistyped.py").stdout
    assert all(f"mistyped.py:{line}: error" in said for line in (2, 3, 4)), said


if __name__ == "__main__":
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
