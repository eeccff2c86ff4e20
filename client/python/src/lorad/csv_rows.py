"""CSV and TSV as `lora` reads them (client/inputs/csv_rows.cc): text in UTF-8, a header, rows that end in LF or CR LF, fields
that may be in quotes. The csv module takes what that refuses, bounds a field to 128 KiB, and forgets where a quote opens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

ROW_BYTES_MAX = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
NOT_UTF_8 = "is not UTF-8: `iconv -f LATIN1 -t UTF-8` makes it from Latin-1"
QUOTED = re.compile(r'(?:[^"]|"")*')
ENDS = ("", "\n", "\r", "\r\n")  # a CR at the end of the file, too


class Wrong(Exception):
    """What is wrong, and in which line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


class _Row:
    """The fields of one row, from as many lines as it has."""

    def __init__(self, line: int, separator: str, plain: re.Pattern[str]) -> None:
        self.line, self.bytes = line, 0
        self.fields: list[str] = []
        self.quote_line = 0  # where the quote opens that is open
        self._parts: list[str] = []  # of its field
        self._separator, self._plain = separator, plain

    def take(self, number: int, text: str) -> bool:
        """Whether it ends with this line."""
        if not self.quote_line and '"' not in text:
            fields = text.removesuffix("\n").removesuffix("\r").split(self._separator)
            if all("\r" not in field for field in fields):
                self.fields += fields
                return True
        at = 0
        while True:
            if not self.quote_line and text.startswith('"', at):
                self.quote_line, self._parts, at = number, [], at + 1
            found = (QUOTED if self.quote_line else self._plain).match(text, at)
            assert found
            at = found.end()
            if not self.quote_line:
                self.fields.append(found[0])
            else:
                self._parts.append(found[0].replace('""', '"'))
                if at == len(text):
                    return False
                self.quote_line, at = 0, at + 1
                self.fields.append("".join(self._parts))
                if text[at:at + 1] not in ("", self._separator, "\r", "\n"):
                    raise Wrong(number, "has text behind a closing quote: a quote inside of a quoted field is doubled")
            if text[at:at + 2] in ENDS:
                return True
            if text[at] != self._separator:
                raise Wrong(number, "has a carriage return without a line feed: put such a field in quotes, or make lines of an "
                                    r"old Mac's with `tr '\r' '\n'`")
            at += 1


def read(file: IO[bytes], separator: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, the header as well, each with the line in which it begins. Raises Wrong."""
    plain = re.compile(rf"[^{separator}\r\n]*")
    row: _Row | None = None
    lines = iter(lambda: file.readline(ROW_BYTES_MAX + 1), b"")
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise Wrong(number, NOT_UTF_8) from None
        if "\0" in text:
            raise Wrong(number, "has a NUL byte: `iconv -f UTF-16 -t UTF-8` makes text in UTF-8 of UTF-16")
        if row is None and text in ENDS:
            continue
        row = row or _Row(number, separator, plain)
        row.bytes += len(line)
        if row.bytes > ROW_BYTES_MAX:
            raise Wrong(row.line, "has a row of more than 16 MiB: is a quote missing?")
        if row.take(number, text):
            yield row.line, row.fields
            row = None
    if row:
        raise Wrong(row.quote_line, "has a quote that is never closed")


def header_mistake(names: list[str], separator: str, theirs: list[str]) -> str:
    """What is wrong with a header; "": nothing. `theirs`: the names that the user renames."""
    name = next((c for c in ";\t|," if c != separator and c in names[0]), "")
    if len(names) == 1 and name and names[0] not in theirs:
        return (f"the header is one column, {names[0]!r}: it seems to have {name!r} between columns, not {separator!r}; pass "
                f"pandas.read_csv(path, sep={name!r})")
    if "" in names:
        return (f"column {names.index('') + 1} has no name in the header: pandas leaves its index out with "
                "to_csv(index=False)")
    twice = next((name for name in names if names.count(name) > 1), None)
    return "" if twice is None else f"the header names {twice!r} twice: rename or remove one"
