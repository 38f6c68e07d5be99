"""Modules that XLA writes, before and after optimisation, in its short and its long form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


def _loop(x, w):
    return jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=10)


def _branches(n, x):
    return jax.lax.switch(n, [lambda x: x * 2, jnp.sin, lambda x: x[::-1]], x)


def _image(x, w):
    y = jax.lax.conv_general_dilated(x, w, (2, 2), "SAME")
    return jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def _many(*values):
    return jax.lax.fori_loop(0, 3, lambda _, v: (*v[1:], v[0] + 1), values)


_X, _W = jnp.ones((8, 16)), jnp.ones((16, 16))
_PROGRAMS = {
    "loop": (_loop, (_X, _W)),
    "branches": (_branches, (1, _X)),
    "image": (_image, (jnp.ones((1, 3, 16, 16)), jnp.ones((4, 3, 3, 3)))),
    "many": (_many, tuple(jnp.ones(i) for i in [1] * 8)),
    "gradient": (jax.grad(lambda w, x: (jax.nn.softmax(jax.nn.relu(x @ w)) ** 2).sum()), (_W, _X)),
    "sort": (lambda x: (jnp.sort(x), jax.lax.top_k(x, 3)), (_X,)),
    "scatter": (lambda x, i: x.at[i].add(1.0)[i], (_X, jnp.array([1, 2]))),
    "solve": (lambda x: jnp.linalg.cholesky(x @ x.T), (_X,)),
    "constants": (lambda x: x * np.array([1.5, np.nan, np.inf, -0.0] * 4, np.float32), (_X,)),
    "kinds": (lambda x: (x.astype(jnp.bfloat16), x > 0, x.astype(jnp.int4), x * 1j), (_X,)),
}


@pytest.fixture(scope="session")
def xla_texts():
    """Texts by name, such as "loop after"."""
    texts = {}
    for name, (function, arguments) in _PROGRAMS.items():
        lowered = jax.jit(function).lower(*arguments)
        before = lowered.compiler_ir("hlo")
        texts[f"{name} short"] = before.as_hlo_text()
        texts[f"{name} before"] = before.as_hlo_module().to_string()
        texts[f"{name} after"] = lowered.compile().as_text()
    return texts
