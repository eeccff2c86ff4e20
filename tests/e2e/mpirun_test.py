"""deploy/mpirun under Debian's Open MPI: on this machine, and with a second host where the test may make a network namespace.
Workers that are killed, and a run that is stopped and started again, end with the bits of an undisturbed run. Without mpirun
(apt-get install openmpi-bin) it is skipped.

usage: mpirun_test.py [TEST ...]
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess

from hosts import OtherHost, lorad, must
from house import ROOT, Skipped, main, tell
from runs import STEPS, Run, hash_of, undisturbed, until

FOLDER = ROOT / "deploy/mpirun"
ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


class MpiRun(Run):
    """A run with `hosts`, lines of a hostfile."""

    def __init__(self, *hosts, stages=1):
        super().__init__(stages)
        for script in FOLDER.iterdir():
            (self.folder / "bin" / script.name).symlink_to(script)
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("".join(f"{host}\n" for host in hosts))
        self.environment |= ROOT_MAY
        self.launchers = []

    def __exit__(self, *raised):
        for launcher in self.launchers:  # of a test that failed
            if launcher.poll() is None:
                launcher.kill()  # and mpirun gets SIGTERM for it
                launcher.wait()
        super().__exit__(*raised)

    def start(self, ranks=3, mpirun="", options=()):
        """lorad-mpirun, as a process."""
        command = ["lorad-mpirun", "--site", self.site, "--mpirun", f"--hostfile {self.hosts} -np {ranks} {mpirun}",
                   "--worker", "--threads 1 --memory 1GiB", *options, "--", self.command]
        with open(self.log, "ab") as log:
            self.launchers.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log, env=self.environment))
        return self.launchers[-1]

    def commands(self):
        """{process: its command} of all in whose command the run's folder is."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                if str(self.folder) in command:
                    found[int(process.name)] = command
        return found

    def process(self, what, is_it):
        """The one of which is_it(pid, command) says so, once it is there: ranks do not start all at once."""
        return until(lambda: next((pid for pid, command in self.commands().items() if is_it(pid, command)), None), what)

    def rank(self, number):
        """The process that mpirun started; it leads a group."""
        return self.process(f"rank {number}", lambda pid, command: "bin/lorad-rank\0" in command and rank_led_by(pid) == number)

    def worker(self, number):
        """The lorad-worker of a rank."""
        return self.process(f"worker-{number}", lambda _, command: command.startswith("lorad-worker\0")
                            and f"worker-{number}.pem\0" in command and "--coordinator" in command)


def rank_led_by(pid):
    """None of a process that leads no group, or is gone, as a script's own short-lived ones are."""
    with contextlib.suppress(OSError):
        words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if os.getpgid(pid) == pid:
            return next((int(word.split(b"=")[1]) for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")), None)
    return None


def test_workers_that_are_killed_change_no_bits():
    """First a worker's rank with all that is in it, then the other's program, which is started again."""
    expected = undisturbed()
    with MpiRun("localhost slots=3") as run:
        launcher = run.start()
        until(lambda: run.step() > STEPS // 10, "the job trains")
        first = run.trainer()
        environment = pathlib.Path(f"/proc/{run.worker(first)}/environ").read_bytes()
        assert not [word for word in environment.split(b"\0") if word.startswith((b"OMPI_", b"PMIX_", b"ORTE_"))], environment
        os.killpg(run.rank(first), signal.SIGKILL)
        until(lambda: run.trainer() == 3 - first, "the other worker trains")
        run.gets_further()
        os.kill(run.worker(3 - first), signal.SIGKILL)
        assert launcher.wait(240) == 0
        assert hash_of(run.adapter) == expected
        assert "lorad-worker has ended with status 137" in run.said(), run.said()
        run.nothing_is_left()
        tell(f"    worker-{first} was killed for good, worker-{3 - first} once: {expected}")


def test_stages_that_are_killed_change_no_bits():
    """Of three workers two train the job, each a stage. The third takes the place of one whose rank is killed; then a worker's
    program is killed, which is started again."""
    expected = undisturbed()
    with MpiRun("localhost slots=4", stages=2) as run:
        launcher = run.start(ranks=4)
        until(lambda: run.step() > STEPS // 10, "the job trains")
        first = run.trainers()
        assert len(first) == 2, first
        os.killpg(run.rank(first[0]), signal.SIGKILL)
        second = until(lambda: len(now := run.trainers()) == 2 and first[0] not in now and now, "the third worker has a stage")
        run.gets_further()
        os.kill(run.worker(second[0]), signal.SIGKILL)
        assert launcher.wait(240) == 0
        assert hash_of(run.adapter) == expected
        assert "lorad-worker has ended with status 137" in run.said(), run.said()
        run.nothing_is_left()
        tell(f"    trained on workers {first} and {second}: {expected}")


def test_what_is_stopped_goes_on_when_started_again():
    """First cleanly, then by a signal to mpirun, which ends all of its processes at once."""
    expected = undisturbed()
    with MpiRun("localhost slots=3") as run:
        launcher = run.start()
        until(lambda: run.step() > STEPS // 10, "the job trains")
        launcher.terminate()
        assert launcher.wait(60) == 75
        assert "stopped before the command had ended" in run.said(), run.said()
        run.nothing_is_left()
        launcher = run.start()
        until(run.step, "the job goes on")
        os.kill(next(pid for pid, command in run.commands().items() if command.startswith("mpirun\0")), signal.SIGTERM)
        assert launcher.wait(60) != 0
        until(lambda: not run.commands(), "all that it had started has ended", 30)
        launcher = run.start()
        assert launcher.wait(240) == 0
        saved = run.went_on_from()
        assert saved > STEPS // 10, f"went on from step {saved}"
        assert hash_of(run.adapter) == expected
        run.nothing_is_left()
        tell(f"    stopped, went on from step {saved}: {expected}")


def test_a_second_host_from_the_hostfile():
    """In a network namespace with a name of its own; what ssh would do there, a script does."""
    host = OtherHost()
    try:
        if not host.prefix:
            raise Skipped("no network namespace can be made here")
        expected = undisturbed()
        there = host.there
        with MpiRun("localhost slots=2", f"{there} slots=1") as run:
            agent = run.folder / "agent"
            agent.write_text(f"#!/bin/sh\n[ \"$1\" = {there} ] || exit 1\nshift\n"
                             f"exec {' '.join(host.prefix)} unshare --uts sh -c \"hostname there; $*\"\n")
            agent.chmod(0o755)
            launcher = run.start(mpirun=f"--map-by slot --mca plm_rsh_agent {agent}", options=["--address", host.address])
            until(lambda: run.step() > 0, "the job trains")
            assert os.readlink(f"/proc/{run.worker(2)}/ns/net") != os.readlink("/proc/self/ns/net"), "worker-2 is on this host"
            os.killpg(run.rank(1), signal.SIGKILL)  # so that it trains there, whoever began
            assert launcher.wait(240) == 0
            assert hash_of(run.adapter) == expected
            run.nothing_is_left()
            tell(f"    trained on the other host: {expected}")
    finally:
        host.close()


def test_each_worker_of_a_host_takes_a_gpu_of_its_own():
    """With a stand-in for lorad-worker that has two GPUs."""
    with MpiRun("localhost slots=3") as run:
        run.stand_in(gpus=2)
        launcher = run.start(options=["--device", "cuda"])
        assert launcher.wait(60) == 1
        assert "error: no worker is left" in run.said(), run.said()
        assert [device for device, _ in run.told()] == ["cuda:0", "cuda:1"], run.told()
        run.nothing_is_left()


def test_when_the_coordinator_is_killed_the_run_ends():
    """Rank 0 with its script: the daemon stops, and its workers with it."""
    with MpiRun("localhost slots=2") as run:
        launcher = run.start(ranks=2)
        until(lambda: run.step() > 0, "the job trains")
        os.killpg(run.rank(0), signal.SIGKILL)
        assert launcher.wait(60) == 1
        assert "lorad-mpirun: error: the coordinator was killed" in run.said(), run.said()
        until(lambda: not run.commands(), "all that it had started has ended", 30)


def test_a_worker_whose_coordinator_is_silent_ends():
    with MpiRun() as run:
        data, folder = run.folder / "data", run.site / "runs/a"
        folder.mkdir(parents=True)
        must(lorad("auth", "init", "--data-dir", data))
        must(lorad("auth", "worker", "worker-1", "--data-dir", data, "-o", folder / "worker-1.pem"))
        (folder / "address").write_text("localhost:1\n")
        command = ["lorad-run-worker", "--site", str(run.site), "--run", "a", "--worker", "1", "--silence", "3", "--threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=run.environment)
        assert done.returncode == 1 and "nobody has touched" in done.stderr, done.stderr
        until(lambda: not run.commands(), "its program has ended", 30)


def test_bad_input():
    with MpiRun() as run:
        cases = [(["lorad-mpirun"], 2, "--site is missing"), (["lorad-mpirun", "--hostfile", "hosts"], 2, "given as --mpirun 'OPTIONS'"),
                 (["lorad-mpirun", "--site"], 2, "--site wants a value"), (["lorad-rank"], 2, "by lorad-mpirun"),
                 (["lorad-mpirun", "--site", run.site, "--mpirun", "-np 1"], 1, "ask mpirun for one more than workers"),
                 (["lorad-mpirun", "--site", run.site, "--device", "tpu"], 2, "--device is cpu or cuda"),
                 (["lorad-run-worker", "--site", run.site, "--run", "a", "--worker", "1", "--silence", "soon"], 2, "--silence must be")]
        for command, status, said in cases:
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, env=run.environment)
            assert done.returncode == status and said in done.stderr, f"{command}: status {done.returncode}: {done.stderr}"


if __name__ == "__main__":
    main([test_workers_that_are_killed_change_no_bits, test_stages_that_are_killed_change_no_bits, test_what_is_stopped_goes_on_when_started_again,
          test_a_second_host_from_the_hostfile, test_each_worker_of_a_host_takes_a_gpu_of_its_own,
          test_when_the_coordinator_is_killed_the_run_ends, test_a_worker_whose_coordinator_is_silent_ends, test_bad_input],
         lacking=None if shutil.which("mpirun") else "Open MPI is not installed: there is no mpirun")
