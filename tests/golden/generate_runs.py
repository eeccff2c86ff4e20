"""Makes MODEL/generated.json of the reference models: what transformers generates greedily after 50 prompts, in turn without an
adapter and with that of every run (RUN/final), in float32 on a CPU, eager attention. tools/references runs it.

usage: generate_runs.py GOLDEN_DIR [MODEL ...]
       generate_runs.py GOLDEN_DIR --smollm2 MODEL_DIR ROWS...  the same of SmolLM2, 64 tokens after the beginnings of 50
                                                                questions of ROWS, every other one with
                                                                smollm2_gsm8k_r4_qv/final

For each adapter ("" = none) and prompt: the tokens of model.generate, their log probabilities by a pass over each prefix,
and how far the most likely token was ahead of the next one. A prompt where that is less than the engines may differ by would
compare noise: another one is drawn instead, and counted; of the real model none is.

transformers' cache changes no token, as the script checks, but with longrope: a sequence that grows over the border gets
other tokens with a cache than without (transformers 5.17). There it generates without.
"""

import contextlib
import json
import pathlib
import random
import sys

import peft
import torch
import transformers
from families import FAMILIES

PROMPTS = 50
TOKENS = 64
LENGTHS = [1, 7, 15, 24, 30, 47]  # of the prompts, in turn; on both sides of windows of 16 and borders at 32
MARGIN = 1e-4
# Of the real model.
REAL_LENGTHS = [8, 16, 24, 32]  # of the prompts, in turn: an engine without a cache runs each prefix again


def load(folder):
    name = folder.name
    kind = FAMILIES[name][1] if name in FAMILIES else "AutoModelForCausalLM"
    model = getattr(transformers, kind).from_pretrained(folder / "model", dtype=torch.float32, attn_implementation="eager")
    return model.eval()


def answer(model, prompt, use_cache):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        # No token ends an answer here: ours has no tokenizer.
        out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                             eos_token_id=None, pad_token_id=0, use_cache=use_cache)
        tokens = out[0, len(prompt):].tolist()
        assert len(tokens) == TOKENS
        log_p, margin = [], float("inf")
        for i, token in enumerate(tokens):
            # Each prefix by itself, as the engine runs it: transformers' longrope goes by a row's length.
            logits = model(input_ids=out[:, :len(prompt) + i], use_cache=False).logits[0, -1].double()
            assert int(logits.argmax()) == token, "generate and a pass without a cache differ"
            first, second = logits.topk(2).values.tolist()
            margin = min(margin, first - second)
            log_p.append(torch.log_softmax(logits, -1)[token].item())
    return {"prompt": prompt, "tokens": tokens, "log_probability": [round(p, 7) for p in log_p], "margin": margin}


def write(path, generated):
    lines = ",\n".join(f'  {json.dumps(run)}: [\n    ' + ",\n    ".join(json.dumps(a) for a in answers) + "]"
                       for run, answers in generated.items())
    path.write_text("{\n" + lines + "\n}\n")


def smollm2(golden, directory, files):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    run = "smollm2_gsm8k_r4_qv"
    model = peft.PeftModel.from_pretrained(model, golden / run / "final").eval()
    rows = [json.loads(line) for file in files for line in open(file)][:PROMPTS]
    assert len(rows) == PROMPTS, f"{files} have {len(rows)} rows"
    generated = {"": [], run: []}
    for i, row in enumerate(rows):
        prompt = tokenizer(row["messages"][0]["content"])["input_ids"][:REAL_LENGTHS[i // 2 % len(REAL_LENGTHS)]]
        ids = torch.tensor([prompt])
        to = generated["" if i % 2 == 0 else run]
        with torch.no_grad(), model.disable_adapter() if i % 2 == 0 else contextlib.nullcontext():
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                                 eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, output_logits=True)
        tokens = out.sequences[0, len(prompt):].tolist()
        logits = torch.cat(out.logits).double()
        assert logits.argmax(-1).tolist() == tokens and len(tokens) == TOKENS
        best = logits.topk(2).values
        margin = (best[:, 0] - best[:, 1]).min().item()
        log_p = torch.log_softmax(logits, -1)[range(TOKENS), tokens].tolist()
        to.append({"prompt": prompt, "tokens": tokens, "log_probability": [round(p, 7) for p in log_p], "margin": margin})
        print(f"{i + 1} of {PROMPTS}: two tokens are {margin:.2g} apart at least", flush=True)
        write(golden / run / "generated.json", generated)  # as it grows: all of it takes minutes


def main():
    golden = pathlib.Path(sys.argv[1])
    if sys.argv[2:3] == ["--smollm2"]:
        return smollm2(golden, pathlib.Path(sys.argv[3]), sys.argv[4:])
    for config in sorted(golden.glob("*/model/config.json")):
        folder = config.parent.parent
        if sys.argv[2:] and folder.name not in sys.argv[2:]:
            continue
        fields = json.loads(config.read_text())
        vocabulary = fields.get("text_config", fields)["vocab_size"]
        use_cache = "longrope" not in config.read_text()
        draw = random.Random(folder.name)
        runs = [""] + sorted(path.parent.name for path in folder.glob("*/final"))
        models = [load(folder) if not run else peft.PeftModel.from_pretrained(load(folder), folder / run / "final").eval() for run in runs]
        generated = {run: [] for run in runs}
        drawn_again = 0
        for i in range(PROMPTS):
            models[i % len(runs)].generation_config.eos_token_id = None
            while True:
                prompt = [draw.randrange(3, vocabulary - 1) for _ in range(LENGTHS[i // len(runs) % len(LENGTHS)])]
                if (said := answer(models[i % len(runs)], prompt, use_cache))["margin"] >= MARGIN:
                    break
                drawn_again += 1
            generated[runs[i % len(runs)]].append(said)
        write(folder / "generated.json", generated)
        tokens = {token for answers in generated.values() for a in answers for token in a["tokens"]}
        margin = min(a["margin"] for answers in generated.values() for a in answers)
        print(f"{folder.name}: {len(generated)} adapters, {len(tokens)} words, least margin {margin:.2g}, {drawn_again} drawn again",
              flush=True)


main()
