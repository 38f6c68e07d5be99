"""HLO text as a stand-alone library: no torch, no jax.

`parse` reads it, `str` of a module prints it, and what is between can be asked: instructions,
shapes, attributes, the places in people's code, and by cost.py FLOPs and bytes.
"""

from torch_galley.hlo.model import Computation, Instruction, Module
from torch_galley.hlo.parser import parse
from torch_galley.hlo.shape import Array, Shape, Tuple, shape
from torch_galley.hlo.source import Frame, Sources

__all__ = [
    "Array",
    "Computation",
    "Frame",
    "Instruction",
    "Module",
    "Shape",
    "Sources",
    "Tuple",
    "parse",
    "shape",
]
