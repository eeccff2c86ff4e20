"""The API and the workers' protocol from Python: stubs made from proto/ with the pinned wheels of third_party."""

import os
import pathlib
import subprocess
import sys
import tempfile

# The checkout itself: the wheels are not among a test's data.
CHECKOUT = pathlib.Path(__file__).resolve().parents[2]


def load():
    """Makes `grpc` and the packages lorad.v1 and lorad.worker.v1 importable."""
    folder = tempfile.mkdtemp(prefix="lorad-stubs-", dir=os.environ.get("TEST_TMPDIR"))
    wheels = CHECKOUT / "third_party/wheels"
    sys.path[:0] = [folder, str(wheels / "googleapis"), *map(str, sorted((wheels / "python").glob("*")))]
    protos = sorted((CHECKOUT / "proto/lorad").rglob("*.proto"))
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I", CHECKOUT / "proto", f"--python_out={folder}",
                    f"--grpc_python_out={folder}", *protos], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
