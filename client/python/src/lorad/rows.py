"""Rows as you have them (lists, iterables, files, datasets.Dataset, pandas) as JSON Lines, which the daemon takes.

Each row is written as `json.dumps` writes it, so the same rows have one hash whatever they came in; a file of JSON Lines
goes byte for byte as it is. Memory: one row at a time, of Parquet a row group, of a file that is a JSON array all of it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import itertools
import json
import os
import pathlib
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from lorad import csv_rows
from lorad.arguments import shown
from lorad.errors import REMEDIES, TEMPORARY, UNREADABLE, InvalidError, LoradError, Violation, file_error

Columns = Mapping[str, str]
CHUNK_BYTES = 1 << 20
MEMORY_BYTES = 16 << 20  # of spooled rows; more goes to a temporary file
PATH_CHARACTERS = 1000  # of a longer one, which may be rows, errors show the beginning
FRAME_ROWS = 1000  # of a DataFrame, converted at once
GZIP = b"\x1f\x8b"
PARQUET = (b"PAR1", b"PARE")  # the latter where all of it is encrypted
PARQUET_PAGE = b"PAR1\x15"  # with the first page's header behind, in Thrift's bytes: no header of a table
MAGIC = {re.compile(magic, re.DOTALL): what for magic, what in (
    (b"\xff\xfe|\xfe\xff", "UTF-16, and must be UTF-8: `iconv -f UTF-16 -t UTF-8` makes it"),
    (b"ARROW1", "Arrow: pass pandas.read_feather(path), or a datasets.Dataset"),
    (b"\xfd7zXZ\0", "xz: unpack it with `xz -d`"),
    (b"BZh.1AY&SY", "bzip2: unpack it with `bzip2 -d`"),  # three letters alone may begin a table
    (b"PK\x03\x04", "zip: unpack it"))}
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
                self._write(chunk)
            self._write(b"")
            if not self.file.tell():
                where = str(data) if isinstance(data, (str, os.PathLike)) else argument
                raise wrong(where, "has no rows: give one at least, such as {'prompt': ..., 'completion': ...}")
        except BaseException:
            with contextlib.suppress(OSError):  # of what is yet to be written
                self.file.close()
            raise
        self.size = self.file.tell()
        self.sha256 = digest.hexdigest()

    def _write(self, chunk: bytes) -> None:
        """b"": all has come."""
        try:
            self.file.write(chunk)
            if not chunk:
                self.file.flush()
        except OSError as error:
            raise file_error(error, "a temporary file of rows", remedy=TEMPORARY) from None

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
    return (piece for _, piece in _pieces(data, columns, argument))


class Origin:
    """Where rows came from, for what the daemon says of a line that it was sent; "": all of them."""

    def __init__(self, data: Any, columns: Columns | None, argument: str) -> None:
        self.path = data if isinstance(data, (str, os.PathLike)) else None
        self._columns, self.argument = columns, argument

    def __str__(self) -> str:
        return self.argument if self.path is None else str(self.path)

    def row(self, line: int) -> str:
        """The row that was sent as this line, by its own place; 0: all of them."""
        if line < 1:
            return str(self)
        if self.path is None:
            return f"{self.argument}[{line - 1}]"
        place, raw = "", False
        try:
            for number, (place, _) in enumerate(_pieces(self.path, self._columns, self.argument), 1):
                raw = not place
                if raw or number == line:
                    break
        except (LoradError, OSError):  # it is another by now
            return str(self)
        return f"{self.path}:{line}" if raw else place

    def blame(self, reason: str, message: str, line: int) -> tuple[str, Violation]:
        """The daemon's error of these rows in the caller's words: a message, and what is wrong with which row."""
        if reason == "DATASET_INVALID":
            found = re.match(r"line (\d+): ", message)
            line = int(found[1]) if found else 0
            return "the rows are not valid", Violation(self.row(line), message[found.end() if found else 0:])
        of_all = re.sub(r"^dataset '[^']*'(, )?", "", message.removesuffix("; 'lora dataset validate' lists them all"))
        counted, first, why = of_all.partition(f", the first in line {line}: ")
        if not first:
            return "the rows are not valid", Violation(str(self), of_all)
        return f"{self}{counted}", Violation(self.row(line), why)


def _pieces(data: Any, columns: Columns | None, argument: str) -> Iterator[tuple[str, bytes]]:
    """Each row with its place; or "" with some bytes of a file that goes as it is."""
    named = columns is None or isinstance(columns, Mapping) and all(
        isinstance(text, str) for pair in columns.items() for text in pair)
    if not named:
        raise wrong("columns", f"must be a mapping of the names in the rows to those in the data, got {columns!r}")
    if isinstance(data, str) and not data:
        raise wrong(argument, "is empty: give rows, a file's path, or a dataset's name")
    if isinstance(data, (str, os.PathLike)):
        yield from _file_pieces(pathlib.Path(data), columns, argument)
        return
    for number, row in enumerate(_rows_of(data, argument)):
        where = f"{argument}[{number}]"
        yield where, _line(row, where, columns)


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


def _file_pieces(path: pathlib.Path, columns: Columns | None, argument: str) -> Iterator[tuple[str, bytes]]:
    try:
        _check_file(path, argument)
        yield from _pieces_of_file(path, columns)
    except OSError as error:
        raise wrong(argument, f"{shown(str(path), PATH_CHARACTERS)}: {error.strerror or error}; {REMEDIES[UNREADABLE]}") from None


def _check_file(path: pathlib.Path, argument: str) -> None:
    name = shown(str(path), PATH_CHARACTERS)
    if path.is_dir():
        raise wrong(argument, f"{name} is a directory: give a file of it (JSON Lines, JSON, CSV, TSV or Parquet), or rows")
    if path.exists() and not path.is_file():
        raise wrong(argument, f"{name} is no plain file: give one, or rows")
    if not path.is_file():
        raise wrong(argument, f"there is no file {name}; a dataset that is stored has a name of a-z, 0-9 and -")


def _pieces_of_file(path: pathlib.Path, columns: Columns | None) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as raw:
        file, packing, broken = _unpacked(raw, path)
        try:
            front = _begins(file)
            rows = _parquet_rows(path, packing) if _is_parquet(front, path) else _text_rows(file, front, path, columns)
            for where, row in rows:
                yield (where, row) if isinstance(row, bytes) else (where, _line(row, where, columns))
        except broken as error:
            if isinstance(error, gzip.BadGzipFile) and "Not a gzipped" in str(error):  # its own front was
                raise wrong(str(path), "has bytes behind its end that are not gzip's: `gzip -dc` unpacks it without them") from None
            raise wrong(str(path), f"is no whole {packing} file ({error}); `{packing} -t` tells more") from None
        except csv_rows.Wrong as error:
            raise wrong(f"{path}:{error.line}", error.what) from None


def _begins(file: Any) -> bytes:
    front: bytes = file.read(10)
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


def _is_parquet(front: bytes, path: pathlib.Path) -> bool:
    if front.startswith(PARQUET_PAGE):
        return True
    if _plain_name(path).endswith(".parquet"):
        if not front.startswith(PARQUET):
            raise wrong(str(path), "is no Parquet file, which begins with PAR1: give it the name of what it is, such as .jsonl "
                                   "or .csv" if front else "is empty, and no Parquet file")
        return True
    return front.startswith(PARQUET) and not _delimiter(path)


def _parquet_rows(path: pathlib.Path, packing: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if packing:
        raise wrong(str(path), f"is Parquet packed by {packing}: unpack it with `{packing} -d`")
    try:
        from lorad import parquet
    except ImportError:
        raise wrong(str(path), "is Parquet, which needs pyarrow: pip install pyarrow") from None
    try:
        for number, row in enumerate(parquet.read(path)):
            yield f"{path}[{number}]", _without_none(row)
    except parquet.ParquetError as error:
        raise wrong(str(path), str(error)) from None


def _plain_name(path: pathlib.Path) -> str:
    return path.name.lower().removesuffix(".gz").removesuffix(".zst")


def _delimiter(path: pathlib.Path) -> str:
    """What is between the columns of a table, which its name alone tells: any other bytes may be a header. "": it is none."""
    return {".csv": ",", ".tsv": "\t"}.get(_plain_name(path)[-4:], "")


def _text_rows(file: Any, front: bytes, path: pathlib.Path, columns: Columns | None) -> Iterator[tuple[str, Any]]:
    """As `_pieces`, but rows that are yet to be written."""
    for magic, what in MAGIC.items():
        if magic.match(front):
            raise wrong(str(path), f"is {what}")
    if delimiter := _delimiter(path):
        yield from _table_rows(file, str(path), delimiter, columns)
        return
    head: bytes = file.read(CHUNK_BYTES)
    rest = iter(lambda: file.read(CHUNK_BYTES), b"")
    if head.removeprefix(csv_rows.BYTE_ORDER_MARK).lstrip()[:1] == b"[":
        for number, row in enumerate(_array(b"".join([head, *rest]), str(path))):
            yield f"{path}[{number}]", row
    elif columns:
        file.seek(0)
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{path}:{number}", _parsed(line, f"{path}:{number}")
    else:
        for chunk in filter(None, itertools.chain([head], rest)):
            yield "", chunk


def _array(text: bytes, where: str) -> Any:
    try:
        return _parsed(text, where)
    except InvalidError:
        front = text.rstrip().removesuffix(b"]").rstrip()
        if not front.endswith(b",") or not (rows := _rows_before(front)):
            raise
        line = text.rstrip().count(b"\n") + 1
        raise wrong(f"{where}:{line}", f"a comma behind the last row, {rows}; take it away") from None


def _rows_before(comma: bytes) -> int:
    """Of an array that goes up to a comma; 0: it is none."""
    try:
        return len(_parsed(comma[:-1] + b"]", ""))
    except InvalidError:
        return 0


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise wrong(where, csv_rows.NOT_UTF_8) from None
    except (json.JSONDecodeError, RecursionError) as error:
        raise wrong(where, f"is no JSON: {error}") from None


def _table_rows(file: Any, name: str, delimiter: str, columns: Columns | None) -> Iterator[tuple[str, dict[str, str]]]:
    header: list[str] = []
    line, what = 1, {",": "comma", "\t": "tab"}[delimiter]
    for line, fields in csv_rows.read(file, delimiter):
        if not header:
            header = fields
            if mistake := csv_rows.header_mistake(header, delimiter, [*(columns or {}).values()]):
                raise wrong(f"{name}:{line}", mistake)
        elif len(fields) != len(header):
            raise wrong(f"{name}:{line}", f"has {len(fields)} fields, the header {len(header)}: put fields that have a {what} in "
                                          "them in quotes")
        else:
            yield f"{name}:{line}", dict(zip(header, fields))
    if not header:
        raise wrong(f"{name}:1", "there is no header: the file is empty")
