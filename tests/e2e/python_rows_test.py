"""Rows that the Python package sends to a daemon: what is taken is what `lora` takes.

usage: python_rows_test.py [TEST...]
"""

import bz2
import contextlib

import python_package
from formats import write_model
from house import House, main

python_package.load()

import lorad  # noqa: E402
from lorad import rows  # noqa: E402


@contextlib.contextmanager
def house_with_model():
    with House(None, "--workers", "none") as house:
        house.lora("model", "add", "small", "--path", write_model(house.folder / "model", tokenizer=True))
        with lorad.connect(house.address) as client:
            yield house, client
    house.clear()


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


if __name__ == "__main__":
    main([test_files_have_one_verdict])
