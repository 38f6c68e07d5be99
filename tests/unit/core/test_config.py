"""Settings: where they come from, and what a wrong one says."""

import dataclasses
import re

import pytest

from torch_galley.core.config import Config, config, current
from torch_galley.core.errors import ConfigError

TWINS = {
    "decide": ("size", "size"),
    "min_speedup": ("1.5", 1.5),
    "time_all": ("1", True),
    "native": ("inductor", "inductor"),
    "decisions": ("decisions.json", "decisions.json"),
    "cache_dir": ("cache", "cache"),
    "min_cluster_size": ("7", 7),
    "max_cluster_size": ("9", 9),
    "order": ("bytes", "bytes"),
    "search_budget": ("64", 64),
    "horizontal": ("on", True),
    "refine": ("off", False),
    "allow_ops": ("aten.add", ("aten.add",)),
    "allow_nodes": ("add_*", ("add_*",)),
    "deny_nodes": ("add, add_1", ("add", "add_1")),
    "allow_modules": ("encoder", ("encoder",)),
    "deny_modules": ("encoder.layer.*", ("encoder.layer.*",)),
    "must_compile": ("mm, encoder", ("mm", "encoder")),
    "groups": ("a+b, encoder", ("a+b", "encoder")),
    "scopes": ("encoder,decoder", ("encoder", "decoder")),
    "fuel": ("10", 10),
    "require_full": ("1", True),
    "dry_run": ("true", True),
    "deny_ops": ("aten.gelu, aten.add.Tensor,", ("aten.gelu", "aten.add.Tensor")),
    "strict": ("yes", True),
    "compile": ("background", "background"),
    "compile_workers": ("2", 2),
    "recompile_after": ("2", 2),
    "recompile_limit": ("0", 0),
    "recompile_runs": ("10", 10),
    "check_indices": ("0", False),
    "rng": ("native", "native"),
    "cache_size": ("3", 3),
    "mode": ("blocking", "blocking"),
    "max_pending": ("50", 50),
    "max_pending_bytes": ("4000000000", 4_000_000_000),
    "dump_dir": ("out/here", "out/here"),
}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch):
    for name in TWINS:
        monkeypatch.delenv(f"GALLEY_{name.upper()}", raising=False)


def test_every_setting_has_a_case_here():
    assert set(TWINS) == {field.name for field in dataclasses.fields(Config)}


@pytest.mark.parametrize("name", TWINS)
def test_environment_twin(monkeypatch, name):
    text, value = TWINS[name]
    monkeypatch.setenv(f"GALLEY_{name.upper()}", text)
    assert getattr(current(), name) == value


def test_later_sources_win(monkeypatch):
    monkeypatch.setenv("GALLEY_MIN_CLUSTER_SIZE", "2")
    assert current().min_cluster_size == 2
    with config(min_cluster_size=3):
        assert current().min_cluster_size == 3
        with config(strict=True):
            assert (current().min_cluster_size, current().strict) == (3, True)
        assert current({"min_cluster_size": 5}).min_cluster_size == 5
    assert current().min_cluster_size == 2


def test_block_ends_after_an_error():
    with pytest.raises(ZeroDivisionError), config(strict=True):
        raise ZeroDivisionError
    assert current().strict is False


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("min_cluster_size", 0, "at least 1"),
        ("min_cluster_size", "4", "give an int"),
        ("min_cluster_size", True, "give an int"),
        ("strict", 1, "give a bool"),
        ("deny_ops", "aten.gelu", "give a list"),
        ("dump_dir", 5, "give a str"),
    ],
)
def test_wrong_value(name, value, hint):
    with pytest.raises(ConfigError) as caught:
        current({name: value})
    assert str(caught.value) == f"setting {name!r} in options is {value!r}\n  hint: {hint}"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        *((name, "~nosuch/a", "no such user") for name in ("cache_dir", "decisions", "dump_dir")),
        *((name, "a\0", "no null char") for name in ("cache_dir", "decisions", "dump_dir")),
        ("min_speedup", 10**400, "give a float"),
        ("groups", ["+"], "has the entry '+'"),
        ("groups", ["a+b", "a++b"], "has the entry 'a++b'"),
        ("groups", [""], "has the entry ''"),
        ("deny_ops", ["aten.gelu", " "], "has the entry ' '"),
    ],
)
def test_what_can_not_be(name, value, words):
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        current({name: value})
    assert f"setting {name!r} in options" in str(caught.value)


@pytest.mark.parametrize("name", ["cache_dir", "decisions", "dump_dir"])
def test_home(name, monkeypatch):
    monkeypatch.setenv("HOME", "/mine")
    assert getattr(current({name: "~/a"}), name) == "/mine/a"


def test_unknown_name_guesses_the_right_one():
    with pytest.raises(ConfigError) as caught:
        current({"min_cluster_sise": 1})
    assert str(caught.value) == (
        "unknown setting 'min_cluster_sise' in options\n  hint: did you mean 'min_cluster_size'?"
    )


def test_wrong_choice_lists_the_right_ones():
    with pytest.raises(ConfigError, match="one of 'size'"):
        current({"decide": "dice"})


def test_unknown_setting_far_from_all_lists_them():
    with pytest.raises(ConfigError, match="known: decide, min_cluster_size"):
        current({"xyzzy": 1})


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("GALLEY_MIN_CLUSTER_SIZE", "many", "GALLEY_MIN_CLUSTER_SIZE='many' is no whole number"),
        (
            "GALLEY_MIN_CLUSTER_SIZE",
            "0",
            "setting 'min_cluster_size' in GALLEY_MIN_CLUSTER_SIZE is 0",
        ),
        ("GALLEY_STRICT", "perhaps", "GALLEY_STRICT='perhaps' is no yes or no"),
        ("GALLEY_MIN_SPEEDUP", "fast", "GALLEY_MIN_SPEEDUP='fast' is no number"),
        (
            "GALLEY_MIN_SPEEDUP",
            "nan",
            "setting 'min_speedup' in GALLEY_MIN_SPEEDUP is nan",
        ),
        ("GALLEY_DECIDE", "dice", "setting 'decide' in GALLEY_DECIDE is 'dice'"),
    ],
)
def test_wrong_environment(monkeypatch, variable, text, message):
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError) as caught:
        current()
    assert caught.value.message == message
    assert caught.value.hint


def test_whole_numbers_are_numbers():
    assert current({"min_speedup": 2}).min_speedup == 2.0


def test_lists_become_tuples():
    assert current({"deny_ops": ["aten.gelu"]}).deny_ops == ("aten.gelu",)


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        current().strict = True  # type: ignore[misc]


def test_options_that_are_no_dict():
    with pytest.raises(ConfigError, match=r"options is \[1\]\n  hint: give a dict of settings"):
        current([1])  # type: ignore[arg-type]
