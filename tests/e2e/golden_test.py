"""The reference runs of tests/golden through the command line: the losses and matrices that PEFT got, whether the jobs
are packed or run one at a time."""

from golden import RUNS, differences, job_of, prepare
from house import House, main, tell

MOST = {"loss": 1e-5, "matrix": 1e-4, "norm": 1e-4}


def check(house, job, model, run):
    found = differences(house, job, model, run)
    assert all(found[what] < most for what, most in MOST.items())


def test_packed():
    with House(None, "--workers", "none") as house:
        prepare(house)
        jobs = {house.submit(job_of(model, run)): (model, run) for model, runs in RUNS.items() for run in runs}
        house.start_worker()
        for job in house.wait(list(jobs)):
            tell(f"    {job['display_name']}: {job['adapters_per_microbatch']:.2f} adapters per microbatch")
            alone = len(RUNS[jobs[job["name"]][0]]) == 1
            assert alone or job["adapters_per_microbatch"] > 1.5, "the jobs of one model were not packed"
            check(house, job["name"], *jobs[job["name"]])
    house.clear()


def test_one_at_a_time():
    with House(None, "--workers", "cpu:1") as house:
        prepare(house)
        for model, runs in RUNS.items():
            for run in runs:
                name = house.submit(job_of(model, run))
                (job,) = house.wait([name])
                assert job["adapters_per_microbatch"] == 1
                check(house, name, model, run)
    house.clear()


if __name__ == "__main__":
    main([test_packed, test_one_at_a_time])
