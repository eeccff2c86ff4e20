"""Pace against steps whose rate is known."""

import random

from pace import Pace


def rate_of(steps, polls_ms, rng):
    """What Pace makes of steps [(ms, tokens)] that are polled until the last one ends."""
    ends, now, tokens = [], 0.0, 0
    for ms, of_step in steps:
        now += ms
        tokens += of_step
        ends.append((now, tokens))
    pace = Pace(warm_up_steps=5)
    at = 0.0
    while True:
        done = [end for end in ends if end[0] <= at]
        if len(done) == len(steps):  # as training.py: the jobs have ended, so this one no longer counts
            return pace.tokens_per_second()
        pace.see(at / 1000, done[-1][1] if done else 0, len(done))
        at += rng.uniform(*polls_ms)


def test_equal_steps():
    rng = random.Random(1)
    for ms in (40, 80, 230, 430):
        for count in (12, 24, 60):
            mean = sum(rate_of([(ms, 4096)] * count, (20, 40), rng) for _ in range(100)) / 100
            wanted = 1000 * 4096 / ms
            assert abs(mean / wanted - 1) < 0.01, (ms, count, mean, wanted)


def test_mixed_steps():
    rng = random.Random(2)
    for _ in range(50):
        tokens = [rng.randrange(4000, 10000) for _ in range(60)]
        rate = rate_of([(of_step / 17, of_step) for of_step in tokens], (20, 40), rng)
        assert abs(rate / 17000 - 1) < 0.005, rate


def test_too_few_steps():
    pace = Pace(warm_up_steps=5)
    for step in range(6):
        pace.see(step, 100 * step, step)
    assert pace.tokens_per_second() is None
    pace.see(5.5, 500, 5)
    assert pace.tokens_per_second() is None
    pace.see(6, 600, 6)
    assert pace.tokens_per_second() == 100


for test in (test_equal_steps, test_mixed_steps, test_too_few_steps):
    test()
