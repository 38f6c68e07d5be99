"""When clusters are compiled: eager's results by every policy, and as many compilations as said."""

import subprocess
import sys
import threading
from dataclasses import replace

import jax
import pytest
import torch

import torch_galley
from torch_galley.compile import background as pools
from torch_galley.compile import programs
from torch_galley.core.errors import CompileError, LoweringError
from torch_galley.core.events import ClusterLowered, GraphBuilt, listen
from torch_galley.ops import registry

WAYS = ["now", "lazy", "background"]


def count(name):
    return torch_galley.metrics()[name]


def settle():
    programs.background().wait()


@pytest.fixture(autouse=True)
def _nothing_compiled():
    programs.executables().clear()
    yield
    settle()


def embed(table, index):
    return (torch.nn.functional.embedding(index, table) * 2).cos()


def views(x):
    y = (x + 1).t()
    a, b = y.chunk(2, 1)
    return a, y.sin().t().view(-1), (b.tanh().t() @ x).max(0), x.expand(2, 4, 4)[1] * 3


def random(x):
    return torch.nn.functional.dropout(x.sin(), 0.5) + torch.rand_like(x)


def writes(x):
    y = x * 2
    x.add_(1)
    return y.sin(), x.view(-1)


PROGRAMS = {
    "an embedding": (embed, (torch.arange(12.0).view(4, 3), torch.tensor([[0, 3], [1, 1]]))),
    "views": (views, (torch.arange(16.0).view(4, 4) / 7,)),
    "random numbers": (random, (torch.arange(16.0).view(4, 4) / 7,)),
    "a write": (writes, (torch.arange(16.0).view(4, 4) / 7,)),
}


@pytest.mark.usefixtures("eagers_numbers")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results(galley, way, name):
    function, given = PROGRAMS[name]
    options = {"compile": way, "min_cluster_size": 1, "deny_ops": ("aten.tanh",)}
    compiled = galley(function, options=options)
    mine, eagers = ([value.clone() for value in given] for _ in range(2))
    for turn in range(3):
        torch.manual_seed(turn)
        wanted = function(*eagers)
        torch.manual_seed(turn)
        torch.testing.assert_close(compiled(*mine), wanted, check_stride=True)
        torch.testing.assert_close(mine, eagers)
        settle()
    natively = count("native_clusters")
    assert bool(natively) == (way == "background")
    assert count("native_clusters_compiling") == natively
    assert count("executions") > natively
    assert count("background_compiles") == (count("compiles") if way == "background" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_training_with_shapes_that_vary(galley, way):
    torch.manual_seed(0)
    layers = torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.LayerNorm(7), torch.nn.Linear(7, 2)
    model = torch.nn.Sequential(*layers)
    compiled = galley(model, dynamic=True, options={"compile": way, "strict": False})
    for size in (3, 6, 3, 6, 4):
        x = torch.randn(size, 5)
        found = []
        for call in (model, compiled):
            model.zero_grad()
            y = call(x)
            y.square().sum().backward()
            found.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(*found)
        settle()
    assert count("compiles") == 6  # three sizes, forward and backward


def chain(x):
    return x.sin().cos().tan()


@pytest.mark.parametrize(
    ("way", "built"), [("now", [1, 2]), ("lazy", [0, 1]), ("background", [0, 0])]
)
def test_what_is_compiled_when(galley, way, built):
    found = []

    def look(event):
        if isinstance(event, GraphBuilt):
            found.append(count("compiles") - count("background_compiles"))

    stop = listen(look)
    galley(chain, options={"compile": way})(torch.ones(3, requires_grad=True)).sum().backward()
    stop()
    settle()
    assert found == built
    assert count("compiles") == 2


@pytest.mark.parametrize("way", WAYS)
def test_an_index_out_of_range(galley, way):
    compiled = galley(embed, options={"compile": way})
    table = torch.ones(4, 3)
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(table, torch.tensor([[9, 0]]))
        settle()


def plant(monkeypatch, function):
    op = torch.ops.aten.cos.default
    monkeypatch.setitem(registry._table, op, replace(registry.table()[op], function=function))


def broken(*args, **kwargs):
    raise ValueError("a planted fault")


@pytest.mark.parametrize("way", ["lazy", "background"])
def test_a_lowering_that_fails(galley, monkeypatch, way):
    plant(monkeypatch, broken)
    compiled = galley(chain, options={"compile": way, "strict": False})
    x = torch.ones(3)
    if way == "background":
        compiled(x)
        settle()
    with pytest.warns(UserWarning, match=r"cos.default runs natively: .*planted fault"):
        torch.testing.assert_close(compiled(x), chain(x))
    assert count("native_clusters_failed") == 1
    assert (count("graphs"), count("clusters"), count("clustered_nodes")) == (1, 2, 2)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), chain(x))
        settle()
    assert count("compiles") == 2  # sin, tan
    before = count("native_clusters")
    torch.testing.assert_close(compiled(x), chain(x))
    assert count("native_clusters") == before


@pytest.mark.parametrize("way", ["lazy", "background"])
def test_a_lowering_that_fails_under_strict(galley, monkeypatch, way):
    plant(monkeypatch, broken)
    compiled = galley(chain, options={"compile": way, "strict": True})
    if way == "background":
        torch.testing.assert_close(compiled(torch.ones(3)), chain(torch.ones(3)))
        settle()
    for _ in range(2):
        with pytest.raises(LoweringError, match="planted fault"):
            compiled(torch.ones(3))


def test_xla_refuses_in_the_background(galley, monkeypatch):
    def refuse(*args):
        raise jax.errors.JaxRuntimeError("INTERNAL: a planted refusal")

    monkeypatch.setattr(pools.Child, "build", refuse)
    compiled = galley(chain, options={"compile": "background"})
    compiled(torch.ones(3))
    settle()
    for _ in range(2):
        with pytest.raises(CompileError, match=r"not compile .*INTERNAL: a planted refusal"):
            compiled(torch.ones(3))


def test_an_interrupt_leaves_all_usable(galley, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    compiled = galley(chain, options={"compile": "lazy"})
    with monkeypatch.context() as patch:
        patch.setattr(programs, "lower", interrupt)
        with pytest.raises(KeyboardInterrupt):
            compiled(torch.ones(3))
    torch.testing.assert_close(compiled(torch.ones(3)), chain(torch.ones(3)))
    assert count("compiles") == 1


@pytest.mark.parametrize("way", ["lazy", "background"])
def test_threads_that_call_while_it_compiles(galley, way):
    compiled = galley(chain, options={"compile": way})
    x, found = torch.ones(3), []
    threads = [threading.Thread(target=lambda: found.append(compiled(x))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settle()
    found.append(compiled(x))
    assert len(found) == 5
    for result in found:
        torch.testing.assert_close(result, chain(x))
    assert count("compiles") == 1


def test_the_lazy_device():
    torch_galley.device()
    with torch_galley.config(compile="background"):
        for _ in range(2):
            x = torch.arange(6.0).to("xla")
            torch.testing.assert_close((x.sin() * x[2]).cpu(), torch.arange(6.0).sin() * 2)
            settle()
    assert count("background_compiles") == 1
    assert count("native_clusters") == 1


@pytest.mark.parametrize(
    ("settings", "sizes", "compiles", "natively"),
    [
        ({}, [4, 5, 6, 5], 3, 0),
        ({"recompile_after": 2}, [4, 5, 6, 5, 5, 7], 2, 3),
        ({"recompile_after": 3, "compile": "lazy"}, [4, 5, 5, 5], 2, 2),
        ({"recompile_after": 2, "strict": True}, [4, 5, 6], 3, 0),
        ({"recompile_limit": 1}, [4, 5, 6, 5, 4, 7, 6], 2, 3),
        ({"recompile_limit": 1, "recompile_runs": 1}, [4, 5, 5, 6, 6, 7], 4, 0),
        ({"recompile_limit": 1, "strict": True}, [4, 5, 6, 7], 4, 0),
        ({"recompile_limit": 0, "recompile_runs": 1000}, [4, 5, 6, 7], 4, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:xla_.* was compiled for")
def test_compilations(galley, settings, sizes, compiles, natively):
    compiled = galley(chain, dynamic=True, options={"strict": False, **settings})
    for size in sizes:
        x = torch.arange(float(size))
        torch.testing.assert_close(compiled(x), chain(x))
    assert (count("compiles"), count("native_clusters")) == (compiles, natively)
    stopped = settings.get("recompile_limit") == 1 and natively
    assert count("recompile_stops") == (1 if stopped else 0)


def test_a_stop_is_told_once(galley):
    compiled = galley(chain, dynamic=True, options={"strict": False, "recompile_limit": 2})
    said = (
        r"compiled for 3 shapes .* \(dimension 0 of \w+: 4 to 6\)(?s:.*)test_policy.py(?s:.*)hint"
    )
    for size in (4, 5, 6):
        compiled(torch.ones(size))
    with pytest.warns(UserWarning, match=said):
        compiled(torch.ones(7))
    compiled(torch.ones(8))
    assert count("warnings") == 1


def test_of_equal_layers_one_tells(galley):
    def layers(x):
        for _ in range(3):
            x = x.sin().cos().exp()
        return x

    options = {"strict": False, "recompile_limit": 1, "deny_ops": ("aten.exp",)}
    compiled = galley(layers, dynamic=True, options=options)
    for size in (4, 5):
        compiled(torch.ones(size))
    with pytest.warns(UserWarning, match="was compiled for 2 shapes") as told:
        compiled(torch.ones(6))
    assert (len(told), count("recompile_stops")) == (1, 3)


def test_sizes_as_numbers_while_it_compiles(galley):
    """The program takes sizes as numbers, gives views by them, and computes with them."""

    def function(x, y):
        rows = x.shape[0] + y.shape[0]
        return (torch.cat([x, y]).view(rows, -1).sin() * rows).expand(2, rows, 3), x.shape[0]

    compiled = galley(function, dynamic=True, fullgraph=True, options={"compile": "background"})
    for rows in (4, 5, 6):
        given = torch.ones(rows, 3), torch.zeros(rows + 1, 3)
        torch.testing.assert_close(compiled(*given), function(*given))
    assert count("native_clusters") == 3


def test_a_number_read_from_data(galley):
    def function(x):
        return (x * x.sum().item()).sin() + 1

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = galley(function, fullgraph=True, options={"compile": "background"})
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(3)), function(torch.ones(3)))
            settle()
    assert count("native_clusters")


def test_what_a_worker_tells(galley):
    seen = []
    stop = listen(lambda event: seen.append(event) if isinstance(event, ClusterLowered) else None)
    with torch_galley.config(check_indices=False, compile="background"):
        galley(embed)(torch.ones(4, 3), torch.tensor([1]))
        settle()
    stop()
    assert [event.lowered.config.check_indices for event in seen] == [False]


SCRIPT = """
import atexit, os, signal, subprocess, sys, time, torch, torch_galley
from torch_galley.compile import background, programs

def chain(x):
    return x.sin().cos().tan().exp()

def never_ready():
    "A process that greets, and compiles for ever."
    code = "import pickle, sys, time; from jaxlib import version; "
    code += "pickle.dump(version.__version__, sys.stdout.buffer); sys.stdout.flush(); "
    code += "sys.stdin.buffer.read(1); print('asked', file=sys.stderr, flush=True); time.sleep(999)"
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

def compiling():
    background._start = never_ready
    call(x)
    while not torch_galley.metrics()["lowerings"]:
        time.sleep(0.01)
    assert torch.equal(call(x), chain(x))

x = torch.ones(8)
call = torch.compile(
    chain, backend="galley", options={"compile": "background", "min_cluster_size": 1}
)
"""
ENDINGS = {
    "at once": ("call(x)", 0),
    "while compiling": ("compiling(); time.sleep(1)", 0),
    "by sys.exit": ("compiling(); sys.exit(7)", 7),
    "by an error": ("compiling(); raise SystemError", 1),
}


def run(code, **options):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_ends_while_something_compiles(ending):
    code, status = ENDINGS[ending]
    code = f"atexit.register(lambda: print(torch_galley.metrics()['compiles']))\n{code}"
    returned, out, err = run(code)
    assert (returned, out) == (status, "0\n"), err


def test_a_fork_while_something_compiles():
    """The child ends as multiprocessing's do: jaxlib's own objects may not survive being freed in
    a process without their threads (a sys.exit died of it in 2 of 70 trials).
    """
    code = """
compiling()
child = os.fork()
good = torch.equal(call(x), chain(x)) and torch.equal(call(x), chain(x))
if child == 0:
    os._exit(0 if good else 3)
assert os.waitpid(child, 0)[1] == 0
assert good
print("both went on")
"""
    returned, out, err = run(code)
    assert (returned, out) == (0, "both went on\n"), err


def test_ctrl_c_while_something_compiles():
    code = """
signal.signal(signal.SIGINT, signal.default_int_handler)
call(x)
try:
    os.killpg(os.getpgid(0), signal.SIGINT)
    time.sleep(20)
except KeyboardInterrupt:
    programs.background().wait()
    torch.testing.assert_close(call(x), chain(x))
    told = torch_galley.metrics()
    print(told["background_compiles"], told["native_clusters"])
"""
    returned, out, err = run(code, start_new_session=True)
    assert (returned, out) == (0, "1 1\n"), err
