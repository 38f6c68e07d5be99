"""Operations of HLO by what they do with the elements of their operands."""

_SAME = """
acos acosh asin asinh atanh cbrt ceil copy cosh cosine count-leading-zeros erf exponential
exponential-minus-one floor log log-plus-one logistic negate not popcnt reduce-precision
round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh
"""
_PAIRS = """
add and atan2 divide maximum minimum mulhi multiply or power remainder shift-left
shift-right-arithmetic shift-right-logical subtract xor
"""
_OTHERS = """
abs bitcast-convert clamp compare complex convert imag is-finite map real select stochastic-convert
"""
_APPLYING = """
all-reduce all-reduce-start custom-call map reduce reduce-scatter reduce-window scan scatter
select-and-scatter sort topk
"""
SAME = frozenset(_SAME.split())
"""Of one operand, whose shape and element type the result has."""
PAIRS = frozenset(_PAIRS.split())
"""Of two operands of one shape and element type, which the result has too."""
ELEMENTWISE = SAME | PAIRS | frozenset(_OTHERS.split())
"""All of whose elements depend on the operands' elements at the same place only."""
APPLYING = frozenset(_APPLYING.split())
"""Those whose computation is applied to single elements: part of their own work. Of a custom-call
nobody knows, but the comparison of a TopK is such."""
