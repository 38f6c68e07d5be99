"""XLA_FLAGS: old names, and what XLA would end the process for."""

from __future__ import annotations

import os

import pytest

from torch_galley.compile import flags
from torch_galley.core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("--xla_dump_to=d --xla_anything=1", "--xla_dump_to=d --xla_anything=1"),
        ("--xla_hlo_graph", "--xla_dump_to=hlo_graph --xla_dump_hlo_as_dot"),
        ("--xla_dump_to=d --xla_hlo_graph", "--xla_dump_to=d --xla_dump_hlo_as_dot"),
        ("--xla_hlo_graph_path=g", "--xla_dump_to=g --xla_dump_hlo_as_dot"),
        ("--xla_generate_hlo_graph=.* --xla_dump_to=d", "--xla_dump_to=d --xla_dump_hlo_as_dot"),
        ("--xla_hlo_graph --xla_dump_hlo_as_dot", "--xla_dump_hlo_as_dot --xla_dump_to=hlo_graph"),
    ],
)
def test_old_names_become_todays(given: str, wanted: str) -> None:
    assert flags.translate(given.split()) == wanted.split()


def test_what_xla_reads_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_hlo_graph --xla_dump_to=d")
    monkeypatch.setattr(flags, "_try", lambda given: pytest.fail("needs no trial"))
    flags.prepare()
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=d --xla_dump_hlo_as_dot"


def test_an_unknown_flag_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=d --xla_no_such_flag=1")
    with pytest.raises(ConfigError, match=r"XLA refuses .*: --xla_no_such_flag=1"):
        flags.prepare()


def test_a_refusal_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush that fails is tried again in parts; XLA need not be started for each."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=2")
    with pytest.raises(ConfigError):
        flags.prepare()
    monkeypatch.setattr(flags.subprocess, "run", lambda *a, **k: pytest.fail("tried again"))
    with pytest.raises(ConfigError, match="--xla_no_such_flag=2"):
        flags.prepare()


def test_flags_that_come_too_late_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "_taken", "--xla_dump_to=a")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=b")
    with pytest.warns(UserWarning, match="XLA_FLAGS='--xla_dump_to=b' comes too late"):
        flags.check_unchanged()
    flags.check_unchanged()
