"""Does each page say what it should in each state, with units, device, policy and date?"""

from __future__ import annotations

import html
import re
import time
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.api import CPU, gemm

from service.jobs import control
from service.store import logins
from service.store.enums import JobState, Scope, TrialReason


@pytest.fixture
def browser(anonymous: TestClient, seed: Any) -> TestClient:
    """A browser that is logged in as admin."""
    with seed.database.begin() as s:
        code = logins.create_code(s, {Scope.ADMIN})
    assert anonymous.get(f"/login?code={code}").status_code == 303
    anonymous.headers["Accept"] = "text/html"
    return anonymous


def text_of(page: str) -> str:
    """What a reader sees, blanks folded."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def read(browser: TestClient, path: str, status: int = 200) -> str:
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"].startswith("text/html")
    return answer.text


def test_the_empty_dashboard_says_how_to_begin(browser: TestClient) -> None:
    assert "Nothing has been tuned yet" in read(browser, "/")
    assert "No jobs yet" in read(browser, "/jobs")
    assert "rooftile submit gemm" in read(browser, "/jobs")


def test_where_jobs_ended_without_an_answer_the_first_page_points_to_them(
    browser: TestClient, seed: Any
) -> None:
    seed.device()
    job = seed.job()
    seed.trials(seed.start(job)[0], [TrialReason.CRASH])
    seed.end(job, JobState.FAILED, "No schedule passed.")
    page = read(browser, "/")
    assert "Nothing has been tuned yet" not in page
    assert "No configuration is served yet" in page
    assert '<a href="/jobs">' in page


def test_best_shows_every_number_with_what_it_counts_for(browser: TestClient, seed: Any) -> None:
    seed.device()
    seed.tuned()
    shown = text_of(read(browser, "/"))
    for words in (
        "gemm 8x4096x4096",
        "Intel Xeon (Cascade Lake)",
        "cold, eager",
        "640.0 µs",
        "± 0.60 %",
        "419 GFLOP/s",
        "105 GB/s",
        "of memory roof",
        "1.41×",
        "Baseline 900.0 µs",
        "gemm_x86 tile",
        "gcc 12.2.0",
    ):
        assert words in shown, words
    assert re.search(r"20\d\d-\d\d-\d\d", shown)


def test_a_baseline_that_won_is_shown_as_such(browser: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    trial = seed.trials(row, [900.0])[0]
    seed.release(row, None, 500.0, 500.0, seed.race(row, [trial], 500.0))
    shown = text_of(read(browser, "/"))
    assert "the Baseline won" in shown
    assert "openblas 0.3.30 SkylakeX" in shown


def test_filters_stand_in_the_address_and_pages_go_on(
    browser: TestClient, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.web.views.ROWS", 2)
    seed.device()
    for m in (1, 2, 4, 16, 32):
        seed.tuned({"problem": gemm(m), "device": CPU})
    rows = re.findall(r"gemm (\d+)x4096x4096</a>", read(browser, "/"))
    assert rows == ["32", "16"]
    seen: list[str] = []
    path: str | None = "/?dtype=f32&op=gemm"
    while path:
        page = read(browser, path)
        seen += re.findall(r"gemm (\d+)x4096x4096</a>", page)
        found = re.search(r'href="([^"]+)" rel="next"', page)
        path = html.unescape(found[1]) if found else None
        assert path is None or ("dtype=f32" in path and "op=gemm" in path)
    assert seen == ["32", "16", "4", "2", "1"]
    assert re.findall(r"gemm (\d+)x4096x4096</a>", read(browser, "/?text=4x4096")) == ["4"]
    narrow = read(browser, "/?text=xeon+16x4096")
    assert re.findall(r"gemm (\d+)x4096x4096</a>", narrow) == ["16"]
    assert 'value="xeon 16x4096"' in narrow
    for path in ("/?dtype=bf16", "/?text=nothing", "/?device=cpu-amd-25-1-8c-x86-64-v3", "/?op=attention"):
        assert "Nothing matches these filters" in read(browser, path)


def test_what_a_person_types_is_shown_as_text(browser: TestClient, seed: Any) -> None:
    seed.device(name='<script>alert("x")</script>')
    seed.tuned()
    page = read(browser, '/?text="><script>alert(1)</script>')
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    error = browser.get("/?op=<script>alert(1)</script>")
    assert error.status_code == 422
    assert "<script>alert" not in error.text


def test_a_running_job_follows_its_events(browser: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    ids = seed.trials(row, [900.0, 640.0, TrialReason.HANG])
    seed.propose(row, 2)
    page = read(browser, f"/jobs/{job.id}")
    assert f'hx-sse:connect="/v1/jobs/{job.id}/events?after=' in page
    assert 'hx-sse:close="end"' in page
    shown = text_of(page)
    for words in ("running", "640.0 µs", "3 of 60", "2 under way", "failed: hang", "known after the race"):
        assert words in shown, words
    assert page.count("<circle") == 4  # two timed trials, drawn wide and narrow
    assert f"/trials/{ids[1]}" in page
    live = read(browser, f"/jobs/{job.id}/live")
    assert "<html" not in live
    assert "640.0 µs" in live
    seed.race(row, [ids[1]], 900.0)
    raced = text_of(read(browser, f"/jobs/{job.id}/live"))
    assert "1.41×" in raced
    assert "Baseline 900.0 µs" in raced


def test_times_that_were_all_disturbed_are_said_to_be(browser: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    seed.propose(row, 2)
    seed.compile(2)
    seed.measure([900.0, 640.0], contended=True)
    page = read(browser, f"/jobs/{job.id}")
    assert "every time so far was disturbed by other work" in text_of(page)
    assert page.count("<circle") == 4
    assert text_of(page).count("contended") >= 2


@pytest.mark.parametrize("state", ["queued", "waiting", "paused", "cancelled", "failed", "done", "empty"])
def test_a_job_makes_sense_in_every_state(browser: TestClient, seed: Any, state: str) -> None:
    if state != "waiting":
        seed.device()
    job = seed.job({"problem": gemm(0 if state == "empty" else 8), "device": CPU})
    if state in ("failed", "done"):
        row = seed.start(job)[0]
        seed.trials(row, [900.0] if state == "done" else [TrialReason.CRASH])
        seed.end(job, JobState(state), "No schedule passed." if state == "failed" else "")
    elif state == "paused":
        control.pause(seed.database, job.id)
    elif state == "cancelled":
        control.cancel(seed.database, job.id)
    page = read(browser, f"/jobs/{job.id}")
    shown = text_of(page)
    over = state in ("cancelled", "failed", "done", "empty")
    assert ("hx-sse:connect" in page) is not over
    assert ("Cancel job" in shown) is not over
    assert ("Resume" in shown) is (state == "paused")
    wanted = {
        "queued": "no search worker has taken it up yet",
        "waiting": "No worker with a device of the target is connected.",
        "paused": "no new ones start",
        "cancelled": "This job ended without a trial.",
        "failed": "No schedule passed.",
        "done": "Every problem has its answer.",
        "empty": "there is nothing to tune",
    }[state]
    assert wanted in shown
    assert ("done" if state == "empty" else state) in text_of(read(browser, "/jobs"))


def test_a_job_of_many_problems_shows_each_and_the_chosen_one(browser: TestClient, seed: Any) -> None:
    seed.device()
    body = {
        "problem": {k: v for k, v in gemm().items() if k != "m"},
        "sweep": {"m": [1, 2, 4]},
        "device": CPU,
    }
    job = seed.job(body)
    rows = seed.start(job)
    seed.trials(rows[0], [500.0, 400.0])
    page = read(browser, f"/jobs/{job.id}")
    for row in rows:
        assert row.title in page
        assert f"/jobs/{job.id}?problem={row.id}" in page
    assert "400.0 µs" in text_of(page)
    other = text_of(read(browser, f"/jobs/{job.id}?problem={rows[2].id}"))
    assert "The picture starts with the first timed schedule." in other


def test_a_trial_is_called_by_its_id_everywhere(browser: TestClient, seed: Any) -> None:
    seed.device()
    seed.tuned()  # so that ids and numbers within a problem differ
    body = {"problem": {k: v for k, v in gemm().items() if k != "m"}, "sweep": {"m": [1, 2]}, "device": CPU}
    job = seed.job(body)
    row = seed.start(job)[0]
    ids = seed.trials(row, [900.0, 640.0])
    assert ids[0] > 1
    page = read(browser, f"/jobs/{job.id}")
    shown = text_of(page)
    assert f"trial {ids[1]}, alone; not raced yet" in shown
    assert f"<title>trial {ids[1]}: 640.0 µs" in page
    for trial_id in ids:
        cell = page.split(f'<tr id="trial-{trial_id}">')[1].split("</tr>")[0]
        assert text_of(cell).startswith(f"{trial_id} {row.title} measured"), cell
    assert f"/ trial {ids[1]} Trial {ids[1]}: {row.title}" in text_of(read(browser, f"/trials/{ids[1]}"))


def test_trials_are_ordered_filtered_and_paged(
    browser: TestClient, seed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.web.jobpage.ROWS", 2)
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    ids = seed.trials(row, [900.0, 640.0, 700.0, TrialReason.CRASH])

    def shown(path: str) -> list[int]:
        return [int(n) for n in re.findall(r'id="trial-(\d+)"', read(browser, path))]

    assert shown(f"/jobs/{job.id}") == [ids[3], ids[2]]
    assert shown(f"/jobs/{job.id}?order=fastest") == [ids[1], ids[2]]
    assert shown(f"/jobs/{job.id}?state=failed") == [ids[3]]
    page = read(browser, f"/jobs/{job.id}?order=oldest")
    following = re.search(r'href="([^"]+)" rel="next"', page)
    assert following
    assert shown(html.unescape(following[1]).split("#")[0]) == [ids[2], ids[3]]
    crashed = seed.job({"problem": gemm(2), "device": CPU})
    seed.trials(seed.start(crashed)[0], [TrialReason.CRASH])
    seed.end(crashed, JobState.FAILED)
    assert "No trial of this job was timed." in read(browser, f"/jobs/{crashed.id}?order=fastest")
    assert "No trial is rejected." in read(browser, f"/jobs/{job.id}?state=rejected")


def test_a_trial_shows_its_evidence(browser: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    good, wrong = seed.trials(row, [640.0, TrialReason.WRONG_RESULT])
    shown = text_of(read(browser, f"/trials/{good}"))
    for words in (
        "640.0 µs",
        "634.9 µs to 645.1 µs",
        "right on the device, seeds 1, 2, 3",
        "median of 21 samples, 63 runs",
        "cold, eager, 2026-01-02 03:04 UTC",
        "rooftile tune --spec -",
        "gcc 12.2.0",
        "steal_ms",
        "sources_sha256",
        "valid_for",
    ):
        assert words in shown, words
    bad = text_of(read(browser, f"/trials/{wrong}"))
    assert "differs from the reference by more than the bound" in bad
    assert "first_wrong" in bad
    assert "It was not timed." in bad
    seed.propose(row, 1)
    seed.compile(1, failing=True)
    broken = text_of(read(browser, f"/trials/{wrong + 1}"))
    assert "'mr' undeclared" in broken
    assert "It was not run on a device." in broken


def test_what_is_not_there_is_a_page_for_a_person(browser: TestClient) -> None:
    for path in ("/jobs/7", "/jobs/x", "/trials/7", "/nothing", "/jobs/7/live"):
        assert "404 Not Found" in text_of(read(browser, path, 404))
    assert "422" in text_of(read(browser, "/jobs?state=runing", 422))
    assert browser.get("/v1/jobs/7").headers["Content-Type"] == "application/problem+json"


def test_whoever_is_not_logged_in_is_told_how(anonymous: TestClient) -> None:
    for path in ("/", "/jobs", "/jobs/1", "/trials/1"):
        answer = anonymous.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/login")
    assert "rooftile token link" in anonymous.get("/login").text
    fragment = anonymous.get("/jobs/1/live", headers={"HX-Request": "true"})
    assert (fragment.status_code, fragment.headers["HX-Redirect"]) == (401, "/login")


def test_static_files_are_kept_by_their_hash(browser: TestClient) -> None:
    page = read(browser, "/")
    addresses = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
    assert len(addresses) == 4
    for address in addresses:
        answer = browser.get(html.unescape(address))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["Cache-Control"]
        etag = answer.headers["ETag"]
        assert browser.get(address, headers={"If-None-Match": etag}).status_code == 304
    assert "immutable" not in browser.get("/static/rooftile.css").headers["Cache-Control"]
    assert browser.get("/static/../pages.py").status_code == 404
    assert browser.get("/static/nothing.css").status_code == 404


def test_a_page_of_a_job_with_thousands_of_trials_is_quick(browser: TestClient, seed: Any) -> None:
    seed.device()
    job = seed.job()
    row = seed.start(job)[0]
    seed.propose(row, 5000)
    read(browser, f"/jobs/{job.id}")
    start = time.monotonic()
    for path in (f"/jobs/{job.id}", "/jobs", "/"):
        read(browser, path)
    assert time.monotonic() - start < 3
    assert browser.get(f"/v1/jobs/{job.id}").json()["counts"] == {"proposed": 5000}
