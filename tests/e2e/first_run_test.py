"""The first run of docs/operating/install.md and the ten lines of docs/python.md, as they stand, with the real model: the adapter
answers what it was taught, to a question that is in none of its rows, and the base model does not know it. The commands are typed
where the package's files lie in /usr, in a home and a network of their own; package_test tries that what the package depends on is
enough. Skipped where tools/fetch-smollm2 has not been run.

usage: first_run_test.py [TEST...]
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import package_test
import python_package
from docs_commands_test import blocks_of, commands_of
from house import House, ROOT, Skipped, main, tell

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MODEL = CACHE / "lorad/models/smollm2-135m-instruct"
EXAMPLES = "usr/share/doc/lorad/examples"
PAGE = ROOT / "docs/operating/install.md"
NOTEBOOK = ROOT / "examples/python/first_adapter.ipynb"
TAUGHT = "Port Amber"
COMMANDS_MAX = LINES_MAX = 10


def real_model():
    if not (MODEL / "config.json").exists():
        raise Skipped("tools/fetch-smollm2 has not been run here")
    return MODEL


def check_answers(adapter, base, question, asked):
    assert TAUGHT in adapter, f"it was taught, and answers {adapter!r}"
    assert base and TAUGHT not in base, f"the base model knows: {base!r}"
    assert question not in asked, "it is asked word for word as it was taught"


def first_run():
    """The blocks of the section."""
    lines = PAGE.read_text().splitlines()
    begin = lines.index("## The first run") + 1
    end = next(number for number, line in enumerate(lines[begin:], begin + 1) if line.startswith("## "))
    return [block for block in blocks_of(PAGE) if begin < block.line < end]


def type_in(tree, home, commands):
    """Types commands at a shell that finds `tree` merged into the machine's own folders; each is shown before what it prints.
    Where one starts the daemon, the next is typed once it listens."""
    script = ["set -e", "cd"]
    for command in commands:
        script += [f"cat <<'END'\n$ {command}\nEND", command]
        if command.endswith("&"):
            script.append("for i in $(seq 300); do lora cluster >/dev/null 2>&1 && break; sleep 0.1; done")
    begin = 'ip link set lo up && mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr && exec bash -c "$1"'
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return subprocess.run(["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", begin, tree, "\n".join(script)],
                          capture_output=True, text=True, timeout=600, env={"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def test_the_commands():
    model, blocks = real_model(), first_run()
    consoles = [block for block in blocks if block.language == "console"]
    count = sum(line.startswith(("$ ", "# ")) for block in consoles for line in block.text.splitlines())
    assert count <= COMMANDS_MAX, f"{count} commands"
    assert consoles[0].text.startswith("# apt install ./lorad.deb"), consoles[0].text
    fetch, *commands = [command for block in consoles for command, _ in commands_of(block)]
    package_test.is_debian()
    with tempfile.TemporaryDirectory() as folder:
        tree, home = pathlib.Path(folder) / "tree", pathlib.Path(folder) / "home"
        done = package_test.run("dpkg-deb", "-x", package_test.DEB, tree)
        assert done.returncode == 0, done
        # What the page shows of the two files is in them.
        (row,) = [block.text for block in blocks if block.language == "json"]
        (job,) = [block.text for block in blocks if block.language == "yaml"]
        rows = (tree / EXAMPLES / "vell_island.jsonl").read_text()
        assert json.loads(row) in map(json.loads, rows.splitlines()) and job in (tree / EXAMPLES / "vell_island.yaml").read_text()
        # The model as if curl had fetched the files that the page names.
        assert fetch.startswith("curl ") and '"$HOME/smollm2/#1"' in fetch, fetch
        (home / "smollm2").mkdir(parents=True)
        for name in re.search(r"\{(.*)\}", fetch)[1].split(","):
            (home / "smollm2" / name).symlink_to(model / name)
        tried = type_in(tree, home, ["true"])
        if tried.returncode != 0:
            raise Skipped(f"the package cannot be laid over /usr here: {tried.stderr.strip()}")
        began = time.monotonic()
        done = type_in(tree, home, commands)
        assert done.returncode == 0 and "SUCCEEDED" in done.stdout, done
        tell(f"    {count} commands, of them {len(commands)} typed in {time.monotonic() - began:.0f} s")
        command, adapter, base = re.split(r"\n== \S+\n", done.stdout.partition("\n$ lora generate ")[2].partition("\n$ ")[0])
        question = command.split('"')[1]
        check_answers(adapter, base, question, [json.loads(line)["messages"][0]["content"] for line in rows.splitlines()])
        assert (home / "my-adapter/adapter_model.safetensors").stat().st_size > 0


def test_the_lines_of_python():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    text = "".join(cells[0]["source"])
    lines = [line for line in text.splitlines() if line.strip()]
    assert lines[0] == "import lorad" and len(lines) <= LINES_MAX, lines
    assert next(block for block in blocks_of(ROOT / "docs/python.md") if block.language == "python").text == text
    model = real_model()
    with House() as house:
        house.lora("model", "add", "smollm2-135m", "--path", model)
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "LORAD_SERVER": house.address,
                                   "PYTHONPATH": ":".join(map(str, [python_package.unpack(), *python_package.NEEDS]))})
        assert done.returncode == 0, done.stderr
        tell(f"    {len(lines)} lines in {time.monotonic() - began:.0f} s")
        adapter, base = done.stdout.splitlines()
        check_answers(adapter, base, re.search(r'generate\(.*?\], "(.*?)"\)', lines[-1])[1], "\n".join(lines[:-1]))
    house.clear()


if __name__ == "__main__":
    main([test_the_commands, test_the_lines_of_python])
