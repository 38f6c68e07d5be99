"""Programs cut in many ways give eager's results, and settings of the cut do what they say."""

import random

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

import torch_galley

UNARY = (torch.sin, torch.cos, torch.tanh, torch.neg, torch.abs)
DENIED = ("aten.sin", "aten.tanh", "aten.add")


def program(seed: int):
    """Return a function of a random graph: casts, views, constants, draws and writes among it."""

    def run(x, y):
        draw = random.Random(seed)
        values = [x, y.to(torch.float64).t(), torch.arange(6.0, dtype=torch.float64).unsqueeze(0)]
        for step in range(14):
            a, b = draw.choice(values), draw.choice(values)
            match draw.randrange(6):
                case 0 | 1:
                    values.append(draw.choice(UNARY)(a))
                case 2:
                    values.append(a + b)
                case 3:
                    values.append(torch.where(torch.arange(6) > step % 5, a, b))
                case 4:
                    values.append(torch.cat([h.cos() for h in (a + x).chunk(3, 1)], 1))
                case 5:
                    values.append(torch.rand_like(a + x) * b)
        x.mul_(2)
        return values[-4:]

    return run


SETTINGS = [
    {},
    {"order": "bytes"},
    {"horizontal": True},
    {"refine": False},
    {"max_cluster_size": 3},
]


@pytest.mark.parametrize("seed", range(10))
def test_random_programs(seed):
    function = program(seed)
    options = {"min_cluster_size": 1, "strict": True, "deny_ops": DENIED, "rng": "native"}
    options |= SETTINGS[seed % 5]
    inputs = torch.ones(6, 6, dtype=torch.float64) / 3, torch.arange(36).view(6, 6) % 5
    found = []
    for call in (function, torch.compile(function, backend="galley", options=options)):
        torch.manual_seed(seed)
        given = [value.clone() for value in inputs]
        results = call(*given)
        found.append([*results, given[0], torch.rand(1)])
    for ours, wanted in zip(*reversed(found), strict=True):
        torch.testing.assert_close(ours, wanted, check_stride=True)


def chain(x):
    return x.sin().cos().tan().exp()


def test_a_dry_run_compiles_nothing(galley):
    compiled = galley(chain, options={"dry_run": True, "min_cluster_size": 1})
    before = torch_galley.metrics()
    torch.testing.assert_close(compiled(torch.ones(3)), chain(torch.ones(3)), rtol=0, atol=0)
    after = torch_galley.metrics()
    assert after["compiles"] == before["compiles"]
    assert after["graphs"] == before["graphs"] + 1


def test_require_full(galley):
    compiled = galley(chain, options={"require_full": True, "deny_ops": ("aten.cos",)})
    with pytest.raises(BackendCompilerFailed, match=r"cos: aten\.cos\.default denied .* at .*\.py"):
        compiled(torch.ones(3))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x).relu())


def test_modules_in_training(galley):
    torch.manual_seed(0)
    model = Net()
    compiled = galley(model, options={"deny_modules": ("second",), "min_cluster_size": 1})
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    ours = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for mine, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deny_nodes": ("cosine",)}, "deny_nodes names 'cosine', which is no operation"),
        ({"deny_nodes": ("cosx",)}, "did you mean 'cos'"),
        ({"scopes": ("encoder",)}, "scopes names 'encoder', which is no module"),
    ],
)
def test_names_that_mean_nothing(galley, settings, message):
    with pytest.warns(UserWarning, match=message):
        galley(chain, options=settings)(torch.ones(3))
