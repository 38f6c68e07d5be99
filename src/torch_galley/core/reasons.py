"""Why a node stayed native: values, not strings, so that reports can group and count them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Reason:
    """The base: a subclass names the fact, its fields hold the details."""

    sentence: ClassVar[str] = "{code}"

    @property
    def code(self) -> str:
        """The fact's name, such as "NoLowering"."""
        return type(self).__name__

    def __str__(self) -> str:
        return self.sentence.format(code=self.code, **asdict(self))

    @property
    def group(self) -> str:
        """The sentence without the operator's name, for reports that list operators under it."""
        names = {f.name: "" for f in fields(self) if f.name == "op"}
        sentence = self.sentence.replace(" for {op}", "")
        return sentence.format(code=self.code, **(asdict(self) | names)).strip(" :")

    def to_json(self) -> dict[str, Any]:
        """Return the reason as plain data."""
        return {"code": self.code, "text": str(self), **asdict(self)}


@dataclass(frozen=True)
class NoLowering(Reason):
    """The operator has no lowering to XLA."""

    op: str
    sentence = "no lowering for {op}"


@dataclass(frozen=True)
class OwnOperator(Reason):
    """An operator that is not torch's own, and that nobody has told how XLA computes it."""

    op: str
    sentence = "no lowering for {op}: torch_galley.lowers takes one, see docs/extending.md"


@dataclass(frozen=True)
class WritesArguments(Reason):
    """An operator, not torch's own, that writes its arguments: what it does is not known."""

    op: str
    sentence = "{op} writes its arguments: XLA takes one that returns them, see docs/extending.md"


@dataclass(frozen=True)
class DeniedByUser(Reason):
    """A setting keeps this operator out of XLA."""

    op: str
    setting: str = "deny_ops"
    sentence = "{op} denied by {setting}"


@dataclass(frozen=True)
class NotAllowed(Reason):
    """A setting lists what XLA may have, and this is not in it."""

    op: str
    setting: str
    sentence = "{op} is not in {setting}"

    @property
    def group(self) -> str:
        return f"not in {self.setting}"


@dataclass(frozen=True)
class OutOfFuel(Reason):
    """The setting `fuel` was used up by operations before this one."""

    op: str
    fuel: int
    sentence = "{op} comes after fuel={fuel} others"

    @property
    def group(self) -> str:
        return f"after the first {self.fuel}, see the setting fuel"


@dataclass(frozen=True)
class InsideBody(Reason):
    """A branch or a loop's body has an operation that stays native, and so the whole does."""

    op: str
    body: str
    inner: str
    """Why, of the operation inside."""
    sentence = "{op}: in {body}, {inner}"


@dataclass(frozen=True)
class MixedDevices(Reason):
    """The operator moves data from one device to another."""

    op: str
    devices: str
    sentence = "{op} works across {devices}"


@dataclass(frozen=True)
class Constant(Reason):
    """Data-independent and cheap: made natively for native readers, and in clusters for theirs."""

    op: str
    sentence = "{op} depends on no data, and is made anew for each reader"


@dataclass(frozen=True)
class CheaperOutside(Reason):
    """A view at the end of a cluster: handing over what it is a view of costs less."""

    op: str
    sentence = "{op}, a view, costs less outside its cluster"


@dataclass(frozen=True)
class UnsupportedDtype(Reason):
    """A dtype that XLA or DLPack can't take."""

    dtype: str
    sentence = "dtype {dtype} is not supported"


@dataclass(frozen=True)
class Refused(Reason):
    """A dtype that eager refuses for this operator: eager is asked, so that it says so."""

    op: str
    dtype: str
    sentence = "eager has no {op} of {dtype}, and is asked to say so"


@dataclass(frozen=True)
class NoDevice(Reason):
    """The tensor's device has no counterpart in this jax."""

    device: str
    sentence = "jax has no {device} device in this process"


@dataclass(frozen=True)
class DataDependentShape(Reason):
    """The output's shape, or a Python value, depends on the data."""

    op: str
    sentence = "{op}: result depends on the data"


@dataclass(frozen=True)
class Seed(Reason):
    """The one number that a call takes from torch's generator, for XLA to draw all others from."""

    op: str
    sentence = "{op} draws the seed from torch's generator"


@dataclass(frozen=True)
class Random(Reason):
    """A random operator that draws from a generator of torch's: by the setting `rng`, because it
    is given one, or because XLA can't draw what it draws."""

    op: str
    sentence = "{op} draws random numbers"


@dataclass(frozen=True)
class SideEffect(Reason):
    """The operator writes its arguments or does something besides computing its result."""

    op: str
    sentence = "{op} has a side effect"


@dataclass(frozen=True)
class NotATensor(Reason):
    """The node's value is no dense tensor (a sparse tensor, a subclass, an object)."""

    what: str
    sentence = "value is a {what}, not a dense tensor"


@dataclass(frozen=True)
class SharedMemory(Reason):
    """A view that is a result: it must see writes into another, or keep gaps in its memory."""

    op: str
    sentence = "{op} is a result that keeps eager's memory"


@dataclass(frozen=True)
class ArgumentForm(Reason):
    """This lowering does not take these argument values."""

    op: str
    detail: str
    sentence = "{op}: {detail}"


@dataclass(frozen=True)
class BetterNatively(Reason):
    """XLA is slower or less exact than the native kernel here."""

    op: str
    detail: str
    sentence = "{op}: {detail}"


@dataclass(frozen=True)
class LoweringFailed(Reason):
    """Our lowering raised; the node runs natively and a warning was shown."""

    op: str
    error: str
    sentence = "lowering of {op} failed: {error}"


@dataclass(frozen=True)
class TooSmall(Reason):
    """The cluster had fewer operations than `min_cluster_size`."""

    size: int
    minimum: int
    sentence = "cluster of {size} is below min_cluster_size={minimum}"

    @property
    def group(self) -> str:
        return f"in clusters below min_cluster_size={self.minimum}"


@dataclass(frozen=True)
class GroupNative(Reason):
    """Another operation of its group stays native, or one that lies between them."""

    op: str
    sentence = "{op} stays with its group, which can't be one cluster"


@dataclass(frozen=True)
class Unsound(Reason):
    """The cluster would have needed its own results: a bug of ours, which the checker found."""

    op: str
    sentence = "{op} was in a cluster that could not be run"


@dataclass(frozen=True)
class Unprofitable(Reason):
    """The cluster is predicted to gain less than `min_speedup`."""

    speedup: float
    native_us: float
    fused_us: float
    sync_us: float
    sentence = (
        "cluster predicted not to pay, S = {speedup:.2f}: "
        "{native_us:.1f} / ({fused_us:.1f} + {sync_us:.1f}) µs"
    )

    @property
    def group(self) -> str:
        return "in clusters predicted not to pay"


@dataclass(frozen=True)
class SlowerMeasured(Reason):
    """The cluster was timed, and ran slower than its operations natively."""

    cluster_us: float
    native_us: float
    sentence = "cluster measured, {cluster_us:.1f} µs against {native_us:.1f} natively"

    @property
    def group(self) -> str:
        return "in clusters measured to be slower"


@dataclass(frozen=True)
class WholeElsewhere(Reason):
    """The whole graph was timed, and ran faster without clusters."""

    engine: str
    engine_us: float
    clusters_us: float
    sentence = (
        "graph measured, {engine_us:.1f} µs by {engine} against {clusters_us:.1f} with clusters"
    )

    @property
    def group(self) -> str:
        return f"in graphs measured to run faster by {self.engine}"


OUTVOTED = (
    Constant,
    TooSmall,
    CheaperOutside,
    Unsound,
    Unprofitable,
    SlowerMeasured,
    WholeElsewhere,
)
"""Reasons of operations that XLA could take."""


def reason_from_json(data: Mapping[str, Any]) -> Reason:
    """Return the reason for what `Reason.to_json` gave.

    Example:
        >>> reason_from_json(NoLowering("aten.foo").to_json())
        NoLowering(op='aten.foo')

    Raises:
        ValueError: no such reason, or one without a field or with one of a wrong type.
    """
    known = {kind.__name__: kind for kind in Reason.__subclasses__()}
    kind = known.get(str(data.get("code")))
    if kind is None:
        raise ValueError(f"has code {data.get('code')!r}, which is no reason")
    values = {f.name: data.get(f.name) for f in fields(kind)}
    for f in fields(kind):
        wanted = {"int": int, "float": float}.get(str(f.type), str)
        if not isinstance(values[f.name], wanted):
            raise ValueError(f"has {f.name}={values[f.name]!r}, not a {wanted.__name__}")
    return kind(**values)
