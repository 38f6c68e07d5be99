"""torch.compile's surface: names, options, modes, dynamic shapes, threads, training."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import torch_galley


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}
    )


COMPILE = "print(torch.compile(lambda x: x + 1, backend={!r})(torch.ones(2)).tolist())"
COUNT = "print(torch_galley.metrics()['executions'])"


@pytest.mark.parametrize(
    "program",
    [
        f"import torch, torch_galley; {COMPILE.format('openxla')}; {COUNT}",
        f"import torch, torch._dynamo.backends.torchxla, torch_galley; "
        f"{COMPILE.format('openxla')}; {COUNT}",
        f"import torch; {COMPILE.format('eager')}; import torch_galley; "
        f"{COMPILE.format('openxla')}; {COUNT}",
        f"import torch; {COMPILE.format('galley')}; import torch_galley; {COUNT}",
    ],
    ids=["ours first", "torch's first", "dynamo used before", "entry point alone"],
)
def test_the_backend_names(program):
    done = run(program)
    assert done.stdout.endswith("[2.0, 2.0]\n1\n"), done.stderr


def test_importing_is_light():
    done = run(
        "import sys, torch_galley; "
        "print([m for m in ('jax', 'torch._dynamo', 'transformers') if m in sys.modules])"
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"options": {"min_clustr_size": 1}}, "did you mean 'min_cluster_size'?"),
        ({"options": {"min_cluster_size": "two"}}, "give an int"),
        ({"options": {"min_cluster_size": 0}}, "at least 1"),
        ({"options": {"decide": "coin"}}, "one of 'size'"),
        ({"options": {"deny_ops": ["aten.nope"]}}, "'aten.nope', which is no operator"),
        ({"mode": "fastest"}, "unknown mode 'fastest'"),
    ],
)
def test_a_bad_setting_is_one_clear_error(galley, settings, words):
    with pytest.raises(BackendCompilerFailed, match="ConfigError") as caught:
        galley(lambda x: x + 1, **settings)(torch.ones(2))
    assert words in str(caught.value)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_modes_are_accepted(galley, mode):
    assert galley(lambda x: x + 1, mode=mode)(torch.ones(2)).tolist() == [2, 2]


def test_a_bad_environment_variable_is_named():
    done = run(f"import torch; {COMPILE.format('galley')}", GALLEY_MIN_CLUSTER_SIZE="many")
    assert "GALLEY_MIN_CLUSTER_SIZE='many' is no whole number" in done.stderr


def test_a_misspelt_environment_variable_is_named():
    done = run(f"import torch; {COMPILE.format('galley')}", GALLEY_MIN_CLUSTERSIZE="3")
    assert "GALLEY_MIN_CLUSTERSIZE is set, and no setting of ours" in done.stderr
    assert "did you mean GALLEY_MIN_CLUSTER_SIZE?" in done.stderr


@pytest.mark.parametrize("platform", ["cuda", "nonsense"])
def test_a_jax_without_its_cpu_platform_is_one_clear_error(platform):
    done = run(f"import torch; {COMPILE.format('galley')}", JAX_PLATFORMS=platform)
    assert "jax can't start its cpu platform" in done.stderr
    assert f"JAX_PLATFORMS is '{platform}'; unset it" in done.stderr


@pytest.mark.parametrize(
    "flags", ["--xla_no_such_flag=1", "--xla_dump_to", "--xla_dump_hlo_as_text=maybe", "  "]
)
def test_flags_that_xla_refuses_are_one_clear_error(flags):
    done = run(f"import torch; {COMPILE.format('galley')}", XLA_FLAGS=flags)
    assert done.returncode == 1  # an exception, not XLA's abort
    assert f"XLA refuses XLA_FLAGS={flags!r}" in done.stderr


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_compared_with_a_rounded_number(galley, dtype):
    x = torch.tensor([0.1, 0.2], dtype=dtype)

    def f(x):
        return x == 0.1, x > 0.1, x <= 0.1, x != 0.1

    for got, want in zip(galley(f)(x), f(x), strict=True):
        assert torch.equal(got, want)


def test_numbers_read_from_data(galley):
    def f(x, i):
        y = x[: i.item()]
        return ((y + 1) * 2).tanh().sum() * 3, (x > 0).any().item()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = galley(f)
        for length in (3, 5):
            given, wanted = (
                compiled(torch.ones(8), torch.tensor(length)),
                f(torch.ones(8), torch.tensor(length)),
            )
            torch.testing.assert_close(given[0], wanted[0])
            assert given[1] is wanted[1]


def test_dynamic_shapes_are_captured_once(galley):
    def f(x, y):
        return (x * 2 + y).sin() * x.shape[0], x.reshape(-1).sum()

    compiled = galley(f, dynamic=True)
    for rows in (2, 5, 3, 5, 2, 1):
        x, y = torch.randn(rows, 4), torch.randn(4)
        torch.testing.assert_close(compiled(x, y), f(x, y))
    metrics = torch_galley.metrics()
    assert metrics["graphs"] <= 2  # Dynamo captures size 1 apart
    assert metrics["compiles"] == 4  # one executable for each size


def test_threads_share_a_compiled_function(galley):
    def f(x):
        return (x * 3).sin() + x

    compiled, wrong = galley(f), []

    def work(number: int) -> None:
        for _ in range(5):
            x = torch.full((40, 40), float(number))
            if not torch.allclose(compiled(x), f(x)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert torch_galley.metrics()["executions"] == 20


def test_inference_mode(galley):
    compiled = galley(lambda x: x * 2)
    with torch.inference_mode():
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_training_equals_eager(galley):
    def losses(wrap) -> list[float]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        step = wrap(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        data = torch.randn(16, 4)
        out = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = step(data).square().mean()
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return out

    assert losses(galley) == pytest.approx(losses(lambda model: model), rel=1e-5)
    assert torch_galley.metrics()["executions"] >= 10


def test_denied_operators_run_natively(galley):
    compiled = galley(lambda x: (x * 2).sin() + 1, options={"deny_ops": ["aten.sin"]})
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0).sin() + 1)
    assert torch_galley.metrics()["native_ops"] == 1
    assert torch_galley.metrics()["executions"] == 2


def test_a_lowering_that_fails_runs_natively_with_a_warning(galley, monkeypatch):
    from dataclasses import replace

    from torch_galley.ops import registry

    def broken(self):
        raise ValueError("a planted fault")

    op = torch.ops.aten.sin.default
    monkeypatch.setitem(registry._table, op, replace(registry.table()[op], function=broken))
    x = torch.ones(3)
    for dynamic in (False, True):
        with pytest.warns(UserWarning, match=r"aten.sin.default runs natively: .*planted fault"):
            given = galley(lambda x: (x * 3).sin(), options={"strict": False}, dynamic=dynamic)(x)
        torch.testing.assert_close(given, (x * 3).sin())
        torch._dynamo.reset()
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="a planted fault"):
        galley(lambda x: (x * 3).sin())(x)


def test_a_dump_holds_every_stage(galley, tmp_path):
    folder = tmp_path / "dump"
    for _ in range(2):  # the second time the executable is new no more
        galley(lambda x: (x * 3).sin(), options={"dump_dir": str(folder)})(torch.ones(3))
        torch._dynamo.reset()
    (cluster,) = folder.iterdir()
    text = (cluster / "after_optimizations.hlo").read_text()
    assert text.startswith("HloModule")
    assert "aten.sin.default" in text  # provenance
    names = {path.name for path in cluster.iterdir()}
    assert {"stablehlo.mlir", "before_optimizations.hlo", "sites.json"} < names
    assert "test_backend.py" in (cluster / "sites.json").read_text()


@pytest.mark.parametrize("function", [lambda x: (x * 3).sin(), lambda x: x.view(-1)])
def test_a_dump_folder_that_cannot_be_is_an_error(galley, tmp_path, function):
    (tmp_path / "file").touch()
    with pytest.raises(BackendCompilerFailed, match=r"ToolError: can't write .*file/dump"):
        galley(function, options={"dump_dir": str(tmp_path / "file" / "dump")})(torch.ones(3))


def test_no_warning_on_a_plain_compile(galley):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        galley(lambda x: x * 2)(torch.ones(2))
