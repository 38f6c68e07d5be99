"""Decisions that are measured: what is kept, what is remembered, and that results stay right."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import torch_galley
from torch_galley.compile import programs
from torch_galley.core.events import Decided, GraphBuilt, PlanExecuted, listen
from torch_galley.core.reasons import SlowerMeasured, WholeElsewhere
from torch_galley.ops import registry
from torch_galley.run import decisions, inductor, measured


@dataclass
class Bench:
    """A clock that says what a test wants, and what the stages told."""

    file: Any
    times: dict[str, float]
    """Seconds that each contender is told to take; "native 0" is that of the first cluster."""
    timed: list[list[str]] = field(default_factory=list)
    """The contenders of each contest."""
    modes: list[Any] = field(default_factory=list)
    """Dispatch modes that were on in any of them."""
    built: list[Any] = field(default_factory=list)
    decided: list[Any] = field(default_factory=list)

    def in_turn(self, calls: dict[str, Callable[[], Any]], clock: Any, seconds: float) -> Any:
        for call in calls.values():
            call()
        self.modes += _get_current_dispatch_mode_stack()
        number = len(self.timed)
        self.timed.append(list(calls))
        return {name: [self.times.get(f"{name} {number}", self.times[name])] for name in calls}

    def __call__(self, event: Any) -> None:
        if isinstance(event, GraphBuilt):
            self.built.append(event.plan)
        elif isinstance(event, Decided):
            self.decided.append(event)

    def compiled(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        torch._dynamo.reset()
        settings = {"decide": "measure", "time_all": True, "decisions": str(self.file)} | options
        return torch.compile(function, backend="galley", options=settings)

    @property
    def kept(self) -> list[str]:
        return [choice.kept for choice in self.decided[-1].choices]


@pytest.fixture
def bench(monkeypatch, tmp_path) -> Iterator[Bench]:
    decisions.forget()
    programs.executables().clear()
    times = {"cluster": 2.0, "native": 1.0, "clusters": 1.0, "eager": 2.0, "inductor": 3.0}
    found = Bench(tmp_path / "decisions.json", times)
    monkeypatch.setenv("GALLEY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measured, "in_turn", found.in_turn)
    stop = listen(found)
    yield found
    stop()
    decisions.forget()


def parted(x: torch.Tensor) -> torch.Tensor:
    """Two clusters, parted by what the tests deny."""
    return ((x * 2 + 1).sin() * 3 - x).cos()


DENY = {"deny_ops": ["aten.sin"]}
X = torch.linspace(-2, 2, 12).view(3, 4)


def test_the_faster_is_kept_region_by_region(bench):
    bench.times |= {"native 1": 3.0}
    compiled = bench.compiled(parted, **DENY)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), parted(X))
    assert bench.timed == [["cluster", "native"]] * 2 + [["clusters", "eager"]]
    assert bench.kept == ["native", "cluster", "clusters"]
    plan = bench.decided[0].plan
    assert [c.name for c in plan.clustered.clusters] == [bench.built[0].clustered.clusters[1].name]
    reasons = [r for r in plan.clustered.native.values() if isinstance(r, SlowerMeasured)]
    assert reasons == [SlowerMeasured(2e6, 1e6)] * 2  # a product and a sum
    assert "measured, 2000000.0 µs against 1000000.0 natively" in str(reasons[0])


@pytest.mark.parametrize("kept", ["clusters", "eager"])
def test_a_graph_that_is_one_cluster_is_decided_as_a_whole(bench, kept):
    bench.times |= {"clusters": 2.0, "eager": 2.0} | {kept: 1.0}
    compiled = bench.compiled(lambda x: (x * 2).cos())
    for _ in range(2):
        torch.testing.assert_close(compiled(X), (X * 2).cos())
    assert bench.timed == [["clusters", "eager"]]
    (plan,) = {event.plan for event in bench.decided}
    assert len(plan.clustered.clusters) == (kept == "clusters")
    before = torch_galley.metrics()["executions"]
    compiled(X)
    assert torch_galley.metrics()["executions"] - before == (kept == "clusters")
    reasons = set(plan.clustered.native.values())
    assert reasons == (set() if kept == "clusters" else {WholeElsewhere("eager", 1e6, 2e6)})


@pytest.mark.parametrize("way", ["lazy", "background"])
def test_what_is_timed_is_compiled_before(bench, way):
    """Else native would be timed against native, and that be remembered."""
    bench.times["native"] = 3.0
    compiled = bench.compiled(parted, compile=way, recompile_after=3, strict=False, **DENY)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), parted(X))
    now = torch_galley.metrics()
    assert (now["native_clusters"], now["background_compiles"], now["compiles"]) == (0, 0, 2)
    assert bench.kept == ["cluster", "cluster", "clusters"]


def test_after_the_decision_settings_hold_again(bench):
    bench.times["native"] = 3.0
    compiled = bench.compiled(parted, compile="background", **DENY)
    torch._dynamo.mark_dynamic(x := X.clone(), 0)
    torch.testing.assert_close(compiled(x), parted(x))
    torch.testing.assert_close(compiled(X[:2]), parted(X[:2]))  # from now on as the settings say
    now = torch_galley.metrics()
    assert (now["native_clusters"], now["native_clusters_compiling"]) == (2, 2)
    programs.background().wait()


@pytest.mark.parametrize("decide", ["model", "measure"])
def test_what_must_be_compiled_is_kept(bench, decide):
    compiled = bench.compiled(parted, decide=decide, must_compile=("mul",), **DENY)
    torch.testing.assert_close(compiled(X), parted(X))
    plan = bench.decided[-1].plan if decide == "measure" else bench.built[-1]
    assert [[n.name for n in c.nodes] for c in plan.clustered.clusters] == [["mul", "add"]]
    assert bench.timed == ([["cluster", "native"]] if decide == "measure" else [])
    assert plan.clustered.choices[0].by == "must_compile"


def test_a_lowering_that_fails(bench, monkeypatch):
    def broken(*args, **kwargs):
        raise ValueError("a planted fault")

    op = torch.ops.aten.cos.default
    monkeypatch.setitem(
        registry._table, op, dataclasses.replace(registry.table()[op], function=broken)
    )
    bench.times["native"] = 3.0
    compiled = bench.compiled(parted, compile="lazy", strict=False, **DENY)
    with pytest.warns(UserWarning, match="cos.default runs natively: .*planted fault"):
        torch.testing.assert_close(compiled(X), parted(X))
    assert bench.kept == ["cluster", "cluster", "clusters"]
    assert torch_galley.metrics()["clusters"] == 2


def test_counters_tell_the_cut_in_force(bench):
    bench.times |= {"native 1": 3.0}
    bench.compiled(parted, **DENY)(X)
    now = torch_galley.metrics()
    assert (now["graphs"], now["clusters"], now["clustered_nodes"]) == (1, 1, 3)


def test_what_is_as_good_as_a_cluster_stays_one(bench):
    bench.times |= {"cluster": 1.01, "native": 1.0}
    bench.compiled(parted, **DENY)(X)
    assert bench.kept == ["cluster", "cluster", "clusters"]


@pytest.mark.parametrize("decide", ["measure", "replay"])
def test_what_was_measured_is_remembered(bench, decide):
    bench.times |= {"native 1": 3.0}
    bench.compiled(parted, **DENY)(X)
    first, bytes_before = bench.decided[0].plan.clustered, bench.file.read_bytes()
    for _ in range(2):
        decisions.forget()  # as a new process would begin
        compiled = bench.compiled(parted, decide=decide, **DENY)
        torch.testing.assert_close(compiled(X), parted(X))
        again = bench.built[-1].clustered
        assert (again.text(), again.choices) == (first.text(), first.choices)
    assert len(bench.timed) == 3  # those of the first process
    assert bench.file.read_bytes() == bytes_before


def test_replay_without_a_file_is_the_model(bench):
    bench.compiled(parted, decide="replay", **DENY)(X)
    assert [choice.by for choice in bench.built[0].clustered.choices] == ["model", "model"]
    assert (bench.timed, bench.file.exists()) == ([], False)


def test_clear_cases_are_not_timed(bench):
    bench.compiled(parted, time_all=False, min_cluster_size=1, **DENY)(X)
    choices = bench.built[0].clustered.choices
    for choice in choices:
        assert choice.forecast is not None
        assert (choice.by == "undecided") == choice.forecast.doubtful


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is broken: it is no JSON: Expecting .*; what it said is decided anew"),
        ('{"galley": "else"}', "is no file of decisions; what (it said|was measured) is "),
    ],
)
def test_a_file_that_is_not_ours(bench, text, message):
    bench.file.write_text(text)
    with pytest.warns(UserWarning, match=message):
        torch.testing.assert_close(bench.compiled(parted, **DENY)(X), parted(X))
    assert bench.kept == ["native", "native", "clusters"]  # also where it can't be written
    assert bench.file.read_text().startswith("{\n") == (text == "{")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {"kept": "dice", "seconds": {}, "what": ""},
        {"kept": "native", "seconds": {}, "what": ""},
        {"kept": "native", "seconds": {"native": 1.0}, "what": "", "failed": [3]},
    ],
)
def test_a_broken_entry_is_decided_anew(bench, entry):
    bench.compiled(parted, **DENY)(X)
    data = json.loads(bench.file.read_text())
    key = bench.decided[0].choices[0].key
    data["entries"][key] = entry
    bench.file.write_text(json.dumps(data))
    decisions.forget()
    with pytest.warns(UserWarning, match=f"{key} .*; it is decided anew"):
        bench.compiled(parted, **DENY)(X)
    assert json.loads(bench.file.read_text())["entries"][key]["kept"] == "native"


def test_where_nothing_can_be_written(bench, tmp_path):
    (tmp_path / "taken").write_text("a file")
    bench.file = tmp_path / "taken" / "decisions.json"
    with pytest.warns(UserWarning, match="what was measured is forgotten when this process ends"):
        torch.testing.assert_close(bench.compiled(parted, **DENY)(X), parted(X))
    bench.compiled(parted, **DENY)(X)
    assert len(bench.timed) == 3  # remembered for as long as the process lives


def test_sizes_that_change_are_timed_for_the_first_only(bench):
    compiled = bench.compiled(parted, **DENY)
    torch._dynamo.mark_dynamic(x := X.clone(), 0)
    for rows in (x, torch.ones(5, 4), torch.ones(7, 4)):
        torch.testing.assert_close(compiled(rows), parted(rows))
    assert len(bench.built) == 1
    assert len(bench.timed) == 3


def test_forward_and_backward_are_decided_apart(bench):
    bench.times |= {"clusters": 2.0, "eager": 1.0, "clusters 1": 1.0, "eager 1": 2.0}
    compiled = bench.compiled(lambda x: (x * 2).cos().sum())
    for _ in range(2):
        x, y = (X.clone().requires_grad_() for _ in range(2))
        compiled(x).backward()
        (y * 2).cos().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert [event.choices[-1].kept for event in bench.decided] == ["eager", "clusters"]


@pytest.mark.parametrize("rng", ["native", "xla"])
def test_random_numbers_are_drawn_once(bench, galley, rng):
    def function(x):
        return torch.nn.functional.dropout(x * 2 + 1, 0.5) * 3

    compiled = bench.compiled(function, rng=rng)
    usual = function if rng == "native" else galley(function)
    for _ in range(2):
        torch.manual_seed(3)
        wanted, after = usual(X), torch.rand(1)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(X), wanted)
        torch.testing.assert_close(torch.rand(1), after)
    assert ["clusters", "eager"] in bench.timed


def test_what_has_an_effect_runs_once(bench):
    """An operator of the user's may do anything, so the graph around it is not run for time."""
    seen = []
    with torch.library._scoped_library("galley_test", "FRAGMENT") as library:
        library.define("count(Tensor x) -> Tensor")
        library.impl("count", lambda x: (seen.append(1), x.clone())[1], "CPU")
        library.impl("count", lambda x: torch.empty_like(x), "Meta")

        def function(x):
            return torch.ops.galley_test.count(x * 2 + 1) * 3 - x

        compiled = bench.compiled(function)
        seen.clear()
        torch.testing.assert_close(compiled(X), function(X))
        assert len(seen) == 2  # one of them is eager's
    assert bench.timed == [["cluster", "native"]] * 2


def test_inputs_are_written_once(bench):
    def function(x):
        return x.add_(1) * 2

    compiled = bench.compiled(function)
    x, y = X.clone(), X.clone()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), function(y))
        torch.testing.assert_close(x, y)


def test_inductor_is_a_contender_where_allowed(bench, monkeypatch):
    """A stand-in for its compiler, which takes long; benchmarks/measure.py runs the real one."""
    made = []

    def by_inductor(graph, inputs, otherwise):
        made.append(graph)
        return lambda given: list(graph.forward(*given))

    monkeypatch.setattr(measured, "by_inductor", by_inductor)
    bench.times["inductor"] = 0.5
    compiled = bench.compiled(parted, native="inductor", **DENY)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), parted(X))
    assert bench.timed[-1] == ["clusters", "eager", "inductor"]
    assert bench.kept[-1] == "inductor"
    decisions.forget()
    replayed = bench.compiled(parted, native="inductor", decide="replay", **DENY)
    torch.testing.assert_close(replayed(X), parted(X))
    assert len(made) == 2  # compiled again, not timed again
    decisions.forget()
    bench.compiled(parted, decide="replay", **DENY)(X)  # no longer allowed: the next best
    assert bench.built[-1].clustered.choices[-1].kept == "clusters"


def test_the_xla_device_may_measure_too(bench):
    device = torch_galley.device()
    settings = {"decide": "measure", "time_all": True, "decisions": str(bench.file)}
    with torch_galley.config(**settings):
        x = X.to(device)
        torch.testing.assert_close((x * 2).cos().cpu(), (X * 2).cos())
    assert bench.timed == [["clusters", "eager"]]


def test_time_is_bounded_and_taken_in_turn(monkeypatch):
    monkeypatch.undo()
    now, calls = [0.0], []

    def call(name, seconds):
        calls.append(name)
        now[0] += seconds

    ways = {"a": lambda: call("a", 0.3), "b": lambda: call("b", 0.4)}
    found = measured.in_turn(ways, lambda: now[0], seconds=1.0)
    assert measured.medians(found) == {"a": pytest.approx(0.3), "b": pytest.approx(0.4)}
    assert "".join(calls) == "aabb" + "ab" + "ba"  # warm-up, then rounds until 1 s is over
    calls.clear()
    ways = {"a": lambda: call("a", 9e-5), "b": lambda: call("b", 1.0)}
    measured.in_turn(ways, lambda: now[0], seconds=0.1)
    assert "".join(calls) == "aabb" + "aaa" + "b"  # of short calls several make a sample


def test_runs_are_told(bench):
    seen = []
    stop = listen(lambda event: seen.append(event) if isinstance(event, PlanExecuted) else None)
    compiled = bench.compiled(lambda x: (x * 2).cos())
    compiled(X)
    seen.clear()
    compiled(X)
    stop()
    assert len(seen) == 1


def test_what_the_model_drops_runs_natively(bench):
    def function(x):
        return x * 2 + 1

    compiled = bench.compiled(function, decide="model")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), function(X))
    now = torch_galley.metrics()
    assert (now["executions"], now["compiles"], now["native_ops"]) == (0, 0, 4)
    assert (bench.timed, bench.file.exists()) == ([], False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # by what inductor imports
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_itself_runs_a_graph(bench):
    bench.times["inductor"] = 0.5
    compiled = bench.compiled(parted, native="inductor", **DENY)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), parted(X))
    assert bench.kept[-1] == "inductor"


def test_contenders_run_without_the_dispatch_modes_of_a_first_call(bench):
    bench.compiled(parted, **DENY)(X)
    assert bench.timed == [["cluster", "native"], ["cluster", "native"], ["clusters", "eager"]]
    assert bench.modes == []


def noisy(x: torch.Tensor) -> torch.Tensor:
    return (torch.rand_like(x) * 2 + x).clamp(0, 1) * 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("seconds", [0.5, 3.0], ids=["kept", "not kept"])
def test_inductor_draws_what_eager_draws(bench, seconds):
    bench.times["inductor"] = seconds
    compiled = bench.compiled(noisy, native="inductor", rng="native")

    def three(function: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(5)
        return [*(function(X) for _ in range(3)), torch.get_rng_state()]

    for given, wanted in zip(three(compiled), three(noisy), strict=True):
        torch.testing.assert_close(given, wanted)
    assert bench.kept[-1] == ("inductor" if seconds < 1 else "clusters")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_threads_that_compile_while_inductor_does(bench):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = bench.compiled(model, native="inductor")
    x = torch.randn(5, 4)

    def run(grad: bool) -> torch.Tensor:
        with contextlib.nullcontext() if grad else torch.no_grad():
            result = compiled(x)
            return torch.autograd.grad(result.sum(), model[0].weight)[0] if grad else result

    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(run, [n % 2 == 0 for n in range(6)]))
    wanted = (torch.autograd.grad(model(x).sum(), model[0].weight)[0], model(x))
    for number, result in enumerate(found):
        torch.testing.assert_close(result, wanted[number % 2])


def test_an_inductor_that_fails_is_told_once(bench, monkeypatch):
    def fail(graph, inputs):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(inductor, "_compile", fail)
    with pytest.warns(UserWarning, match="so it is not tried: RuntimeError: no compiler"):
        bench.compiled(parted, native="inductor", **DENY)(X)
    assert bench.kept[-1] == "clusters"
    decisions.forget()
    bench.compiled(parted, native="inductor", **DENY)(X)  # remembered
    assert bench.timed[-1] == ["clusters", "eager"]
    assert len(bench.timed) == 3


def test_inductor_runs_only_what_it_compiled_for(monkeypatch):
    monkeypatch.setattr(inductor, "_compile", lambda graph, inputs: lambda *given: ["inductor"])
    graph = torch.fx.symbolic_trace(lambda x: (x * 2,))
    run = inductor.by_inductor(graph, [X], lambda given: ["other"])
    assert run is not None
    others = (X[:2], X.double(), X.t().contiguous().t())
    assert [run([x])[0] for x in (X, *others)] == ["inductor", "other", "other", "other"]
