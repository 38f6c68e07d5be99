"""Rates measured on this machine: what is kept, and what stands in the way of that."""

import json

import pytest

from torch_galley.cli.main import main
from torch_galley.cluster import rates
from torch_galley.cluster.rates import WORK, Rates, in_force
from torch_galley.core.config import Config
from torch_galley.core.machine import machine
from torch_galley.tools import calibrate
from torch_galley.tools.calibrate import Calibration, table


@pytest.fixture
def quick(monkeypatch):
    """Measure nothing: give planted rates."""
    planted = Rates(call=1e-6, work=dict.fromkeys(WORK, (2e-09, 1e-09)))
    monkeypatch.setattr(calibrate, "measured", lambda: planted)
    rates._told.clear()
    return planted


def test_measured_rates_are_times():
    found = calibrate.measured(seconds=1e-4)
    assert Rates.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert set(found.work) == set(WORK)
    assert all(0 < second < 1 for pair in found.work.values() for second in pair)


def test_they_are_kept_and_used(quick, tmp_path):
    config = Config(cache_dir=str(tmp_path))
    assert in_force(config) == (Rates(), "shipped")
    found = calibrate.calibrate(config)
    assert found == Calibration(machine(), quick, str(tmp_path / "rates.json"), None, True)
    assert in_force(config) == (quick, "calibrated")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rates: rates.pop("call"), "call is None, not a time in seconds"),
        (lambda rates: rates.update(bring="soon"), "bring is 'soon', not a time in seconds"),
        (lambda rates: rates.update(take=-1.0), "take is -1.0, not a time in seconds"),
        (lambda rates: rates["work"].pop("near"), "work.near is None, not two times in seconds"),
    ],
)
def test_a_broken_entry_is_told_of_and_measured_anew(quick, tmp_path, spoil, message, capsys):
    config = Config(cache_dir=str(tmp_path))
    calibrate.calibrate(config)
    file = tmp_path / "rates.json"
    data = json.loads(file.read_text())
    data["entries"]["another machine"] = {"call": 5.0}
    spoil(data["entries"][machine()])
    file.write_text(json.dumps(data))
    with pytest.warns(UserWarning, match=f"{message}; shipped rates are used until"):
        assert in_force(config) == (Rates(), "shipped")
    assert main(["calibrate", "--set", f"cache_dir={tmp_path}"]) == 0
    assert f"{message}; replaced" in capsys.readouterr().err
    assert in_force(config) == (quick, "calibrated")
    assert json.loads(file.read_text())["entries"]["another machine"] == {"call": 5.0}


def test_the_verb(quick, tmp_path, capsys):
    assert main(["calibrate", "--set", f"cache_dir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == machine()
    words = "call 1.0 µs a run of an executable, its inputs and results apart"
    assert lines[2].split() == words.split()
    assert lines[-1] == f"kept in {tmp_path / 'rates.json'}"
    assert main(["calibrate", "--json", "--set", f"cache_dir={tmp_path}"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rates"] == quick.to_json()
    assert told["kept"] is True


def test_where_nothing_can_be_kept(quick, tmp_path, capsys):
    (tmp_path / "taken").write_text("a file")
    assert main(["calibrate", "--set", f"cache_dir={tmp_path / 'taken' / 'in'}"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "not kept"
    assert err.startswith("galley: can't write ")
    assert "hint: name another with the setting cache_dir" in err


def test_units_of_the_table():
    rows = {name: row for name, *row in table(Rates())}
    assert rows["native"][:2] == ["1.3 µs", ""]
    assert rows["far"][:2] == ["20.0 GB/s", "20.0 GB/s"]
    assert rows["product"][1].endswith(" GFLOP/s")
    assert set(rows) == {"call", "kernel", "bring", "take", "native", *WORK}
