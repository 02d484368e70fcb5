"""Which closed sets of words does the database know, and what does each word mean?

Every value carries its own docstring text (``TrialState.RANKED.doc``), so that docs, API and
dashboard explain a word with the same sentence. Values are stored as plain text, never as a
database enum type: a new word needs no migration, and a downgrade leaves no type behind.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Word(StrEnum):
    """A word with an explanation; equal to its plain text, so it goes into JSON as it is."""

    _value_: str
    doc: str

    def __new__(cls, value: str, doc: str = "") -> Self:
        word = str.__new__(cls, value)
        word._value_ = value
        word.doc = doc
        return word


class TrialState(Word):
    """Where one schedule stands on its way to a time."""

    PROPOSED = "proposed", "The search asked for it; it waits for, or is in, its compile."
    COMPILED = "compiled", "Its artifact exists and passed the static gate; it waits for its device."
    MEASURING = "measuring", "A worker that owns the device is verifying and timing it."
    MEASURED = "measured", "It gave right results and has a time."
    RANKED = "ranked", "Compiled and judged by the cost model; no device was asked."
    REJECTED = "rejected", "A rule refused it, or what the compiler said of it; it never ran."
    FAILED = "failed", "It was tried and went wrong; the reason says how."
    CULLED = "culled", "Right, but clearly slower than the best after the first look."
    CANCELLED = "cancelled", "Its job ended before it did."


class TrialReason(Word):
    """Why a trial, or an entrant of a race, did not get a time."""

    ILLEGAL = "illegal", "The schedule breaks a rule of its family or device."
    QUARANTINED = "quarantined", "This schedule gave a wrong result under this toolchain before."
    SPILLS = "spills", "The compiler spilled registers or warned of serialised matrix instructions."
    RESOURCE_LIMIT = "resource_limit", "The built artifact needs more than the device has."
    PLAN_INVALID = "plan_invalid", "The launch plan does not cover the problem's sizes or alignment."
    COMPILE_ERROR = "compile_error", "The compiler refused the source."
    COMPILE_TIMEOUT = "compile_timeout", "The compiler ran past its time limit."
    COMPILE_MEMORY = "compile_memory", "The compiler ran past its memory limit."
    COMPILE_CRASH = "compile_crash", "The compiler itself crashed."
    COMPILER_MISSING = "compiler_missing", "No compiler for this arch is installed where it was claimed."
    WRONG_RESULT = "wrong_result", "An output differs from the reference by more than the bound."
    NAN_RESULT = "nan_result", "An output is NaN or infinite where the reference is finite."
    NOT_WRITTEN = "not_written", "An output element still held the poison it was given before the run."
    OUT_OF_BOUNDS = "out_of_bounds", "It wrote to the margin around a buffer, or touched memory beyond it."
    NONDETERMINISTIC = "nondeterministic", "Repeated runs differ though the plan says they must not."
    HANG = "hang", "It did not end within its time limit and was killed."
    CRASH = "crash", "The process it ran in died; the evidence names the signal."
    LAUNCH_ERROR = "launch_error", "The launcher or the driver refused to start it."
    OUT_OF_MEMORY = "out_of_memory", "The device or the host had not enough memory for it."
    INVALID_TIME = "invalid_time", "The time is not finite and positive, or beats the device's roof."
    CONTENDED = "contended", "Every sample was disturbed by other work on the device."
    RACE = "race", "In the emulator two accesses to one place met that nothing orders."
    READ_UNWRITTEN = "read_unwritten", "In the emulator it read memory that nobody had written."
    MISALIGNED = "misaligned", "In the emulator it used an address that its instruction cannot take."
    DEADLOCK = "deadlock", "In the emulator everybody waited; the evidence says who for whom."
    BARRIER_COUNT = "barrier_count", "In the emulator a barrier met another number of threads than it counts."
    DIVERGENCE = "divergence", "In the emulator an instruction for a whole warp met a part of one."
    OUTSTANDING_WORK = "outstanding_work", "In the emulator it ended with copies of its own under way."
    PROXY = "proxy", "In the emulator TMA or WGMMA met what threads wrote without fence.proxy.async."
    REGISTERS = "registers", "In the emulator it touched registers that WGMMA holds, or misused setmaxnreg."
    DESCRIPTOR = "descriptor", "In the emulator a tensor map or matrix descriptor was wrong."
    PEER = "peer", "In the emulator it reached a block of its cluster that is not there, or no longer."
    TRAP = "trap", "In the emulator it executed a trap."
    NOT_EMULATED = "not_emulated", "The emulator cannot run it; the evidence names the instruction."
    EMULATE_TIMEOUT = "emulate_timeout", "The emulator ran past its time limit."
    EMULATE_MEMORY = "emulate_memory", "The emulator ran past its memory limit."
    EMULATE_CRASH = "emulate_crash", "The emulator's own process died."
    SLOWER = "slower", "Culled: clearly slower than the best after the first look."
    ARTIFACT_LOST = "artifact_lost", "Its bytes are gone, or do not match their hash."
    DEVICE_LOST = "device_lost", "The device failed (its memory or a link) or stopped answering while it ran."
    WORKER_LOST = "worker_lost", "Each worker that took it stopped reporting before it was done."
    JOB_ENDED = "job_ended", "Its job was cancelled, failed or finished first."
    BUDGET_SPENT = "budget_spent", "The budget of its job ran out first."
    INTERNAL_ERROR = "internal_error", "A fault of ours, not of the schedule; the evidence has the trace."


QUARANTINE_REASONS = frozenset(
    {
        TrialReason.WRONG_RESULT,
        TrialReason.NAN_RESULT,
        TrialReason.NOT_WRITTEN,
        TrialReason.OUT_OF_BOUNDS,
        TrialReason.NONDETERMINISTIC,
        TrialReason.RACE,
        TrialReason.READ_UNWRITTEN,
        TrialReason.MISALIGNED,
        TrialReason.DEADLOCK,
        TrialReason.BARRIER_COUNT,
        TrialReason.DIVERGENCE,
        TrialReason.OUTSTANDING_WORK,
        TrialReason.PROXY,
        TrialReason.REGISTERS,
        TrialReason.DESCRIPTOR,
        TrialReason.PEER,
        TrialReason.TRAP,
    }
)
"""Reasons that say the bytes compute wrongly: (schedule, toolchain) is never tried or served again."""


class Stage(Word):
    """Which kind of worker a trial needs next; apart from its state."""

    COMPILE = "compile", "It needs a compile worker of its arch."
    EMULATE = "emulate", "It needs its emulated verdict, its own or that of its structure."
    MEASURE = "measure", "It needs the worker that owns its device."
    DONE = "done", "It needs nobody."


class JobState(Word):
    """Where a job stands."""

    QUEUED = "queued", "Accepted; no search worker has taken it up yet."
    WAITING = "waiting", "No such device is connected yet."
    RUNNING = "running", "Its problems are being searched and raced."
    PAUSED = "paused", "A person stopped it for now; trials in flight end, no new ones start."
    FINISHING = "finishing", "All problems have ended; releases and clean-up remain."
    DONE = "done", "Every problem has its answer."
    FAILED = "failed", "It could not give an answer; the reason says why."
    CANCELLED = "cancelled", "A person ended it."


class JobReason(Word):
    """Why a job waits, paused, or ended as it did."""

    NO_DEVICE = "no_device", "No worker with a device of the target is connected."
    DEVICE_OUT_OF_SERVICE = "device_out_of_service", "The device was taken out of service."
    NO_WORKER = "no_worker", "No worker that can do the next step is connected."
    USER = "user", "A person asked for it."
    EMPTY_PROBLEM = "empty_problem", "Every problem has a size of 0: there is nothing to tune."
    NO_FAMILY = "no_family", "No family can compute the problem on the arch."
    NO_PASSING_TRIAL = "no_passing_trial", "No problem of it got an answer that can be relied on."
    BUDGET_SPENT = "budget_spent", "The budget ran out."
    COMPILER_MISSING = "compiler_missing", "No compiler for the arch is installed."
    WORKER_LOST = "worker_lost", "Its last step kept losing its worker."
    INTERNAL_ERROR = "internal_error", "A fault of ours; the message has more."


class JobProblemState(Word):
    """Where one problem of a job stands."""

    QUEUED = "queued", "The problems before it come first."
    SEARCHING = "searching", "Schedules are proposed, compiled and measured."
    RESTING = "resting", "Searched in part; at present another problem of its job gains more by the budget."
    RACING = "racing", "Finalists, default, incumbent and Baseline run against each other."
    PROVING = "proving", "No device was asked for: the best by the cost model run in the emulator."
    DONE = "done", "It has its answer, which may be that the Baseline wins."
    FAILED = "failed", "No answer; the reason says why."
    CANCELLED = "cancelled", "Its job ended first."


class JobProblemRole(Word):
    """What a problem of a job is there for."""

    SEARCH = "search", "To be tuned."
    CROSS = "cross", "A tuned size of a sweep once more, with the winners of its neighbours."
    HELD_OUT = "held_out", "A size of a sweep that is not tuned: what does the table lose there?"


class JobProblemReason(Word):
    """Why the search of one problem stopped."""

    BUDGET_TRIALS = "budget_trials", "Its share of trials is used up."
    BUDGET_SECONDS = "budget_seconds", "Its share of time is used up."
    BUDGET_DEVICE_SECONDS = "budget_device_seconds", "Its share of device time is used up."
    SPACE_EXHAUSTED = "space_exhausted", "Every legal schedule was tried."
    CONVERGED = "converged", "The last trials brought nothing better than the noise."
    EMPTY_PROBLEM = "empty_problem", "A size is 0: there is nothing to tune."
    NO_FAMILY = "no_family", "No family can compute it on the arch."
    NO_PASSING_TRIAL = "no_passing_trial", "No schedule gave a right result and a time."
    COMPILER_MISSING = "compiler_missing", "No compiler for the arch is installed."
    DEVICE_OUT_OF_SERVICE = "device_out_of_service", "Its device was taken out of service."
    RACE_FAILED = "race_failed", "The race could not be run to its end, or was disturbed each time."
    JOB_ENDED = "job_ended", "Its job was cancelled or failed."
    INTERNAL_ERROR = "internal_error", "A fault of ours; the message has more."


class RaceState(Word):
    """Where a race stands."""

    QUEUED = "queued", "It waits for its device."
    RACING = "racing", "A worker that owns the device is running it."
    DONE = "done", "Every entrant has a measurement or a failure."
    FAILED = "failed", "It could not be run to its end; the reason says why."
    CANCELLED = "cancelled", "Its job ended first."


class EmulationState(Word):
    """Where the run of one schedule in the emulator stands."""

    QUEUED = "queued", "It waits for an emulate worker."
    RUNNING = "running", "An emulate worker runs it."
    PASSED = "passed", "Right answers and no accusation, on every problem and in every order that was run."
    FAILED = "failed", "It is wrong; the reason and the evidence say how and where."
    UNDECIDED = "undecided", "It could not be run to its end, so it says nothing; the reason says why."


class EmulationScope(Word):
    """Whom the outcome of an emulation speaks for."""

    STRUCTURE = "structure", "Every schedule of its structure under its toolchain."
    TRIAL = "trial", "The one trial that was run: a finalist, or each under the policy `all`."


class EntrantRole(Word):
    """Why somebody runs in a race."""

    FINALIST = "finalist", "Among the best of this search."
    DEFAULT = "default", "The family's default schedule."
    INCUMBENT = "incumbent", "The schedule that is served today."
    TWIN = "twin", "The same binary as another entrant: their difference is the noise floor."
    BASELINE = "baseline", "The vendor's own kernel."
    CANARY = "canary", "Known to run; run again, alone, to see whether the device is well."


class ReleaseState(Word):
    """Where a release stands."""

    CANDIDATE = "candidate", "Written, not served."
    PUBLISHED = "published", "Served for its problem, device and policy."
    SUPERSEDED = "superseded", "A later generation, or a rollback, took its place."
    WITHDRAWN = "withdrawn", "Not to be used any more; clients drop it at their next refresh."


class Winner(Word):
    """Who a release serves."""

    TRIAL = "trial", "A kernel of ours, named by its artifact."
    BASELINE = "baseline", "The vendor's kernel; there is no artifact and the client calls it."


class ProposalSource(Word):
    """Who asked for a schedule."""

    DEFAULT = "default", "The family's default for the problem."
    START = "start", "A good start that the family knows."
    COST_MODEL = "cost_model", "Among the best by the cost model."
    NEIGHBOUR = "neighbour", "One step away from a good one."
    TPE = "tpe", "The sampler."
    TRANSFER = "transfer", "The winner of a near problem or device."
    RANDOM = "random", "Drawn from the legal space."


class VerdictKind(Word):
    """Who said that a result is right."""

    DEVICE = "device", "It ran on the device it is for."
    EMULATED = "emulated", "Its code ran in the emulator."


class ArtifactKind(Word):
    """What the bytes are for."""

    KERNEL = "kernel", "A kernel that trials run and releases serve."
    POOL = "pool", "The thread pool that runs x86 kernels."
    CALIBRATION = "calibration", "A kernel that measures a device's roofs."


class DeviceState(Word):
    """Whether a device may be given work."""

    AVAILABLE = "available", "It may be given work while a worker reports for it."
    OUT_OF_SERVICE = "out_of_service", "It gets no work until a person says so."


class WorkerKind(Word):
    """What a worker process does."""

    SEARCH = "search", "Advances jobs and proposes schedules."
    COMPILE = "compile", "Builds artifacts."
    EMULATE = "emulate", "Runs artifacts in the emulator."
    MEASURE = "measure", "Owns one device."
    API = "api", "Answers requests."
    SUPERVISOR = "supervisor", "Starts and restarts the others."


class WorkerState(Word):
    """What a worker said at its last heartbeat."""

    IDLE = "idle", "It found nothing to claim."
    BUSY = "busy", "It is doing what it claimed."
    WAITING = "waiting", "It claims nothing: somebody else has its device, or its disk is full."


class EventKind(Word):
    """What an event is about."""

    JOB = "job", "A job changed its state."
    JOB_PROBLEM = "job_problem", "A problem of a job changed its state."
    TRIAL = "trial", "A trial changed its state, or lost its worker."
    RACE = "race", "A race changed its state, or lost its worker."
    EMULATION = "emulation", "A run in the emulator changed its state, or lost its worker."
    RELEASE = "release", "A release changed its state or its pin."
    NOTE = "note", "Something worth telling that moves nothing."


class Scope(Word):
    """What a token allows."""

    READ = "read", "Look at everything."
    SUBMIT = "submit", "Create jobs and steer its own."
    ADMIN = "admin", "Everything, other people's jobs and releases too."


class AuditAction(Word):
    """What is kept of who did it."""

    TOKEN_MADE = "token_made", "A token was made, or that of a service was set."
    TOKEN_REVOKED = "token_revoked", "A token was ended."
    LINK_MADE = "link_made", "A link was made that logs a browser in."
    LOGIN = "login", "A browser logged in."
    LOGOUT = "logout", "A browser logged out."
    RELEASE_PINNED = "release_pinned", "A release was pinned."
    RELEASE_UNPINNED = "release_unpinned", "A release's pin was taken off."
    RELEASE_ROLLED_BACK = "release_rolled_back", "A release was left for the one before it."
    RELEASE_PUBLISHED = "release_published", "A release was published."
    RELEASE_WITHDRAWN = "release_withdrawn", "A release was taken back for good."
    DEVICE_SUSPENDED = "device_suspended", "A device was taken out of service."
    DEVICE_RESUMED = "device_resumed", "A device was put back into service."
