"""`torch_xla.distributed.parallel_loader`, usually imported as `pl`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import torch

from torch_galley.compat.finder import NameNotProvided, missing
from torch_galley.compat.nested import moved
from torch_galley.compat.step import mark_step


class MpDeviceLoader:
    """Yields a loader's batches on the device, and runs what was recorded before each.

    Args:
        loader: any iterable of batches.
        device: the xla device.
        batches_per_execution: after how many batches to run what was recorded.
        input_sharding: None.
        sizes: prefetch sizes and thread counts: accepted, since a batch is at hand at once.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device | str,
        *,
        batches_per_execution: int = 1,
        input_sharding: Any = None,
        **sizes: Any,
    ):
        if input_sharding is not None:
            raise NameNotProvided("MpDeviceLoader shards no input", hint="leave input_sharding out")
        self._loader, self._device, self._every = loader, device, batches_per_execution

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            if number % self._every == 0:
                mark_step()
            yield moved(batch, self._device)
        mark_step()

    def __len__(self) -> int:
        if not isinstance(self._loader, Sized):
            raise TypeError(f"{type(self._loader).__name__} has no len()")
        return len(self._loader)


class ParallelLoader:
    """Makes loaders of one device; there is one.

    Args:
        loader: any iterable of batches.
        devices: the xla device, in a list.
        sizes: as in MpDeviceLoader.
    """

    def __init__(self, loader: Iterable[Any], devices: Sequence[Any], **sizes: Any):
        self._loader, self._sizes = loader, sizes

    def per_device_loader(self, device: torch.device | str) -> MpDeviceLoader:
        """Return the loader of a device."""
        return MpDeviceLoader(self._loader, device, **self._sizes)

    def close(self) -> None:
        """Do nothing: no thread runs ahead."""


def __getattr__(name: str) -> Any:
    missing(__name__, name)
