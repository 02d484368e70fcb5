"""Does every command end with the right exit code, the right words, and with --json exactly one document?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from rooftile import Gemm, cli
from rooftile.cli import main
from rooftile.device import local_cpu

GEMM = ["gemm", "--m", "8", "--n", "64", "--k", "32", "--dtype", "f32"]
PROBLEM = Gemm(8, 64, 32, "f32")

Capture = pytest.CaptureFixture[str]


def run(capsys: Capture, *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    out, err = capsys.readouterr()
    return code, out, err


def document(out: str) -> Any:
    """The one JSON document that stdout holds."""
    return json.loads(out)


@pytest.fixture
def service(peer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A peer with one job that ends at its third look and one release."""
    monkeypatch.setenv("ROOFTILE_URL", peer.url)
    best = {"time_us": 12.5, "baseline_time_us": 25.0, "speedup": 2.0, "schedule_text": "mr 4", "trial_id": 1}
    looks = iter(["queued", "running"])

    def job(request: Any) -> Any:
        state = next(looks, "done")
        counts = {} if state == "queued" else {"measured": 5, "failed": 1}
        row = {"title": PROBLEM.title(), "state": state, "best": best if counts else None, "message": ""}
        return 200, {
            "id": 3,
            "state": state,
            "message": "",
            "counts": counts,
            "best": row["best"],
            "problems": [row],
        }

    peer.routes["POST /v1/jobs"] = (202, {"id": 3, "state": "queued", "message": "", "created": True})
    peer.routes["GET /v1/jobs/3"] = job
    peer.routes["GET /v1/jobs"] = (200, {"jobs": [{
        "id": 3, "state": "done", "created_at": "2026-01-02T03:04:05Z",
        "counts": {"measured": 5, "failed": 1},
        "titles": [PROBLEM.title()], "problem_count": 3,
    }], "next_page_token": None})  # fmt: skip
    peer.routes["POST /v1/best"] = (200, {
        "level": "exact", "reason": "Tuned for exactly this.", "problem_key": PROBLEM.key, "device": "cpu-x",
        "policy": {"cache": "cold", "launch": "eager"}, "release_id": 7, "time_us": 12.5,
        "baseline_time_us": 25.0,
        "schedule": {"schema": 1, "family": "gemm_x86", "tile": {"mr": 4}, "order": {"threads": 2}},
        "schedule_text": "mr 4", "artifact": "ab" * 32, "toolchain": {"compiler": "gcc 12"}, "tie_set": [{}],
    })  # fmt: skip
    return peer


def test_submit(service: Any, capsys: Capture) -> None:
    code, out, err = run(capsys, "submit", *GEMM, "--trials", "5")
    assert (code, err) == (0, "")
    assert "Job 3 is queued" in out
    assert "rooftile watch 3" in out
    assert service.seen[0].json == {
        "problem": {"op": "gemm", "m": 8, "n": 64, "k": 32, "dtype": "f32"}, "budget": {"trials": 5},
    }  # fmt: skip
    code, out, _ = run(capsys, "submit", *GEMM, "--json", "--idempotency-key", "k")
    assert (code, document(out)["id"]) == (0, 3)
    assert service.seen[1].headers["Idempotency-Key"] == "k"


def test_submit_and_wait(service: Any, capsys: Capture) -> None:
    code, out, _ = run(capsys, "submit", *GEMM, "--wait")
    assert code == 0
    assert "6 trials (5 measured, 1 failed)  best 12.5 us (2.00x" in out
    assert "the Baseline's speed), trial 1" in out
    code, out, err = run(capsys, "submit", *GEMM, "--wait", "--json")
    assert (code, document(out)["state"]) == (0, "done")
    assert "job 3  done" in err


def test_watch_ends_with_the_job(service: Any, capsys: Capture) -> None:
    code, out, err = run(capsys, "watch", "3")
    assert (code, err) == (0, "")
    assert [line.split()[2] for line in out.splitlines() if line.startswith("job 3")] == [
        "queued",
        "running",
        "done",
    ]
    assert f"{PROBLEM.title()}  done" in out
    assert "2.00x" in out
    code, out, err = run(capsys, "watch", "3", "--json")
    assert (code, document(out)["state"]) == (0, "done")


def test_watch_of_a_failed_job_exits_1(service: Any, capsys: Capture) -> None:
    service.routes["GET /v1/jobs/3"] = (
        200,
        {"id": 3, "state": "failed", "message": "no compiler", "counts": {}},
    )
    code, out, _ = run(capsys, "watch", "3")
    assert code == 1
    assert "no compiler" in out
    code, out, _ = run(capsys, "watch", "3", "--json")
    assert (code, document(out)["state"]) == (1, "failed")


def test_watch_says_once_why_a_problem_has_no_answer(service: Any, capsys: Capture) -> None:
    problems = [
        {"title": "gemm one", "state": "failed", "best": None, "message": "All 2 races were disturbed."},
        {"title": "gemm two", "state": "failed", "best": None, "message": "The job's seconds were used up."},
    ]
    told = "None of 2 problems has an answer. gemm one: All 2 races were disturbed."
    job = {"id": 3, "state": "failed", "message": told, "counts": {}, "problems": problems}
    service.routes["GET /v1/jobs/3"] = (200, job)
    code, out, _ = run(capsys, "watch", "3")
    assert code == 1
    assert out.count("races were disturbed") == 1
    assert out.splitlines()[-1] == "gemm two: The job's seconds were used up."


def test_watch_gives_up_when_told(service: Any, capsys: Capture) -> None:
    service.routes["GET /v1/jobs/3"] = (200, {"id": 3, "state": "running", "counts": {}})
    code, out, err = run(capsys, "watch", "3", "--timeout", "0.2", "--json")
    assert (code, document(out)["error"]) == (3, "job 3 is running after 0.2 s")
    assert "rooftile: job 3 is running" in err


STEERED = [("cancel", "cancelled"), ("pause", "paused"), ("resume", "queued")]


@pytest.mark.parametrize(("verb", "state"), STEERED)
def test_a_job_is_steered(service: Any, capsys: Capture, verb: str, state: str) -> None:
    service.routes[f"POST /v1/jobs/3:{verb}"] = (200, {"id": 3, "state": state, "counts": {"measured": 2}})
    assert run(capsys, verb, "3")[:2] == (0, f"job 3  {state}  2 trials (2 measured)\n")
    code, out, _ = run(capsys, verb, "3", "--json")
    assert (code, document(out)["state"]) == (0, state)
    refused = {"detail": "Job 3 belongs to another token; that needs the scope admin."}
    service.routes[f"POST /v1/jobs/3:{verb}"] = (403, refused, "application/problem+json")
    code, out, err = run(capsys, verb, "3")
    assert (code, out) == (1, "")
    assert "belongs to another token" in err
    assert run(capsys, verb, "../x")[0] == 2


def test_jobs(service: Any, capsys: Capture) -> None:
    code, out, _ = run(capsys, "jobs")
    assert code == 0
    assert out.splitlines()[1].split() == (
        f"3 done 2026-01-02 03:04:05 6 {PROBLEM.title()} and 2 more".split()
    )  # fmt: skip
    code, out, _ = run(capsys, "jobs", "--json")
    assert (code, document(out)["jobs"][0]["id"]) == (0, 3)
    service.routes["GET /v1/jobs"] = (200, {"jobs": [], "next_page_token": None})
    assert run(capsys, "jobs")[:2] == (0, "No jobs.\n")


def test_best_and_explain(service: Any, capsys: Capture) -> None:
    code, out, _ = run(capsys, "best", *GEMM)
    assert code == 0
    flops = 2 * 8 * 64 * 32
    for part in (
        "exact: Tuned for exactly this.",
        f"12.5 us, {flops / 12.5 / 1e3:.1f} GFLOP/s",
        "2.00x",
        "mr 4",
    ):
        assert part in out
    assert service.seen[0].json == {"problem": PROBLEM.to_json(), "device": local_cpu().key}
    code, out, _ = run(capsys, "best", *GEMM, "--json", "--device", "cpu-y", "--cache", "warm")
    assert (code, document(out)["release_id"]) == (0, 7)
    assert service.seen[1].json["device"] == "cpu-y"
    assert service.seen[1].json["policy"] == {"cache": "warm"}

    code, out, _ = run(capsys, "explain", *GEMM)
    assert code == 0
    for part in (
        "gemm_x86",
        "tile      mr 4",
        "order     threads 2",
        "compiler gcc 12",
        "never asked",
        "tied with 1",
    ):
        assert part in out
    release = {
        "release_id": 9,
        "device": "cpu-z",
        "policy": {"cache": "cold"},
        "level": "exact",
        "time_us": 1234.0,
    }
    service.routes[f"GET /v1/problems/{PROBLEM.key}"] = (
        200,
        {"releases": [release, {**release, "release_id": 7}]},
    )
    code, out, _ = run(capsys, "explain", *GEMM)
    assert out.count("also ") == 1
    assert "exact on cpu-z, policy cold: 1.23 ms" in out
    noise = {"band": 0.07675140462284313, "race": {"ratios": [1.0] * 31}, "twin": 0.017}
    service.routes["POST /v1/best"] = (200, {**service.routes["POST /v1/best"][1], "noise": noise})
    assert "noise     band 0.0768, twin 0.017\n" in run(capsys, "explain", *GEMM)[1]
    code, out, _ = run(capsys, "explain", *GEMM, "--json")
    assert (code, set(document(out))) == (0, {"best", "problem"})


def test_nothing_known(service: Any, capsys: Capture) -> None:
    answer = {"level": "none", "reason": "Not tuned yet.", "problem_key": PROBLEM.key, "device": None}
    service.routes["POST /v1/best"] = (200, answer)
    code, out, _ = run(capsys, "explain", *GEMM)
    assert code == 0
    assert "none: Not tuned yet." in out


# -- wrong use and failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        [], ["--nonsense"], ["nonsense"], ["submit"], ["submit", "gemn"], ["watch"], ["watch", "../3"],
        ["jobs", "x"],
        ["jobs", "--limit", "0"], ["jobs", "--limit", "many"], ["best", "gemm", "--m", "-1", "--n", "1"],
        ["best", "gemm", "--m", "1,2"], ["submit", "--spec", "/nowhere"], ["jobs", "--url", "nowhere"],
        ["submit", *GEMM, "--heads-q", "8"], ["version", "extra"], ["jobs", "--stat", "done"],
    ],
)  # fmt: skip
def test_wrong_use_exits_2_with_one_sentence(words: list[str], capsys: Capture) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("rooftile: ")
    assert err.count("\n") == 1
    code, out, err = run(capsys, *words, "--json")
    assert code == 2
    assert document(out)["error"]


def test_a_field_is_named_in_json(capsys: Capture) -> None:
    code, out, _ = run(
        capsys, "best", "gemm", "--m", "8", "--n", "8", "--k", "8", "--dtype", "fp32", "--json"
    )
    assert code == 2
    got = document(out)
    assert (got["field"], got["value"], got["nearest"]) == ("dtype", "fp32", "f32")


def test_what_the_service_refuses(service: Any, capsys: Capture) -> None:
    problem = {"status": 422, "detail": "target.device: no such device", "field": "target.device"}
    service.routes["POST /v1/jobs"] = (422, problem, "application/problem+json")
    code, out, err = run(capsys, "submit", *GEMM, "--json")
    assert (code, document(out)["problem"]) == (2, problem)
    assert err == "rooftile: the service answered 422: target.device: no such device\n"
    service.routes["GET /v1/jobs"] = (401, {"detail": "a token is needed"}, "application/problem+json")
    code, _, err = run(capsys, "jobs")
    assert code == 1
    assert "ROOFTILE_TOKEN" in err


def test_no_service(capsys: Capture) -> None:
    code, out, err = run(capsys, "jobs", "--url", "http://127.0.0.1:9")
    assert (code, out) == (1, "")
    told = "no answer from http://127.0.0.1:9: Connection refused; `rooftile serve` starts it on this machine"
    assert err == f"rooftile: {told}\n"
    code, out, _ = run(capsys, "jobs", "--url", "http://127.0.0.1:9", "--json")
    assert (code, list(document(out))) == (1, ["error"])


def test_help_and_version(capsys: Capture) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for word in (*cli.OWN, *cli.SERVER_WORDS):
        assert f"  {word}" in out
    for word in cli.OWN:
        code, out, _ = run(capsys, word, "--help")
        assert code == 0
        assert out.startswith(f"usage: rooftile {word}")
    code, out, _ = run(capsys, "version", "--json")
    assert (code, document(out)["rooftile"]) == (0, "0.1.0")
    assert run(capsys, "--version")[0] == 0


# -- words of other distributions -------------------------------------------------------------------------


def test_a_server_word_without_the_server(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_installed", dict)
    code, out, err = run(capsys, "tune", *GEMM)
    assert (code, out) == (1, "")
    assert err == "rooftile: `rooftile tune` comes with the server: pip install rooftile-server\n"
    code, out, _ = run(capsys, "tune", *GEMM, "--json")
    assert "pip install rooftile-server" in document(out)["error"]


def test_other_words_get_the_rest_of_the_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "rooftile_other_words.py").write_text("def four(argv):\n    print(argv)\n    return 4\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def entries() -> dict[str, EntryPoint]:
        values = {"four": "rooftile_other_words:four", "gone": "rooftile_no_such_module:f"}
        return {name: EntryPoint(name, value, cli.GROUP) for name, value in values.items()}

    monkeypatch.setattr(cli, "_installed", entries)
    assert run(capsys, "four", "a", "--b", "--help")[:2] == (4, "['a', '--b', '--help']\n")
    code, _, err = run(capsys, "gone")
    assert code == 1
    assert "cannot start: No module named 'rooftile_no_such_module'" in err


# -- as a process -----------------------------------------------------------------------------------------


def start(*words: str, url: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "ROOFTILE_URL": url, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", "import sys; from rooftile.cli import main; sys.exit(main())", *words]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def _interruptible() -> None:
    """Whoever runs the tests in the background of a script has Ctrl-C ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_a_watch(service: Any) -> None:
    service.routes["GET /v1/jobs/3"] = (200, {"id": 3, "state": "running", "counts": {}})
    with start("watch", "3", "--json", url=service.url, preexec_fn=_interruptible) as process:
        end = time.monotonic() + 30
        while len(service.seen) < 2 and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert document(out) == {"error": "Interrupted."}
    assert "Traceback" not in err


def test_a_reader_that_goes_away(service: Any) -> None:
    row = {"state": "done", "created_at": "", "counts": {}, "titles": ["x" * 200], "problem_count": 1}
    rows = [{"id": i, **row} for i in range(3000)]
    service.routes["GET /v1/jobs"] = (200, {"jobs": rows, "next_page_token": None})
    with start("jobs", "--limit", "3000", url=service.url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
        process.wait(30)
    assert err == ""
    assert process.returncode == 1
