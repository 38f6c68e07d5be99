"""How many multiplications a convolution makes: those with padding and with holes left out."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch_galley.hlo import attribute
from torch_galley.hlo.shape import Array


def convolution(attributes: Mapping[str, str], image: Array, kernel: Array, result: Array) -> int:
    """Return the FLOPs of a convolution, two for each product of elements that are there.

    Example:
        >>> from torch_galley import hlo
        >>> said = {"dim_labels": "b0f_0io->b0f", "window": "{size=3 pad=1_1}"}
        >>> shapes = [hlo.shape(one) for one in ("f32[1,8,1]", "f32[3,1,1]", "f32[1,8,1]")]
        >>> convolution(said, *shapes)
        44
    """
    labels = attribute.labels(attributes.get("dim_labels", ""))
    if labels is None:
        return 0
    window = attribute.window(attributes.get("window", ""), sum(map(str.isdigit, labels.input)))
    positions = [
        _positions(
            _size(image, labels.input, str(dim)),
            _size(kernel, labels.kernel, str(dim)),
            _size(result, labels.output, str(dim)),
            (window.stride[dim], window.dilation[dim], window.base[dim]),
            window.low[dim],
        )
        for dim in range(len(window.size))
    ]
    features = _size(image, labels.input, "f") // _groups(attributes, "feature_group_count")
    batch = _size(image, labels.input, "b") // _groups(attributes, "batch_group_count")
    return 2 * features * batch * _size(result, labels.output, "f") * math.prod(positions)


def _size(array: Array, labels: str, label: str) -> int:
    dim = labels.find(label)
    return max(array.sizes[dim], 0) if 0 <= dim < len(array.sizes) else 1


def _groups(attributes: Mapping[str, str], name: str) -> int:
    return max((1, *attribute.ints(attributes.get(name, ""))))


def _positions(image: int, kernel: int, output: int, steps: tuple[int, int, int], low: int) -> int:
    """Return at how many pairs of a place in the kernel and one in the output an element lies.

    Args:
        image, kernel, output: sizes along the dimension.
        steps: the stride, the dilation of the kernel, the dilation of the image.
        low: the padding in front.
    """
    # Output o and kernel place k meet at o * stride + k * dilation - low of the dilated image. That
    # is symmetric, so the loop is over the shorter of the two.
    stride, dilation, base = (max(step, 1) for step in steps)
    many, step, few, jump = output, stride, kernel, dilation
    if output < kernel:
        many, step, few, jump = kernel, dilation, output, stride
    shared = math.gcd(step, base)
    period = base // shared
    inverse = pow(step // shared, -1, period)
    count = 0
    for index in range(few):
        start = index * jump - low
        if start % shared:
            continue  # only holes between elements
        first = max(0, -(start // step))
        last = min(many - 1, ((image - 1) * base - start) // step)
        phase = -start // shared * inverse % period
        first += (phase - first) % period
        count += max(0, (last - first) // period + 1)
    return count
