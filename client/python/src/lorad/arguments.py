"""What is wrong with an argument of a call, by its name."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from lorad.errors import Violation, invalid


def wrong_type(argument: str, wanted: str, value: Any) -> TypeError:
    """The error of an argument of another type."""
    return TypeError(f"{argument} must be {wanted}, not {type(value).__name__}")


def kind_of(field: Any) -> str:
    """What a message's field (a FieldDescriptor) holds, as words that go behind "must be"."""
    kinds = {FieldDescriptor.CPPTYPE_STRING: ("a text", "texts"), FieldDescriptor.CPPTYPE_BOOL: ("True or False", "True and False"),
             FieldDescriptor.CPPTYPE_DOUBLE: ("a number", "numbers"), FieldDescriptor.CPPTYPE_FLOAT: ("a number", "numbers")}
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (kinds.get(part.cpp_type, ("", "whole numbers"))[1] for part in field.message_type.fields)
        return f"a mapping of {key} to {value}"
    one, many = kinds.get(field.cpp_type, ("a whole number", "whole numbers"))
    return f"a list of {many}" if isinstance(field.default_value, list) else one


def check_text(argument: str, text: Any, wanted: str = "a text") -> None:
    """A str that UTF-8 can hold: no half of a pair of UTF-16."""
    if not isinstance(text, str):
        raise wrong_type(argument, wanted, text)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid([Violation(argument, f"is no text: character {error.start} (U+{ord(text[error.start]):04X}) is half of one")],
                      "of the call") from None


def check_whole(argument: str, number: Any) -> None:
    """A whole number; True and False are none."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise wrong_type(argument, "a whole number", number)


def check_name(argument: str, name: Any, wanted: str) -> None:
    """A name; an empty one is refused, for the daemon could find what has none, or all."""
    check_text(argument, name, wanted)
    if not name:
        raise invalid([Violation(argument, f"is empty: give {wanted}")], "of the call", "NO_NAME")


def folder_of(argument: str, path: Any) -> pathlib.Path:
    """A folder's path; "" is refused, which pathlib takes for the current one."""
    if not isinstance(path, (str, os.PathLike)):
        raise wrong_type(argument, "a folder's path", path)
    if not os.fspath(path):
        raise invalid([Violation(argument, "is empty: give a folder's path")], "of the call")
    return pathlib.Path(path)
