"""What transformers makes of random conversations with the chat templates in TRL's wheel (tools/references has both).

usage: chat_cases.py [COUNT [SEED [TEMPLATE ...]]] -> a line of JSON for each case: name of the template, its text, what it
is given, and either `text` with the spans between generation marks (in characters), or `fails`.

The templates are read where TRL lies and are not part of this repository.
"""

import datetime
import json
import pathlib
import random
import sys

import transformers.utils.chat_template_utils as chat_template_utils
import trl
from transformers.utils.chat_template_utils import render_jinja_template

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
PIECES = ["Hello", " ", "\n", "\n\n", "  two  blanks", "é", "e\u0301", "\u4e16\u754c", "\U0001f600", "\u200d", "\u00a0", "\u2028", "\t", "'", '"',
          "\\", "{{ x }}", "{% if %}", "</think>", "<think>", "<tool_response>", "</tool_response>", "<|im_end|>", "<end_of_turn>", "&lt;", "\u05e9\u05dc",
          "\u0130", "\u00df", "1.5", "None", "[INST]", "\r\n", "\x1c", "\ufeff", "a", "b c", "word ", " word"]
VALUES = [0, -3, 1.5, 1e30, 1e-7, 100000.0, True, False, None, "x", "\u00e9\"\n", [], {}, [1, "a", None], {"k": {"n": [1.0]}}]


def text(rng, least=0):
    return "".join(rng.choice(PIECES) for _ in range(rng.randint(least, 6)))


def a_tool(rng, number):
    properties = {f"p{i}": {"type": rng.choice(["string", "number", "object", "array"]), "description": text(rng)} for i in range(rng.randint(0, 3))}
    return {"type": "function", "function": {"name": f"tool_{number}", "description": text(rng),
                                             "parameters": {"type": "object", "properties": properties, "required": sorted(properties)[:1]}}}


def a_call(rng):
    arguments = {rng.choice(["a", "b", "caf\u00e9", "quote\""]): rng.choice(VALUES) for _ in range(rng.randint(0, 3))}
    given = json.dumps(arguments) if rng.random() < 0.2 else arguments
    function = {"name": f"tool_{rng.randint(0, 2)}", "arguments": given}
    if rng.random() < 0.2:
        return function
    return {"type": "function", "id": "call_" + str(rng.randint(0, 999999999)).zfill(9), "function": function}


def an_answer(rng, message):
    if rng.random() < 0.3:
        message[rng.choice(["reasoning_content", "reasoning_content", "thinking", "reasoning"])] = text(rng)
    elif rng.random() < 0.3:
        message["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + text(rng)
    return message


def a_conversation(rng):
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    tools = [a_tool(rng, i) for i in range(rng.randint(1, 3))] if rng.random() < 0.4 else None
    for _ in range(rng.randint(1, 4)):
        user = {"role": "user", "content": text(rng, 1)}
        if rng.random() < 0.1:
            user["name"] = text(rng, 1)
        messages.append(user)
        for _ in range(rng.randint(0, 2) if tools else 0):
            calls = [a_call(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
            messages.append(an_answer(rng, {"role": "assistant", "content": rng.choice(["", None, text(rng)]), "tool_calls": calls}))
            for _ in calls:
                messages.append({"role": "tool", "content": text(rng) if rng.random() < 0.7 else json.dumps(rng.choice(VALUES))})
        messages.append(an_answer(rng, {"role": "assistant", "content": text(rng)}))
    if rng.random() < 0.3:
        messages.pop()
    return messages, tools


def characters_to_bytes(text, spans):
    return [[len(text[:place].encode()) for place in span] for span in spans]


def a_case(name, template, rng):
    messages, tools = a_conversation(rng)
    # What a template for texts alone does with parts we do otherwise, so parts are for those that print them.
    if name.startswith("gemma3") and rng.random() < 0.4:
        for message in messages:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}, {"type": "text", "text": text(rng)}]
    kwargs = {"enable_thinking": rng.random() < 0.5} if rng.random() < 0.2 else {}
    case = {"name": name, "template": template, "messages": messages, "tools": tools, "kwargs": kwargs,
            "add_generation_prompt": rng.random() < 0.4}
    try:
        rendered, spans = render_jinja_template([messages], tools=tools, chat_template=template, return_assistant_tokens_mask=True,
                                                add_generation_prompt=case["add_generation_prompt"], **TOKENS, **kwargs)
        case["text"] = rendered[0]
        case["generated"] = characters_to_bytes(rendered[0], spans[0])
    except Exception as error:  # what the template raises, and what Python does
        case["fails"] = type(error).__name__
    return case


class TheDay(datetime.datetime):
    """The one day that our templates know."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    chat_template_utils.datetime = TheDay
    folder = pathlib.Path(trl.__file__).parent / "chat_templates"
    names = sys.argv[3:] or sorted(path.stem for path in folder.glob("*.jinja"))
    for name in names:
        template = (folder / f"{name}.jinja").read_text()
        rng = random.Random(f"{seed} {name}")
        rendered = failed = 0
        while rendered < count:
            case = a_case(name, template, rng)
            failed += "fails" in case
            rendered += "text" in case
            if "text" in case or failed <= count // 4:  # enough of those that it refuses
                print(json.dumps(case, ensure_ascii=True))


if __name__ == "__main__":
    main()
