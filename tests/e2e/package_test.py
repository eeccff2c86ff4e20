"""The Debian package deploy/package/lorad.deb: its programs run, serve and train in a root that has the files of what it depends on,
and of Debian's essential packages, and nothing else; dpkg installs it there and takes it away, and only the data stays.

The root is made of the packages that are installed here, so no network is used. It is entered by unshare; where that is not allowed,
and on other systems than Debian, cases are skipped.

usage: package_test.py [TEST ...]
"""

import functools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile

from formats import token_rows, write_model
from house import BINARIES, LORA, ROOT, WORKER, Skipped, main, tell

DEB = BINARIES / "deploy/package/lorad.deb"
LEFT_OUT = re.compile(r"/usr/share/(doc|doc-base|info|man|locale|lintian|bug|common-licenses|zoneinfo|i18n)/")
DATA = "var/lib/lorad"

# In the root: a daemon of the package's, a model, rows (also of Parquet, by its own libraries), a job of three steps, its adapter.
TRAINING = """set -e
export HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin
lorad serve --data-dir /var/lib/lorad --listen 127.0.0.1:0 --workers cpu:1 >/tmp/out 2>/tmp/log & daemon=$!
trap 'kill $daemon; wait $daemon || true' EXIT
for i in $(seq 300); do [ -s /tmp/out ] && break; kill -0 $daemon || { cat /tmp/log; exit 1; }; sleep 0.1; done
read -r _ _ _ address </tmp/out
export LORAD_SERVER=$address
lora model add small --path /try/model
lora dataset add rows /try/rows.jsonl
lora dataset add of-parquet /try/rows.parquet
job=$(lora submit -f /try/job.json)
lora watch --until-done $job
lora checkpoint get $job -o /try/adapter
"""


def run(*command, seconds=120, **keywords):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=seconds, **keywords)


def control():
    """The package's control file, {field: value}."""
    text = re.sub(r"\n ", " ", run("dpkg-deb", "--field", DEB).stdout)
    return dict(line.split(": ", 1) for line in text.splitlines())


@functools.cache
def installed():
    """({package: (names that it depends on, whether it is essential)}, {virtual name: package}) of this machine."""
    said = run("dpkg-query", "-W", "-f", r"${Package}\t${db:Status-Abbrev}\t${Essential}\t${Pre-Depends}, ${Depends}\t${Provides}\n").stdout
    packages, provides = {}, {}
    for line in said.splitlines():
        name, status, essential, depends, provided = line.split("\t")
        if status.startswith("ii"):
            packages[name] = (depends, essential == "yes")
            provides.update({virtual: name for virtual in re.findall(r"[a-z0-9][a-z0-9+.-]+(?= |,|$)", provided)})
    return packages, provides


def names_of(depends):
    """[[name of each alternative]] of a dependency field."""
    return [[re.match(r"\s*([a-z0-9+.-]+)", one)[1] for one in group.split("|")] for group in depends.split(",") if group.strip()]


def closure(depends):
    """Installed packages that meet a dependency field, with what they depend on, and the essential ones with theirs."""
    packages, provides = installed()
    asked = names_of(depends) + [[name] for name, (_, essential) in packages.items() if essential]
    found = set()
    while asked:
        group = asked.pop()
        name = next((name for each in group if (name := each if each in packages else provides.get(each))), None)
        if name is None:
            raise Skipped(f"{' or '.join(group)} is not installed here")
        if name not in found:
            found.add(name)
            asked += names_of(packages[name][0])
    return found


def make_root(root, packages):
    """The files of installed packages beneath `root`, and dpkg's records of them."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("proc", "dev", "tmp", "root", "etc", "try", "var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers",
                 "var/log", "run", "sys"):
        (root / name).mkdir(parents=True, exist_ok=True)
    paths = set()
    for line in run("dpkg-query", "-L", *sorted(packages)).stdout.splitlines():
        if line.startswith("/") and not LEFT_OUT.match(line + "/"):
            # dpkg knows some by /lib and some by /usr/lib, which are one folder.
            path = pathlib.Path(os.path.realpath(os.path.dirname(line))) / os.path.basename(line)
            if (path.is_symlink() or path.is_file()) and not LEFT_OUT.match(str(path)):
                paths.add(str(path)[1:])
    copied = subprocess.run(f"tar -C / -c --no-recursion -T - | tar -C '{root}' -x --no-same-owner", shell=True,
                            input="\n".join(sorted(paths)), text=True, capture_output=True, timeout=120)
    assert copied.returncode == 0, copied.stderr
    for name in ("passwd", "group"):
        shutil.copyfile(f"/usr/share/base-passwd/{name}.master", root / "etc" / name)
    (root / "var/lib/dpkg/status").write_text(run("dpkg-query", "-s", *sorted(packages)).stdout.replace("\n---\n", "\n"))
    for path in pathlib.Path("/var/lib/dpkg/info").iterdir():
        if re.split(r"[:.](?=[a-z0-9]+(?:$|\.))", path.name)[0] in packages and path.suffix == ".list":
            shutil.copyfile(path, root / "var/lib/dpkg/info" / path.name)


def enter(root, *command, seconds=120):
    """Runs a command in the root, with this machine's /proc and /dev."""
    script = 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"'
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    return run("unshare", *user, "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, root, *command, seconds=seconds,
               env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"})


def is_debian():
    if not all(map(shutil.which, ("dpkg-deb", "dpkg-query", "unshare"))):
        raise Skipped("dpkg or unshare is not here")


def make_bare_root(folder):
    """A root without the package, or the case is skipped."""
    is_debian()
    if re.search("cublas|cudnn", run("ldd", WORKER).stdout):
        raise Skipped("CUDA's libraries are in no package of Debian's")
    root = pathlib.Path(folder) / "root"
    root.mkdir()
    found = closure(control()["Depends"])
    make_root(root, found)
    tried = enter(root, "true")
    if tried.returncode != 0:
        raise Skipped(f"unshare is not allowed here: {tried.stderr.strip()}")
    tell(f"    {len(found)} packages")
    return root


def files_of(root):
    """Paths of all but what dpkg writes of itself."""
    names = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {name for name in names if not name.startswith(("var/lib/dpkg/", "var/log/", "proc/", "dev/"))}


def check_that_it_trains(root):
    write_model(root / "try/model", tokenizer=True)
    (root / "try/rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in token_rows(random.Random(1), 6, longest=60)))
    shutil.copyfile(ROOT / "tests/client/parquet/plain_zstd.parquet", root / "try/rows.parquet")
    (root / "try/job.json").write_text(json.dumps({
        "base_model": "small", "training_dataset": "rows", "adapter": {"rank": 4, "target_modules": ["q_proj", "v_proj"]},
        "training": {"max_steps": 3, "batch_size": 2, "max_length": 128, "learning_rate": 1e-3}}))
    done = enter(root, "bash", "-c", TRAINING)
    assert done.returncode == 0 and "SUCCEEDED" in done.stdout + done.stderr, f"{done}\n{(root / 'tmp/log').read_text()[-3000:]}"
    assert (root / "try/adapter/adapter_model.safetensors").stat().st_size > 0
    shutil.rmtree(root / "try")
    (root / "try").mkdir()
    for name in ("out", "log"):
        (root / "tmp" / name).unlink()


def test_it_runs_with_what_it_depends_on_and_goes():
    with tempfile.TemporaryDirectory() as folder:
        root = make_bare_root(folder)
        shutil.copyfile(DEB, root / "lorad.deb")
        before = files_of(root)
        done = enter(root, "dpkg", "-i", "/lorad.deb")
        assert done.returncode == 0, done
        for program in ("lora", "lorad", "lorad-worker", "lorad-plan"):
            said = enter(root, program, "--version")
            assert said.returncode == 0 and said.stdout == run(LORA, "--version").stdout, f"{program}: {said}"
        assert "lorad:" in (root / "etc/passwd").read_text(), "the user of the units is not there"
        check_that_it_trains(root)
        done = enter(root, "dpkg", "-r", "lorad")
        assert done.returncode == 0, done
        assert enter(root, "sh", "-c", "command -v lorad").returncode != 0
        # adduser keeps what the files of users were, and locks.
        left = {name for name in files_of(root) - before
                if not re.fullmatch(r"run/adduser|etc/(\.pwd\.lock|(passwd|group|shadow|gshadow|subuid|subgid)-?)", name)}
        assert any(name.startswith(DATA + "/") for name in left), "the data is gone"
        others = {name for name in left if not (name + "/").startswith(DATA + "/")}
        assert not others and not before - files_of(root), f"left: {sorted(others)}; gone: {sorted(before - files_of(root))}"


def test_a_library_that_it_does_not_name_is_missed():
    """A test that cannot fail is none: in a root without one of the packages named, lorad does not start."""
    with tempfile.TemporaryDirectory() as folder:
        root = make_bare_root(folder)
        assert run("dpkg-deb", "-x", DEB, root / "try").returncode == 0
        assert enter(root, "/try/usr/bin/lorad", "--version").returncode == 0
        for path in (root / "usr/lib").rglob("libspdlog.so*"):
            path.unlink()
        said = enter(root, "/try/usr/bin/lorad", "--version")
        assert said.returncode != 0 and "libspdlog" in said.stderr, said


def test_its_files():
    is_debian()
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "root"
        assert run("dpkg-deb", "-R", DEB, root).returncode == 0
        sums = (root / "DEBIAN/md5sums").read_text()
        files = {name for name in files_of(root) if (root / name).is_file() and not name.startswith("DEBIAN/")}
        assert {line.split("  ", 1)[1] for line in sums.splitlines()} == files
        checked = run("md5sum", "--check", "--quiet", "DEBIAN/md5sums", cwd=root)
        assert checked.returncode == 0, checked
        for name in ("copyright", "changelog.gz"):
            assert f"usr/share/doc/lorad/{name}" in files, sorted(files)
        units = sorted((root / "lib/systemd/system").iterdir())
        assert [unit.name for unit in units] == ["lorad-worker@.service", "lorad.service"], units
        for unit in units:
            (program,) = re.findall(r"^ExecStart=(\S+)", unit.read_text(), re.M)
            assert program.startswith("/usr/bin/") and program[1:] in files, program
        assert control()["Version"] == run(LORA, "--version").stdout.strip()
        for name in ("postinst", "prerm", "postrm"):
            assert run("sh", "-n", root / "DEBIAN" / name).returncode == 0, name


def test_lintian_finds_no_error():
    if not shutil.which("lintian"):
        raise Skipped("lintian is not installed")
    with tempfile.TemporaryDirectory() as folder:

        def judged(package):
            return run("lintian", "--allow-root", "--no-cfg", "--fail-on", "error,warning", package,
                       env={**os.environ, "HOME": folder, "TMPDIR": folder})

        done = judged(DEB)
        assert done.returncode == 0 and not done.stdout, f"{done.stdout}{done.stderr}"
        # A package without its copyright file is told.
        root = pathlib.Path(folder) / "root"
        run("dpkg-deb", "-R", DEB, root)
        (root / "usr/share/doc/lorad/copyright").unlink()
        run("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", root, f"{folder}/wrong.deb")  # xz takes minutes
        done = judged(f"{folder}/wrong.deb")
        assert done.returncode != 0 and "no-copyright-file" in done.stdout, done


if __name__ == "__main__":
    main([test_its_files, test_it_runs_with_what_it_depends_on_and_goes, test_a_library_that_it_does_not_name_is_missed,
          test_lintian_finds_no_error])
