"""Metrics as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Table(list[dict[str, Any]]):
    """Rows of one set of columns: a list of dicts that prints as a table, and becomes a DataFrame where pandas is."""

    def __init__(self, columns: Iterable[str], rows: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(rows)
        self.columns = list(columns)

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        if name not in self.columns:
            raise KeyError(f"there is no column {name!r}: there are {', '.join(self.columns)}")
        return [row[name] for row in self]

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_pandas needs pandas: pip install pandas") from error
        return pandas.DataFrame(list(self), columns=self.columns)

    def __str__(self) -> str:
        cells = [self.columns, *([_text(row[name]) for name in self.columns] for row in self)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in cells)


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
