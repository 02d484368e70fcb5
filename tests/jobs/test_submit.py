"""Does a request become the right job, once, or a FieldError that names the field?"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rooftile.device import local_cpu
from rooftile.errors import FieldError
from support.hands import DEVICE, OTHER_DEVICE, connect

from service.jobs import target
from service.jobs.submit import submit
from service.store import devices, events, jobs, trials, workers
from service.store.database import Database
from service.store.enums import (
    JobProblemReason,
    JobProblemState,
    JobReason,
    JobState,
    WorkerKind,
    WorkerState,
)
from service.store.records import DeviceRecord, JobRecord

PROBLEM: dict[str, Any] = {"op": "gemm", "m": 8, "n": 64, "k": 64, "dtype": "f32"}
LAYER = {name: value for name, value in PROBLEM.items() if name != "m"}
GPU = "gpu-2336-132sm-141g-p700"


def post(db: Database, **body: Any) -> JobRecord:
    job, _ = submit(db, {"problem": PROBLEM, "target": {"device": DEVICE}, **body})
    return job


def refused(db: Database, **body: Any) -> FieldError:
    with pytest.raises(FieldError) as caught:
        submit(db, {"problem": PROBLEM, "target": {"device": DEVICE}, **body})
    with db.read() as s:
        assert jobs.listing(s).rows == ()
    return caught.value


def test_a_job_with_its_problems_shares_and_policy(database: Database) -> None:
    connect(database)
    job, created = submit(
        database,
        {
            "problem": LAYER,
            "sweep": {"m": [1, 2, 0]},
            "target": {"device": DEVICE},
            "budget": {"trials": 21, "seconds": 60},
            "params": {"mr": [4, 6]},
            "seed": 5,
            "priority": 3,
        },
    )
    assert created
    assert (job.state, job.policy, job.policy_key) == (
        JobState.QUEUED,
        {"cache": "cold", "launch": "eager"},
        "cold-eager",
    )
    assert (job.target, job.seed, job.priority) == ({"device": DEVICE}, 5, 3)
    assert job.options["params"] == {"mr": [4, 6]}
    with database.read() as s:
        rows = jobs.problems(s, job.id)
    assert [row.title for row in rows] == [f"gemm {m}x64x64 f32 kn" for m in (1, 2, 0)]
    assert [row.budget_trials for row in rows] == [11, 10, 0]
    assert [row.budget_seconds for row in rows] == [30.0, 30.0, None]
    assert {row.device_key for row in rows} == {DEVICE}


def test_without_a_budget_each_problem_has_64_trials(database: Database) -> None:
    connect(database)
    job = post(database)
    assert job.budget_trials == 64


def test_equal_requests_join_and_others_do_not(database: Database) -> None:
    connect(database)
    first, created = submit(database, {"problem": PROBLEM, "target": {"device": DEVICE}})
    written_out = {**PROBLEM, "batch": 1, "alpha": "any"}
    again, joined = submit(database, {"problem": written_out, "device": DEVICE, "priority": 9})
    assert (created, joined, again.id) == (True, False, first.id)
    for other in (
        {"force": True},
        {"seed": 1},
        {"budget": {"trials": 3}},
        {"policy": {"cache": "warm"}},
        {"problem": {**PROBLEM, "epilogue": {"bias": "n"}}},
        {"problem": {**PROBLEM, "layout": {"b": "nk"}}},
        {"params": {"mr": 4}},
    ):
        assert post(database, **other).id != first.id, other
    assert post(database, force=True).id != post(database, force=True).id


def test_who_joins_raises_the_priority_and_never_lowers_it(database: Database) -> None:
    connect(database)
    first = post(database, priority=-5)
    for asked, then in ((-9, -5), (2, 2), (0, 2), (9, 9)):
        joined = post(database, priority=asked)
        assert (joined.id, joined.priority) == (first.id, then)
        with database.read() as s:
            kept = jobs.get(s, first.id)
            assert kept is not None
            assert kept.priority == then
    with database.begin() as s:
        assert not jobs.raise_priority(s, first.id, 9)
        assert jobs.raise_priority(s, first.id, 10)
        jobs.move(s, first.id, JobState.CANCELLED)
        assert not jobs.raise_priority(s, first.id, 11)


def test_of_many_who_join_at_once_the_highest_priority_holds(database: Database) -> None:
    connect(database)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: post(database, priority=n * 7 % 31), range(31)))
    assert len({job.id for job in answers}) == 1
    with database.read() as s:
        (kept,) = jobs.listing(s).rows
    assert kept.priority == 30


def test_an_ended_job_is_not_joined(database: Database) -> None:
    from service.jobs.control import cancel

    connect(database)
    first = post(database)
    cancel(database, first.id)
    assert post(database).id != first.id


def test_fifty_equal_requests_at_once_are_one_job(database: Database) -> None:
    connect(database)
    body = {"problem": PROBLEM, "target": {"device": DEVICE}}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: submit(database, body), range(50)))
    assert len({job.id for job, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


def test_a_size_of_zero_is_done_at_once(database: Database) -> None:
    job = post(database, problem={**PROBLEM, "k": 0})
    assert (job.state, job.reason) == (JobState.DONE, JobReason.EMPTY_PROBLEM)
    with database.read() as s:
        row = jobs.problems(s, job.id)[0]
        assert (row.state, row.reason) == (JobProblemState.DONE, JobProblemReason.EMPTY_PROBLEM)
        assert trials.of_problem(s, row.id) == []


# ---------------------------------------------------------------- devices


def test_auto_is_this_cpu_where_there_is_no_gpu(database: Database) -> None:
    here = local_cpu().key
    job, _ = submit(database, {"problem": PROBLEM})
    assert job.target == {"device": here}
    assert (job.state, job.reason) == (JobState.WAITING, JobReason.NO_DEVICE)
    assert job.message == f"No worker for {here} is connected."


def test_auto_is_the_cpu_that_a_worker_brought_where_this_one_measures_nothing(database: Database) -> None:
    if local_cpu().key in (DEVICE, OTHER_DEVICE):
        pytest.skip("this machine is the device of the test")
    connect(database, OTHER_DEVICE)
    job, _ = submit(database, {"problem": PROBLEM})
    assert job.target == {"device": OTHER_DEVICE}
    connect(database, DEVICE)
    with pytest.raises(FieldError) as caught:
        submit(database, {"problem": PROBLEM})
    assert DEVICE in caught.value.allowed
    assert OTHER_DEVICE in caught.value.allowed


def gpu(db: Database, key: str) -> None:
    with db.begin() as s:
        devices.upsert(s, DeviceRecord(key=key, name="GPU", kind="gpu", arch="sm_90a"))
        workers.heartbeat(s, f"w-{key}", WorkerKind.MEASURE, "h", 1, key, WorkerState.IDLE)


def test_auto_is_the_only_gpu_and_with_several_the_list(database: Database) -> None:
    connect(database)
    gpu(database, GPU)
    with database.read() as s:
        assert target.auto_device(s, "device") == GPU
    gpu(database, "gpu-2336-132sm-80g-p700")
    with database.read() as s, pytest.raises(FieldError) as caught:
        target.auto_device(s, "device")
    assert GPU in caught.value.allowed
    assert DEVICE not in caught.value.allowed


def test_auto_is_a_gpu_that_somebody_else_has_rather_than_the_cpu(database: Database) -> None:
    connect(database)
    with database.begin() as s:
        devices.upsert(s, DeviceRecord(key=GPU, name="GPU", kind="gpu", arch="sm_90a"))
        data = {"waits_for": "Process 12 has it."}
        workers.heartbeat(s, "w", WorkerKind.MEASURE, "h", 1, GPU, WorkerState.WAITING, data)
    with database.read() as s:
        found = devices.get(s, GPU)
        assert target.auto_device(s, "device") == GPU
    assert found is not None
    assert (found.connected, found.waits_for) == (False, "Process 12 has it.")
    gpu(database, GPU)  # another worker of ours has one of the same key
    with database.read() as s:
        assert GPU in {device.key for device in devices.connected(s)}


def test_an_unknown_device_waits(database: Database) -> None:
    connect(database)
    job = post(database, target={"device": OTHER_DEVICE})
    assert (job.state, job.reason) == (JobState.WAITING, JobReason.NO_DEVICE)


def test_several_devices_share_the_budget(database: Database) -> None:
    connect(database)
    job = post(database, target={"devices": [DEVICE, OTHER_DEVICE, DEVICE]}, budget={"trials": 10})
    assert job.state is JobState.QUEUED
    with database.read() as s:
        assert [(r.device_key, r.budget_trials) for r in jobs.problems(s, job.id)] == [
            (DEVICE, 5),
            (OTHER_DEVICE, 5),
        ]


def test_an_arch_needs_no_device(database: Database) -> None:
    job = post(database, target={"arch": "x86-64-v3"})
    assert (job.state, job.target) == (JobState.QUEUED, {"arch": "x86-64-v3"})


def test_device_seconds_alone_cannot_bound_a_job_without_a_device(database: Database) -> None:
    """Nothing runs on a device, so such a job would compile for ever."""
    only: dict[str, Any] = {"target": {"arch": "x86-64-v3"}, "budget": {"device_seconds": 5}}
    error = refused(database, **only)
    assert (error.field, error.value) == ("budget.device_seconds", 5.0)
    assert "trials or seconds" in error.allowed
    for bound in ("trials", "seconds"):
        job = post(database, **only | {"budget": {"device_seconds": 5, bound: 3}})
        assert (job.state, job.budget_device_seconds) == (JobState.QUEUED, 5.0)
    assert post(database, **only | {"problem": {**PROBLEM, "m": 0}}).state is JobState.DONE


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"target": {"device": "a100"}}, "target.device"),
        ({"target": {"device": DEVICE.upper()}}, "target.device"),
        ({"target": {"devices": [DEVICE, "cpu-x"]}}, "target.devices[1]"),
        ({"target": {"arch": "sm_99"}}, "target.arch"),
        ({"target": {"arch": "sm_90a"}}, "target.arch"),
        ({"target": {"device": GPU}}, "target.device"),
        ({"target": {"device": "gpu-0000-1sm-1g-p1"}}, "target.device"),
        ({"policy": {"launch": "graph"}}, "policy.launch"),
        ({"families": ["gemm_sm100"]}, "families[0]"),
        ({"params": {"m_r": 4}}, "params.m_r"),
        ({"params": {"mr": 5}}, "params.mr"),
        ({"params": {"pack": 1}}, "params.pack"),
        ({"budget": {"trials": 1}, "problem": LAYER, "sweep": {"m": [1, 2]}}, "budget.trials"),
    ],
)
def test_what_the_devices_and_families_do_not_have_is_refused(
    database: Database, body: dict[str, Any], field: str
) -> None:
    assert refused(database, **body).field == field


def test_a_choice_that_is_left_out_is_refused_with_the_reason(database: Database) -> None:
    assert "left out: rows would be cut" in refused(database, params={"way": ["diagonal"]}).allowed
    assert "left out" not in refused(database, params={"way": ["rings"]}).allowed


def test_no_family_says_why(database: Database) -> None:
    attention = {"op": "attention", "heads_q": 2, "seq_q": 4, "head_dim": 64, "dtype": "f16"}
    error = refused(database, problem=attention)
    assert error.field == "target.device"
    assert "attention" in error.allowed


def test_a_problem_that_no_memory_can_hold_is_refused(database: Database) -> None:
    with database.begin() as s:
        small = DeviceRecord(OTHER_DEVICE, "small", "cpu", "x86-64-v3", data={"memory_bytes": 2**20})
        devices.upsert(s, small)
    error = refused(database, problem={**PROBLEM, "n": 2**20}, target={"device": OTHER_DEVICE})
    assert error.field == "problem.n"
    here = local_cpu().key
    huge = {**LAYER, "n": 2**31 - 1, "k": 2**20}
    swept = refused(database, problem=huge, sweep={"m": [2**20]}, target={"device": here})
    assert swept.field == "sweep.m[0]"
    assert "GiB" in swept.allowed


def test_submitting_is_told(database: Database) -> None:
    connect(database)
    job = post(database)
    with database.read() as s:
        assert [(e.kind.value, e.to) for e in events.after(s, 0, job_id=job.id)] == [("job", "queued")]
