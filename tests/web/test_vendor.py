"""Is every file of others in the dashboard listed with its licence, unchanged, and asks nobody outside?"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from service.web.templates_env import HERE, STATIC

VENDOR = STATIC / "vendor"


def test_every_vendored_file_is_listed_with_its_hash_and_licence() -> None:
    listed = json.loads((VENDOR / "vendor.json").read_text())["files"]
    for entry in listed:
        data = (VENDOR / entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], entry["file"]
        assert (VENDOR / entry["licence_file"]).is_file()
        assert all(entry[name] for name in ("name", "version", "licence", "package"))
    named = {e["file"] for e in listed} | {e["licence_file"] for e in listed} | {"vendor.json"}
    assert {path.name for path in VENDOR.iterdir()} == named


def _ours() -> list[Path]:
    return [*(HERE / "templates").glob("*.html"), *STATIC.glob("*.css"), *STATIC.glob("*.svg")]


def test_no_page_of_ours_asks_another_host_or_brings_inline_code() -> None:
    for path in _ours():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"(?:https?:)?//[a-z0-9]", text), path.name
        assert "style=" not in text, path.name
        assert not re.search(r"\son[a-z]+=", text), path.name
        assert "hx-on" not in text, path.name
        assert not re.search(r"<script(?![^>]*\ssrc=)", text), path.name
