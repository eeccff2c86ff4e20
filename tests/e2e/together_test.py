"""How much faster 16 prompts of four adapters are answered in one call than one after the other, through the daemon, and what
they take from a job that trains beside them; the adapters have the quick start's ranks and targets. In short on a small model;
by hand on another, or on a published shape with random weights (tools/make-model). Skips where there is no such device.

usage: together_test.py [model=DIR | shape=NAME] [device=cpu|cuda:N] [tokens=N] [prompt=N,N,...] [times=N] [bar=RATIO]
                        [length=N] [seconds=N] [TEST ...]
"""

import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

import python_package
from formats import write_tokenizer
from house import GOLDEN, House, ROOT, Skipped, WORKER, main, tell

python_package.load()

import lorad  # noqa: E402
from lorad import answers  # noqa: E402

SAID = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
TOKENS = int(SAID.get("tokens", 16))
PROMPT_TOKENS = [int(word) for word in SAID.get("prompt", "32").split(",")]
TIMES = int(SAID.get("times", 3))
DEVICE = SAID.get("device", "cpu")
BAR = float(SAID.get("bar", 0))  # of the ratio
LENGTH = int(SAID.get("length", 16))  # of the rows that are trained beside answers
SECONDS = float(SAID.get("seconds", 3))
SHARE_MIN = 0.5  # docs/api.md: answers take at most half of a window's tokens
PROMPTS = 16
WORDS = 300  # ids of the prompts, which every model here has


def model_asked(folder):
    """The one that is said, else a small one of tests/golden; with the tokenizer of the tests' own models if it has none."""
    if "model" in SAID:
        return SAID["model"]
    if "shape" in SAID:
        subprocess.run([ROOT / "tools/make-model", SAID["shape"], folder], check=True, stdout=subprocess.DEVNULL)
    else:
        shutil.copytree(GOLDEN / "llama_gqa_untied/model", folder)
    write_tokenizer(folder)
    return folder


def check_device():
    devices = subprocess.run([WORKER, "--list-devices"], capture_output=True, text=True, check=True).stdout.splitlines()
    if DEVICE != "cpu" and not any(line.split()[0] == DEVICE for line in devices):
        raise Skipped(f"there is no {DEVICE} here")


@contextlib.contextmanager
def house_of_the_model():
    check_device()
    workers = ["--workers", DEVICE] if DEVICE != "cpu" else []
    with House(None, *workers) as house, lorad.connect(house.address) as client:
        house.lora("model", "add", "asked", "--path", model_asked(house.folder / "model"))
        draw = random.Random(1)
        row = [draw.randrange(3, WORDS) for _ in range(LENGTH)]
        house.add_dataset("rows", [{"input_ids": row, "labels": row}] * 8)
        yield house, client


def adapters_of(house):
    """Four jobs as the quick start has them, after a step each."""
    jobs = []
    for path in sorted((ROOT / "examples/quickstart").glob("job-*.json")):
        job = json.loads(path.read_text()) | {"base_model": "asked", "training_dataset": "rows"}
        del job["validation_dataset"]
        jobs.append(house.submit(job | {"training": {"max_steps": 1, "batch_size": 1, "max_length": LENGTH, "learning_rate": 1e-3}}))
    house.wait(jobs)
    return jobs


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def windows(client):
    return sum(group.windows for group in client.cluster().groups)


def timed(house, client, parties):
    """The tokens of all answers, the seconds that the calls took, one after the other, those of the worker's processor, and in
    how many windows."""
    (worker,) = house.worker_pids()
    began, used, done = time.monotonic(), processor_seconds(worker), windows(client)
    made = [answer.token_ids for asks in parties for answer in answers.generate(client.connection, asks, None)]
    return made, time.monotonic() - began, processor_seconds(worker) - used, windows(client) - done


def fastest(house, client, parties):
    """Of TIMES."""
    runs = [timed(house, client, parties) for _ in range(TIMES)]
    assert all(run[0] == runs[0][0] for run in runs), "the same prompts have other answers"
    return min(runs, key=lambda run: run[1])


def asks_of(jobs, length):
    how = {"max_tokens": TOKENS, "temperature": 0, "top_p": 0, "seed": 0, "stop": []}
    draw = random.Random(length)
    return [answers.ask(jobs[i % len(jobs)], [draw.randrange(3, WORDS) for _ in range(length)], adapter="", system="", raw=False,
                        how=how) for i in range(PROMPTS)]


def test_sixteen_at_once():
    with house_of_the_model() as (house, client):
        jobs = adapters_of(house)
        for length in PROMPT_TOKENS:
            asks = asks_of(jobs, length)
            timed(house, client, [asks[:len(jobs)]])  # the adapters are loaded
            together, seconds, used, in_windows = fastest(house, client, [asks])
            by_turns, seconds_by_turns, used_by_turns, in_windows_by_turns = fastest(house, client, [[ask] for ask in asks])
            assert together == by_turns, "an answer depends on who else is asked"
            tell(f"    prompts of {length} tokens: {sum(map(len, together))} tokens in {seconds:.2f} s at once, in {seconds_by_turns:.2f} s "
                 f"one after the other: {seconds_by_turns / seconds:.2f} times; the worker's processor time {used:.2f} and "
                 f"{used_by_turns:.2f} s, {in_windows} and {in_windows_by_turns} windows")
            # A window has a token of all answers; adapters are loaded and freed in others, all at once or one by one.
            assert in_windows <= TOKENS + 2 * len(jobs) < sum(map(len, together)) <= in_windows_by_turns, "what is asked at once is not answered at once"
            assert seconds_by_turns >= BAR * seconds, f"not {BAR} times as fast at once"
    house.clear()


class Answering:
    """Asks all prompts again and again, in a thread, inside."""

    def __init__(self, client, asks):
        self.tokens, self._client, self._asks, self._ends = 0, client, asks, False
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        while self.tokens == 0:  # the adapters are loaded
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self._ends = True
        self._thread.join()

    def _ask(self):
        while not self._ends:
            self.tokens += sum(len(answer.token_ids) for answer in answers.generate(self._client.connection, self._asks, None))


def tokens_per_second(house, job):
    """Of the job, between two of its steps about SECONDS apart."""
    def after_step(step):
        while (seen := house.object("show", job))["step"] == step:
            time.sleep(0.005)
        return time.monotonic(), seen
    _, seen = after_step(-1)
    began, first = after_step(seen["step"])
    time.sleep(SECONDS)
    ended, last = after_step(house.object("show", job)["step"])
    return (last["tokens"] - first["tokens"]) / (ended - began)


def test_a_job_beside_answers_keeps_its_share_of_time():
    with house_of_the_model() as (house, client):
        jobs = adapters_of(house)
        trains = house.submit({"base_model": "asked", "training_dataset": "rows", "adapter": {"rank": 16},
                               "training": {"max_steps": 1_000_000, "batch_size": 8, "max_length": LENGTH, "learning_rate": 1e-4,
                                            "schedule": "CONSTANT", "checkpoint_every_steps": 0}})
        house.wait([trains], until=lambda job: job["step"] >= 2)
        for length in PROMPT_TOKENS:
            alone = tokens_per_second(house, trains)
            with Answering(client, asks_of(jobs, length)) as answering:
                began, before = time.monotonic(), answering.tokens
                beside = tokens_per_second(house, trains)
                answered = (answering.tokens - before) / (time.monotonic() - began)
            alone = (alone + tokens_per_second(house, trains)) / 2
            tell(f"    a job of {LENGTH} tokens a row trains {alone:.0f} tokens/s alone, {beside:.0f} beside answers to prompts of {length} "
                 f"({answered:.0f} tokens/s): {beside / alone:.2f} of its speed")
            assert beside >= SHARE_MIN * alone, "answers take more than their share of time"
    house.clear()


if __name__ == "__main__":
    main([test_sixteen_at_once, test_a_job_beside_answers_keeps_its_share_of_time])
