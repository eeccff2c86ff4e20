"""Makes what is installed: a tree of bin, lib and share as one tar file, and a Debian package of the same tree. No root is needed.

usage: make.py --programs FILE... --libraries FILE... --scripts FILE... --units FILE... --drop-ins FILE... --examples FILE... --plans FILE...
               --licences FILE FILE --arrow-licences FILE FILE --changelog FILE --maintainer-scripts FILE... --tar OUT --deb OUT

Programs are stripped, and forget the build tree: a library that Debian lacks lies in lib/lorad beside bin, where their RUNPATH finds
it from wherever they are copied. Man pages and completions come from the programs' own --help, asked for in the finished tree. Units
name /usr/local/bin in the tar, which tools/install replaces, and /usr/bin in the package. Times and owners in both are fixed.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile

import completion
import elf
import help
import man

ARROW = "libarrow.so.2600"
ARROW_INSIDE = ("bzip2", "curl", "libxml2", "zlib")  # as lintian finds
ARROW_LICENCES = "arrow.txt.gz"
EPOCH = 1767225600  # 2026-01-01, of all files
COMMANDS = {"lora": True, "lorad": False, "lorad-worker": False, "lorad-plan": False}  # with pages and completions; whether options of the program fall through
# Programs that others start, with a page of this text.
HELPERS = {
    "lorad-mpi": "Carries what stages say to each other over MPI.\n\nlorad-worker starts it (--transport mpi); it is not started by hand.",
    "lorad-parquet": "Makes JSON Lines of a Parquet file.\n\nlora starts it (lora dataset add). By hand:\n\n"
                     "  lorad-parquet [COLUMN NAME ...] < FILE.parquet > rows.jsonl\n\n"
                     "where a column of the file is to have another name in the rows.",
}
COMPLETIONS = {"bash": "share/bash-completion/completions/{}", "zsh": "share/zsh/{}/_{}", "fish": "share/fish/vendor_completions.d/{}.fish"}
MAINTAINER = "The lorad authors <lorad@lorad.invalid>"
DESCRIPTION = """fine-tunes many LoRA adapters at once on shared models
 A daemon that trains LoRA adapters on frozen base models, several jobs packed
 into common microbatches. Directories of Hugging Face models
 go in, adapters as PEFT reads them come out; no Python is needed. An adapter's
 bits do not depend on who shared the machine, and after a crash every job goes
 on from its last checkpoint.
 .
 It has the coordinator lorad, its workers, the command line lora, the planner
 lorad-plan, units of systemd (not enabled), and scripts that start it under
 Slurm and mpirun."""


def write(path, content, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)


def packed(text):
    return gzip.compress(text.encode(), 9, mtime=0)


def head_of(script):
    """The comment that a script begins with, without its marks."""
    lines = []
    for line in script.read_text().splitlines()[1:]:
        if not line.startswith("#") or line.startswith("#SBATCH"):
            break
        lines.append(line[1:].removeprefix(" "))
    if not lines:
        raise ValueError(f"{script} has no comment at its head, of which its man page is made")
    return "\n".join(lines)


def stage(tree, options):
    """Fills the tree; returns the version that the programs say they are."""
    for program in options.programs:
        copy = tree / "bin" / program.name
        write(copy, program.read_bytes(), 0o755)
        subprocess.run(["strip", "--strip-unneeded", "--remove-section=.comment", copy], check=True)
        elf.forget_build_tree(copy)
    for library in options.libraries:
        write(tree / "lib/lorad" / library.name, library.read_bytes())
        subprocess.run(["strip", "--strip-unneeded", "--remove-section=.comment", tree / "lib/lorad" / library.name], check=True)
    for script in options.scripts:
        write(tree / "bin" / script.name, script.read_bytes(), 0o755)
    for unit in options.units:
        write(tree / "lib/systemd/system" / unit.name, unit.read_bytes())
    documents = tree / "share/doc/lorad"
    for example in [*options.drop_ins, *options.examples]:
        write(documents / "examples" / example.name, example.read_bytes())
    for plan in options.plans:
        write(documents / "examples/plans" / plan.name, plan.read_bytes())
    licence, library_licence = (path.read_text() for path in options.licences)
    write(documents / "copyright", copyright_of(licence, library_licence))
    write(documents / ARROW_LICENCES, packed("\n".join(path.read_text() for path in options.arrow_licences)))

    said = {subprocess.run([tree / "bin" / name, "--version"], capture_output=True, text=True, check=True, env={}).stdout.strip()
            for name in COMMANDS}
    if len(said) != 1:
        raise ValueError(f"the programs are of several versions: {said}")
    version = said.pop()
    trees = {name: help.read(tree / "bin" / name, [name]) for name in COMMANDS}
    names = [*COMMANDS, *HELPERS, *(script.name for script in options.scripts)]
    for name, root in trees.items():
        for file, text in man.pages(root, version, [other for other in COMMANDS if other != name]).items():
            write(tree / "share/man/man1" / f"{file}.gz", packed(text))
        for shell in COMPLETIONS:
            text = getattr(completion, shell)(root, inherit=COMMANDS[name])
            write(tree / COMPLETIONS[shell].format(*(["site-functions", name] if shell == "zsh" else [name])), text)
    heads = HELPERS | {script.name: head_of(script) for script in options.scripts}
    for name, head in heads.items():
        page = man.script_page(name, head, version, [other for other in names if other != name])
        write(tree / "share/man/man1" / f"{name}.1.gz", packed(page))
    return version


def copyright_of(licence, library_licence):
    """In Debian's machine-readable form; the Apache licence is on every Debian."""
    if "Apache License" not in licence or "MIT License" not in library_licence:
        raise ValueError("the licences are not those that the copyright file speaks of")
    holder = re.search(r"Copyright \(c\) (.*)", library_licence)[1].strip()
    permission = library_licence[library_licence.index("Permission is"):].strip()
    indented = "\n".join(" " + (line.strip() or ".") for line in permission.splitlines())
    return f"""Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: lorad

Files: *
Copyright: 2026 The lorad authors
License: Apache-2.0
 Licensed under the Apache License, Version 2.0. On Debian systems its text is
 in /usr/share/common-licenses/Apache-2.0.

Files: lib/lorad/libhighs.so
Copyright: {holder}
License: Expat
{indented}

Files: lib/lorad/libarrow.so.* lib/lorad/libparquet.so.*
Copyright: 2016-2026 The Apache Software Foundation
License: Apache-2.0
Comment: Arrow's notice, and the licences of what it has of others, are in
 /usr/share/doc/lorad/{ARROW_LICENCES}.
"""


def write_tar(tree, out):
    def plain(info):
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = EPOCH
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with tarfile.open(out, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            tar.add(path, path.relative_to(tree), recursive=False, filter=plain)


def dependencies(tree, programs, fields):
    """What dpkg-shlibdeps finds that files want, as {field: text}."""
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder) / "debian/control", "Source: lorad\n\nPackage: lorad\nArchitecture: any\n")
        asked = [word for field, names in zip(fields, programs) for word in (f"-d{field}", *(f"-e{tree / name}" for name in names))]
        # What lies in lib/lorad is ours and in no package; CUDA's libraries, where a build has them, may be in none either.
        done = subprocess.run(["dpkg-shlibdeps", "-O", "-xlorad", "--ignore-missing-info", f"-l{tree}/lib/lorad", *asked],
                              cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"dpkg-shlibdeps: status {done.returncode}: {done.stderr}")
    return {field: text for field, text in re.findall(r"shlibs:(\w+)=(.*)", done.stdout)}


def overrides(programs):
    """What lintian is to let pass: CUDA's libraries lie in no package of Debian's, so programs name their folder; and Arrow, which is in none
    either, has libraries inside that are (docs/adr/0037-parquet-is-read-by-a-helper.md)."""
    lines = [f"lorad: embedded-library {name} [usr/lib/lorad/{ARROW}]\n" for name in ARROW_INSIDE]
    for program in sorted(programs):
        data = program.read_bytes()
        found = elf.runpath(data) if data.startswith(b"\x7fELF") else None
        for folder in found[3].split(":") if found else []:
            if "/cuda" in folder:
                lines.append(f"lorad: custom-library-search-path RUNPATH {folder} [usr/bin/{program.name}]\n")
    return "".join(lines)


def write_deb(tree, version, options):
    changelog = options.changelog.read_text()
    if not changelog.startswith(f"lorad ({version}) "):
        raise ValueError(f"{options.changelog} does not begin with version {version}, which the programs say")
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        shutil.copytree(tree, root / "usr")
        (root / "usr/share/zsh/site-functions").rename(root / "usr/share/zsh/vendor-completions")
        for unit in (root / "usr/lib/systemd/system").iterdir():
            write(unit, unit.read_text().replace("/usr/local/bin/", "/usr/bin/"))
        # Debian's place of units, as long as /lib and /usr/lib may be two folders to dpkg.
        (root / "lib").mkdir()
        (root / "usr/lib/systemd").rename(root / "lib/systemd")
        write(root / "usr/share/doc/lorad/changelog.gz", packed(changelog))
        write(root / "usr/share/lintian/overrides/lorad", overrides((root / "usr/bin").iterdir()))
        wanted = dependencies(root / "usr", [["bin/lora", "bin/lorad", "bin/lorad-worker", "bin/lorad-plan", "bin/lorad-parquet",
                                                *("lib/lorad/" + library.name for library in options.libraries)], ["bin/lorad-mpi"]],
                              ["Depends", "Recommends"])
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
        recommends = ", ".join(filter(None, [wanted.get("Recommends", ""), "openmpi-bin"]))
        write(root / "DEBIAN/control", f"Package: lorad\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n"
              f"Installed-Size: {sum(path.stat().st_size for path in files) // 1024}\nDepends: adduser, {wanted['Depends']}\n"
              f"Recommends: {recommends}\nSection: science\nPriority: optional\nDescription: {DESCRIPTION}\n")
        write(root / "DEBIAN/md5sums", "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files))
        for script in options.maintainer_scripts:
            write(root / "DEBIAN" / script.name, script.read_bytes(), 0o755)
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "-z1", "--build", root, options.deb], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)})


def main():
    parser = argparse.ArgumentParser()
    for name in ("programs", "scripts", "units", "drop-ins", "examples", "plans", "libraries", "licences", "arrow-licences", "maintainer-scripts"):
        parser.add_argument("--" + name, type=pathlib.Path, nargs="+", required=True)
    for name in ("changelog", "tar", "deb"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "tree"
        version = stage(tree, options)
        write_tar(tree, options.tar)
        write_deb(tree, version, options)


if __name__ == "__main__":
    main()
