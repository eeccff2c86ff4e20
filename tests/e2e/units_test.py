"""The units of deploy/systemd, as systemd itself reads and judges them: nothing in them is unknown or misplaced, and what a
service is exposed to stays under a bar. Without systemd-analyze it is skipped. No service is started.

usage: units_test.py [TEST ...]
"""

import ctypes
import pathlib
import platform
import re
import shutil
import struct
import subprocess
import tempfile

from house import LORAD, ROOT, WORKER, Failure, Skipped, main, tell

UNITS = ROOT / "deploy/systemd"
EXPOSURE = {"lorad.service": 2.0, "lorad-worker@.service": 2.0}


def installed(folder, gpu):
    """The units as a site has them, with the built programs; their paths."""
    for name in EXPOSURE:
        text = (UNITS / name).read_text()
        for program, built in (("lorad-worker", WORKER), ("lorad", LORAD)):
            text = text.replace(f"/usr/local/bin/{program} ", f"{built} ")
        (folder / name).write_text(text)
    if gpu:
        drop_ins = folder / "lorad-worker@.service.d"
        drop_ins.mkdir()
        shutil.copyfile(UNITS / "lorad-worker-gpu.conf", drop_ins / "gpu.conf")
    return [folder / "lorad.service", folder / "lorad-worker@gpu-1.service"]


def analyze(*arguments):
    done = subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def verify(units):
    """What systemd does not understand in the units: where it is only warned of, the status is 0."""
    found = []
    for unit in units:
        status, said = analyze("verify", "--man=no", unit)
        # A machine without systemd's own targets, as a container is, says that of every unit.
        lines = [line for line in said.splitlines() if "sysinit.target not found" not in line]
        found += lines or ([] if status == 0 or said else [f"{unit}: status {status}"])
    return found


def test_systemd_understands_them():
    for gpu in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found = verify(installed(pathlib.Path(folder), gpu))
            assert not found, found


def test_verify_notices():
    """A test that cannot fail is none: a key that does not exist, and a program that is not there, are found."""
    with tempfile.TemporaryDirectory() as folder:
        service, _ = units = installed(pathlib.Path(folder), False)
        text = service.read_text()
        for wrong in (text.replace("UMask=", "Umask="), text.replace(f"{LORAD} ", "/nowhere/lorad ")):
            service.write_text(wrong)
            assert verify(units), wrong


def test_they_are_exposed_to_little():
    with tempfile.TemporaryDirectory() as folder:
        installed(pathlib.Path(folder), False)
        for name, bar in EXPOSURE.items():
            status, said = analyze("security", "--offline=true", "--no-pager", pathlib.Path(folder) / name)
            level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
            if not level:
                raise Failure(f"status {status}: {said}")
            tell(f"    {name}: {level[1]}, at most {bar}")
            assert float(level[1]) <= bar, said


def test_a_worker_comes_back_to_a_coordinator_that_was_started_again():
    """It had been told to end, and had ended with 0."""
    assert "\nRestart=always\n" in (UNITS / "lorad-worker@.service").read_text()


def take_openat2_away():
    """In a new process: from now on the kernel answers openat2 with ENOSYS, as under systemd's RestrictSUIDSGID."""
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000)]  # number; openat2? ENOSYS; allow
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((no_new_privileges, 1, 0, 0, 0), (set_seccomp, filter_mode, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{arguments}")


def test_a_filter_that_takes_too_much_is_named():
    if platform.machine() != "x86_64":
        raise Skipped("the filter is written for x86-64")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([LORAD, "serve", "--data-dir", f"{folder}/data", "--workers", "none", "--listen", "127.0.0.1:0"],
                              capture_output=True, text=True, timeout=60, preexec_fn=take_openat2_away)
        assert done.returncode == 1 and done.stderr.startswith("error: OPENAT2_UNAVAILABLE: "), done


if __name__ == "__main__":
    main([test_systemd_understands_them, test_verify_notices, test_they_are_exposed_to_little,
          test_a_worker_comes_back_to_a_coordinator_that_was_started_again,
          test_a_filter_that_takes_too_much_is_named],
         lacking=None if shutil.which("systemd-analyze") else "systemd-analyze is not installed")
