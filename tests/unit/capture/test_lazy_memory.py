"""Storages of the xla device, as `torch.UntypedStorage` shows them, beside eager's."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def test_storages(xla: torch.device) -> None:
    def program(dev: torch.device) -> list[Any]:
        x = torch.tensor([1.0, 2.0, 3.0], device=dev)
        memory = x.untyped_storage()
        twin, deep = memory.clone(), copy.deepcopy(memory)
        other = torch.UntypedStorage(12, device=dev).copy_(memory)
        x.zero_()
        same = torch.empty(0, device=dev).set_(memory)
        same[1] = 4
        there = memory.to(device=dev)
        found = [memory, twin, deep, other, memory.cpu(), twin.to(device="cpu"), there]
        found.append(torch.UntypedStorage([1, 2], device=dev))
        shown = torch.empty(0, device=dev).set_(other, 1, (2,))
        return [[m.tolist() for m in found], [m.nbytes() for m in found], shown.tolist(), memory[6]]

    assert program(xla) == program(CPU)
    with pytest.raises(IndexError, match="index 12 out of range for storage of size 12"):
        torch.ones(3, device=xla).untyped_storage()[12]
    assert torch.UntypedStorage(3).device == CPU
    assert torch.UntypedStorage([1, 2], device="cpu").tolist() == [1, 2]


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_the_cpu_come_to_the_device(zipped: bool, xla: torch.device) -> None:
    x, file = torch.arange(4.0), io.BytesIO()
    torch.save([x, x[1:], x.bfloat16()], file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    found = torch.load(file, map_location=xla)
    found[1].mul_(2)
    assert {t.device for t in found} == {xla}
    assert [t.tolist() for t in found] == [[0, 2, 4, 6], [2, 4, 6], [0, 1, 2, 3]]


def test_memory_is_as_large_as_eagers(xla: torch.device) -> None:
    def program(dev: torch.device) -> list[int]:
        x = torch.arange(2.0, device=dev)
        sizes = [x.untyped_storage().nbytes()]
        x.resize_(5)
        sizes.append(x.untyped_storage().nbytes())
        x.resize_(1)
        empty = torch.empty(0, device=dev)
        sizes += [x.untyped_storage().nbytes(), empty.untyped_storage().nbytes()]
        empty.set_(x.untyped_storage(), 3, (4,))  # type: ignore[call-overload]
        return [*sizes, x.untyped_storage().nbytes(), torch.UntypedStorage(7, device=dev).nbytes()]

    assert program(xla) == program(CPU)
