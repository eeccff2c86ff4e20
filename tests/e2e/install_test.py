"""deploy/package and tools/install: what is installed runs from wherever it is copied, is told by man pages and completions of the
programs' own help, names nothing of the build tree, and goes without a trace. tests/e2e/package_test.py tries the Debian package.

usage: install_test.py [TEST ...]
"""

import gzip
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile

from formats import read_safetensors, token_rows, write_model
from house import BINARIES, LORA, LORAD, PLAN, ROOT, WORKER, House, Skipped, main, tell

INSTALL = ROOT / "tools/install"
TREE = BINARIES / "deploy/package/lorad.tar"
PROGRAMS = {"lora": LORA, "lorad": LORAD, "lorad-worker": WORKER, "lorad-plan": PLAN}
SCRIPTS = ("lorad-run-coordinator", "lorad-run-worker", "lorad-run-jobs", "lorad.sbatch", "lorad-mpirun", "lorad-rank")
PLAIN = {"PATH": "/usr/bin:/bin"}  # no LD_LIBRARY_PATH, and no way to what was built


def run(*command, **keywords):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, **keywords)


def install(prefix, **environment):
    done = run(INSTALL, prefix, TREE, env={**PLAIN, **environment})
    assert done.returncode == 0, done
    return pathlib.Path(prefix)


def files_of(folder):
    return {str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*")}


def commands_of(program, *path):
    """Every command's path below a program, by its help."""
    said = run(program, *path, "--help").stdout
    yield path
    for name in re.findall(r"^  ([\w-]+) ", said.partition("\nSubcommands:\n")[2], re.M):
        yield from commands_of(program, *path, name)


def options_of(program, path):
    """The long options of a command, by its help."""
    return set(re.findall(r"^ {2,4}(?:-\w,)?(--[\w-]+)", run(program, *path, "--help").stdout, re.M))


class Installed(House):
    """A daemon and clients of a prefix, with an environment of theirs."""

    def __init__(self, prefix, folder):
        folder.mkdir()
        super().__init__(folder, "--workers", "cpu:1", lorad=prefix / "bin/lorad")
        self.prefix = prefix

    def command(self, *options):
        # lorad finds its worker by itself.
        return ["env", "-i", *(f"{key}={value}" for key, value in PLAIN.items()), self.lorad, "serve", "--data-dir", self.data_dir,
                "--listen", "127.0.0.1:0", *self.options, *options]

    def lora_command(self, *arguments):
        return ["env", "-i", self.prefix / "bin/lora", "--server", self.address, *arguments]


def train(house):
    """A tiny job; its adapter has every module's two matrices, and B is no longer zero."""
    house.lora("model", "add", "small", "--path", write_model(house.folder / "model", tokenizer=True))
    house.add_dataset("rows", token_rows(random.Random(1), 6, longest=60))
    job = house.submit({"base_model": "small", "training_dataset": "rows", "adapter": {"rank": 4, "target_modules": ["q_proj", "v_proj"]},
                        "training": {"max_steps": 3, "batch_size": 2, "max_length": 128, "learning_rate": 1e-3}})
    house.wait([job])
    house.lora("checkpoint", "get", job, "-o", house.folder / "adapter")
    tensors = read_safetensors(house.folder / "adapter/adapter_model.safetensors")
    assert len(tensors) == 8, sorted(tensors)  # two layers of two modules
    assert all(any(values) for _, values in tensors.values()), "a matrix is zero"


def test_what_is_installed_runs_from_elsewhere():
    with tempfile.TemporaryDirectory() as folder:
        prefix = install(f"{folder}/opt")
        copy = pathlib.Path(folder) / "elsewhere"
        (copy / "lib").mkdir(parents=True)
        shutil.copytree(prefix / "bin", copy / "bin")
        shutil.copytree(prefix / "lib/lorad", copy / "lib/lorad")
        shutil.copytree(prefix / "share/doc/lorad/examples", copy / "examples")
        shutil.rmtree(prefix)
        for program, built in PROGRAMS.items():
            said = run(copy / "bin" / program, "--version", env={})
            assert said.returncode == 0 and said.stdout == run(built, "--version").stdout, f"{program}: {said}"
        for program, library in (("lorad", "libhighs.so"), ("lorad-parquet", "libparquet.so.2600"), ("lorad-parquet", "libarrow.so.2600")):
            found = dict(re.findall(r"(\S+) => (\S+)", run("ldd", copy / "bin" / program, env=PLAIN).stdout))
            assert pathlib.Path(found[library]).resolve() == (copy / "lib/lorad" / library).resolve(), found
        planned = run(copy / "bin/lorad-plan", "pack", copy / "examples/plans/pack.json", env={})
        assert planned.returncode == 0 and planned.stdout, planned
        for script in (*SCRIPTS, "lorad-mpi", "lorad-parquet"):
            assert os.access(copy / "bin" / script, os.X_OK), script
        with Installed(copy, pathlib.Path(folder) / "house") as house:
            house.wait_for_worker()
            workers = [os.readlink(f"/proc/{pid}/exe") for pid in house.worker_pids()]
            assert workers == [str((copy / "bin/lorad-worker").resolve())], workers
            train(house)
            house.lora("dataset", "add", "of-parquet", ROOT / "tests/client/parquet/plain_zstd.parquet")


def test_nothing_is_of_the_build_tree():
    traces = [b"bazel-out", b"_solib_", b"/sandbox/", str(ROOT.resolve()).encode(), os.path.expanduser("~").encode() + b"/.cache"]

    def content(path):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        # Messages of generated code name the file that they come from, and the lines of GPU code, for profilers, the folder
        # of their source; nothing is read there.
        data = re.sub(rb"bazel-out/[\w-]+/bin/[\w/]+\.pb\.(cc|h)\0", b"", data)
        return re.sub(rb"/[\w./-]+/execroot/lorad/(\./)?kernels[\w/]*\0", b"", data)

    def found(folder):
        return [(name, trace) for name in sorted(files_of(folder)) if (path := pathlib.Path(folder) / name).is_file()
                for trace in traces if trace in content(path)]

    with tempfile.TemporaryDirectory() as folder:
        prefix = install(f"{folder}/opt")
        assert not found(prefix), found(prefix)
        shutil.copyfile(LORAD, prefix / "bin/lorad")  # a test that cannot fail is none
        assert ("bin/lorad", b"_solib_") in found(prefix), "what was built has a trace, and it was not seen"


def test_it_goes_without_a_trace():
    with tempfile.TemporaryDirectory() as folder:
        prefix = install(f"{folder}/a/opt")
        install(prefix)  # over itself, as a newer one is
        (prefix / "bin/mine").write_text("")
        assert run(INSTALL, "--remove", prefix).returncode == 0
        assert files_of(prefix) == {"bin", "bin/mine"}, files_of(prefix)
        (prefix / "share").mkdir()
        install(prefix)
        assert run(INSTALL, "--remove", prefix).returncode == 0
        assert files_of(prefix) == {"bin", "bin/mine", "share"}, "what was there before is gone, or what was not is left"
        again = run(INSTALL, "--remove", prefix)
        assert again.returncode == 1 and "nothing is installed" in again.stderr, again


def test_units_name_the_prefix():
    with tempfile.TemporaryDirectory() as folder:
        staged = install("/opt/lorad-1", DESTDIR=folder)
        for unit in (pathlib.Path(folder) / "opt/lorad-1/lib/systemd/system").iterdir():
            (program,) = re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.M)
            assert program.startswith(f"{staged}/bin/lorad"), f"{unit.name}: {program}"
            assert (pathlib.Path(folder) / program[1:]).is_file(), program


def test_install_says_what_is_wrong():
    with tempfile.TemporaryDirectory() as folder:
        for command, status, said in (([f"{folder}/opt", f"{folder}/no.tar"], 1, "bazel build //deploy/package"),
                                      (["--frobnicate"], 2, "usage: tools/install [PREFIX]"), (["a", "b", "c"], 2, "usage: "),
                                      ([f"{folder}/a b", TREE], 2, "PREFIX may have letters")):
            done = run(INSTALL, *command)
            assert done.returncode == status and said in done.stderr and not files_of(folder), f"{command}: {done}"


def test_what_is_in_the_way_is_named_and_stays():
    with tempfile.TemporaryDirectory() as folder:
        prefix = pathlib.Path(folder) / "opt"
        prefix.mkdir()
        (prefix / "bin").write_text("mine")
        done = run(INSTALL, prefix, TREE)
        assert done.returncode == 1 and f"{prefix}/bin is in the way: it is no folder" in done.stderr, done
        assert files_of(prefix) == {"bin"}, files_of(prefix)
        (prefix / "bin").unlink()
        (prefix / "bin/lora").mkdir(parents=True)
        done = run(INSTALL, prefix, TREE)
        assert done.returncode == 1 and f"{prefix}/bin/lora is in the way: it is a folder" in done.stderr, done
        assert files_of(prefix) == {"bin", "bin/lora"}, files_of(prefix)


def test_a_tree_that_breaks_off_leaves_nothing():
    with tempfile.TemporaryDirectory() as folder:
        prefix, part = pathlib.Path(folder) / "opt", pathlib.Path(folder) / "part.tar"
        part.write_bytes(TREE.read_bytes()[:1 << 20])
        done = run(INSTALL, prefix, part)
        assert done.returncode == 1 and "is no archive that tar reads" in done.stderr, done
        # Where the disk is full in the middle: a file may be no larger than so many blocks.
        done = run("bash", "-c", f"ulimit -f 2000; trap '' XFSZ; {INSTALL} {prefix} {TREE}")
        assert done.returncode == 1 and "nothing is installed" in done.stderr, done
        assert not [path for path in files_of(prefix) if not (prefix / path).is_dir()], files_of(prefix)


def test_man_pages_tell_every_option():
    with tempfile.TemporaryDirectory() as folder:
        manual = install(f"{folder}/opt") / "share/man/man1"
        pages = {path.name.removesuffix(".1.gz"): gzip.decompress(path.read_bytes()).decode() for path in manual.iterdir()}
        assert not {*SCRIPTS, "lorad-mpi", "lorad-parquet"} - pages.keys(), sorted(pages)
        count = 0
        for name, program in PROGRAMS.items():
            for path in commands_of(program):
                page = pages["-".join([name, *path[:1]])].replace("\\-", "-")
                options = options_of(program, path)
                assert "--help" in options, (name, path)
                for option in options:
                    assert re.search(rf"^\.B (-\w,)?{option}\b", page, re.M), f"{name} {' '.join(path)}: {option} is not in its page"
                count += len(options)
        assert count > 100, count
        tell(f"    {len(pages)} pages, {count} options")
        checker = ["man", "--warnings", "-l"] if shutil.which("man") else ["groff", "-z", "-man", "-ww"]
        if not shutil.which(checker[0]):
            raise Skipped("neither man nor groff is installed")
        for name, text in {**pages, "wrong": pages["lora"] + ".TP \\(xx\n.FROBNICATE\n"}.items():
            path = pathlib.Path(folder) / f"{name}.1"
            path.write_text(text)
            done = run(*checker, path, env={**PLAIN, "MANPAGER": "cat", "MANROFFOPT": "-ww"})
            clean = done.returncode == 0 and not done.stderr
            assert clean == (name != "wrong"), f"{name}: {done.stderr}"


# What is before the cursor, and candidates that must be among those offered; none of the last.
COMPLETIONS = [
    (["lora", "check"], {"checkpoint"}, "submit"),
    (["lora", ""], {"submit", "watch", "dataset"}, "get"),
    (["lora", "checkpoint", ""], {"ls", "get"}, "submit"),
    (["lora", "--server", "ls", "checkpoint", "get", "--"], {"--output", "--merged", "--json"}, "--file"),
    (["lorad", "serve", "--transport", ""], {"auto", "nccl", "mpi"}, "--data-dir"),
    (["lorad", "auth", ""], {"init", "worker"}, "serve"),
    (["lorad-worker", "--transport", "s"], {"sockets"}, "auto"),
    (["lorad-worker", "--dev"], {"--device"}, "--name"),
    (["lorad-plan", ""], {"pack", "schedule", "sweep"}, "submit"),
    (["lorad-plan", "schedule", "--"], {"--json", "--svg"}, "--data-dir"),
]

BASH = """source "$1"; name=$2; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
complete -p "$name" | grep -q -- "-F _${name//-/_} " && "_${name//-/_}" && printf '%s\\n' "${COMPREPLY[@]}" """
# What zsh offers is handed to _describe and compadd; here they print it.
ZSH = """_describe() { print -l -- ${(P)2%%:*}; }; compadd() { shift; print -l -- $@; }; _files() { :; }
script=$1; shift; words=("$@"); CURRENT=$#; [[ $(head -1 $script) == "#compdef $1" ]] && source $script"""
FISH = """source $argv[1]; complete -C (string join ' ' -- $argv[2..-1]) | string replace -r '\\t.*' ''"""


def offered(shell, script, words):
    command = {"bash": ["bash", "--norc", "-c", BASH, "bash"], "zsh": ["zsh", "-f", "-c", ZSH, "zsh"], "fish": ["fish", "--no-config", "-c", FISH]}[shell]
    done = run(*command, script, *words, env={**PLAIN, "HOME": "/nonexistent"}, cwd="/")
    assert not done.stderr, f"{shell} {words}: {done.stderr}"
    # zsh itself drops those that do not begin as the word does.
    return {word for word in done.stdout.split() if word.startswith(words[-1])}


def check_completions(shell, places):
    if not shutil.which(shell):
        raise Skipped(f"{shell} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        prefix = install(f"{folder}/opt")
        for name in PROGRAMS:
            parsed = run(shell, "-n", prefix / places.format(name))
            assert parsed.returncode == 0 and not parsed.stderr, parsed
        for words, wanted, unwanted in COMPLETIONS:
            found = offered(shell, prefix / places.format(words[0]), words)
            assert wanted <= found and unwanted not in found, f"{shell} {words}: {found}"
        for name, program in PROGRAMS.items():
            for path in commands_of(program):
                found = offered(shell, prefix / places.format(name), [name, *path, "--"])
                missing = options_of(program, path) - found
                assert not missing, f"{shell} {name} {' '.join(path)}: {missing} are not offered"


def test_bash_completes():
    check_completions("bash", "share/bash-completion/completions/{}")


def test_zsh_completes():
    check_completions("zsh", "share/zsh/site-functions/_{}")


def test_fish_completes():
    check_completions("fish", "share/fish/vendor_completions.d/{}.fish")


if __name__ == "__main__":
    main([test_what_is_installed_runs_from_elsewhere, test_nothing_is_of_the_build_tree, test_it_goes_without_a_trace,
          test_units_name_the_prefix, test_install_says_what_is_wrong, test_what_is_in_the_way_is_named_and_stays,
          test_a_tree_that_breaks_off_leaves_nothing, test_man_pages_tell_every_option, test_bash_completes, test_zsh_completes, test_fish_completes])
