"""A disk that is full, read-only or broken for a while, and a store from an older backup. No job fails, reads are answered
throughout, and nothing is deleted that nobody asked to delete.

usage: faults_disk_test.py [TEST ...]
"""

import contextlib
import hashlib
import json
import re
import shutil
import subprocess
import time

from faults import Pace, add_rows, add_small_model, check_no_job_failed, fill, mounted, small_job, step_of, strace, until, workers_of
from house import Failure, House, Skipped, each_below, main, tell

DISK = "512m"
FULL_SECONDS = 40
READ_ONLY_SECONDS = 20
# What is left on a disk that is nearly full: enough to say so in the store, too little to begin anything.
NEARLY = 2 << 20


class DiskHouse(House):
    """A daemon whose data lies on a file system of its own, away from its log."""

    def __init__(self, disk, *options):
        super().__init__(None, *options)
        self.data_dir = disk / "data"


@contextlib.contextmanager
def house_on_a_small_disk():
    outer = House()
    try:
        with mounted(outer.folder / "disk", "-t", "tmpfs", "-o", f"size={DISK}", "lorad-faults") as disk:
            with DiskHouse(disk, "--workers", "cpu:1", "--worker-threads", 1) as house:
                try:
                    yield house, disk
                finally:
                    (disk / "filler").unlink(missing_ok=True)  # it stops with its disk in order
            house.clear()
    finally:
        outer.clear()


def check_refused_with_numbers(house, *command):
    result = house.run(*command, seconds=15)
    assert result.status == 1 and re.search(r"error: [A-Z_]*(DISK|ROOM|FULL)[A-Z_]*: .*\d", result.err), f"not refused with the numbers: {result}"
    tell(f"    {result.err.strip()[:200]}")


def test_a_full_disk():
    """Nearly full, then full, while jobs train: what is asked of it is answered, what is to be made is refused, all go on."""
    with house_on_a_small_disk() as (house, disk):
        add_small_model(house)
        add_rows(house, "rows")
        jobs = [house.submit(small_job(max_steps=max_steps, checkpoint_every_steps=2)) for max_steps in (200, 100_000, 100_000)]
        until(lambda: step_of(house, jobs[1]) > 5, 30, "the first steps")
        before = workers_of(house)
        filler = disk / "filler"
        with Pace(house, jobs[0]):
            fill(filler, but=NEARLY)
            time.sleep(2)
            check_refused_with_numbers(house, "dataset", "add", "more", house.folder / "rows.jsonl")
            check_refused_with_numbers(house, "submit", "-f", house.folder / "submitted.json")
            house.lora("cancel", jobs[2], seconds=10)
            fill(filler)
            deadline = time.monotonic() + FULL_SECONDS
            while time.monotonic() < deadline:
                assert workers_of(house) == before, f"workers (pid, restarts) {before} became {workers_of(house)}"
                check_no_job_failed(house)
                time.sleep(1)
        filler.unlink()
        house.wait(jobs[2:], state="CANCELLED", seconds=60)
        house.lora("cancel", jobs[1])
        house.wait(jobs[:1], seconds=120)
        assert workers_of(house) == before, f"workers (pid, restarts) {before} became {workers_of(house)}"
        add_rows(house, "more")


def test_a_disk_that_is_full_while_rows_are_checked():
    """Jobs that were acknowledged wait for room: their rows become token caches on that disk."""
    with house_on_a_small_disk() as (house, disk):
        add_small_model(house)
        add_rows(house, "rows", count=400, longest=500)
        fill(disk / "filler", but=64 << 10)
        submitted = house.run("submit", "-f", "-", stdin=json.dumps(small_job(max_steps=3)), seconds=15)
        (disk / "filler").unlink()
        tell(f"    the job was {'refused: ' + submitted.err.strip()[:150] if submitted.status else 'acknowledged'}")
        if submitted.status != 0:
            path = house.folder / "job.json"
            path.write_text(json.dumps(small_job(max_steps=3)))
            submitted = until(lambda: (again := house.run("submit", "-f", path)).status == 0 and again, 20, "the job is taken when there is room")
        house.wait([submitted.out.strip()], seconds=60)


@contextlib.contextmanager
def read_only(house):
    """The data directory as on a file system that has met an error: nothing can be opened for writing, and what the store had
    open cannot be written either."""
    # Made read-only aside: where the daemon may have a file open it would be busy.
    with mounted(house.folder / "read-only", "--bind", house.data_dir) as aside:
        subprocess.run(["mount", "-o", "remount,ro,bind", aside], check=True)
        calls = "pwrite64,ftruncate"
        with mounted(house.data_dir, "--bind", aside), strace(house.process.pid, "-e", f"trace={calls}", "-e", f"inject={calls}:error=EROFS"):
            yield


def test_a_disk_that_is_read_only():
    with House(None, "--workers", "cpu:1", "--worker-threads", 1) as house:
        add_small_model(house)
        add_rows(house, "rows")
        jobs = [house.submit(small_job(max_steps=max_steps, checkpoint_every_steps=2)) for max_steps in (400, 100_000)]
        until(lambda: step_of(house, jobs[0]) > 5, 30, "the first steps")
        before = workers_of(house)
        with Pace(house, jobs[0]), read_only(house):
            deadline = time.monotonic() + READ_ONLY_SECONDS
            refused = house.run("dataset", "add", "more", house.folder / "rows.jsonl", seconds=15)
            assert refused.status == 1, refused
            tell(f"    {refused.err.strip()[:200]}")
            while time.monotonic() < deadline:
                if house.process.poll() is not None:
                    raise Failure(f"the daemon ended with {house.process.returncode}")
                assert workers_of(house) == before, f"workers (pid, restarts) {before} became {workers_of(house)}"
                check_no_job_failed(house)
                time.sleep(1)
        # The store tries again every second.
        until(lambda: house.run("cancel", jobs[1]).status == 0, 5, "writes are taken again")
        house.wait(jobs[:1], seconds=120)
        assert workers_of(house) == before, f"workers (pid, restarts) {before} became {workers_of(house)}"
        check_no_job_failed(house)
    house.clear()


def test_a_store_that_cannot_be_synced_ends_the_daemon():
    """After a failed fsync nobody knows what is on the disk: the daemon ends, and a new one reads what is there."""
    with House(None, "--workers", "cpu:1", "--worker-threads", 1) as house:
        add_small_model(house)
        add_rows(house, "rows")
        job = house.submit(small_job(max_steps=3000))  # some seconds, so that it saves while strace is there
        until(lambda: step_of(house, job) > 5, 30, "the first steps")
        acknowledged = [j["name"] for j in house.objects("ls")]
        syncs = "fsync,fdatasync"
        with strace(house.process.pid, "-e", f"trace={syncs}", "-e", f"inject={syncs}:error=EIO"):
            until(lambda: house.process.poll() is not None, 20, "the daemon to end")
        tell(f"    it ended with {house.process.returncode}: {house.log().splitlines()[-1][:150]}")
        assert house.process.returncode != 0
        house.process = None
        house.start()
        assert set(acknowledged) <= {j["name"] for j in house.objects("ls")}, "an acknowledged job is gone"
        house.wait([job])
    house.clear()


def hashes_below(folder):
    hashes = each_below(folder, lambda path: path.is_file() and (hashlib.sha256(path.read_bytes()).hexdigest(), path))
    return dict(filter(None, hashes))


def test_an_older_store_put_back():
    """What is newer than the backup lies in lost/, named in the log."""
    with House(None, "--workers", "cpu:1") as house:
        add_small_model(house)
        add_rows(house, "rows")
        job = house.submit(small_job(max_steps=10))
        house.wait([job])
        house.stop()
        backup = house.folder / "backup"
        backup.mkdir()
        for file in house.data_dir.glob("lorad.sqlite*"):
            shutil.copy2(file, backup)
        house.start()
        add_rows(house, "newer", seed=5)
        later = house.submit(small_job("newer", max_steps=10))
        house.wait([later])
        house.stop()
        kept = {folder: hashes_below(house.data_dir / folder) for folder in ("datasets", "checkpoints")}
        for file in house.data_dir.glob("lorad.sqlite*"):
            file.unlink()
        for file in backup.iterdir():
            shutil.copy2(file, house.data_dir)
        length = len(house.log())
        house.start()
        assert [j["name"] for j in house.objects("ls")] == [job]
        house.adapter(job)
        found = hashes_below(house.data_dir)
        for folder, hashes in kept.items():
            missing = [path for hash, path in hashes.items() if hash not in found]
            assert not missing, f"deleted: {missing}"
        lost = [path for hash, path in found.items() if (house.data_dir / "lost") in path.parents]
        assert lost, "nothing lies in lost/"
        tell("    in lost/: " + ", ".join(str(path.relative_to(house.data_dir)) for path in lost[:5]))
        log = house.log()[length:]
        assert "lost/" in log and "newer" in log and later in log, f"the log does not name what was moved:\n{log[:2000]}"
    house.clear()


if __name__ == "__main__":
    main([test_a_full_disk, test_a_disk_that_is_full_while_rows_are_checked, test_a_disk_that_is_read_only,
          test_a_store_that_cannot_be_synced_ends_the_daemon, test_an_older_store_put_back])
