"""Do the variables of the environment mean what they say, and are bad values one clear sentence?"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from service import periods
from service.bus import HostGate
from service.errors import DataMissingError, HomeError, SettingsError
from service.paths import (
    Home,
    host_lock_dir,
    kernels_dir,
    migrations_dir,
    open_lock_file,
    prepare_home,
    shared_dir,
    source_root,
)
from service.settings import get_settings, process_settings

NAMES = ("HOME", "URL", "TOKEN", "DATABASE_URL", "BROKER_URL", "CACHE_MIB")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(f"ROOFTILE_{name}", raising=False)


def test_defaults_follow_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path / "a"))
    settings = get_settings()
    assert settings.home == tmp_path / "a"
    assert settings.database_url == f"sqlite:///{tmp_path}/a/rooftile.db"
    assert settings.embedded
    assert settings.sweep_s < 0.1
    monkeypatch.setenv("ROOFTILE_BROKER_URL", "redis://h:6379/0")
    assert not get_settings().embedded
    assert get_settings().sweep_s == 1.0


def test_empty_is_unset_and_names_of_the_client_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from rooftile.home import home as client_home

    monkeypatch.setenv("ROOFTILE_HOME", "")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert get_settings().home == client_home() == tmp_path / "rooftile"


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("postgresql://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("postgres://u@h/d", "postgresql+psycopg://u@h/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////x/y.db", "sqlite:////x/y.db"),
    ],
)
def test_database_urls(monkeypatch: pytest.MonkeyPatch, given: str, used: str) -> None:
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", given)
    assert get_settings().database_url == used


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATABASE_URL", "mysql://h/d"),
        ("DATABASE_URL", "/just/a/path.db"),
        ("BROKER_URL", "amqp://h"),
        ("URL", "h:8417"),
        ("URL", "http://[::1"),
        ("URL", "http://h:99999"),
        ("TOKEN", "short"),
        ("TOKEN", "with blanks and long enough"),
        ("HOME", "/etc/passwd"),
        ("CACHE_MIB", "15"),
        ("CACHE_MIB", "many"),
    ],
)
def test_bad_values_name_the_variable_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"ROOFTILE_{name}", value)
    with pytest.raises(SettingsError) as caught:
        get_settings()
    text = str(caught.value)
    assert text.startswith(f"ROOFTILE_{name}: ")
    assert "\n" not in text
    if name == "TOKEN":
        assert value not in text  # a secret is not echoed
    if name == "URL":
        assert "must be like http://127.0.0.1:8417" in text


def test_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOFTILE_TOKEN", "0123456789abcdef-secret")
    settings = get_settings()
    assert "secret" not in repr(settings)
    assert settings.token_text == "0123456789abcdef-secret"


def test_home_is_private(tmp_path: Path) -> None:
    root = tmp_path / "home"
    root.mkdir(mode=0o755)
    home = prepare_home(root)
    for folder in (root, home.logs, home.cache, home.work):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert isinstance(home, Home)
    prepare_home(root)  # again is fine


def test_home_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError) as caught:
        prepare_home(tmp_path / "file" / "home")
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_source_tree_comes_first() -> None:
    root = source_root()
    assert root is not None
    assert kernels_dir() == root / "kernels"
    assert migrations_dir() == root / "migrations"


def test_packaged_data_is_used_without_a_source_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import service.paths as paths

    package = tmp_path / "site-packages" / "service"
    (package / "_data" / "kernels").mkdir(parents=True)
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.kernels_dir() == package / "_data" / "kernels"
    with pytest.raises(DataMissingError):
        paths.migrations_dir()


def test_locks_are_open_to_every_user(tmp_path: Path) -> None:
    folder = shared_dir(tmp_path / "locks")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    before = os.umask(0o077)
    try:
        os.close(open_lock_file(folder / "a.lock"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "a.lock").stat().st_mode) == 0o666
    os.close(open_lock_file(folder / "a.lock"))
    assert stat.S_IMODE(host_lock_dir().stat().st_mode) == 0o1777


def test_a_lock_folder_that_was_swept_away_is_made_again(tmp_path: Path) -> None:
    """A cleaner of /tmp removes it under a process that has kept its path."""
    gate = HostGate(shared_dir(tmp_path / "locks"))
    with gate.shared():
        pass
    shutil.rmtree(tmp_path / "locks")
    with gate.exclusive():
        assert gate.measuring()
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777


def test_a_link_is_no_lock_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(HomeError):
        shared_dir(tmp_path / "link")


def test_several_hosts_need_postgres(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROOFTILE_HOME", str(tmp_path))
    assert process_settings().embedded
    monkeypatch.setenv("ROOFTILE_BROKER_URL", "redis://h:6379/0")
    with pytest.raises(SettingsError, match="ROOFTILE_DATABASE_URL: must be a Postgres database"):
        process_settings()
    monkeypatch.setenv("ROOFTILE_DATABASE_URL", "postgresql://u@h/d")
    assert not process_settings().embedded


def test_all_periods_follow_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(periods.VARIABLE, raising=False)
    assert (periods.lease_s(), periods.renew_s(), periods.heartbeat_s(), periods.alive_s()) == (20, 1, 5, 30)
    monkeypatch.setenv(periods.VARIABLE, "8")
    assert periods.lease_s() == 8
    # Who lives is heard several times before anybody takes what it has.
    assert periods.renew_s() < periods.heartbeat_s() < periods.lease_s() / 2 < periods.device_lease_s()
    for bad in ("3", "601", "soon", "nan", "-1"):
        monkeypatch.setenv(periods.VARIABLE, bad)
        with pytest.raises(SettingsError, match="ROOFTILE_LEASE_S: must be 4 to 600 seconds"):
            get_settings()
