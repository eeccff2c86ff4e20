"""The Python package from its wheel, as `pip install` would lay it out, with the pinned wheels of third_party below it."""

import contextlib
import os
import pathlib
import sys
import tempfile
import zipfile

from house import BINARIES, Skipped

# The checkout itself: the wheels are not among a test's data.
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
NEEDS = [*sorted((CHECKOUT / "third_party/wheels/python").glob("*")), CHECKOUT / "third_party/wheels/googleapis"]
REFERENCES = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "lorad/references/venv/bin/python"


def unpack():
    """The folder that the wheel is unpacked to."""
    (wheel,) = (BINARIES / "client/python").glob("*.whl")
    folder = tempfile.mkdtemp(prefix="lorad-package-", dir=os.environ.get("TEST_TMPDIR"))
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    return pathlib.Path(folder)


def load():
    """Makes `import lorad` and `import grpc` work; returns the package's folder."""
    folder = unpack()
    sys.path[:0] = [str(folder), *map(str, NEEDS)]
    return folder


@contextlib.contextmanager
def stand_ins(modules):
    """{name: module} stand where Python looks for modules; None: as if it were not installed."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def error_of(kind, call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def references():
    """The Python that has PEFT, TRL, datasets and pandas."""
    if not REFERENCES.exists():
        raise Skipped("tools/references has not been run here")
    return REFERENCES
