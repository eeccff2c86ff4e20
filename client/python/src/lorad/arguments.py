"""What is wrong with an argument of a call, by its name, and how it comes into a message."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import operator
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from lorad.errors import InvalidError, Violation, invalid

SHOWN_CHARACTERS = 100
ADDRESS = re.compile(r"(?:\[[^\s/\[\]]+\]|[^\s/\[\]:]+):0*([0-9]{1,5})")  # gRPC reads a colon in a host as no host's
ENDLESS_SECONDS = 1e9  # and more
# That a field holds; what is within is the daemon's to refuse.
LARGEST = {FieldDescriptor.CPPTYPE_INT32: 2**31 - 1, FieldDescriptor.CPPTYPE_ENUM: 2**31 - 1,
           FieldDescriptor.CPPTYPE_INT64: 2**63 - 1, FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1}
BELOW_ZERO = "priority"  # the field of jobs that takes numbers there
KINDS = {FieldDescriptor.CPPTYPE_STRING: ("a text", "texts"), FieldDescriptor.CPPTYPE_BOOL: ("True or False", "True and False"),
         FieldDescriptor.CPPTYPE_DOUBLE: ("a number", "numbers"), FieldDescriptor.CPPTYPE_FLOAT: ("a number", "numbers")}
WHOLE = ("a whole number", "whole numbers")


def shown(value: Any, characters: int = SHOWN_CHARACTERS) -> str:
    """A value as an error shows it: the beginning of a long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of over 4300 digits
        return f"one of type {type(value).__name__} that is too long to be shown"
    return text if len(text) <= characters else f"{text[:characters]}..."


def wrong_type(argument: str, wanted: str, value: Any) -> TypeError:
    """The error of an argument of another type."""
    return TypeError(f"{argument} must be {wanted}, not {type(value).__name__}")


def of_call(argument: str, problem: str) -> InvalidError:
    """The error of an argument that is not right."""
    return invalid([Violation(argument, problem)], "of the call")


def kind_of(field: Any) -> str:
    """What a message's field (a FieldDescriptor) holds, as words that go behind "must be"."""
    if _is_map(field):
        key, value = (KINDS.get(part.cpp_type, WHOLE)[1] for part in field.message_type.fields)
        return f"a mapping of {key} to {value}"
    one, many = KINDS.get(field.cpp_type, WHOLE)
    return f"a list of {many}" if isinstance(field.default_value, list) else one


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


@dataclasses.dataclass(frozen=True)
class Fault:
    """Why a field cannot hold a value. `problem`: "" where it is of another type than `wanted`."""

    value: Any
    wanted: str
    problem: str = ""
    part: str = ""  # the value is this part of what was given: "[1]", "['q_proj']"

    def __str__(self) -> str:
        return self.problem or f"must be {self.wanted}, got {shown(self.value)}"


def fault_in(field: Any, value: Any) -> Fault | None:
    """Of a message's field (a FieldDescriptor); None: it can hold the value. protobuf itself says neither which field it is,
    nor what it holds, and other releases take other values."""
    if _is_map(field):
        keys, values = field.message_type.fields
        if not isinstance(value, Mapping) or any(not isinstance(key, str) for key in value):
            return Fault(value, kind_of(field))
        for key, part in value.items():
            if fault := _fault_of_one(keys, key) or _fault_of_one(values, part):
                return dataclasses.replace(fault, part=f"[{shown(key)}]")
        return None
    if not isinstance(field.default_value, list):
        return _fault_of_one(field, value)
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        return Fault(value, kind_of(field))
    for i, part in enumerate(value):
        if fault := _fault_of_one(field, part):
            return dataclasses.replace(fault, part=f"[{i}]")
    return None


def _fault_of_one(field: Any, value: Any) -> Fault | None:
    """Of a value that is neither a list nor a mapping."""
    kind = field.cpp_type
    other = Fault(value, KINDS.get(kind, WHOLE)[0])
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if not isinstance(value, str):
            return other
        problem = _problem_of_text(value)
        return Fault(value, other.wanted, problem) if problem else None
    if kind == FieldDescriptor.CPPTYPE_BOOL or isinstance(value, bool):
        return None if kind == FieldDescriptor.CPPTYPE_BOOL and isinstance(value, bool) else other
    try:
        if kind in LARGEST:
            least = 0 if kind == FieldDescriptor.CPPTYPE_UINT64 else -LARGEST[kind] - 1
            if not least <= operator.index(value) <= LARGEST[kind]:
                first = least if field.name == BELOW_ZERO else 0
                return Fault(value, other.wanted, f"must be from {first} to {LARGEST[kind]}, got {shown(value)}")
        elif isinstance(value, (str, bytes)):
            return other
        else:
            float(value)
    except TypeError:
        return other
    except OverflowError:
        return Fault(value, other.wanted, f"must be at most 1.7e308, got {shown(value)}")
    return None


def put(message: Any, field: str, value: Any, argument: str = "") -> None:
    """Sets a message's field to what an argument says (None: nothing). TypeError or InvalidError where the field cannot hold
    it, by the argument's name; "": that of the field."""
    if value is None:
        return
    if fault := fault_in(message.DESCRIPTOR.fields_by_name[field], value):
        place = f"{argument or field}{fault.part}"
        raise of_call(place, fault.problem) if fault.problem else wrong_type(place, fault.wanted, fault.value)
    message.MergeFrom(type(message)(**{field: value}))


def _problem_of_text(text: str) -> str:
    """Why UTF-8 cannot hold it; "": it can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is no text: character {error.start} (U+{ord(text[error.start]):04X}) is half of one"
    return ""


def check_text(argument: str, text: Any, wanted: str = "a text") -> None:
    """A str that UTF-8 can hold: no half of a pair of UTF-16."""
    if not isinstance(text, str):
        raise wrong_type(argument, wanted, text)
    if problem := _problem_of_text(text):
        raise of_call(argument, problem)


def check_whole(argument: str, number: Any) -> None:
    """A whole number; True and False are none."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise wrong_type(argument, "a whole number", number)


def check_address(argument: str, address: Any) -> None:
    """HOST:PORT, in the words of client/calls/address.cc. gRPC takes a port modulo 65536."""
    found = ADDRESS.fullmatch(address) if isinstance(address, str) and address.isprintable() else None
    if not found or not 1 <= int(found[1]) <= 65535:
        raise of_call(argument, f"must be HOST:PORT, like 127.0.0.1:7070, with a port from 1 to 65535, got {shown(address)}"
                      f"{_in_brackets(address)}")


def _in_brackets(address: Any) -> str:
    """How an IPv6 address is written, behind one that is not; else ""."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return ""
    return f"; an address of IPv6 stands in brackets, [{host}]:{port}"


def seconds_of(argument: str, seconds: Any) -> float | None:
    """A time; None: without an end, as is one so long that gRPC would take it for one that is over."""
    if seconds is None:
        return None
    if isinstance(seconds, (bool, str)) or not (hasattr(seconds, "__float__") or hasattr(seconds, "__index__")):
        raise wrong_type(argument, "a number of seconds", seconds)
    try:
        said = float(seconds)
    except OverflowError:
        return None
    if math.isnan(said):
        raise of_call(argument, "must be a number of seconds, got nan")
    return said if said <= ENDLESS_SECONDS else None


def check_name(argument: str, name: Any, wanted: str) -> None:
    """A name; an empty one is refused, for the daemon could find what has none, or all."""
    check_text(argument, name, wanted)
    if not name:
        raise invalid([Violation(argument, f"is empty: give {wanted}")], "of the call", "NO_NAME")


def folder_of(argument: str, path: Any) -> pathlib.Path:
    """A folder's path; "" is refused, which pathlib takes for the current one."""
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        raise wrong_type(argument, "a folder's path", path)
    if not os.fspath(path):
        raise of_call(argument, "is empty: give a folder's path")
    try:
        nul = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        nul = True
    if nul:
        raise of_call(argument, f"holds what no path does: {shown(path)}")
    return pathlib.Path(path)
