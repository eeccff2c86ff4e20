"""Rows of a Parquet file, as client/parquet reads them: what JSON has not is refused before the first row. Needs pyarrow."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow
from pyarrow import ArrowException, parquet, types

BATCH_ROWS = 1000
LISTS = ("is_list", "is_large_list", "is_fixed_size_list", "is_list_view", "is_large_list_view")
PLAIN = ("is_null", "is_boolean", "is_integer", "is_floating", "is_string", "is_large_string", "is_string_view")
# What pandas makes JSON's values of them by.
MENDS = {"is_temporal": ".astype(str)", "is_decimal": ".astype(float)", "is_map": ".map(dict)",
         **dict.fromkeys(("is_binary", "is_large_binary", "is_fixed_size_binary", "is_binary_view"), ".str.decode(\"utf-8\")")}


class ParquetError(Exception):
    """What is wrong with the file, in words that go behind its path."""


def read(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Row by row. ParquetError."""
    try:
        with parquet.ParquetFile(path) as file:
            _check(file.schema_arrow)
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from batch.to_pylist()
    except UnicodeDecodeError:
        raise ParquetError("has text that is not UTF-8") from None
    except (ArrowException, OSError) as error:
        raise ParquetError(f"is no whole Parquet file: {error}") from None


def _check(schema: pyarrow.Schema) -> None:
    if not schema.names:
        raise ParquetError("has no columns")
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise ParquetError(f"two columns are {field.name}; rename or remove one")
        _check_type(field.name, field.name, field.type)


def _check_type(column: str, path: str, kind: pyarrow.DataType) -> None:
    """`path` leads to the type, from the column on."""
    if isinstance(kind, pyarrow.BaseExtensionType):
        if kind.extension_name != "arrow.json":
            raise _no_json(column, path, kind)
        _check_type(column, path, kind.storage_type)
    elif types.is_dictionary(kind):
        _check_type(column, path, kind.value_type)
    elif types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        for field in fields:
            inner = f"{path}.{field.name}"
            if [other.name for other in fields].count(field.name) > 1:
                raise ParquetError(f"two fields are {inner}; rename one")
            _check_type(column, inner, field.type)
    elif _is(kind, *LISTS):
        _check_type(column, f"{path}[]", kind.value_type)
    elif not _is(kind, *PLAIN):
        raise _no_json(column, path, kind)


def _is(kind: pyarrow.DataType, *names: str) -> bool:
    """Whether it is one of them; older releases of pyarrow do not know all."""
    return any(getattr(types, name, lambda _: False)(kind) for name in names)


def _no_json(column: str, path: str, kind: pyarrow.DataType) -> ParquetError:
    by = next((mend for name, mend in MENDS.items() if path == column and _is(kind, name)), "")
    mend = f'frame["{column}"] = frame["{column}"]{by} converts it, and ' if by else ""
    return ParquetError(f"column {path} is {kind}, which JSON has not; with pandas, {mend}frame.drop(columns=\"{column}\") leaves "
                        "it out")
