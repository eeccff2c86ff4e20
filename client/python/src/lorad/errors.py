"""What goes wrong, as exceptions whose text holds every violation."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any

from google.rpc import error_details_pb2, status_pb2

DETAILS_KEY = "grpc-status-details-bin"
UNWRITABLE, UNREADABLE = "FILE_UNWRITABLE", "FILE_UNREADABLE"
REMEDIES = {UNWRITABLE: "name a folder that you may write to and that has room",
            UNREADABLE: "does it exist, is it a file, may you read it?"}


@dataclasses.dataclass(frozen=True)
class Violation:
    """One thing that is wrong: `field` is the argument, field, row or limit to blame."""

    field: str
    description: str

    def __str__(self) -> str:
        return f"{self.field}: {self.description}" if self.field else self.description

TEMPORARY = f"let TMPDIR {REMEDIES[UNWRITABLE]}"  # the remedy of temporary files


class LoradError(Exception):
    """An answer of the daemon's, or of this package, that is an error.

    code         the gRPC code's name, e.g. "NOT_FOUND"
    reason       for programs, e.g. "DATASET_NOT_FOUND"; docs/api.md lists them
    violations   all that is wrong, each with its field
    metadata     what the error is about
    retry_after  seconds after which it is worth trying again; None: nobody knows
    """

    def __init__(self, message: str, *, code: str = "UNKNOWN", reason: str = "", violations: Sequence[Violation] = (),
                 metadata: dict[str, str] | None = None, retry_after: float | None = None) -> None:
        self.message = message
        self.code = code
        self.reason = reason or code
        self.violations = list(violations)
        self.metadata = dict(metadata or {})
        self.retry_after = retry_after
        super().__init__(message)

    def __str__(self) -> str:
        # A failed precondition's only violation may be what the message says.
        more = [str(violation) for violation in self.violations if violation.description != self.message]
        return "\n  ".join([f"{self.reason}: {self.message}", *more])


class InvalidError(LoradError, ValueError):
    """Arguments, fields or rows that are not right: `violations` has all of them."""


class NotFoundError(LoradError, LookupError):
    """There is no such job, model, dataset, checkpoint, ..."""


class AlreadyExistsError(LoradError):
    """The name, or the request id, is taken."""


class UnavailableError(LoradError, ConnectionError):
    """The daemon is not there, does not answer in time, or cannot do it now."""


class JobFailedError(LoradError):
    """A job that was waited for has ended without success; `reason` is the job's."""


class FileError(LoradError, OSError):
    """A file or a folder of this machine cannot be read or written: `errno` and `filename` are the system's."""


def file_error(error: OSError, path: str | os.PathLike[str], reason: str = UNWRITABLE, remedy: str = "") -> FileError:
    """Of what the system says of the file or folder `path`."""
    found = FileError(f"{path}: {error.strerror or error}; {remedy or REMEDIES[reason]}", code="FAILED_PRECONDITION",
                      reason=reason)
    found.errno, found.strerror, found.filename = error.errno, error.strerror, str(path)
    return found


@contextlib.contextmanager
def file_errors(path: str | os.PathLike[str], reason: str = UNWRITABLE, remedy: str = "") -> Iterator[None]:
    """What the system says meanwhile is of `path`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, LoradError):
            raise
        raise file_error(error, path, reason, remedy) from None


_CLASSES: dict[str, type[LoradError]] = {
    "INVALID_ARGUMENT": InvalidError, "NOT_FOUND": NotFoundError, "ALREADY_EXISTS": AlreadyExistsError,
    "UNAVAILABLE": UnavailableError, "DEADLINE_EXCEEDED": UnavailableError,
}


def invalid(violations: Sequence[Violation], what: str, reason: str = "INVALID_FIELDS") -> InvalidError:
    """The error of all these at once; `what` names what they are of, e.g. "of the job"."""
    count = f"1 field {what} is" if len(violations) == 1 else f"{len(violations)} fields {what} are"
    return InvalidError(f"{count} not valid", code="INVALID_ARGUMENT", reason=reason, violations=violations)


def from_rpc(error: Any, server: str) -> LoradError:
    """The exception for a grpc.RpcError of a call to `server`."""
    code, message = error.code().name, error.details() or ""
    keywords: dict[str, Any] = {}
    violations: list[Violation] = []
    for key, value in error.trailing_metadata() or ():
        if key != DETAILS_KEY:
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            precondition, quota = error_details_pb2.PreconditionFailure(), error_details_pb2.QuotaFailure()
            retry = error_details_pb2.RetryInfo()
            if detail.Unpack(info):
                keywords |= {"reason": info.reason, "metadata": dict(info.metadata)}
            elif detail.Unpack(bad):
                violations += [Violation(v.field, v.description) for v in bad.field_violations]
            elif detail.Unpack(precondition):
                violations += [Violation(v.subject, v.description) for v in precondition.violations]
            elif detail.Unpack(quota):
                violations += [Violation(v.subject, v.description) for v in quota.violations]
            elif detail.Unpack(retry):
                keywords["retry_after"] = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    if code in ("UNAVAILABLE", "DEADLINE_EXCEEDED") and "reason" not in keywords:
        message = f"no daemon answers at {server}: {message}"
    if code == "RESOURCE_EXHAUSTED" and "message larger than max" in message:
        keywords["reason"], message = "REQUEST_TOO_LARGE", f"the daemon takes no request of that size ({message})"
    return _CLASSES.get(code, LoradError)(message, code=code, violations=violations, **keywords)
