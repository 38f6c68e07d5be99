"""The error tree: its drawing, and what an error prints."""

import pytest

from torch_galley.core import errors
from torch_galley.core.errors import GalleyError, LoweringError
from torch_galley.core.site import Site

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, GalleyError)]


def test_text_in_full():
    site = Site("model.py", 42, "forward", "encoder.0")
    error = LoweringError("aten.foo failed", site=site, hint="deny it", node="foo_1")
    assert str(error) == (
        "aten.foo failed\n  at model.py:42 in forward (encoder.0)\n  hint: deny it"
    )
    assert (error.message, error.site, error.hint) == ("aten.foo failed", site, "deny it")
    assert error.facts == {"node": "foo_1"}


def test_text_bare():
    assert str(GalleyError("no")) == "no"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_class_is_drawn_and_knows_its_stage(kind):
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind("x").docs == f"docs/errors.md#{kind.__name__.lower()}"
    assert kind("x").stage


def test_stages_differ():
    assert len({kind.stage for kind in CLASSES}) == len(CLASSES)
