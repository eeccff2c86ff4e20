"""Rows as you have them (lists, iterables, files, datasets.Dataset, pandas) as JSON Lines, which the daemon takes.

Each row is written as `json.dumps` writes it, so the same rows have one hash whatever they came in; a file of JSON Lines
goes byte for byte as it is. Memory: one row at a time, of Parquet a row group, of a file that is a JSON array all of it.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import itertools
import json
import os
import pathlib
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from lorad.errors import InvalidError, Violation

Columns = Mapping[str, str]
CHUNK_BYTES = 1 << 20
MEMORY_BYTES = 16 << 20  # of spooled rows; more goes to a temporary file
FRAME_ROWS = 1000  # of a DataFrame, converted at once
GZIP = b"\x1f\x8b"
PARQUET = (b"PAR1", b"PARE")  # the latter where all of it is encrypted
PARQUET_PAGE = b"PAR1\x15"  # with the first page's header behind, in Thrift's bytes: no header of a table
UTF_16 = "UTF-16, and must be UTF-8: `iconv -f UTF-16 -t UTF-8` makes it"
MAGIC = {b"\xff\xfe": UTF_16, b"\xfe\xff": UTF_16,
         b"ARROW1": "Arrow: pass pandas.read_feather(path), or a datasets.Dataset",
         b"\xfd7zXZ": "xz: unpack it with `xz -d`", b"BZh": "bzip2: unpack it with `bzip2 -d`", b"PK\x03\x04": "zip: unpack it"}
# zstd's frames, and those that are to be skipped (RFC 8878, 3.1), as pzstd writes one in front.
ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 | i]) + b"\x2a\x4d\x18" for i in range(16)))


class Spool:
    """Rows as one file of JSON Lines; `size` in bytes, `sha256` as the daemon has it. Close it. Errors call the rows by
    the name of their argument."""

    def __init__(self, data: Any, columns: Columns | None = None, argument: str = "data") -> None:
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)
        digest = hashlib.sha256()
        try:
            for chunk in json_lines(data, columns, argument):
                digest.update(chunk)
                self.file.write(chunk)
            if not self.file.tell():
                where = str(data) if isinstance(data, (str, os.PathLike)) else argument
                raise wrong(where, "has no rows: give one at least, such as {'prompt': ..., 'completion': ...}")
        except BaseException:
            self.file.close()
            raise
        self.size = self.file.tell()
        self.sha256 = digest.hexdigest()

    def close(self) -> None:
        """Frees the file."""
        self.file.close()


def wrong(where: str, what: str) -> InvalidError:
    """The error of rows: of one row, of a file, or of the argument."""
    return InvalidError("the rows are not valid", code="INVALID_ARGUMENT", reason="ROWS_INVALID",
                        violations=[Violation(where, what)])


def json_lines(data: Any, columns: Columns | None = None, argument: str = "data") -> Iterator[bytes]:
    """The rows as bytes. `columns`: the name in the rows -> that in the data; what it does not name stays. `argument`: whose
    rows these are, for errors."""
    named = columns is None or isinstance(columns, Mapping) and all(
        isinstance(text, str) for pair in columns.items() for text in pair)
    if not named:
        raise wrong("columns", f"must be a mapping of the names in the rows to those in the data, got {columns!r}")
    if isinstance(data, (str, os.PathLike)):
        yield from _file_lines(pathlib.Path(data), columns, argument)
        return
    for number, row in enumerate(_rows_of(data, argument)):
        yield _line(row, f"{argument}[{number}]", columns)


def _rows_of(data: Any, argument: str) -> Iterator[Any]:
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # a Series has no columns
        return _frame_rows(data, argument)
    if isinstance(data, Mapping):
        names = ", ".join(map(repr, itertools.islice(data, 5)))
        raise wrong(argument, f"is a mapping of {names}: pass a list of rows, or one split of it")
    if isinstance(data, (bytes, bytearray)) or not isinstance(data, Iterable):
        raise wrong(argument, f"must be rows, a file's path, or a dataset's name, got {type(data).__name__}")
    if hasattr(data, "features") and hasattr(data, "column_names"):  # Arrow fills keys that a row lacks with None
        return (_without_none(row) for row in data)
    return iter(data)


def _frame_rows(frame: Any, argument: str) -> Iterator[dict[str, Any]]:
    if not frame.columns.is_unique:
        raise wrong(argument, "two columns of the DataFrame have one name")
    for begin in range(0, len(frame), FRAME_ROWS):
        for row in frame.iloc[begin:begin + FRAME_ROWS].to_dict("records"):
            yield {str(key): value for key, value in row.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float) and value != value


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _convert(value: Any) -> Any:
    """What json does not know: numpy's arrays and numbers, torch's tensors, other mappings and sequences."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no JSON")


def _line(row: Any, where: str, columns: Columns | None) -> bytes:
    if not isinstance(row, Mapping):
        raise wrong(where, f"must be a mapping such as {{'prompt': ..., 'completion': ...}}, got {type(row).__name__}")
    if columns:
        lacking = [theirs for theirs in columns.values() if theirs not in row]
        if lacking:
            raise wrong(where, f"has no column {lacking[0]!r}: it has {', '.join(map(repr, row))}")
        ours = {theirs: name for name, theirs in columns.items()}
        renamed = [ours.get(key, key) for key in row]
        if len(set(renamed)) < len(renamed):
            raise wrong(where, f"two columns come to one name: {', '.join(map(repr, renamed))}")
        row = dict(zip(renamed, row.values()))
    try:
        return json.dumps(dict(row), allow_nan=False, default=_convert).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong(where, str(error)) from None


def _file_lines(path: pathlib.Path, columns: Columns | None, argument: str) -> Iterator[bytes]:
    if not path.is_file():
        hint = "" if path.exists() else "; a dataset that is stored has a name of a-z, 0-9 and -"
        raise wrong(argument, f"there is no file {str(path)!r}{hint}")
    with path.open("rb") as raw:
        file, packing, broken = _unpacked(raw, path)
        try:
            front = _begins(file)
            if front.startswith(PARQUET_PAGE) or front.startswith(PARQUET) and not _delimiter(path):
                if packing:
                    raise wrong(str(path), f"is Parquet packed by {packing}: unpack it with `{packing} -d`")
                for number, row in enumerate(_parquet_rows(path)):
                    yield _line(_without_none(row), f"{path}[{number}]", columns)
                return
            for magic, what in MAGIC.items():
                if front.startswith(magic):
                    raise wrong(str(path), f"is {what}")
            yield from _text_lines(file, path, columns)
        except broken as error:
            raise wrong(str(path), f"is no whole {packing} file ({error}); `{packing} -t` tells more") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise wrong(str(path), str(error)) from None


def _begins(file: Any) -> bytes:
    front: bytes = file.read(8)
    file.seek(0)
    return front


def _unpacked(raw: IO[bytes], path: pathlib.Path) -> tuple[Any, str, tuple[type[Exception], ...]]:
    """The file as it was before it was packed, by what it is packed, and what reading it then may raise."""
    front = _begins(raw)
    if front.startswith(GZIP):
        return gzip.GzipFile(fileobj=raw), "gzip", (EOFError, gzip.BadGzipFile, zlib.error)
    if not front.startswith(ZSTD):
        return raw, "", ()
    zstd = _zstd()
    if zstd is None:
        raise wrong(str(path), "is packed by zstd, which needs backports.zstd: pip install backports.zstd, or unpack it with "
                               "`zstd -d`")
    return zstd.ZstdFile(raw), "zstd", (EOFError, zstd.ZstdError)


def _zstd() -> Any:
    for name in ("compression.zstd", "backports.zstd"):  # the former from Python 3.14 on
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _parquet_rows(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise wrong(str(path), "is Parquet, which needs pyarrow: pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=FRAME_ROWS):
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise wrong(str(path), f"is no whole Parquet file: {error}") from None


def _delimiter(path: pathlib.Path) -> str:
    """What is between the columns of a table, which its name alone tells: any other bytes may be a header. "": it is none."""
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return {".csv": ",", ".tsv": "\t"}.get(name[-4:], "")


def _text_lines(file: Any, path: pathlib.Path, columns: Columns | None) -> Iterator[bytes]:
    if delimiter := _delimiter(path):
        yield from _table_lines(file, str(path), delimiter, columns)
        return
    head: bytes = file.read(CHUNK_BYTES)
    rest = iter(lambda: file.read(CHUNK_BYTES), b"")
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        for number, row in enumerate(json.loads(b"".join([head, *rest]).decode("utf-8-sig"))):
            yield _line(row, f"{path}[{number}]", columns)
    elif columns:
        file.seek(0)
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _line(json.loads(line.decode("utf-8-sig")), f"{path}:{number}", columns)
    else:
        yield from filter(None, itertools.chain([head], rest))


def _table_lines(file: Any, name: str, delimiter: str, columns: Columns | None) -> Iterator[bytes]:
    reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        if not header or len(set(header)) < len(header):
            raise wrong(f"{name}:1", "the header names a column twice" if header else "there is no header")
        other = next((c for c in ";\t|," if c != delimiter and c in header[0]), "")
        if len(header) == 1 and other and header[0] not in (columns or {}).values():
            raise wrong(f"{name}:1", f"the header is one column, {header[0]!r}: it seems to have {other!r} between columns, not "
                                     f"{delimiter!r}; pass pandas.read_csv(path, sep={other!r})")
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise wrong(f"{name}:{reader.line_num}", f"has {len(row)} fields, the header {len(header)}")
            if any("\0" in value for value in row):
                raise wrong(f"{name}:{reader.line_num}", "has a zero byte")
            yield _line(dict(zip(header, row)), f"{name}:{reader.line_num}", columns)
    except csv.Error as error:
        raise wrong(f"{name}:{reader.line_num}", str(error)) from None
