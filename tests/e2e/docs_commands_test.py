"""Runs every command of README.md and docs/**/*.md; docs/HACKING.md says how the fences are read.

usage: docs_commands_test.py [PAGE.md...]
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import python_package
from formats import write_model
from house import BINARIES, House, ROOT, tell

# The checkout itself: `bazel query` and the folders' links need it, not the test's copy of it.
CHECKOUT = (ROOT / "README.md").resolve().parent
IN_CHECKOUT = {"docs/HACKING.md"}
WITH_PACKAGE = {"docs/coming-from-openai.md", "docs/coming-from-trl.md", "docs/python.md"}  # the Python package is installed
COMMAND_SECONDS = 300


class Block:
    def __init__(self, line, info, text):
        self.line = line
        self.words = info.split()
        self.text = text

    @property
    def language(self):
        return self.words[0] if self.words else ""


def blocks_of(page):
    """The fenced blocks of a page."""
    blocks, begin = [], None
    lines = page.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        fence = re.fullmatch(r"\s*(`{3,})\s*(.*)", line)
        if begin is None and fence:
            begin = (number, fence[1], fence[2])
        elif begin and line.strip() == begin[1]:
            blocks.append(Block(begin[0], begin[2], "\n".join(lines[begin[0]:number - 1])))
            begin = None
    if begin:
        raise AssertionError(f"{page}:{begin[0]}: the fence is not closed")
    return blocks


def commands_of(block):
    """[(command, first line of what it shows)] of a console block."""
    commands = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append([line[2:], ""])
        elif line.startswith("> ") and commands and not commands[-1][1]:
            commands[-1][0] += "\n" + line[2:]
        elif line.strip() and commands and not commands[-1][1]:
            commands[-1][1] = line.strip()
    return commands


class Shell:
    """One bash for a page: what a command sets is there for the next."""

    def __init__(self, folder, environment):
        self.folder = folder
        self.count = 0
        answers, answers_in = os.pipe()
        self.process = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        cwd=folder, env=environment, text=True, pass_fds=[answers_in], start_new_session=True)
        os.close(answers_in)
        self.answers_fd, self.answers = answers_in, os.fdopen(answers)

    def run(self, command):
        """(status, stdout, stderr) of one command."""
        self.count += 1
        base = pathlib.Path(tempfile.gettempdir()) / f"docs-{self.process.pid}-{self.count}"
        base.with_suffix(".sh").write_text(command + "\n")
        self.process.stdin.write(f"source {base}.sh >{base}.out 2>{base}.err </dev/null; echo $? >&{self.answers_fd}\n")
        self.process.stdin.flush()
        signal.alarm(COMMAND_SECONDS)
        answer = self.answers.readline()
        signal.alarm(0)
        out, err = base.with_suffix(".out").read_text(), base.with_suffix(".err").read_text()
        return int(answer) if answer else -1, out, err

    def close(self):
        """Ends the shell and all it started."""
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.stdin.close()
        self.process.wait()
        self.answers.close()


def check_started(command):
    """Of a slow command: what it starts is there."""
    for word in command.split():
        if re.match(r"(tools|tests|client|\.ci)/", word):
            assert (CHECKOUT / word).exists(), f"{word} is not there"
        if word.startswith("//") and not word.endswith("..."):
            package, _, target = word[2:].partition(":")
            build = (CHECKOUT / package / "BUILD.bazel").read_text()
            assert f'name = "{target or pathlib.Path(package).name}"' in build, f"{word} is not there"


def run_command(shell, command, shown):
    status, out, err = shell.run(command)
    wanted = re.match(r"error: ([A-Z_]+):", shown)
    if wanted:
        assert status != 0, f"should fail with {wanted[1]} but did not:\n{out}{err}"
        assert f"error: {wanted[1]}:" in out + err, f"should fail with {wanted[1]} but said:\n{out}{err}"
    else:
        assert status == 0, f"status {status}:\n{out}{err}"


def run_block(shell, block):
    """Returns how many commands were run."""
    if block.language == "console":
        commands = commands_of(block)
        for command, shown in commands:
            if "slow" in block.words:
                check_started(command)
            else:
                run_command(shell, command, shown)
        return 0 if "slow" in block.words else len(commands)
    if len(block.words) == 2:
        path = shell.folder / block.words[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text + "\n")
    elif block.language == "python":
        path = shell.folder / f"block_{block.line}.py"
        path.write_text(block.text + "\n")
        run_command(shell, f"python3 {path}", "")
        return 1
    return 0


def environment_of(house, page=""):
    wheels = [*sorted((CHECKOUT / "third_party/wheels/python").glob("*")), CHECKOUT / "third_party/wheels/googleapis"]
    if page in WITH_PACKAGE:
        wheels.insert(0, python_package.unpack())
    paths = [BINARIES / room for room in ("server", "worker", "client")]
    return {**os.environ, "HOME": os.path.expanduser("~"), "LORAD_SERVER": house.address,
            "PATH": ":".join(map(str, [*paths, *os.environ.get("PATH", "/usr/bin:/bin").split(":")])),
            "PYTHONPATH": ":".join(map(str, [house.folder / "stubs", *wheels]))}


def make_scratch(folder):
    """The checkout's folders, in a place where a page may write."""
    folder.mkdir()
    for entry in CHECKOUT.iterdir():
        if not entry.name.startswith(("bazel-", ".git", ".cache")):
            (folder / entry.name).symlink_to(entry)


def prepare(house):
    """What every page finds registered."""
    generate_stubs = ["python3", "-m", "grpc_tools.protoc", "-I", CHECKOUT / "proto", f"--python_out={house.folder}/stubs",
                      f"--grpc_python_out={house.folder}/stubs", *sorted((CHECKOUT / "proto/lorad/v1").glob("*.proto"))]
    (house.folder / "stubs").mkdir()
    subprocess.run(generate_stubs, check=True, env=environment_of(house))
    model = write_model(house.folder / "models/smollm2-135m", tokenizer=True)
    house.lora("model", "add", "smollm2-135m", "--path", model)
    for name in ("train", "test"):
        rows = (CHECKOUT / f"examples/data/gsm8k_{name}.jsonl").read_text().splitlines()[:12]
        path = house.folder / f"{name}.jsonl"
        path.write_text("\n".join(rows) + "\n")
        house.lora("dataset", "add", f"gsm8k-{name}", path)


def run_page(page):
    """Returns (commands run, failures)."""
    name = str(page.relative_to(CHECKOUT))
    blocks = blocks_of(page)
    if not any(b.language in ("console", "python") or len(b.words) == 2 for b in blocks):
        return 0, []
    count, failures = 0, []
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        folder = CHECKOUT if name in IN_CHECKOUT else house.folder / "scratch"
        if folder != CHECKOUT:
            make_scratch(folder)
        shell = Shell(folder, environment_of(house, name))
        try:
            for block in blocks:
                try:
                    count += run_block(shell, block)
                except AssertionError as error:
                    failures.append(f"{name}:{block.line}: {error}")
        finally:
            shell.close()
    house.clear()
    return count, failures


def main():
    pages = [pathlib.Path(p).resolve() for p in sys.argv[1:]] or [
        CHECKOUT / "README.md", CHECKOUT / "client/python/README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]
    failures = []
    for page in pages:
        count, failed = run_page(page)
        tell(f"{page.relative_to(CHECKOUT)}: {count} commands, {len(failed)} failed")
        failures += failed
    for failure in failures:
        tell(f"FAILED {failure}")
    shutil.rmtree(os.environ.get("TEST_TMPDIR", "/nowhere"), ignore_errors=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
