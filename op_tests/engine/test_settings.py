"""Settings: declared once, in SETTINGS.md as declared, read nowhere else, checked when read."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import rfops
from rfops.jit import log, paths, settings
from rfops.jit.cache.files import cache_roots
from support import ROOT

README = ROOT / "jit" / "SETTINGS.md"


def test_the_table_in_the_readme() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", README.read_text(), re.M)
    declared = [
        (s.name, s.kind.replace("|", ", "), f"`{s.default}`" if s.default else "", s.meaning)
        for s in settings.SETTINGS
    ]
    assert rows == declared


def test_a_misspelt_variable_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_are_checked", False)
    monkeypatch.setattr(logging.getLogger("rfops"), "propagate", True)
    monkeypatch.setenv("RFOPS_LOCK_TIMOUT", "3")
    monkeypatch.setenv("RFOPS_QQQQ", "3")
    monkeypatch.setenv("RFOPS_TEST_WHATEVER", "3")
    for _ in range(2):
        assert settings.number("RFOPS_LOCK_TIMEOUT") == 600
    assert [record.getMessage() for record in caplog.records] == [
        "RFOPS_LOCK_TIMOUT is no setting: is RFOPS_LOCK_TIMEOUT meant?",
        "RFOPS_QQQQ is no setting",
    ]


def test_nothing_reads_another_variable() -> None:
    """Every variable that our code names is declared, or a protocol's; C++ reads RFOPS_VGPU_*."""
    declared = {setting.name for setting in settings.SETTINGS}
    python = [*(ROOT / "jit").glob("*.py"), *(ROOT / "rfops").rglob("*.py")]
    for file in python:
        text = file.read_text()
        named = set(re.findall(r"environ(?:\.get\(|\[)\s*[\"'](\w+)[\"'](?!\] =)", text))
        named |= set(re.findall(r"getenv\(\s*[\"'](\w+)", text))
        protocols = {"PATH", "POPCORN_FD", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
        assert named <= protocols, f"{file.name} reads {named}: use jit/settings.py"
        words = set(re.findall(r"[\"'](RFOPS_[A-Z0-9_]+)[\"']", text))
        others = {"RFOPS_MLA", settings._TESTS, "RFOPS_VGPU_"}  # an attention backend; prefixes
        assert words <= declared | others, file.name
    for file in paths.CSRC.glob("vgpu/*/*"):
        named = set(re.findall(r"\"(RFOPS_[A-Z0-9_]+)", file.read_text()))
        assert named <= declared, f"{file.name} reads {named - declared}"


def test_defaults_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in settings.SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    for setting in settings.SETTINGS:
        if setting.kind in ("int", "seconds"):
            assert settings.number(setting.name) >= 0
        elif setting.kind == "path":
            results = settings.path(setting.name)
            assert results is None or results.is_absolute()
        else:
            settings.text(setting.name)


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_CACHE_DIR", "~/x")
    assert settings.path("RFOPS_CACHE_DIR") == Path.home() / "x"
    monkeypatch.setenv("RFOPS_CACHE_DIR", "relative")
    assert settings.path("RFOPS_CACHE_DIR") == Path.cwd() / "relative"
    monkeypatch.setenv("RFOPS_JOBS", "3")
    assert settings.number("RFOPS_JOBS") == 3
    monkeypatch.setenv("RFOPS_JOBS", "")
    assert settings.number("RFOPS_JOBS") == 0


@pytest.mark.parametrize("name", ["RFOPS_CACHE_DIR", "RFOPS_CACHE_READ", "RFOPS_CONFIGS"])
def test_a_user_without_a_home(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "~nobody-of-this-name/x")
    with pytest.raises(rfops.ConfigError, match=f"^{name}=~nobody-of-this-name/x: .* Set {name}"):
        settings.path_list(name) if name == "RFOPS_CACHE_READ" else settings.path(name)
    if "CACHE" in name:
        with pytest.raises(rfops.ConfigError, match=name):
            cache_roots()


@pytest.mark.parametrize("value", ["many", "-1", "1.5", "٣", " 1"])
def test_wrong_numbers(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_LOCK_TIMEOUT", value)
    with pytest.raises(rfops.ConfigError, match=r"RFOPS_LOCK_TIMEOUT=.*whole number"):
        settings.number("RFOPS_LOCK_TIMEOUT")


def test_wrong_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_LOG", "loud")
    with pytest.raises(rfops.ConfigError, match="RFOPS_LOG='loud': expected one of debug"):
        settings.text("RFOPS_LOG")


@pytest.mark.parametrize("level", ["debug", "dispatch", "info", "warning", "error"])
def test_levels_of_the_log(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFOPS_LOG", level)
    for name in ("rfops", "rfops.dispatch"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
    logger = log.get.__wrapped__()
    assert logger.level == getattr(logging, {"dispatch": "INFO"}.get(level, level.upper()))
