"""A run under a launcher (Slurm, mpirun): a job that trains the same bits whatever happens to the run, and the site's folder."""

import contextlib
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import time

from house import AWAY_STATES, GOLDEN, LORA, LORAD, ROOT, WORKER, Failure, House, tell

LAUNCH = ROOT / "deploy/launch"
MODEL, ROWS = GOLDEN / "llama_gqa_untied/model", GOLDEN / "llama_gqa_untied/r8_all/train.jsonl"
STEPS = 3000  # some seconds, so that there is time to disturb them


def a_job():
    return {"base_model": "llama", "training_dataset": "rows", "adapter": {"rank": 8, "dropout": 0.1, "seed": 1},
            "training": {"max_steps": STEPS, "batch_size": 3, "max_length": 256, "learning_rate": 2e-3, "seed": 1,
                         "checkpoint_every_steps": 100}}


def until(predicate, what, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := predicate()):
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds} s: {what}")
        time.sleep(0.1)
    return found


def hash_of(adapter):
    return hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest()


@functools.cache
def undisturbed():
    """The adapter's hash from a daemon of this host with one worker."""
    with House(None, "--workers", "cpu:1", "--worker-threads", "1") as house:
        house.lora("model", "add", "llama", "--path", MODEL)
        house.lora("dataset", "add", "rows", ROWS)
        (job,) = house.wait([house.submit(a_job())], seconds=240)
        found = hash_of(house.adapter(job["name"]))
    house.clear()
    return found


class Run:
    """The folder of a site whose runs train one job with lorad-run-jobs, on so many workers as stages; removed with `with`."""

    def __init__(self, stages=1):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-run-", dir=os.environ.get("TEST_TMPDIR")))
        self.site, self.log = self.folder / "site", self.folder / "log"
        self.adapter = self.folder / "out/job"
        (self.folder / "job.json").write_text(json.dumps(a_job()))
        programs = self.folder / "bin"
        programs.mkdir()
        for program in (LORAD, WORKER, LORA, *LAUNCH.iterdir()):
            (programs / program.name).symlink_to(program)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        self.command = self.folder / "command.sh"
        self.command.write_text("#!/bin/bash\nset -euo pipefail\n"
                                f"lora model add llama --path {MODEL} --stages {stages} --request-id model\n"
                                f"lora dataset add rows {ROWS} --request-id rows\n"
                                f"exec lorad-run-jobs {self.folder}/out {self.folder}/job.json\n")
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind:
            tell(f"--- the end of {self.log}\n{self.said()[-6000:]}\n---")
        shutil.rmtree(self.folder, ignore_errors=True)

    def said(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def clients(self):
        """The address for clients of a run that serves; None where none does."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            (address,) = (self.site / "runs").glob("*/client")
            return address.read_text().strip()
        return None

    def stand_in(self, gpus):
        """Puts a script into lorad-worker's place: it has GPUs, says what it is told and shown, and ends for good."""
        program = self.folder / "bin/lorad-worker"
        program.unlink()
        listed = "".join(f"cuda:{i}  H100\\n" for i in range(gpus))
        program.write_text(f"#!/bin/sh\n[ $1 = --list-devices ] && printf '{listed}cpu  CPU\\n' && exit\n"
                           "echo \"told: $* shown: $CUDA_VISIBLE_DEVICES\" >&2\nexit 2\n")
        program.chmod(0o755)

    def told(self):
        """[(--device, CUDA_VISIBLE_DEVICES)] of the stand-ins that have said so."""
        return sorted(re.findall(r"told: .*--device (\S+).* shown: (\S*)", self.said()))

    def objects(self, *arguments):
        """What `lora` says of the run that serves; nothing where none does."""
        command = [LORA, "--server", self.clients() or "127.0.0.1:1", *arguments, "--json"]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60)
        return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

    def step(self):
        """How far the job is; 0 where nothing is known."""
        return max((job["step"] for job in self.objects("ls")), default=0)

    def why_it_waits(self):
        """What the queue says of the job; nothing where it does not wait."""
        shown = [job for listed in self.objects("ls") for job in self.objects("show", listed["name"])]
        return next((job["queue"]["why"] for job in shown if job["queue"] and job["queue"].get("why")), "")

    def trainers(self):
        """The numbers of the workers that train."""
        return [int(worker["name"].removeprefix("worker-")) for worker in self.objects("worker", "ls")
                if worker.get("group") and worker["state"] not in AWAY_STATES]

    def trainer(self):
        """The number of the worker that trains; None where none does."""
        return next(iter(self.trainers()), None)

    def gets_further(self):
        """Waits until the job has."""
        at = until(self.step, "the job goes on")
        until(lambda: self.step() > at, "the job gets further")

    def went_on_from(self):
        """The step at which the newest daemon's log says that the job goes on; None before it says so."""
        newest = self.said().rsplit("lorad-run-coordinator: run ", 1)[-1]
        found = re.search(r"step (\d+)/", newest)
        return int(found[1]) if found else None

    def nothing_is_left(self):
        assert not list((self.site / "runs").iterdir()), list((self.site / "runs").iterdir())
        until(lambda: not self.processes(), "the end of all that the run had started", 10)  # some are told as the launcher ends

    def processes(self):
        """{process: its words} of those that the run has started."""
        found, mine = {}, str(self.folder).encode()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes()
                if mine in words and b"lorad" in words:
                    found[process.name] = words
        return found
