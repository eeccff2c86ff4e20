"""Questions to adapters: from the command line, from Python, and beside jobs that train.

usage: generate_test.py [TEST...]
"""

import contextlib
import signal
import subprocess
import time

import python_package
from formats import write_model
from house import House, main

python_package.load()

import lorad  # noqa: E402

# Each is learned by heart: its prompt is one letter, so an adapter can tell them apart by that.
ROWS = [{"prompt": letter, "completion": f"#{i}"} for i, letter in enumerate("abcdefgh")]
TEMPLATE = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
            "{% if add_generation_prompt %}<assistant>{% endif %}")


def job_of(dataset="rows", **training):
    return {"base_model": "tiny", "training_dataset": dataset,
            "adapter": {"rank": 16, "alpha": 32, "seed": 1},
            "training": {"max_steps": 300, "batch_size": 8, "max_length": 16, "learning_rate": 1e-2, "schedule": "CONSTANT",
                         "checkpoint_every_steps": 100, **training}}


@contextlib.contextmanager
def house_with_model():
    with House(None, "--workers", "cpu:1") as house:
        model = write_model(house.folder / "tiny", tokenizer=True, positions=256)
        template = house.folder / "template.jinja"
        template.write_text(TEMPLATE)
        house.lora("model", "add", "tiny", "--path", model, "--chat-template", template)
        house.add_dataset("rows", ROWS)
        yield house
    house.clear()


def answer(house, *arguments):
    return house.object("generate", *arguments)


def test_an_adapter_answers_what_it_has_learned():
    with house_with_model() as house:
        job = house.submit(job_of())
        house.wait([job])
        score = house.lora("evaluate", job, "--dataset", "rows", "--exact-match", "#(.)", "--max-tokens", "2")
        assert score.out == "exact match: 8 of 8 right (100 %)\n", score
        assert "8/8 answered" in score.err, score
        # The row's own answer ends where the model's does: before its end-of-text token.
        whole = house.lora("evaluate", job, "--dataset", "rows", "--exact-match", "#(.*)", "--max-tokens", "2")
        assert whole.out == "exact match: 8 of 8 right (100 %)\n", whole
        base = house.lora("evaluate", "tiny", "--dataset", "rows", "--exact-match", "#(.)", "--max-tokens", "2")
        assert base.out.splitlines()[0].split() == ["ROW", "EXPECTED", "GOT"], base
        assert len(base.out.splitlines()) == 1 + 8 + 1 and "0 of 8 right" in base.out, base
        *rows, total = house.objects("evaluate", job, "--dataset", "rows", "--exact-match", "#(.)", "--max-tokens", "2", "--limit", "3")
        assert [row["row"] for row in rows] == [0, 1, 2] and all(row["right"] for row in rows), rows
        assert total == {"rows": 3, "right": 3, "without_reference": 0, "exact_match": 1.0}, total

        plain = house.lora("generate", job, "c", "--raw", "--max-tokens", "2")
        assert (plain.out, plain.err) == ("#2\n", ""), plain
        assert house.lora("generate", job, "-", "--raw", "--max-tokens", "2", stdin="d").out == "#3\n"
        told = answer(house, job, "c", "--raw", "--max-tokens", "9")
        assert told["text"].startswith("#2") and told["step"] == 300 and told["prompt_tokens"] == 1, told
        assert told["completion_tokens"] == len(told["token_ids"]) == len(told["log_probabilities"]), told
        assert all(p <= 1e-6 for p in told["log_probabilities"]), told
        assert told["finish_reason"] == ("EOS" if told["completion_tokens"] < 9 else "LENGTH"), told
        assert answer(house, job, "c", "--raw", "--max-tokens", "9", "--stop", "2")["text"] == "#"
        stopped = answer(house, job, "c", "--raw", "--stop", "#2")
        assert (stopped["text"], stopped["finish_reason"]) == ("", "STOP"), stopped

        # No job takes a base model's name from it.
        renamed = house.submit({**job_of(max_steps=1), "display_name": "tiny"})
        house.wait([renamed])
        assert house.object("generate", "tiny", "c", "--raw", "--max-tokens", "2")["step"] == 0

        both = house.lora("generate", job, "c", "--raw", "--max-tokens", "2", "--with", "tiny", "--with", f"{job}/100").out
        blocks = both.split("== ")[1:]
        assert [block.split("\n")[0] for block in blocks] == [job, "tiny", f"{job}/100"], both
        assert blocks[0] == f"{job}\n#2\n", both
        one_by_one = [answer(house, source, "c", "--raw")["token_ids"] for source in (job, "tiny", f"{job}/100")]
        at_once = house.objects("generate", job, "c", "--raw", "--with", "tiny", "--with", f"{job}/100")
        assert [one["token_ids"] for one in at_once] == one_by_one, "an answer depends on who else is asked"

        chats = [answer(house, "tiny", "hello", *more) for more in ((), ("--system", "be brief"))]
        assert chats[0] == answer(house, "tiny", "<user>hello<assistant>", "--raw"), chats
        assert chats[1] == answer(house, "tiny", "<system>be brief<user>hello<assistant>", "--raw"), chats
        warm = ("tiny", "c", "--raw", "--temperature", "1.5", "--top-p", "0.9", "--max-tokens", "20")
        first, again, other = (answer(house, *warm, "--seed", seed)["token_ids"] for seed in (1, 1, 2))
        assert first == again != other, (first, other)

        folder = house.adapter(job)
        house.lora("adapter", "import", "mine", "--path", folder)
        assert answer(house, "tiny+mine", "c", "--raw")["token_ids"] == one_by_one[0]


def test_what_cannot_be_asked():
    with house_with_model() as house:
        def refused(reason, *arguments):
            result = house.run("generate", *arguments)
            assert result.status == 1 and reason in result.err and result.out == "", result
            return result.err

        refused("NOTHING_TO_ASK", "nobody", "a")
        refused("NO_NAME", "tiny+", "a")
        refused("NO_NAME", "", "a")
        refused("JOB_NOT_FOUND", "job-aaaaaaaa", "a")
        refused("ADAPTER_NOT_FOUND", "tiny+none", "a")
        assert "44 more than the 256 positions" in refused("PROMPT_TOO_LONG", "tiny", "a" * 300, "--raw")
        job = house.submit(job_of(checkpoint_every_steps=0, max_steps=100000))
        house.wait([job], until=lambda job: job["step"] > 2)
        assert "the first one at step 100000" in refused("NO_CHECKPOINT", job, "a")
        refused("CHECKPOINT_NOT_FOUND", f"{job}/7", "a")
        house.lora("cancel", job)
        bare = write_model(house.folder / "bare", tokenizer=True)
        house.lora("model", "add", "bare", "--path", bare)
        assert "all must be of one base model" in refused("INVALID_FIELDS", "tiny", "a", "--with", "bare")
        longest = answer(house, "tiny", "a" * 250, "--raw", "--max-tokens", "100")
        assert longest["completion_tokens"] <= 7, "256 positions: 6 more, and a token that needs none"
        wrong = house.run("evaluate", "tiny", "--dataset", "rows", "--exact-match", "#.")
        assert wrong.status == 2 and "has no group" in wrong.err, wrong
        assert "DATASET_NOT_FOUND" in house.run("evaluate", "tiny", "--dataset", "no", "--exact-match", "(.)").err


def test_jobs_beside_answers_keep_their_bits():
    with house_with_model() as house:
        alone = house.submit(job_of(max_steps=400, checkpoint_every_steps=10))
        house.wait([alone])
        beside = house.submit(job_of(max_steps=400, checkpoint_every_steps=10))
        house.wait([beside], until=lambda job: job["last_checkpoint_step"] >= 10)
        asked = 0
        while house.object("show", beside)["state"] == "RUNNING":
            told = house.objects("generate", beside, "c", "--raw", "--max-tokens", "12", "--with", "tiny")
            assert len(told) == 2 and told[0]["step"] >= 10, told
            asked += 1
        assert asked > 0
        house.wait([beside])
        (a, b) = (house.adapter(job) / "adapter_model.safetensors" for job in (alone, beside))
        assert a.read_bytes() == b.read_bytes(), "an answer has changed what a job trains"


def test_a_client_that_leaves_and_a_daemon_that_is_killed():
    with house_with_model() as house:
        command = list(map(str, house.lora_command("generate", "tiny", "a", "--raw", "--max-tokens", "250")))
        for end in (signal.SIGINT, signal.SIGKILL):
            client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            client.stdout.read(1)
            client.send_signal(end)
            client.communicate(timeout=60)
        job = house.submit(job_of(max_steps=4))
        house.wait([job])
        client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        client.stdout.read(1)
        house.kill()
        client.communicate(timeout=120)
        house.start()
        assert answer(house, job, "c", "--raw", "--max-tokens", "2")["completion_tokens"] <= 2


def test_from_python():
    with house_with_model() as house:
        with lorad.connect(house.address) as client:
            name = house.submit(job_of())
            job = client.job(name).wait(progress=False)
            pieces = []
            told = client.generate(job, "e", raw=True, max_tokens=2, on_text=lambda index, text: pieces.append((index, text)))
            assert str(told) == "#4" == "".join(text for _, text in pieces) and told.finish_reason == "LENGTH", told
            at_once = client.generate([job, "tiny", f"{job.name}/300"], "e", raw=True, max_tokens=2)
            assert at_once[0] == at_once[2] == told != at_once[1], at_once
            assert client.generate("tiny", [{"role": "user", "content": "hello"}]) == client.generate("tiny", "hello")
            assert client.generate("tiny", told.token_ids, max_tokens=1).prompt_tokens == 2
            right = client.evaluate(job, "rows", "#(.)", max_tokens=2, progress=False)
            assert (right.right, right.rows, len(right.wrong)) == (8, 8, 0) and str(right) == "exact match: 8 of 8 right (100.0 %)", right
            wrong = client.evaluate("tiny", "rows", "#(.)", max_tokens=2, limit=3, progress=False)
            assert wrong.exact_match == 0 and wrong.wrong.column("expected") == ["0", "1", "2"], wrong
            python_package.error_of(lorad.NotFoundError, client.generate, "nobody", "a")
            error = python_package.error_of(lorad.InvalidError, client.evaluate, job, "rows", "#.", progress=False)
            assert "has no group" in str(error), error
            began = time.monotonic()
            python_package.error_of(TimeoutError, client.generate, "tiny", "a", raw=True, max_tokens=255, timeout=0.01)
            assert time.monotonic() - began < 5


if __name__ == "__main__":
    main([value for name, value in list(globals().items()) if name.startswith("test_")])
