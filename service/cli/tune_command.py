"""How does `rooftile tune` take a problem from the command line to a measured answer?"""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rooftile.device import CUDA_ARCHS, local_cpu

from service.bus import HostGate
from service.cli import tune_args, tune_result, tune_watch
from service.cli.common import DONE, FAILED, guarded, print_json
from service.cli.tables import table_console
from service.compilers import need_nvrtc
from service.errors import OperationError
from service.jobs import control
from service.jobs.errors import IllegalMove
from service.jobs.request import JobRequest
from service.jobs.submit import submit
from service.paths import prepare_home
from service.settings import Settings, get_settings
from service.store import devices, jobs
from service.store.database import Database
from service.store.enums import JobProblemState, JobState
from service.store.records import JobRecord
from service.supervisor import Supervisor
from service.supervisor.devices import local_devices
from service.supervisor.lock import in_use, running

POLL_S = 0.1
# From the start of the children to a registered device: imports, and the first measure of its roofs.
DEVICE_READY_S = 120.0
# Cancelling kills the running measurement; what has not ended by then is left to the next start.
CANCEL_S = 15.0


def main(argv: Sequence[str]) -> int:
    """Entry point `tune`."""

    def call() -> int:
        try:
            options = tune_args.parse(argv)
        except SystemExit as end:  # argparse has shown its help
            return end.code if isinstance(end.code, int) else DONE
        return _tune(options)

    return guarded(call, as_json="--json" in argv)


def _tune(options: tune_args.Options) -> int:
    JobRequest.parse(options.body)  # before anything is started
    settings = get_settings()
    arch = arch_of(options.body)
    if settings.embedded and arch in CUDA_ARCHS:
        need_nvrtc(arch)
    prepare_home(settings.home)
    view = tune_watch.View(Console(stderr=True), quiet=options.json)
    supervisor = Supervisor(
        settings,
        command="tune",
        api=None,
        # Nobody's device is asked for: nothing to measure, and no roof to wait for.
        devices=() if arch is not None else devices_of(options.body),
        cuda_only=arch in CUDA_ARCHS,
        surface=lambda name, text: view.say(f"{name}: {text}"),
    )
    database = Database(settings.database_url, name="rooftile tune")
    try:
        with supervisor.stopping_on_signals():
            hands = _Hands(settings, supervisor)
            hands.take()
            hands.tell()
            run = _Run(database, hands, view)
            ended = run.go(dict(options.body))
        with database.read() as s:
            result = tune_result.collect(s, ended)
    finally:
        view.stop()
        supervisor.stop()
        database.close()
    return _report(result, hands, options, run.cancelled)


def arch_of(body: Mapping[str, Any]) -> str | None:
    """The arch that a job without a device is for."""
    target = body.get("target")
    arch = target.get("arch") if isinstance(target, Mapping) else None
    return arch if isinstance(arch, str) else None


def devices_of(body: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The devices of this machine that a job names: no other has to be made ready. None: it names none."""
    target = body.get("target")
    if not isinstance(target, Mapping):
        return None
    named = [target.get("device"), *(target.get("devices") or ())]
    here = {one.key for one in local_devices()}
    found = tuple(dict.fromkeys(key for key in named if isinstance(key, str) and key in here))
    return found or None


@dataclass
class _Hands:
    """Who works on the job: our own children, a supervisor that runs already, or a cluster."""

    settings: Settings
    supervisor: Supervisor
    own: bool = False
    url: str | None = None

    def take(self) -> None:
        """Start children of our own unless somebody else serves this home."""
        if not self.settings.embedded:
            self.url = self.settings.url
            return
        if not self.own and self.supervisor.try_start():
            self.own = True
            return
        if not self.own:
            holder = running(self.supervisor.home)
            if holder is not None and holder.database_url != self.settings.database_url:
                raise OperationError(in_use(self.supervisor.home, holder))
            self.url = None if holder is None else holder.url

    def tell(self) -> None:
        """One line for whoever has changed code since: another process works, with what it has loaded."""
        if self.settings.embedded and not self.own:
            holder = running(self.supervisor.home)
            who = "another rooftile" if holder is None else f"`rooftile {holder.command}` (pid {holder.pid})"
            print(
                f"rooftile: {who} runs on this home and does the work, with the code it started with; "
                "stop or restart it first if you have changed code since",
                file=sys.stderr,
            )

    def poll(self) -> None:
        if self.own:
            self.supervisor.poll()
        elif self.settings.embedded:
            self.take()  # the other one may have ended: then the work is ours


class _Run:
    """One job, from its submission to its end, with everything that may happen in between."""

    def __init__(self, database: Database, hands: _Hands, view: tune_watch.View) -> None:
        self._database = database
        self._hands = hands
        self._view = view
        self._stop = hands.supervisor
        self._gate = HostGate()
        self._looked_s = float("-inf")
        self.cancelled = False

    def _quiet(self) -> bool:
        """Somebody measures: looking at the database may wait, though not for long."""
        return time.monotonic() - self._looked_s < tune_watch.LOOK_LEAST_S and self._gate.measuring()

    def go(self, body: dict[str, Any]) -> JobRecord:
        if self._hands.settings.embedded:
            if self._hands.own:
                arch = arch_of(body)
                more = ", whose speed they measure first"
                if arch is not None:
                    more = f"; no device of {arch} is needed"
                self._view.say(f"starting workers on {_names(self._hands.supervisor)}{more}")
            self._wait_for_device()
        job, created = submit(self._database, body)
        self._view.say(f"job {job.id}" if created else f"job {job.id}, which somebody asked for already")
        self._view.start()
        return self._watch(job.id, ours=created)

    def _wait_for_device(self) -> None:
        """The measure worker registers its device; until then `auto` has nothing to mean."""
        deadline = time.monotonic() + DEVICE_READY_S
        wanted = set(self._hands.supervisor.devices)
        while not self._stop.stop_requested:
            self._hands.poll()
            with self._database.read() as s:
                known = [device for device in devices.listing(s) if device.key in wanted]
            if wanted == {device.key for device in known if device.connected}:
                return
            if any(device.waits_for for device in known):  # its worker says for whom
                deadline = time.monotonic() + DEVICE_READY_S
            if time.monotonic() > deadline:
                raise OperationError(self._late())
            time.sleep(POLL_S)
        raise KeyboardInterrupt

    def _late(self) -> str:
        supervisor = self._hands.supervisor
        said = [child.last_words() for child in supervisor.children if child.spec.name.startswith("measure")]
        words = " ".join(text for text in said if text) or f"see {supervisor.home.logs}"
        return f"The measure worker was not ready within {DEVICE_READY_S:.0f} s: {words}"

    def _watch(self, job_id: int, *, ours: bool) -> JobRecord:
        give_up = float("inf")
        next_look = 0.0
        while True:
            self._hands.poll()
            if self._stop.stop_requested and not self.cancelled:
                self.cancelled = True
                give_up = time.monotonic() + CANCEL_S
                if not ours:
                    self._view.say(f"job {job_id} goes on without this window")
                    return self._job(job_id)
                self._view.say("cancelling; the best so far is kept")
                self._cancel(job_id)
            if time.monotonic() >= next_look and not self._quiet():
                self._looked_s = time.monotonic()
                next_look = self._looked_s + tune_watch.LOOK_EVERY_S
                job, rows = tune_watch.look(self._database, job_id)
                if job is None:
                    raise OperationError(f"Job {job_id} is gone from the database.")
                self._view.update(rows)
                if tune_watch.ended(job):
                    return job
                if job.state is JobState.WAITING and self._hands.own and ours:
                    self._cancel(job_id)
                    raise OperationError(
                        f"Job {job_id} needs {_target(job.target)}, which is not this machine's."
                    )
                if time.monotonic() > give_up:
                    return job
            time.sleep(POLL_S)

    def _job(self, job_id: int) -> JobRecord:
        with self._database.read() as s:
            job = jobs.get(s, job_id)
        assert job is not None
        return job

    def _cancel(self, job_id: int) -> None:
        with contextlib.suppress(IllegalMove):  # it ended just now
            if control.leave(self._database, job_id, None).open:
                self._view.say(f"job {job_id} goes on for others who asked for it")


def _target(target: Mapping[str, Any]) -> str:
    value = target.get("device") or target.get("devices") or target.get("arch") or "a device"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _names(supervisor: Supervisor) -> str:
    """The devices that this command works on, as a person knows them."""
    cpu = local_cpu()
    known = {cpu.key: f"{cpu.name} ({cpu.key})"}
    return ", ".join(known.get(key, key) for key in supervisor.devices) or cpu.name


def _report(result: tune_result.JobResult, hands: _Hands, options: tune_args.Options, cancelled: bool) -> int:
    base = hands.url or "http://127.0.0.1:8417"
    page = f"{base}/jobs/{result.job_id}"
    if options.json:
        print_json({**result.to_json(), "dashboard": page, "served": hands.url is not None})
    else:
        console = table_console()
        tune_result.show(result, console)
        arch = arch_of(options.body)
        where = f"on {_names(hands.supervisor)}" if arch is None else f"for {arch}: {result.message}"
        console.print(
            f"\njob {result.job_id} is {result.state} after {result.seconds:.0f} s {where}",
            markup=False,
            soft_wrap=True,
        )
        if hands.url is None:
            console.print(
                f"See it: `{_command()} serve`, log in with its link, then {page}",
                markup=False,
                soft_wrap=True,
            )
        else:
            console.print(f"See it: {page}", markup=False, soft_wrap=True)
    sentence = _shortfall(result)
    if sentence is not None and not cancelled:
        print(f"rooftile: {sentence}", file=sys.stderr)
    return DONE if sentence is None and not cancelled else FAILED


def _shortfall(result: tune_result.JobResult) -> str | None:
    """Why not every problem has an answer that can be relied on; None where each has."""
    if result.state != JobState.DONE:
        return f"job {result.job_id} ended {result.state}. {result.message}".rstrip()
    without = [one.title for one in result.results if one.state != JobProblemState.DONE]
    if not without:
        return None
    told = f"{len(without)} of {len(result.results)}: {', '.join(without)}"
    return f"job {result.job_id} has no answer for {told}"


def _command() -> str:
    """How this command is called, so that a person can copy it."""
    name = sys.argv[0]
    return name if name.endswith("rooftile") and "/" in name and not _on_path(name) else "rooftile"


def _on_path(name: str) -> bool:
    return shutil.which("rooftile") == name
