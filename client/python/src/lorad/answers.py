"""Questions to adapters and base models, and whether the answers are right."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import grpc

from lorad.arguments import check_text, of_call, put, shown, wrong_type
from lorad.calls import Connection
from lorad.errors import LoradError, UnavailableError, Violation
from lorad.job import Job
from lorad.matching import GaveUp, Matcher
from lorad.tables import Table
from lorad.v1 import adapters_pb2, datasets_pb2

JOB = re.compile(r"(job-[a-z0-9]{8})(?:/([1-9][0-9]{0,17}))?")  # 18 digits: 64 bits hold them all
ROWS_AT_ONCE = 64
JOB_STEP = re.compile(r"(job-[a-z0-9]{8}/)0*([1-9][0-9]*)")
ASKED = re.compile(r"asks\[[0-9]+\]\.(\w+)")
# A field of an ask -> the argument that said it, where that has another name.
ARGUMENTS = {**dict.fromkeys(("job", "step", "base_model"), "source"), **dict.fromkeys(("text", "messages_json", "token_ids"), "prompt"),
             "row": "dataset"}
WRONG = ["row", "expected", "got", "answer"]
NOT_ASKED = ["row", "reason", "message"]
Finish = adapters_pb2.GenerateResponse.FinishReason

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]


@dataclasses.dataclass
class Answer:
    """An answer, as far as it has come; `str(answer)` is its text."""

    text: str = ""
    finish_reason: str = ""  # "EOS", "STOP" or "LENGTH"; "" before its end
    token_ids: list[int] = dataclasses.field(default_factory=list)
    log_probabilities: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    step: int = 0  # of the job's checkpoint that was asked
    reference: str = ""  # of a dataset's row: its own answer

    def __str__(self) -> str:
        return self.text

    def take(self, message: adapters_pb2.GenerateResponse) -> None:
        """Adds a piece."""
        self.text += message.text
        self.token_ids += message.token_ids
        self.log_probabilities += message.log_probabilities
        self.step = self.step or message.step
        self.reference = self.reference or message.reference
        self.prompt_tokens = message.prompt_tokens
        self.completion_tokens = message.completion_tokens
        if message.finish_reason:
            self.finish_reason = Finish.Name(message.finish_reason)


@dataclasses.dataclass
class Evaluation:
    """How many answers to a dataset's rows were right.

    rows               that were asked
    right              of them
    wrong              the others, as a table
    without_reference  rows in whose own answer the expression finds nothing, so none can be right
    gave_up            rows, by number, on whose answers the expression went back and forth too long; they count as wrong
    not_asked          rows that could not be asked, as a table; they do not count
    """

    rows: int
    right: int
    wrong: Table
    without_reference: int = 0
    gave_up: list[int] = dataclasses.field(default_factory=list)
    not_asked: Table = dataclasses.field(default_factory=lambda: Table(NOT_ASKED, []))

    @property
    def exact_match(self) -> float:
        """Their share."""
        return self.right / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        left_out = f", {_rows(len(self.not_asked))} could not be asked" if len(self.not_asked) else ""
        return f"exact match: {self.right} of {self.rows} right ({100 * self.exact_match:.1f} %){left_out}"


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def check_prompt(prompt: Any) -> None:
    """TypeError or InvalidError where it is none, by its name."""
    wanted = "a text, a list of messages ({\"role\", \"content\"}), or a list of token ids"
    if isinstance(prompt, (bytes, bytearray)):
        raise of_call("prompt", "is bytes: decode them to text, or give a list of token ids")
    if isinstance(prompt, str):
        check_text("prompt", prompt)
        return
    if isinstance(prompt, Mapping) or not isinstance(prompt, Sequence):
        raise wrong_type("prompt", wanted, prompt)
    if not prompt:
        raise of_call("prompt", f"is empty: give {wanted}")
    kind, a_part = (int, "a token id") if isinstance(prompt[0], int) else (Mapping, "a message")
    for i, part in enumerate(prompt):
        if isinstance(part, bool) or not isinstance(part, kind):
            raise wrong_type(f"prompt[{i}]", a_part if i else "a message or a token id", part)


def ask(source: str | Job, prompt: Prompt | None, *, adapter: str, system: str, raw: bool,
        how: Mapping[str, Any]) -> adapters_pb2.Ask:
    """One ask of a call. `prompt` None: it is yet to be set."""
    if not isinstance(source, (str, Job)):
        raise wrong_type("source", "a Job, a job's id, \"ID/STEP\" or a model's name", source)
    request = adapters_pb2.Ask()
    for argument, value in {"adapter": adapter, **how}.items():
        put(request, argument, value)
    name = source.name if isinstance(source, Job) else source
    found = JOB.fullmatch(name)
    otherwise = JOB_STEP.fullmatch(name)
    if otherwise and not found:
        written = otherwise[1] + otherwise[2]
        raise of_call("source", f"{shown(name)} is no step as it is written: ask '{written}'" if JOB.fullmatch(written) else
                      f"{shown(name)} names a step of more than 18 digits, which no job has")
    if found:
        request.job = found[1]
        if found[2]:
            request.step = int(found[2])
    else:
        put(request, "base_model", name, "source")
    if prompt is not None:
        check_prompt(prompt)
    check_text("system", system)
    if system and (raw or not isinstance(prompt, str)):
        raise of_call("system", "goes before a prompt that is rendered: put it into the messages, or into the raw text")
    if isinstance(prompt, str) and raw:
        request.text = prompt
    elif isinstance(prompt, str):
        messages = [{"role": "system", "content": system}] if system else []
        request.messages_json = json.dumps([*messages, {"role": "user", "content": prompt}])
    elif prompt is not None and isinstance(prompt[0], int):
        put(request.token_ids, "ids", prompt, "prompt")
    elif prompt is not None:
        try:
            request.messages_json = json.dumps([dict(message) for message in cast(Sequence[Mapping[str, Any]], prompt)])
        except TypeError as error:
            raise TypeError(f"prompt: a message holds what JSON does not: {error}") from None
        except (ValueError, RecursionError) as error:  # one that holds itself, or a number of over 4300 digits
            raise of_call("prompt", f"a message holds what JSON does not: {error}") from None
    return request


def _in_their_words(violations: Sequence[Violation]) -> list[Violation]:
    """The daemon's violations by the names of the arguments, which all asks of a call have in common, each once."""
    named = [Violation(ASKED.sub(lambda found: ARGUMENTS.get(found[1], found[1]), violation.field), violation.description)
             for violation in violations]
    return [*dict.fromkeys(named)]


def stream(connection: Connection, asks: Sequence[adapters_pb2.Ask],
           timeout: float | None) -> Iterator[adapters_pb2.GenerateResponse]:
    """The messages of one call to its end. It is not begun again where it breaks off: nothing of it is kept."""
    call = connection.begin(connection.adapters.Generate, adapters_pb2.GenerateRequest(asks=asks), timeout)
    begun = False
    try:
        for message in call:
            begun = True
            yield message
    except grpc.RpcError as error:
        found = connection.error_of(error)
        found.violations = _in_their_words(found.violations)
        if found.code == "DEADLINE_EXCEEDED":
            raise TimeoutError(f"no answer within {timeout:g} s: give a larger timeout") from None
        if found.reason == "CANCELLED":  # the daemon's way to end a call that nobody reads
            raise LoradError("the answers were not read for long, so the daemon gave them up: ask again", code="CANCELLED",
                             reason="NOT_READ") from None
        if begun and found.reason == "UNAVAILABLE":
            raise UnavailableError(f"the connection to {connection.server} broke off while answers came (the daemon ended, or "
                                   "this process stood still for long): ask again", code="UNAVAILABLE",
                                   reason="BROKEN_OFF") from None
        raise found from None
    finally:
        call.cancel()


def generate(connection: Connection, asks: Sequence[adapters_pb2.Ask], timeout: float | None,
             on_text: Callable[[int, str], None] | None = None,
             on_waiting: Callable[[str], None] | None = None) -> list[Answer]:
    """The answers, once all have ended. `on_text` hears of each piece as it comes."""
    answers = [Answer() for _ in asks]
    for message in stream(connection, asks, timeout):
        if message.waiting:
            if on_waiting:
                on_waiting(message.waiting)
            continue
        answers[message.index].take(message)
        if on_text and message.text:
            on_text(message.index, message.text)
    if not all(answer.finish_reason for answer in answers):
        raise LoradError("the daemon ended the call before all answers were whole", code="UNAVAILABLE",
                         reason="GENERATION_CUT_SHORT")
    return answers


def evaluate(connection: Connection, how: adapters_pb2.Ask, dataset: datasets_pb2.Dataset, exact_match: str, *,
             limit: int | None, timeout: float | None, progress: Callable[[int, int, int], None]) -> Evaluation:
    """Asks the rows one after another, so many at once. `progress` hears of rows answered, of all, and right ones."""
    try:
        expression = re.compile(exact_match)
    except (re.error, OverflowError, RecursionError) as error:
        raise of_call("exact_match", f"is no regular expression: {error}") from None
    if not expression.groups:
        raise of_call("exact_match", "has no group: put ( and ) around what is compared")
    rows = dataset.rows if limit is None else min(limit, dataset.rows)
    result = Evaluation(0, 0, Table(WRONG, []))
    wrong: list[dict[str, Any]] = []
    not_asked: list[dict[str, Any]] = []
    with Matcher(exact_match) as matcher:
        for begin in range(0, rows, ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, rows)
            for row, answer in _ask_rows(connection, how, dataset.name, range(begin, end), timeout, not_asked):
                _judge(matcher, row, answer, result, wrong)
            progress(end, rows, result.right)
    if rows and not result.rows:
        first = not_asked[0]
        raise LoradError(f"none of {_rows(rows)} could be asked; {first['message']}", code="FAILED_PRECONDITION",
                         reason=first["reason"])
    result.wrong, result.not_asked = Table(WRONG, wrong), Table(NOT_ASKED, not_asked)
    return result


def _ask_rows(connection: Connection, how: adapters_pb2.Ask, dataset: str, numbers: Sequence[int], timeout: float | None,
              not_asked: list[dict[str, Any]]) -> list[tuple[int, Answer]]:
    """Those that can be asked, with their answers. A call is refused before any of it is answered, for one row's sake."""
    left = list(numbers)
    while left:
        asks = []
        for row in left:
            asks.append(adapters_pb2.Ask())
            asks[-1].CopyFrom(how)
            asks[-1].row.dataset, asks[-1].row.row = dataset, row
        try:
            return list(zip(left, generate(connection, asks, timeout), strict=True))
        except LoradError as error:
            ask = error.metadata.get("ask", "")
            if not ask.isdecimal() or int(ask) >= len(left):
                raise
            not_asked.append({"row": left.pop(int(ask)), "reason": error.reason, "message": error.message})
    return []


def _judge(matcher: Matcher, row: int, answer: Answer, result: Evaluation, wrong: list[dict[str, Any]]) -> None:
    expected: str | None = None
    got: str | None = None
    result.rows += 1
    try:
        expected = matcher.first_group(answer.reference)
        result.without_reference += expected is None
        got = matcher.first_group(answer.text)
    except GaveUp:
        result.gave_up.append(row)
    if expected is not None and expected == got:
        result.right += 1
    else:
        wrong.append({"row": row, "expected": expected, "got": got, "answer": answer.text})


class Lines:
    """Progress on stderr: a line now and then."""

    def __init__(self, out: Any, seconds: float = 10.0) -> None:
        self._out, self._seconds, self._next = out, seconds, 0.0

    def __call__(self, answered: int, rows: int, right: int) -> None:
        if answered < rows and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        print(f"{answered}/{rows} answered, {right} right", file=self._out, flush=True)
