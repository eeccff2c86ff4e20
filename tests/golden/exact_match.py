"""What transformers and PEFT answer greedily to rows of messages, in float32 on a CPU, for tests/e2e/exact_match_test.py.

usage: exact_match.py MODEL_DIR ROWS TOKENS {ADAPTER_DIR|-}...    (-: the model without an adapter)

For each adapter and row a line of JSON: the text of the answer, which ends at the model's end token or after TOKENS; its
number of tokens; and what it would have been where two tokens were less than TIE apart and the other one was taken, so that
an answer that differs by rounding alone is known from one that is wrong.
"""

import contextlib
import json
import sys

import peft
import torch
import transformers

# Of logits. The engines' log probabilities differ by some 2e-5 (tests/golden/generate_smollm2).
TIE = 1e-4


def greedy(model, ids, tokens):
    """Up to `tokens` more than `ids`, and the two most likely at each step with the gap between them."""
    out = model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones((1, len(ids)), dtype=torch.long),
                         max_new_tokens=tokens, do_sample=False, return_dict_in_generate=True, output_logits=True)
    best = torch.cat(out.logits).double().topk(2)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    return out.sequences[0, len(ids):].tolist(), best.indices[:, 1].tolist(), gaps


def answer(model, tokenizer, messages, tokens):
    ids = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)["input_ids"]
    given, seconds, gaps = greedy(model, ids, tokens)
    near = [i for i, gap in enumerate(gaps) if gap < TIE]
    others = []
    for i in near:
        begin = given[:i] + [seconds[i]]
        rest = greedy(model, ids + begin, tokens - len(begin))[0] if len(begin) < tokens and seconds[i] != tokenizer.eos_token_id else []
        others.append({"gap": gaps[i], "text": tokenizer.decode(begin + rest, skip_special_tokens=True)})
    return {"text": tokenizer.decode(given, skip_special_tokens=True), "tokens": len(given), "ties": others, "least_gap": min(gaps)}


def main():
    directory, rows, tokens, *adapters = sys.argv[1:]
    torch.set_num_threads(1)  # one answer waits for memory more than for arithmetic, and threads for each other
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    plain = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    asked = [json.loads(line)["messages"] for line in open(rows)]
    model = plain
    names = [None if adapter == "-" else f"adapter-{i}" for i, adapter in enumerate(adapters)]  # a path's dots are no name's
    for name, adapter in zip(names, adapters):
        if name and model is plain:
            model = peft.PeftModel.from_pretrained(plain, adapter, adapter_name=name)
        elif name:
            model.load_adapter(adapter, adapter_name=name)
    model.eval()
    for name in names:
        if name:
            model.set_adapter(name)
        without = name is None and model is not plain
        with torch.no_grad(), model.disable_adapter() if without else contextlib.nullcontext():
            for messages in asked:
                print(json.dumps(answer(model, tokenizer, messages, int(tokens))), flush=True)


main()
