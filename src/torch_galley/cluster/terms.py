"""The terms of a cluster's speed-up, predicted or measured."""

from __future__ import annotations

from dataclasses import dataclass

DOUBT = 3.0
"""A prediction may be wrong by this factor: what it finds clearer than that need not be timed."""


@dataclass(frozen=True)
class Terms:
    """S = ΣT_op / (T_fused + T_sync), in seconds.

    Example:
        >>> Terms(t_ops=3.0, t_fused=1.0, t_sync=0.5).speedup
        2.0
    """

    t_ops: float
    """ΣT_op: its operations natively, one by one."""
    t_fused: float
    """T_fused: its executable alone."""
    t_sync: float
    """T_sync: what its border costs."""

    @property
    def speedup(self) -> float:
        """S; 1 if nothing takes any time."""
        return self.t_ops / (self.t_fused + self.t_sync) if self.t_fused + self.t_sync else 1.0

    @property
    def doubtful(self) -> bool:
        """Whether S, predicted, is too near to 1 to be believed."""
        return 1 / DOUBT <= self.speedup <= DOUBT

    def to_json(self) -> dict[str, float]:
        """Return S and its terms as plain data."""
        return vars(self) | {"speedup": self.speedup}
