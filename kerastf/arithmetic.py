"""How much arithmetic an operation of `keras.ops` does, from the shapes of its inputs and outputs.

A multiplication and the addition after it are two. A function such as `exp`, `tanh` or `erf` is one, a comparison is
one, and what only moves numbers (reshape, gather, where, cast) is none. Softmax is five for each score: the largest is
found and taken off, then exp, sum and division. Convolutions count every position of the kernel, padding or not.
"""

import math

import keras


def _names(text: str) -> list[str]:
    return text.split()


# By the name of its class, what an operation does for each element of its output.
PER_OUTPUT: dict[str, int] = dict.fromkeys(
    _names("""
        Absolute Abs Fabs Add Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh BitwiseAnd BitwiseInvert BitwiseNot
        BitwiseOr BitwiseXor BitwiseLeftShift LeftShift BitwiseRightShift RightShift Cbrt Ceil Clip Cos Cosh Cross
        Cumprod Cumsum Deg2rad Rad2deg Diff Divide DivideNoNan Equal Exp Exp2 Expm1 Floor FloorDivide Fmax Fmin Fmod
        Greater GreaterEqual Heaviside Hypot Isclose Kron Ldexp Less LessEqual Log Log10 Log1p Log2 LogicalXor Maximum
        Minimum Mod Multiply Nancumprod Nancumsum Negative Nextafter NotEqual Outer Power Reciprocal Round Sign Sin Sinc
        Sinh Sqrt Square Subtract Tan Tanh TrueDivide Trunc Gcd Lcm I0 ReLU Relu Relu6 Sigmoid SparseSigmoid Softplus
        Softsign SoftShrink SparsePlus LogSigmoid LeakyRelu HardSigmoid Elu Selu Celu HardTanh HardShrink Threshold Erf
        Erfc Erfinv Polar RGBToGrayscale
    """),
    1,
) | {
    "Rsqrt": 2, "Silu": 2, "HardSilu": 2, "Glu": 2, "TanhShrink": 2, "Squareplus": 4, "Logaddexp": 4, "Logaddexp2": 4,
    "Softmax": 5, "LogSoftmax": 5, "Sparsemax": 5, "Normalize": 3, "BatchNorm": 4, "RMSNorm": 4, "LayerNorm": 7,
}  # fmt: skip

# What it does for each element of its first input.
PER_INPUT: dict[str, int] = dict.fromkeys(
    _names("""
        All Amax Amin Any Argmax Argmin Average Bincount CountNonzero Max Mean Median Min Nanargmax Nanargmin Nanmax
        Nanmean Nanmedian Nanmin Nanprod Nansum Prod Sum Trace SegmentReduction SegmentSum SegmentMax SegmentMin
        SegmentProd AdaptiveMaxPool AdaptiveAveragePool
    """),
    1,
) | {
    "Ptp": 2, "Var": 4, "Std": 4, "Nanvar": 4, "Nanstd": 4, "Moments": 4, "Logsumexp": 4, "Norm": 2, "Trapezoid": 2,
    "BinaryCrossentropy": 6, "CategoricalCrossentropy": 6, "SparseCategoricalCrossentropy": 6, "PSNR": 3,
}  # fmt: skip

# It only moves, makes, sorts or looks up numbers.
FREE = frozenset(
    _names("""
        Angle Append Arange Argpartition Argsort Array ArraySplit BroadcastTo Cast Concatenate Conj Conjugate
        ConvertToTensor Copy CropImages DepthToSpace Diag Diagflat Diagonal Digitize Dsplit Dstack EmptyLike ExpandDims
        ExtractPatches ExtractSequences Flip Fliplr Flipud Fold Full FullLike Geomspace GetItem Histogram Hsplit Hstack
        Imag InTopK IsIn Isfinite Isinf Isnan Isneginf Isposinf Isreal Linspace LogicalAnd LogicalNot LogicalOr Logspace
        Meshgrid Moveaxis MultiHot NanToNum Ndim Nonzero OneHot OnesLike Pad PadImages Ravel Real Rearrange Repeat
        Reshape Roll Rot90 SaturateCast Scatter ScatterUpdate SearchSorted Select Signbit Size Slice SliceUpdate Sort
        SpaceToDepth Split Squeeze Stack StopGradient Swapaxes Take TakeAlongAxis Tile TopK Transpose Tril Triu Unfold
        Unique UnravelIndex Unstack Vander View ViewAsComplex ViewAsReal Vsplit Vstack Where ZerosLike AllClose
    """)
)


def flops(operation, args, kwargs, outputs) -> int | None:
    """How many arithmetic operations it takes; None where it is not known.

    Args:
        operation: A `keras.Operation`.
        args: What it is called with; tensors have known shapes.
        kwargs: Likewise, by name.
        outputs: What it returns.
    """
    name = type(operation).__name__
    if name in FREE:
        return 0
    inputs = [x for x in keras.tree.flatten((args, kwargs)) if hasattr(x, "shape")]
    made = sum(_count(x) for x in keras.tree.flatten(outputs) if hasattr(x, "shape"))
    if name in PER_OUTPUT:
        return PER_OUTPUT[name] * made
    if name in PER_INPUT:
        return PER_INPUT[name] * _count(inputs[0])
    rule = RULES.get(name)
    return None if rule is None else rule(operation, inputs, made)


def _count(x) -> int:
    return math.prod(x.shape)


def _matmul(operation, inputs, made):
    return 2 * made * inputs[0].shape[-1]


def _dot(operation, inputs, made):
    if not inputs[0].shape:
        return made
    return 2 * made * inputs[0].shape[-1]


def _tensordot(operation, inputs, made):
    axes = operation.axes
    if isinstance(axes, int):
        shared = inputs[0].shape[len(inputs[0].shape) - axes :]
    else:
        first = (axes[0],) if isinstance(axes[0], int) else axes[0]
        shared = [inputs[0].shape[axis] for axis in first]
    return 2 * made * math.prod(shared)


def _einsum(operation, inputs, made):
    terms = operation.subscripts.replace(" ", "").split("->")[0].split(",")
    sizes: dict[object, int] = {}
    for term, x in zip(terms, inputs, strict=True):
        left, _, right = term.partition("...")
        spare = len(x.shape) - len(left) - len(right)  # how many axes the dots stand for, counted from the right
        names = [*left, *(range(-spare, 0) if "..." in term else ()), *right]
        for axis, size in zip(names, x.shape, strict=True):
            sizes[axis] = max(size, sizes.get(axis, 1))
    every = math.prod(sizes.values())
    return every * (len(inputs) - 1 + (every > made))  # the products, and the additions where an axis is summed over


def _conv(operation, inputs, made):
    return 2 * made * math.prod(inputs[1].shape[:-1])  # height, width, channels of a group


def _depthwise_conv(operation, inputs, made):
    return 2 * made * math.prod(inputs[1].shape[:-2])


def _separable_conv(operation, inputs, made):
    depth, point = inputs[1].shape, inputs[2].shape
    middle = made // point[-1] * point[-2]
    return 2 * middle * math.prod(depth[:-2]) + 2 * made * point[-2]


def _conv_transpose(operation, inputs, made):
    return 2 * _count(inputs[0]) * math.prod(inputs[1].shape[:-1])  # height, width, filters


def _pool(operation, inputs, made):
    size = operation.pool_size
    return made * (size ** (len(inputs[0].shape) - 2) if isinstance(size, int) else math.prod(size))


def _attention(operation, inputs, made):
    query, key, value = (x.shape for x in inputs[:3])  # (B, T, H, D), (B, S, K, D), (B, S, K, E)
    scores = query[0] * query[2] * query[1] * key[1]
    return scores * (2 * query[3] + 1 + 5 + 2 * value[3])  # product, scale, softmax, mean


def _gelu(operation, inputs, made):
    return (8 if operation.approximate else 5) * made


RULES = {
    "Matmul": _matmul, "Dot": _dot, "Inner": _dot, "Vdot": lambda operation, inputs, made: 2 * _count(inputs[0]),
    "Tensordot": _tensordot, "Einsum": _einsum, "Conv": _conv, "DepthwiseConv": _depthwise_conv,
    "SeparableConv": _separable_conv, "ConvTranspose": _conv_transpose, "MaxPool": _pool, "AveragePool": _pool,
    "DotProductAttention": _attention, "Gelu": _gelu,
}  # fmt: skip
