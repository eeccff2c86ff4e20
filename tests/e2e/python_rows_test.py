"""Rows that the Python package sends to a daemon: what is taken is what `lora` takes, errors name arguments and rows, and what is
asked about alone leaves nothing stored.

usage: python_rows_test.py [TEST...]
"""

import bz2
import contextlib
import csv
import errno
import gzip
import io
import itertools
import json
import os
import pathlib
import random
import resource
import tempfile
import threading

import python_package
from formats import write_model
from house import House, main

python_package.load()

import lorad  # noqa: E402
from lorad import csv_rows, rows  # noqa: E402

GOOD = [{"prompt": "a", "completion": "b"}]
SMALL = {"batch_size": 2, "max_length": 64, "max_steps": 1}


@contextlib.contextmanager
def house_with_model():
    with House(None, "--workers", "none") as house:
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model", tokenizer=True))
        with lorad.connect(house.address) as client:
            yield house, client
    house.clear()


def names_of(client):
    return [dataset.name for dataset in client.datasets.list()]


# Name, bytes, the line that both blame where they refuse (0: none), and words of both; None: both take it.
FILES = [
    ("a.csv", b"prompt,completion\n\"a \"\"b\"\"\n,c\",d\ne,\n\n", None),
    ("crlf.csv", b"\xef\xbb\xbfprompt,completion\r\n\"a\r\nb\rc\",d\r\n\r\ne\"f,g\r", None),
    ("wide.csv", b"prompt,completion\n\"" + b"x" * 200_000 + b"\",y\n" + b"z" * 200_000 + b",y\n", None),
    ("a.tsv", b"prompt\tcompletion\na,\t\"b\t\"\n", None),
    ("bzh.csv", b"BZh,prompt,completion\n1,2,3\n", None),
    ("marks.csv", "prompt,completion\n\u2019\u00e9\U0001f600\u2028,x\n".encode(), None),
    ("empty.csv", b"", (1, "empty")),
    ("blanks.csv", b"\n\n", (0, "empty")),
    ("rowless.csv", b"prompt,completion\n", (0, "row")),
    ("ragged.csv", b"prompt,completion\n\"1\n\",2\n\n1,2,3\n", (5, "put fields that have a comma in them in quotes")),
    ("ragged.tsv", b"prompt\tcompletion\n1\n", (2, "put fields that have a tab in them in quotes")),
    ("twice.csv", b"a,b,a\n1,2,3\n", (1, "rename or remove one")),
    ("nameless.csv", b",prompt,completion\n0,a,b\n", (1, "column 1 has no name in the header")),
    ("semicolons.csv", b"q;a\n1;2\n", (1, "between columns")),
    ("mac.csv", b"prompt,completion\ra,b\rc,d\r", (1, "carriage return without a line feed")),
    ("cr.csv", b"prompt,completion\na\rb,c\n", (2, "carriage return without a line feed")),
    ("nul.csv", b"a,b\n1,2\n1,\0\n", (3, "iconv -f UTF-16 -t UTF-8")),
    ("utf16.csv", "a,b\n1,2\n".encode("utf-16"), (0, "iconv -f UTF-16 -t UTF-8")),
    ("utf16le.csv", "a,b\n1,2\n".encode("utf-16-le"), (1, "iconv -f UTF-16 -t UTF-8")),
    ("latin.csv", b"a,b\n1,2\n\xff,1\n", (3, "iconv -f LATIN1 -t UTF-8")),
    ("open.csv", b"a,b\n1,2\n3,\"x\n4,5\n6,7\n", (3, "never closed")),
    ("behind.csv", b"a,b\n\"x\"y,2\n", (2, "behind a closing quote")),
    ("huge.csv", b"a\n\"" + (b"x" * 99 + b"\n") * 170_000, (2, "16 MiB")),
    ("fake.parquet", b'{"prompt": "a", "completion": "b"}\n', (0, "begins with PAR1")),
    ("empty.parquet", b"", (0, "no Parquet file")),
    ("a.bz2", bz2.compress(b"{}\n"), (0, "bzip2 -d")),
    ("a.jsonl", b'{"prompt": "a", "completion": "b"}\n', None),
    ("mixed.jsonl", b'{"prompt": "a", "completion": "b"}\n{"prompt": "a"}\n', (2, "unknown format")),
    ("comma.json", b'[{"prompt": "a", "completion": "b"},\n{"prompt": "[,]", "completion": "d"} ,\n\n]\n', (4, "a comma behind the last row, 2; take it away")),
    ("cut.json", b'[{"prompt": "a", "completion": [1,]', (0, "")),
    ("mixed.csv.jsonl", b"prompt,completion\na,b\n", (0, "")),
]


def test_files_have_one_verdict():
    with house_with_model() as (house, client):
        for number, (name, content, wanted) in enumerate(FILES):
            path = house.folder / name
            path.write_bytes(content)
            told = house.run("dataset", "add", f"d{number}", path)
            if wanted is None:
                assert told.status == 0, told
                stored = house.object("dataset", "show", f"d{number}")
                with contextlib.closing(rows.Spool(path)) as spool:
                    assert spool.sha256 == stored["sha256"], name
                continue
            line, words = wanted
            error = python_package.error_of(lorad.InvalidError, client.datasets.add, path)
            (violation,) = error.violations
            assert told.status == 1, told
            assert words in told.err and words in violation.description, (told.err, violation)
            if line:
                assert f"line {line}: " in told.err and violation.field == f"{path}:{line}", (told.err, violation)
            else:
                assert violation.field.startswith(str(path)), violation


def test_random_tables_are_what_the_csv_module_makes_of_them():
    seed = random.randrange(10**9)
    source, taken = random.Random(seed), 0
    for _ in range(20_000):
        text = "".join(source.choice('a",\r\n"b') for _ in range(source.randrange(12)))
        try:
            ours = [fields for _, fields in csv_rows.read(io.BytesIO(text.encode()), ",")]
        except csv_rows.Wrong:  # which refuses more
            continue
        assert ours == [fields for fields in csv.reader(io.StringIO(text, newline=""), strict=True) if fields], (seed, text)
        taken += 1
    assert taken > 1000, taken


def test_what_may_stand_behind_a_gzip_file():
    """Zeros, as blocks of a tape end in, and other gzip files; `gzip -t` takes those, and warns of all else."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    line = json.dumps(GOOD[0]).encode() + b"\n"
    packed = gzip.compress(line)
    for content, lines in ((packed + b"\0", 1), (packed + b"\0" * 100_000, 1), (packed + packed, 2), (packed + b"\0" * 512 + packed, 2)):
        for name, columns in (("a.jsonl.gz", None), ("b.jsonl.gz", {"text": "prompt"})):
            (folder / name).write_bytes(content)
            with contextlib.closing(rows.Spool(folder / name, columns)) as spool:
                spool.file.seek(0)
                assert len(spool.file.read().splitlines()) == lines, (len(content), columns)
    garbage, cut = "has bytes behind its end that are not gzip's: `gzip -dc` unpacks it without them", "is no whole gzip file ("
    for behind, said in ((b"garbage", garbage), (b"\x1f", garbage), (b"\0" * 512 + b"x", garbage), (line, garbage), (b"\x1f\x8bx", cut),
                         (packed[:-1], cut)):
        (folder / "c.jsonl.gz").write_bytes(packed + behind)
        (violation,) = python_package.error_of(lorad.InvalidError, rows.Spool, folder / "c.jsonl.gz").violations
        assert violation.field == f"{folder}/c.jsonl.gz" and violation.description.startswith(said), violation


def test_paths_that_are_no_files():
    folder = pathlib.Path(tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR")))
    os.mkfifo(folder / "fifo")
    (folder / "ring").symlink_to(folder / "ring")
    long = json.dumps(GOOD) * 100
    for path, said in ((folder, f"'{folder}' is a directory: give a file of it"), (f"{folder}/", f"'{folder}' is a directory: give a file"),
                       (folder / "fifo", f"'{folder}/fifo' is no plain file"), (folder / "gone", f"there is no file '{folder}/gone'"),
                       ("/dev/null", "'/dev/null' is no plain file"), ("a\0b", "there is no file"), ("\ud800", "there is no file"),
                       (long, "...: File name too long; does it exist"), (folder / "fifo/below", "there is no file")):
        (violation,) = python_package.error_of(lorad.InvalidError, rows.Spool, path, None, "validation_data").violations
        assert violation.field == "validation_data" and said in violation.description and len(violation.description) < 1200, violation
    if pathlib.Path("/proc/self/mem").exists():  # it is there, and its first bytes cannot be read
        (violation,) = python_package.error_of(lorad.InvalidError, rows.Spool, "/proc/self/mem").violations
        assert "'/proc/self/mem': Input/output error; does it exist" in violation.description, violation


def test_rows_that_have_no_room():
    """What a user's own rows raise comes through as it is."""
    def theirs():
        yield from GOOD
        raise FileNotFoundError("theirs")

    assert str(python_package.error_of(FileNotFoundError, rows.Spool, theirs())) == "theirs"
    limit, memory = resource.getrlimit(resource.RLIMIT_FSIZE), rows.MEMORY_BYTES
    for count in (10, 3000):  # it is found at the end, or before
        rows.MEMORY_BYTES = 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        try:
            error = python_package.error_of(lorad.FileError, rows.Spool, GOOD * count)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            rows.MEMORY_BYTES = memory
        assert error.errno == errno.EFBIG and "let TMPDIR name a folder that you may write to and that has room" in str(error), error


def test_the_daemons_errors_name_the_row():
    tokens = [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1, 10**6], "labels": [1, 2]}]
    with house_with_model() as (house, client):
        files = {"mixed.jsonl": ('{"prompt": "a", "completion": "b"}\n\n{"prompt": "a"}\n', "mixed.jsonl:3"),
                 "mixed.json": ('[{"prompt": "a", "completion": "b"}, {"prompt": "a"}]', "mixed.json[1]")}
        for name, (text, where) in files.items():
            (house.folder / name).write_text(text)
            for call in (client.train, client.check, client.estimate):
                for said in ({"data": house.folder / name}, {"data": GOOD, "validation_data": house.folder / name}):
                    error = python_package.error_of(lorad.InvalidError, call, "small", **said, **SMALL)
                    (violation,) = error.violations
                    assert violation.field == str(house.folder / where) and violation.description.startswith("unknown format: "), error
        (house.folder / "long.csv").write_text('text\na\n"c\nd"\n\n' + "x" * 200 + "\n")
        for said, where in (({"data": iter([*GOOD, {}])}, "data[1]"), ({"data": GOOD, "validation_data": [*GOOD, {}]}, "validation_data[1]"),
                            ({"data": tokens}, "data[1]"), ({"data": GOOD, "validation_data": tokens}, "validation_data[1]"),
                            ({"data": house.folder / "long.csv", "overflow": "error"}, str(house.folder / "long.csv:6"))):
            call = client.check if said["data"] is not GOOD else client.estimate
            error = python_package.error_of(lorad.InvalidError, call, "small", **said, **SMALL)
            assert [violation.field for violation in error.violations] == [where] and "rows-" not in str(error), error
            assert "dataset '" not in str(error) and "line 2" not in str(error), error
        # One that is created before its rows are read says so as it fails.
        error = python_package.error_of(lorad.JobFailedError, client.train("small", tokens, **SMALL).wait, progress=False)
        assert str(error).endswith(" has failed: data has 1 bad row for this model and length\n"
                                   "  data[1]: token id 1000000 at position 1 is outside of the base model's vocabulary of 384"), error


def test_a_check_leaves_nothing():
    """Beside others who have the same rows: what they stored, or come to store meanwhile, stays."""
    with house_with_model() as (_, client):
        for call in (client.check, client.estimate):
            call("small", GOOD, validation_data=GOOD, **SMALL)
            python_package.error_of(lorad.InvalidError, call, "small", GOOD, r=0)
            python_package.error_of(lorad.InvalidError, call, "small", GOOD, validation_data=[{}], **SMALL)
        assert names_of(client) == []
        numbers, ended = itertools.count(), threading.Event()

        def check():
            while not ended.is_set():
                client.check("small", [{"prompt": str(next(numbers) // 4), "completion": "b"}], **SMALL)

        threads = [threading.Thread(target=check) for _ in range(3)]
        for thread in threads:
            thread.start()
        stored = [client.train("small", [{"prompt": str(i), "completion": "b"}], **SMALL).info.training_dataset for i in range(40)]
        ended.set()
        for thread in threads:
            thread.join()
        assert sorted(names_of(client)) == sorted(stored)
        client.check("small", [{"prompt": "0", "completion": "b"}], **SMALL)
        assert len(names_of(client)) == 40


if __name__ == "__main__":
    main([test_files_have_one_verdict, test_random_tables_are_what_the_csv_module_makes_of_them,
          test_what_may_stand_behind_a_gzip_file, test_paths_that_are_no_files,
          test_rows_that_have_no_room, test_the_daemons_errors_name_the_row, test_a_check_leaves_nothing])
