"""deploy/container: the image has the libraries that what was built asks for, a user that is not root, and the folders that
deploy/kubernetes mounts. No image is built; tests/e2e/install_test.py tries what tools/install puts into it.

usage: container_test.py [TEST ...]
"""

import pathlib
import re
import shutil
import subprocess

from house import BINARIES, ROOT, Skipped, main, tell

CONTAINERFILE = ROOT / "deploy/container/Containerfile"


def run(*command, **keywords):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, **keywords)


def libraries(program):
    """{name: path} of what the dynamic linker finds for a program."""
    return dict(re.findall(r"(\S+) => (\S+)", run("ldd", program).stdout))


def instructions():
    """[(word, what follows)] of the Containerfile, lines joined."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.M))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def last_stage():
    found = instructions()
    begin = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return found[begin:]


def needed(packages):
    """Packages with all that they depend on, as far as installed here."""
    said = run("apt-cache", "depends", "--recurse", "--installed", "--no-recommends", "--no-suggests", "--no-conflicts",
               "--no-breaks", "--no-replaces", "--no-enhances", *packages).stdout
    return set(re.findall(r"^(\w[\w.+-]*)$", said, re.M))


def test_the_image_has_the_libraries():
    if not (shutil.which("dpkg") and shutil.which("apt-cache")):
        raise Skipped("this is no Debian")
    (install,) = [text for word, text in last_stage() if word == "RUN" and "apt-get install" in text]
    listed = re.search(r"--no-install-recommends (.*?) &&", install)[1].split()
    there = needed(listed)
    asked = {}
    for program in (BINARIES / "server/lorad", BINARIES / "worker/lorad-worker", BINARIES / "worker/mpi/lorad-mpi", BINARIES / "client/lora",
                    BINARIES / "client/parquet/lorad-parquet"):
        asked |= {name: str(pathlib.Path(path).resolve()) for name, path in libraries(program).items()
                  if not re.search(r"^lib(highs|arrow|parquet)\.", name) and not re.search(r"/cuda|cublas|cudnn", path)}
    # dpkg knows some by /lib and some by /usr/lib, which are one folder.
    known = run("dpkg", "-S", *asked.values(), *(path.removeprefix("/usr") for path in asked.values())).stdout
    owners = {path.removeprefix("/usr"): owner.split(":")[0] for owner, path in (line.split(": ", 1) for line in known.splitlines())}
    missing = {name: path for name, path in asked.items() if owners.get(path.removeprefix("/usr")) not in there}
    assert not missing, f"not in the image: {missing}"
    tell(f"    {len(listed)} packages: {' '.join(listed)}")


def test_it_is_not_root_and_asked_for_its_health():
    said = dict(last_stage())
    assert said["USER"] == "10001:10001" and said["VOLUME"] == "/var/lib/lorad" and '"lora", "cluster"' in said["HEALTHCHECK"], said
    manifests = "".join(path.read_text() for path in sorted((ROOT / "deploy/kubernetes/gpu").glob("*.yaml")))
    assert set(re.findall(r"runAsUser: (\d+)", manifests)) == {"10001"}
    made = " ".join(text for word, text in last_stage() if word == "RUN")
    for mounted in ("/var/lib/lorad", "/srv/models"):
        assert f"mountPath: {mounted}" in manifests and mounted in made, mounted
    bases = dict(text.split("=", 1) for word, text in instructions() if word == "ARG" and text.partition("=")[2])
    assert bases == {"BUILD_BASE": "docker.io/library/debian:12", "RUN_BASE": "docker.io/library/debian:12-slim"}, bases


if __name__ == "__main__":
    main([test_the_image_has_the_libraries, test_it_is_not_root_and_asked_for_its_health])
