"""Where is this user's home, database, broker and token? One object, read from the environment."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import platformdirs
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import SettingsError
from service.periods import lease_s

# The sweep of a worker that has no doorbell (embedded), and of one that has (cluster).
EMBEDDED_SWEEP_S = 0.04
CLUSTER_SWEEP_S = 1.0

_DATABASE_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg", "postgres", "sqlite+pysqlite")
_BROKER_SCHEMES = ("redis", "rediss", "redis+socket", "valkey", "valkeys")


def default_home() -> Path:
    """The folder of this user when ROOFTILE_HOME is not set."""
    return Path(platformdirs.user_data_dir("rooftile", appauthor=False))


class Settings(BaseSettings):
    """The variables a user may set: ROOFTILE_ and the name of a field."""

    model_config = SettingsConfigDict(
        env_prefix="ROOFTILE_", env_ignore_empty=True, extra="ignore", frozen=True
    )

    home: Path = Field(default_factory=default_home)
    url: str | None = None
    token: SecretStr | None = None
    database_url: str = ""
    broker_url: str | None = None
    cache_mib: int = Field(default=4096, ge=16)
    """Size of the compile workers' artifact cache under the home; the least recently used goes first."""

    keep_details_days: int = Field(default=30, ge=0)
    """For how long after its end a job keeps single samples and long logs; 0 is for ever, here and below."""
    keep_events_days: int = Field(default=90, ge=0)
    keep_demand_days: int = Field(default=180, ge=0)
    log_format: Literal["text", "json"] = "text"
    """How log lines look (service/bus/logs.py)."""

    requests_per_s: int = Field(default=1000, ge=0)
    """Requests that a token without the scope admin may send in a second; 0: any number."""

    submissions_per_min: int = Field(default=600, ge=0)
    """Jobs that such a token may submit in a minute; 0: any number."""

    open_jobs: int = Field(default=100, ge=1)
    """Open jobs that such a token may have."""

    cors_origins: str = ""
    """Origins (`https://dash.example`, several by commas) whose pages may ask this API; none by default."""

    proxies: str = ""
    """Addresses and networks (`127.0.0.1,10.0.0.0/8`) of the proxies before the API:
    what they say of a client's address and scheme is believed. By default nobody is."""

    audit_days: float = Field(default=365.0, gt=0)
    """For so long it is kept who did what."""

    @field_validator("home", mode="after")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        path = value.expanduser()
        if "\0" in str(path):
            raise ValueError("must be a folder's path")
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, and a folder is needed")
        return Path.cwd() / path

    @field_validator("url", mode="after")
    @classmethod
    def _http(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            parts = urlsplit(value)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number, a bracket without its other
            valid = False
        if not valid:
            raise ValueError("must be like http://127.0.0.1:8417")
        return value.rstrip("/")

    @field_validator("token", mode="after")
    @classmethod
    def _printable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        text = value.get_secret_value()
        if len(text) < 16 or not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError("must be at least 16 printable ASCII characters without blanks")
        return value

    @field_validator("database_url", mode="after")
    @classmethod
    def _database(cls, value: str) -> str:
        if not value:
            return value
        scheme, separator, _rest = value.partition("://")
        if not separator or scheme not in _DATABASE_SCHEMES:
            raise ValueError("must be like sqlite:////folder/rooftile.db or postgresql://user@host/database")
        # SQLAlchemy would take psycopg2 for the bare name; what we install is psycopg 3.
        if scheme in ("postgresql", "postgres"):
            return "postgresql+psycopg" + value[len(scheme) :]
        return value

    @field_validator("broker_url", mode="after")
    @classmethod
    def _broker(cls, value: str | None) -> str | None:
        if value is None:
            return None
        scheme, separator, rest = value.partition("://")
        if not separator or scheme not in _BROKER_SCHEMES or not rest:
            raise ValueError("must be like redis://host:6379/0")
        # Valkey speaks Redis' protocol and kombu knows it under that name only.
        return {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme) + "://" + rest

    @field_validator("cors_origins", mode="after")
    @classmethod
    def _origins(cls, value: str) -> str:
        for origin in filter(None, (part.strip() for part in value.split(","))):
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or not parts.hostname or origin.rstrip("/") != origin:
                raise ValueError("must be origins like https://dash.example, separated by commas")
            if parts.path or parts.query or parts.fragment or "@" in parts.netloc:
                raise ValueError("must be origins like https://dash.example, separated by commas")
        return value

    @field_validator("proxies", mode="after")
    @classmethod
    def _networks(cls, value: str) -> str:
        for one in filter(None, (part.strip() for part in value.split(","))):
            try:
                network = ip_network(one)
            except ValueError:
                raise ValueError(
                    "must be addresses or networks like 127.0.0.1 or 10.0.0.0/8, separated by commas"
                ) from None
            if network.prefixlen == 0:
                raise ValueError(
                    f"must be addresses or networks of proxies alone, and {one} is everybody:"
                    " each client could say that he is somebody else"
                )
        return value

    def model_post_init(self, _context: object) -> None:
        if not self.database_url:
            # frozen: the default hangs on another field, so it is set here, once.
            object.__setattr__(self, "database_url", f"sqlite:///{self.home / 'rooftile.db'}")

    @property
    def embedded(self) -> bool:
        """No broker: one supervisor with its children on this machine."""
        return self.broker_url is None

    @property
    def sweep_s(self) -> float:
        """How often a worker looks into the database by itself."""
        return EMBEDDED_SWEEP_S if self.embedded else CLUSTER_SWEEP_S

    @property
    def origins(self) -> list[str]:
        """Whose pages may ask this API."""
        return [part.strip() for part in self.cors_origins.split(",") if part.strip()]

    @property
    def proxy_networks(self) -> list[str]:
        """Whose X-Forwarded-For and X-Forwarded-Proto are believed."""
        return [str(ip_network(part.strip())) for part in self.proxies.split(",") if part.strip()]

    @property
    def token_text(self) -> str | None:
        """The admin token of ROOFTILE_TOKEN, where set."""
        return None if self.token is None else self.token.get_secret_value()


def get_settings() -> Settings:
    """Read the environment now. Raises SettingsError, one sentence that names the variable."""
    lease_s()  # read where it is needed; refused here, before anything starts
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else "home"
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise SettingsError(f"ROOFTILE_{field.upper()}: {reason}.") from None


def process_settings() -> Settings:
    """The same for the API and the workers: with a broker they may be on several hosts, which cannot share an
    SQLite file."""
    settings = get_settings()
    if not settings.embedded and settings.database_url.startswith("sqlite"):
        raise SettingsError(
            "ROOFTILE_DATABASE_URL: must be a Postgres database where ROOFTILE_BROKER_URL is set:"
            " the processes of several hosts cannot share an SQLite file."
        )
    return settings
