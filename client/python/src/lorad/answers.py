"""Questions to adapters and base models, and whether the answers are right."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from lorad.calls import Connection
from lorad.errors import LoradError, Violation, from_rpc, invalid
from lorad.job import Job
from lorad.tables import Table
from lorad.v1 import adapters_pb2, datasets_pb2

JOB = re.compile(r"(job-[a-z0-9]{8})(?:/([1-9][0-9]*))?")
ROWS_AT_ONCE = 64
WRONG = ["row", "expected", "got", "answer"]
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
    """How many answers to a dataset's rows were right."""

    rows: int
    right: int
    wrong: Table

    @property
    def exact_match(self) -> float:
        """Their share."""
        return self.right / self.rows if self.rows else 0.0

    def __str__(self) -> str:
        return f"exact match: {self.right} of {self.rows} right ({100 * self.exact_match:.1f} %)"


def ask(source: str | Job, prompt: Prompt | None, *, adapter: str, system: str, raw: bool,
        how: Mapping[str, Any]) -> adapters_pb2.Ask:
    """One ask of a call. `prompt` None: it is yet to be set."""
    request = adapters_pb2.Ask(adapter=adapter, **how)
    name = source.name if isinstance(source, Job) else source
    found = JOB.fullmatch(name)
    if found:
        request.job = found[1]
        if found[2]:
            request.step = int(found[2])
    else:
        request.base_model = name
    if isinstance(prompt, (bytes, bytearray)):
        raise invalid([Violation("prompt", "is bytes: decode them to text, or give a list of token ids")], "of the call")
    if system and (raw or not isinstance(prompt, str)):
        raise invalid([Violation("system", "goes before a prompt that is rendered: put it into the messages, or into the "
                                           "raw text")], "of the call")
    if isinstance(prompt, str) and raw:
        request.text = prompt
    elif isinstance(prompt, str):
        messages = [{"role": "system", "content": system}] if system else []
        request.messages_json = json.dumps([*messages, {"role": "user", "content": prompt}])
    elif prompt is not None and prompt and isinstance(prompt[0], int):
        request.token_ids.ids.extend(prompt)  # type: ignore[arg-type]
    elif prompt is not None:
        request.messages_json = json.dumps(list(prompt))
    return request


def stream(connection: Connection, asks: Sequence[adapters_pb2.Ask],
           timeout: float | None) -> Iterator[adapters_pb2.GenerateResponse]:
    """The messages of one call to its end. It is not begun again where it breaks off: nothing of it is kept."""
    call = connection.adapters.Generate(adapters_pb2.GenerateRequest(asks=asks), timeout=timeout)
    try:
        yield from call
    except grpc.RpcError as error:
        found = from_rpc(error, connection.server)
        if found.code == "DEADLINE_EXCEEDED":
            raise TimeoutError(f"the answers were not there after {timeout:g} s") from None
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
    except re.error as error:
        raise invalid([Violation("exact_match", f"is no regular expression: {error}")], "of the call") from None
    if not expression.groups:
        raise invalid([Violation("exact_match", "has no group: put ( and ) around what is compared")], "of the call")
    rows = dataset.rows if limit is None else min(limit, dataset.rows)
    right, wrong = 0, []
    for begin in range(0, rows, ROWS_AT_ONCE):
        asks = []
        for row in range(begin, min(begin + ROWS_AT_ONCE, rows)):
            asks.append(adapters_pb2.Ask())
            asks[-1].CopyFrom(how)
            asks[-1].row.dataset, asks[-1].row.row = dataset.name, row
        for row, answer in enumerate(generate(connection, asks, timeout), begin):
            expected, got = (found and found[1] for found in map(expression.search, (answer.reference, answer.text)))
            if expected is not None and expected == got:
                right += 1
            else:
                wrong.append({"row": row, "expected": expected, "got": got, "answer": answer.text})
        progress(begin + len(asks), rows, right)
    return Evaluation(rows, right, Table(WRONG, wrong))


class Lines:
    """Progress on stderr: a line now and then."""

    def __init__(self, out: Any, seconds: float = 10.0) -> None:
        self._out, self._seconds, self._next = out, seconds, 0.0

    def __call__(self, answered: int, rows: int, right: int) -> None:
        if answered < rows and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._seconds
        print(f"{answered}/{rows} answered, {right} right", file=self._out, flush=True)
