"""Module.to(): who parameters are before and after."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "a view": lambda weight: weight.view(-1),
    "a graph": lambda weight: (weight * weight).exp(),
    "a weak reference": weakref.ref,
    "nothing": lambda weight: None,
}


def _tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("by", HOLDERS)
def test_a_module_whose_parameter_is_held(xla: torch.device, by: str) -> None:
    model, x = _tied(), torch.ones(2, 3)
    wanted = model(x).detach()
    parameter = model[0].weight
    holder = HOLDERS[by](parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.double().float()  # between CPU tensors all is as without the device
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model.to(xla)
    assert model[0].weight is model[1].weight
    assert (model[0].weight is parameter) == (by == "nothing")
    assert [(w.filename, str(w.message).split(":")[0]) for w in told] == (
        [] if by == "nothing" else [(__file__, "Linear.weight")]
    )
    torch.testing.assert_close(model(x.to(xla)).cpu(), wanted)
    assert not torch.__future__.get_swap_module_params_on_conversion()
    del holder


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_weight_norm_as_it_was(xla: torch.device) -> None:
    model, x = nn.utils.weight_norm(nn.Linear(3, 2)), torch.ones(2, 3)
    wanted = model.double().float()(x)
    with pytest.warns(UserWarning, match="Linear.weight_g, Linear.weight_v: in use elsewhere"):
        model.to(xla)
    torch.testing.assert_close(model(x.to(xla)).cpu(), wanted)
