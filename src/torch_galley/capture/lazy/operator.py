"""What is known of an operator once and for all, and a key for a call of it.

Two calls of equal keys differ in the data of their tensors and in numbers that may vary alone, so
whatever was found out for one (shapes, dtypes, that eager accepts it) holds for the other.
"""

from __future__ import annotations

from enum import Enum, auto
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn import Parameter

from torch_galley.capture.fx import is_view
from torch_galley.capture.lazy import number
from torch_galley.capture.lazy.trace import Number, Operand
from torch_galley.ops import draw
from torch_galley.ops.derive import Derived, derive
from torch_galley.ops.registry import lookup
from torch_galley.ops.schema import written_by

aten = torch.ops.aten


class Form(Enum):
    """What kind of operator it is."""

    VIEW = auto()
    WRITE = auto()
    NATIVE = auto()
    """Has a result whose shape hangs on data, or draws what XLA can't."""
    DRAW = auto()
    """Draws random numbers: returns them, or fills an argument with them."""
    RESHAPE = auto()
    """Makes its argument another view of its storage: t_, squeeze_, ..."""
    FUNCTION = auto()


class Operator:
    """An overload and its facts."""

    __slots__ = (
        *("derived", "drawn", "foreach", "form"),
        *("names", "numbers", "op", "tensors", "written"),
    )

    def __init__(self, op: OpOverload):
        schema = op._schema
        self.op = op
        self.names = [argument.name for argument in schema.arguments]
        self.written = written_by(op)
        self.derived: Derived | None = derive(op)
        self.drawn: OpOverload | None = self._drawn()
        """The operator of ours that draws the same from a seed."""
        self.form = self._form()
        self.foreach = op.overloadpacket.__name__.startswith(number.FOREACH)
        """Whether it works on lists of tensors, one after the other."""
        self.tensors = [i for i, a in enumerate(schema.arguments) if str(a.type) == "Tensor"]
        """Positions at which a tensor must stand."""
        functional = op if self.derived is None else self.derived.functional
        self.numbers = number.places(functional)
        """Arguments whose numbers may vary, by position and by name."""

    def _drawn(self) -> OpOverload | None:
        own = draw.ours(self.op if self.derived is None else self.derived.functional)
        return own if lookup(own) is not None else None

    def _form(self) -> Form:
        tags = self.op.tags
        dynamic = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
        if self.drawn is not None:
            return Form.DRAW
        if torch.Tag.nondeterministic_seeded in tags or dynamic & set(tags):
            return Form.NATIVE
        if torch.Tag.inplace_view in tags:
            return Form.RESHAPE
        if self.written:
            return Form.WRITE
        if is_view(self.op):
            return Form.VIEW
        return Form.FUNCTION


@cache
def operator(op: OpOverload) -> Operator:
    """Return the facts of an overload."""
    return Operator(op)


_PLAIN = frozenset({int, str, type(None), torch.dtype, torch.layout, torch.memory_format})


class Call:
    """A call of an operator: its key, its tensors and its numbers, taken apart."""

    __slots__ = ("args", "key", "kwargs", "numbers", "operator", "tensors")

    def __init__(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]):
        self.operator, self.args, self.kwargs = operator, args, kwargs
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        places = operator.numbers
        # Dtypes that nobody gives follow the default.
        key: list[Any] = [operator, torch.get_default_dtype()]
        if places:
            for i, arg in enumerate(args):
                key.append(self._number(arg) if i in places else self._part(arg))
        else:
            key += map(self._part, args)
        for name, arg in kwargs.items():
            key.append(name)
            key.append(self._number(arg) if name in places else self._part(arg))
        self.key = tuple(key)

    def _part(self, arg: Any) -> Any:
        kind = type(arg)
        if kind in _PLAIN:
            return arg
        if kind is torch.Tensor or kind is Parameter or isinstance(arg, torch.Tensor):
            self.tensors.append(arg)
            return (arg.shape, arg.stride(), arg.dtype, arg.is_cpu)
        if kind is list or kind is tuple:
            return ("list", *map(self._part, arg))
        if kind is torch.device:
            return kind
        # 1, 1.0 and True are equal to Python; 0.0 and -0.0 too, and nan not even to itself.
        return (kind, repr(arg) if kind is float or kind is complex else arg)

    def _number(self, arg: Any) -> Any:
        kind = type(arg)
        if kind is float or kind is int:
            if self._may_vary(arg):
                self.numbers.append(arg)
                return kind
        elif kind is list and arg and type(arg[0]) in (float, int):
            alike = len(set(arg)) == 1 and len(set(map(type, arg))) == 1
            numbers = arg[:1] if alike else arg
            if all(type(n) in (float, int) and self._may_vary(n) for n in numbers):
                self.numbers += numbers
                return ("numbers", *map(type, numbers), len(arg))
        return self._part(arg)

    def _may_vary(self, value: Any) -> bool:
        dtype = self.tensors[0].dtype if self.tensors else self.kwargs.get("dtype")
        return number.may_vary(self.operator.op, value, dtype)

    def template(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with what stands for each tensor and each number that may vary."""
        tensors, numbers = iter(range(len(self.tensors))), iter(range(len(self.numbers)))

        def part(arg: Any) -> Any:
            if isinstance(arg, torch.Tensor):
                return Operand(next(tensors))
            if isinstance(arg, list | tuple):
                return [part(item) for item in arg]
            return torch.device("cpu") if isinstance(arg, torch.device) else arg

        def outer(place: int | str, arg: Any, spelled: Any) -> Any:
            if spelled is float or spelled is int:
                return Number(next(numbers))
            if isinstance(spelled, tuple) and spelled[:1] == ("numbers",):
                own = [Number(next(numbers)) for _ in spelled[1:-1]]
                return own * len(arg) if len(own) == 1 else own
            return part(arg)

        spelled = self.key[2:]
        args = tuple(outer(i, arg, spelled[i]) for i, arg in enumerate(self.args))
        rest = spelled[len(args) + 1 :: 2]
        kwargs = {
            name: outer(name, arg, rest[i])
            for i, (name, arg) in enumerate(self.kwargs.items())
            if name != "pin_memory"
        }
        return args, kwargs
