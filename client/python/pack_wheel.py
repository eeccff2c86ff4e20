"""Packs the wheel of the Python package: its sources and the stubs that protoc made. The same files give the same bytes.

usage: pack_wheel.py OUTPUT.whl SOURCES STUBS README LICENSE    (two folders: lorad/ is below each)
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

NAME = "lorad"
TAG = "py3-none-any"
# The stubs are protoc 3.21's, which later runtimes still take; tests run with the newest of those in tools/setup.
REQUIRES = ["grpcio>=1.51", "protobuf>=4.21.12", "googleapis-common-protos>=1.56", "typing-extensions>=4.6"]
EXTRAS = {"progress": ["tqdm"], "pandas": ["pandas"], "parquet": ["pyarrow"], "zstd": ['backports.zstd; python_version < "3.14"'],
          "plot": ["matplotlib"], "peft": ["peft", "transformers"], "wandb": ["wandb"], "tensorboard": ["tensorboardX"]}


def metadata(version, readme):
    lines = ["Metadata-Version: 2.1", f"Name: {NAME}", f"Version: {version}",
             "Summary: Fine-tunes LoRA adapters by a lorad daemon", "License: Apache-2.0", "Requires-Python: >=3.11",
             *(f"Requires-Dist: {what}" for what in REQUIRES)]
    for extra, needs in EXTRAS.items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {what}{" and" if ";" in what else ";"} extra == "{extra}"' for what in needs)]
    return "\n".join([*lines, "Classifier: Typing :: Typed", "Description-Content-Type: text/markdown", "", readme])


def main():
    output, sources, stubs, readme, licence = map(pathlib.Path, sys.argv[1:])
    files = {}
    for folder in (sources, stubs):
        for path in sorted((folder / NAME).rglob("*")):
            if path.suffix in (".py", ".pyi", ".typed"):
                files[str(path.relative_to(folder))] = path.read_bytes()
    version = re.search(r'^__version__ = "(.+)"$', files[f"{NAME}/__init__.py"].decode(), re.MULTILINE)[1]
    info = f"{NAME}-{version}.dist-info"
    files[f"{info}/METADATA"] = metadata(version, readme.read_text()).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: {NAME}\nRoot-Is-Purelib: true\nTag: {TAG}\n".encode()
    files[f"{info}/LICENSE"] = licence.read_bytes()
    record = f"{info}/RECORD"
    hashes = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode() for name, data in files.items()}
    files[record] = "".join([*(f"{name},sha256={hashes[name]},{len(data)}\n" for name, data in files.items()),
                             f"{record},,\n"]).encode()
    assert output.name == f"{NAME}-{version}-{TAG}.whl", f"{output.name} is not of version {version}"
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, files[name])


if __name__ == "__main__":
    main()
