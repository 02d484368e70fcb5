"""How do lookups that the index does not know share one query?

Those that come while one is under way wait for each other and are asked together: a session, its connection
and its transaction cost as much as the query itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import anyio.to_thread
from rooftile.errors import FieldError

from service.api import lookup
from service.api.index import ReleaseIndex
from service.jobs.target import policy_key
from service.store.database import Database

MOST = 64
"""Lookups of one query."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    body: bytes
    question: lookup.Question
    answer: asyncio.Future[bytes]


class Asking:
    """Of one event loop."""

    def __init__(self, database: Database, index: ReleaseIndex) -> None:
        self._database = database
        self._index = index
        self._waiting: list[_Waiting] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, body: bytes, question: lookup.Question) -> bytes:
        """The answer as JSON. FieldError, or what is wrong with the database."""
        one = _Waiting(body, question, asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        if self._task is None or self._task.done():  # whatever ended it
            self._task = asyncio.create_task(self._work())
        return await one.answer

    async def _work(self) -> None:
        while self._waiting:
            batch = self._waiting[:MOST]
            del self._waiting[:MOST]
            try:
                answers = await anyio.to_thread.run_sync(self._answer, batch)
            except asyncio.CancelledError:
                for one in batch:
                    one.answer.cancel()  # nobody waits for what will never come
                raise
            except Exception as error:  # noqa: BLE001 - it is everybody's who waits for this batch
                answers = [error] * len(batch)
            for one, answer in zip(batch, answers, strict=True):
                if one.answer.done():
                    continue  # who asked went away
                if isinstance(answer, Exception):
                    one.answer.set_exception(answer)
                else:
                    one.answer.set_result(answer)

    def _answer(self, batch: list[_Waiting]) -> list[bytes | Exception]:
        epoch = self._index.epoch()
        with self._database.read() as s:
            found = lookup.best_of(s, [one.question for one in batch])
        answers: list[bytes | Exception] = []
        for one, answer in zip(batch, found, strict=True):
            if isinstance(answer, FieldError):
                answers.append(answer)
                continue
            best, row = answer
            text = best.model_dump_json().encode()
            if best.level == "none" and one.question.device != lookup.AUTO:
                key = (best.problem_key, one.question.device, policy_key(best.policy))
                self._index.keep_miss(one.body, key, epoch, text)
            if row is not None:
                key = (row.problem_key, row.device_key, row.policy_key)
                self._index.keep(
                    one.body,
                    key,
                    epoch,
                    text,
                    family=row.family,
                    toolchain_key=row.toolchain_key,
                    stale=best.level == "stale",
                )
            answers.append(text)
        return answers
