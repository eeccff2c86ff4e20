"""deploy/slurm under Debian's Slurm on this machine: a controller and two nodes of its own, on free ports, in a folder that goes
with the test. What is cancelled, stopped and submitted again ends with the bits of an undisturbed run. Without Slurm
(apt-get install slurmctld slurmd slurm-client) it is skipped.

usage: slurm_test.py [TEST ...]
"""

import contextlib
import getpass
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile

from house import ROOT, Failure, main, tell
from runs import STEPS, Run, hash_of, undisturbed, until

SBATCH = ROOT / "deploy/slurm/lorad.sbatch"
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scancel", "squeue", "scontrol", "sinfo")
CONFIG = """\
ClusterName=lorad
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
KillWait=10
GresTypes=gpu
NodeName=n1 NodeHostname=localhost Port={ports[1]} CPUs=2 RealMemory=2000
NodeName=n2 NodeHostname=localhost Port={ports[2]} CPUs=4 RealMemory=2000 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """A controller, a node of two processors and one of four with two links in the place of GPUs; ended with `with`."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lorad-slurm-", dir="/tmp"))  # Slurm's sockets want short paths
        self.config = self.folder / "slurm.conf"
        self.config.write_text(CONFIG.format(folder=self.folder, user=getpass.getuser(), ports=free_ports(3)))
        for gpu in (0, 1):
            (self.folder / f"gpu{gpu}").symlink_to("/dev/null")  # Slurm wants devices
        (self.folder / "gres.conf").write_text(f"NodeName=n2 Name=gpu File={self.folder}/gpu[0-1]\n")
        self.daemons = []

    def __enter__(self):
        self.start("slurmctld", "-D", "-f", self.config)
        for node in ("n1", "n2"):
            (self.folder / node).mkdir()
            self.start("slurmd", "-D", "-N", node, "-f", self.config)
        until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", "both nodes are idle", 60)
        return self

    def __exit__(self, kind, *_):
        if kind:  # of a test that failed
            self.run("scancel", "--user", getpass.getuser())
            until(lambda: not self.run("squeue", "-h"), "all jobs have ended", 60)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait(30)
        if kind:
            tell((self.folder / "slurmctld.log").read_text()[-3000:])
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, program, *arguments):
        with open(self.folder / f"{program}.log", "ab") as log:
            self.daemons.append(subprocess.Popen([program, *map(str, arguments)], stdout=log, stderr=log))

    def run(self, *command, environment=None):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60,
                              env={**(environment or {"PATH": "/usr/bin:/usr/sbin:/bin"}), "SLURM_CONF": str(self.config)})
        if done.returncode != 0:
            raise Failure(f"{command}: status {done.returncode}: {done.stderr}")
        return done.stdout

    def submit(self, run, *options):
        """The id of an allocation with two workers that trains the run's job; a worker on each node unless options say otherwise."""
        return self.run("sbatch", "--parsable", "--cpus-per-task=2", "--mem-per-cpu=500M", "--open-mode=append", "--output", run.log,
                        *(options or ["--nodes=2"]), SBATCH, "--site", run.site, "--worker", "--threads 1", "--", run.command,
                        environment=run.environment).strip()

    def steps(self, job):
        """{name: id} of the steps that run."""
        return dict(reversed(line.split()) for line in self.run("squeue", "-h", "-s", "-j", job, "-o", "%i %j").splitlines())

    def state(self, job):
        return dict(word.split("=", 1) for word in self.run("scontrol", "-o", "show", "job", job).split() if "=" in word)

    def end(self, job, seconds=240):
        """Waits until the job has ended; its state and exit status."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        state = until(lambda: (now := self.state(job))["JobState"] in ended and now, f"job {job} has ended", seconds)
        return state["JobState"], int(state["ExitCode"].split(":")[0])


def test_a_worker_that_is_cancelled_changes_no_bits():
    expected = undisturbed()
    with Cluster() as cluster, Run() as run:
        job = cluster.submit(run)
        until(lambda: run.step() > STEPS // 10, "the job trains")
        number = run.trainer()
        before = cluster.steps(job)
        assert sorted(before) == ["batch", "worker-1", "worker-2"], before
        cluster.run("scancel", before[f"worker-{number}"])
        assert cluster.end(job) == ("COMPLETED", 0)
        gone, after = f"worker 'worker-{number}' is gone", f"on worker 'worker-{3 - number}'"
        assert re.search(f"{gone}.*forming for .*{after}", run.said(), re.DOTALL), run.said()
        assert hash_of(run.adapter) == expected
        run.nothing_is_left()
        tell(f"    worker-{number} was cancelled, worker-{3 - number} went on: {expected}")


def test_stages_that_are_cancelled_change_no_bits():
    """Of three workers two train the job, each a stage. The third takes the place of one that is cancelled; with one alone the job
    waits and says so, until its model may be trained by one."""
    expected = undisturbed()
    with Cluster() as cluster, Run(stages=2) as run:
        job = cluster.submit(run, "--ntasks=3")
        until(lambda: run.step() > STEPS // 10, "the job trains")
        first = run.trainers()
        assert len(first) == 2, first
        cluster.run("scancel", cluster.steps(job)[f"worker-{first[0]}"])
        second = until(lambda: len(now := run.trainers()) == 2 and first[0] not in now and now, "the third worker has a stage")
        run.gets_further()
        cluster.run("scancel", cluster.steps(job)[f"worker-{second[0]}"])
        waits = until(lambda: "for 2 stages" in (why := run.why_it_waits()) and why, "the job says that it wants two workers")
        assert run.objects("model", "update", "llama", "--stages", 1)
        assert cluster.end(job) == ("COMPLETED", 0)
        assert hash_of(run.adapter) == expected
        run.nothing_is_left()
        tell(f"    trained on workers {first}, on {second} and on one, having said: {waits}; {expected}")


def test_what_is_stopped_goes_on_when_submitted_again():
    """First by the signal that Slurm sends before the time limit, then by cancelling the whole allocation."""
    expected = undisturbed()
    with Cluster() as cluster, Run() as run:
        first = cluster.submit(run)
        until(lambda: run.step() > STEPS // 10, "the job trains")
        cluster.run("scancel", "--batch", "--signal=TERM", first)
        assert cluster.end(first) == ("FAILED", 75)
        assert "stopped before the command had ended" in run.said(), run.said()
        run.nothing_is_left()

        second = cluster.submit(run)
        until(lambda: run.said().count(" serves clients on ") == 2, "the run serves again")
        saved = until(run.went_on_from, "the job goes on")
        assert saved > STEPS // 10, f"went on from step {saved}"
        until(lambda: run.step() > saved, "it trains")
        cluster.run("scancel", second)
        assert cluster.end(second)[0] == "CANCELLED"

        third = cluster.submit(run)
        assert cluster.end(third) == ("COMPLETED", 0)
        assert hash_of(run.adapter) == expected
        run.nothing_is_left()
        tell(f"    stopped, went on from step {saved}, cancelled, went on from step {run.went_on_from()}: {expected}")


def test_without_workers_it_ends():
    with Cluster() as cluster, Run() as run:
        job = cluster.submit(run)
        until(lambda: run.step() > 0, "the job trains")
        for name, step in cluster.steps(job).items():
            if name != "batch":
                cluster.run("scancel", step)
        assert cluster.end(job) == ("FAILED", 1)
        assert "error: no worker is left" in run.said(), run.said()
        run.nothing_is_left()


def test_each_worker_is_shown_a_gpu_of_its_own():
    """With links for GPUs, and a stand-in for lorad-worker."""
    with Cluster() as cluster, Run() as run:
        run.stand_in(gpus=1)
        job = cluster.submit(run, "--gpus-per-task=1")
        assert cluster.end(job) == ("FAILED", 1)
        assert run.told() == [("cuda:0", "0"), ("cuda:0", "1")], run.told()
        run.nothing_is_left()


def test_bad_input():
    """Said in a line, with the way to mend it, before anything is started."""
    with Run() as run:
        site = ["--site", run.site]
        cases = [([SBATCH], 2, "--site is missing"), ([SBATCH, *site], 2, "start it with sbatch"),
                 ([SBATCH, "--ntasks", "2"], 2, "those of sbatch stand before lorad.sbatch"), ([SBATCH, "--site"], 2, "--site wants a value"),
                 (["lorad-run-coordinator", *site, "--run", "a/b", "--workers", "1"], 2, "--run must be of letters"),
                 (["lorad-run-coordinator", *site, "--run", "a", "--workers", "65"], 2, "--workers must be a number"),
                 (["lorad-run-coordinator", *site, "--run", "a", "--workers", "1", "--serve", "--listen here"], 1, "lorad did not start"),
                 (["lorad-run-worker", *site], 2, "usage: lorad-run-worker"), (["lorad-run-jobs", "out"], 2, "usage: lorad-run-jobs")]
        for command, status, said in cases:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, env=run.environment)
            assert done.returncode == status and said in done.stderr, f"{command}: status {done.returncode}: {done.stderr}"
        for program in ("lorad", "lora"):
            (run.folder / "bin" / program).unlink()
            done = subprocess.run(["lorad-run-coordinator", *map(str, site), "--run", "a", "--workers", "1"], capture_output=True,
                                  text=True, timeout=60, env={**run.environment, "PATH": f"{run.folder}/bin:/usr/bin:/bin"})
            assert done.returncode == 1 and "lorad is not on the path" in done.stderr, done.stderr
        assert not run.site.exists() or not list((run.site / "runs").iterdir())


if __name__ == "__main__":
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    main([test_a_worker_that_is_cancelled_changes_no_bits, test_stages_that_are_cancelled_change_no_bits, test_what_is_stopped_goes_on_when_submitted_again,
          test_without_workers_it_ends, test_each_worker_is_shown_a_gpu_of_its_own, test_bad_input],
         lacking=f"Slurm is not installed: there is no {missing[0]}" if missing else None)
