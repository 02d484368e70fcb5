"""How is the application put together: one database, the routes, the handlers, the layers around them?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from service.api import handlers, openapi
from service.api.body import MAX_BODY_BYTES
from service.api.middleware import BodyLimit, Conditional, Overload, SecurityHeaders
from service.api.requestid import RequestId
from service.api.routes import artifacts, audit, demand, devices, health, jobs, metrics, releases, trials
from service.api.state import REQUEST_THREADS, STREAM_THREADS, VERSION, AppState
from service.bus import Doorbell
from service.metrics import CountRequests
from service.settings import Settings
from service.store import tokens
from service.store.database import Database
from service.store.enums import Scope
from service.web.app import as_page, mount

STATEMENT_S = 10.0
"""Whoever asks by HTTP waits no longer for one statement, whatever the environment allows workers."""


def create_app(settings: Settings, *, check: bool = False) -> FastAPI:
    """The ASGI application. With `check` the database must answer now (StoreError says what is wrong)."""
    # Each thread holds at most one connection, so the pool is as large as the threads and never waited for.
    database = Database(
        settings.database_url,
        name="rooftile-api",
        pool_size=4,
        max_overflow=REQUEST_THREADS + STREAM_THREADS - 4,
        statement_s=STATEMENT_S,
    )
    state = AppState(settings=settings, database=database, doorbell=Doorbell(settings))
    if check:
        database.ping()
    if settings.token_text is not None:
        _admit(state, settings.token_text)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = REQUEST_THREADS
        with (
            state.tail.listening(state.known_tokens.told),
            state.tail.listening(state.index.told),
            state.tail.listening(state.streams.told),
        ):
            state.tail.start()
            yield
            state.stopping.set()
            state.tail.join()
        state.doorbell.close()
        database.close()

    app = FastAPI(
        title="Rooftile",
        version=VERSION,
        description="Finds, proves and serves the fastest schedule of a kernel.",
        # Their pages load scripts from elsewhere; no request of ours leaves the host.
        docs_url=None,
        redoc_url=None,
        # The redirect would lead to whatever host the request names.
        redirect_slashes=False,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        middleware=[
            *_proxies(settings),
            Middleware(RequestId),
            Middleware(CountRequests, figures=state.metrics.requests),
            Middleware(SecurityHeaders),
            *_cors(settings),
            Middleware(Overload),
            Middleware(Conditional),
            Middleware(BodyLimit, max_bytes=MAX_BODY_BYTES),
        ],
    )
    app.state.rooftile = state
    for module in (health, metrics, jobs, trials, releases, artifacts, devices, demand, audit):
        app.include_router(module.router)
    mount(app)
    handlers.install(app, as_page)
    openapi.install(app)
    return app


def state_of_app(app: FastAPI) -> AppState:
    state = app.state.rooftile
    assert isinstance(state, AppState)
    return state


def _proxies(settings: Settings) -> list[Middleware]:
    """Where a request comes from is what its connection says, unless a person named the proxies before us."""
    if not settings.proxy_networks:
        return []
    return [Middleware(ProxyHeadersMiddleware, trusted_hosts=settings.proxy_networks)]


def _cors(settings: Settings) -> list[Middleware]:
    """Pages of these origins may ask, with a bearer token: cookies stay with the dashboard's own."""
    if not settings.origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
            expose_headers=["ETag", "Location", "Retry-After"],
        )
    ]


def _admit(state: AppState, token: str) -> None:
    """Make ROOFTILE_TOKEN the admin token, as the supervisor does for its own."""
    state.database.run(lambda s: tokens.ensure(s, tokens.FROM_ENVIRONMENT, {Scope.ADMIN}, token))
