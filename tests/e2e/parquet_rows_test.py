"""Rows of Parquet through the command line and the Python package: the bytes of json.dumps, whoever reads them. pyarrow comes from the
wheels in the checkout.

usage: parquet_rows_test.py [seed=N] [TEST ...]
"""

import csv
import gzip
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import python_package
from house import BINARIES, ROOT, House, main, tell

python_package.load()
sys.path.insert(0, str(python_package.CHECKOUT / "third_party/wheels/arrow"))

import lorad  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from lorad import rows  # noqa: E402

PROGRAM = BINARIES / "client/parquet/lorad-parquet"
FILES = ROOT / "tests/client/parquet"
GSM8K = [json.loads(line)["messages"] for line in (ROOT / "examples/data/gsm8k_train.jsonl").read_text().splitlines()]
# Where one refuses what the other takes: no rows are an error of the package's later, and the command line bounds a row and its
# memory.
ONE_REFUSES = {"norow", "long", "control", "controls", "huge"}


def write_lines(path, values):
    path.write_text("".join(json.dumps(row) + "\n" for row in values))
    return path


def write_parquet(path, values, **how):
    pq.write_table(pa.Table.from_pylist(values), path, **how)
    return path


def test_gsm8k_has_one_hash():
    """As the rows that it is published in, and as conversations."""
    plain = [{"question": user["content"], "answer": assistant["content"]} for user, assistant in GSM8K]
    columns = ("--columns", "prompt=question,completion=answer")
    with House(None, "--workers", "none") as house:
        renamed = write_lines(house.folder / "renamed.jsonl", [{"prompt": row["question"], "completion": row["answer"]} for row in plain])
        (right,) = house.objects("dataset", "add", "renamed", renamed)
        with (house.folder / "rows.csv").open("w", newline="") as out:
            writer = csv.DictWriter(out, ["question", "answer"])
            writer.writeheader()
            writer.writerows(plain)
        (house.folder / "rows.json").write_text(json.dumps(plain))
        write_parquet(house.folder / "rows.parquet", plain, row_group_size=100)
        (house.folder / "rows.parquet.gz").write_bytes(gzip.compress((house.folder / "rows.parquet").read_bytes()))
        write_lines(house.folder / "rows.jsonl", plain)
        for number, name in enumerate(("rows.jsonl", "rows.json", "rows.csv", "rows.parquet", "rows.parquet.gz")):
            (added,) = house.objects("dataset", "add", f"rows-{number}", house.folder / name, *columns)
            assert (added["sha256"], added["rows"]) == (right["sha256"], len(GSM8K)), (name, added)
        spool = rows.Spool(house.folder / "rows.parquet", {"prompt": "question", "completion": "answer"})
        assert spool.sha256 == right["sha256"]
        spool.close()

        chats = [{"messages": messages} for messages in GSM8K]
        (right,) = house.objects("dataset", "add", "chats", write_lines(house.folder / "chats.jsonl", chats))
        path = write_parquet(house.folder / "chats.parquet", chats, compression="zstd")
        (added,) = house.objects("dataset", "add", "chats-parquet", path)
        assert added["sha256"] == right["sha256"] and added["format"] == "MESSAGES", added
    house.clear()


def test_standard_input_validation_and_errors():
    with House(None, "--workers", "none") as house:
        path = write_parquet(house.folder / "rows.parquet", [{"prompt": "2 + 2 =", "completion": " 4"}])
        lora = [str(part) for part in house.lora_command("dataset", "add", "piped", "-", "--json")]
        with path.open("rb") as file:
            piped = subprocess.run(lora, stdin=file, capture_output=True, check=True)
        (added,) = house.objects("dataset", "add", "lines", write_lines(house.folder / "rows.jsonl", [{"prompt": "2 + 2 =", "completion": " 4"}]))
        assert json.loads(piped.stdout)["sha256"] == added["sha256"], piped
        path.write_bytes(path.read_bytes()[:-9])
        refused = house.run("dataset", "add", "cut", path)
        assert refused.status == 1 and f"error: BAD_ROWS_FILE: {path}: is no whole Parquet file: " in refused.err, refused
        assert house.run("dataset", "show", "cut").status != 0
        refused = house.run("dataset", "validate", FILES / "at.parquet", "--model", "none", "--json")
        assert refused.status == 1 and "column at is timestamp[us]" in refused.err + refused.out, refused
    house.clear()


def lines_of_program(path):
    """What the program makes of a file, None where it refuses."""
    with path.open("rb") as file:
        done = subprocess.run([PROGRAM], stdin=file, capture_output=True)
    assert done.returncode in (0, 1) and bool(done.stderr) == bool(done.returncode), done
    return None if done.returncode else done.stdout


def lines_of_package(path):
    try:
        return b"".join(rows.json_lines(path))
    except lorad.InvalidError:
        return None


def test_the_package_reads_the_same():
    names = sorted(path for path in FILES.glob("*.parquet"))
    taken = 0
    for path in names:
        if path.stem not in ONE_REFUSES:
            ours = lines_of_program(path)
            assert ours == lines_of_package(path), path
            taken += ours is not None
    assert 8 < taken < len(names) - len(ONE_REFUSES), (taken, len(names))


def test_the_package_says_the_same():
    """Of what JSON has not, before the first row: which column, its type, and how pandas converts it."""
    with tempfile.TemporaryDirectory() as folder:
        twice = pathlib.Path(folder) / "twice_within.parquet"
        pq.write_table(pa.table({"prompt": pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["x", "x"])}), twice)
        for path in (*(FILES / f"{name}.parquet" for name in ("map", "twice", "nocolumn", "day", "raw", "price", "uuid", "within")), twice):
            with path.open("rb") as file:
                said = subprocess.run([PROGRAM], stdin=file, capture_output=True, text=True).stderr.strip()
            assert said, path
            try:
                next(iter(rows.json_lines(path)))
            except lorad.InvalidError as error:
                description = error.violations[0].description
                assert description and said.endswith(description), (path, said, str(error))
            else:
                raise AssertionError(path)


def test_a_table_whose_header_begins_as_parquet_does():
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("a.csv", b"PARENT,n\nx,1\n"), ("a.tsv", b"PAR1\tn\nx\t1\n"), ("a.csv.gz", gzip.compress(b"PARENT,n\nx,1\n"))):
            path = pathlib.Path(folder) / name
            path.write_bytes(text)
            (row,) = map(json.loads, rows.json_lines(path))
            assert list(row.values()) == ["x", "1"], (name, row)


def some_text(source):
    return "".join(chr(source.choice([source.randrange(1, 128), source.randrange(128, 0xD800), source.randrange(0xE000, 0x110000)]))
                   for _ in range(source.randrange(12)))


def some_float(source):
    while True:
        value = source.choice([source.uniform(-1e6, 1e6), round(source.random(), 3), float(source.randrange(-10**17, 10**17)),
                               struct.unpack("d", source.randbytes(8))[0]])
        if abs(value) < float("inf"):
            return value


def test_random_rows():
    seed = int(next((word[5:] for word in sys.argv[1:] if word.startswith("seed=")), random.randrange(10**9)))
    tell(f"    seed={seed}")
    source = random.Random(seed)

    def some(make, longest=3):
        return [None if source.random() < 0.2 else make() for _ in range(source.randrange(longest + 1))]

    def value():
        return {"role": some_text(source), "parts": some(lambda: some_text(source)), "weight": some_float(source) if source.random() < 0.5 else None}

    count = 2000
    table = pa.table({
        "text": [None if source.random() < 0.2 else some_text(source) for _ in range(count)],
        "float": [some_float(source) for _ in range(count)],
        "tokens": [some(lambda: source.randrange(2**31), 9) for _ in range(count)],
        "messages": pa.array([some(value) for _ in range(count)],
                             pa.list_(pa.struct([("role", pa.string()), ("parts", pa.list_(pa.string())), ("weight", pa.float64())]))),
    })
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.parquet"
        for packing in ("none", "snappy", "zstd"):
            pq.write_table(table, path, compression=packing, row_group_size=source.randrange(1, count),
                           data_page_size=source.choice([100, 1 << 20]), use_dictionary=source.random() < 0.5)
            assert lines_of_program(path) == lines_of_package(path) is not None, f"{packing} seed={seed}"


if __name__ == "__main__":
    main([test_gsm8k_has_one_hash, test_standard_input_validation_and_errors, test_the_package_reads_the_same,
          test_the_package_says_the_same, test_a_table_whose_header_begins_as_parquet_does, test_random_rows])
