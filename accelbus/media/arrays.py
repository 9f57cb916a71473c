"""From arrays, tensors and figures to plain bytes; the only place that needs numpy, which whoever has an array has."""

from __future__ import annotations

import io
from typing import Any


def as_array(data: Any) -> Any:
    """Return *data* as numpy array; tensors of any kind and device are copied to the host."""
    import numpy as np  # noqa: PLC0415  whoever has an array has numpy, and nobody else needs it

    if hasattr(data, "detach"):
        data = data.detach().cpu()
        data = (data.float() if data.is_floating_point() else data).numpy()
    return np.asarray(data)


def as_pixels(array: Any, *, dimensions: tuple[int, ...]) -> Any:
    """Return *array* as contiguous uint8 with channels last.

    Raises:
        ValueError: it has other dimensions or numbers of channels.
    """
    import numpy as np  # noqa: PLC0415  see above

    if array.ndim not in dimensions:
        raise ValueError(f"expected an array of {' or '.join(map(str, dimensions))} dimensions, got shape {array.shape}")
    if array.ndim == 2:
        array = array[:, :, None]
    channels = (1, 3, 4)
    if array.shape[-1] not in channels:
        if array.shape[-3] not in channels:
            raise ValueError(f"expected 1, 3 or 4 channels, first or last, got shape {array.shape}")
        array = np.moveaxis(array, -3, -1)
    if array.dtype == bool:
        array = array * 255
    elif array.dtype.kind == "f":
        array = np.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1) * 255 + 0.5
    return np.ascontiguousarray(array.clip(0, 255).astype(np.uint8))


def binned(values: Any, bins: int) -> dict[str, Any]:
    """Return counts and edges of *bins* equal bins over the finite *values*, and their sums."""
    import numpy as np  # noqa: PLC0415  see above

    numbers = as_array(values).ravel().astype(float)
    finite = numbers[np.isfinite(numbers)]
    counts, edges = np.histogram(finite, bins=bins)
    return {
        "counts": counts.astype(float).tolist(), "edges": edges.tolist(), "non_finite": int(numbers.size - finite.size),
        "sum": float(finite.sum()), "sum_squares": float((finite**2).sum()),
    }  # fmt: skip


def figure_png(figure: Any) -> bytes:
    """Return a matplotlib figure as PNG."""
    into = io.BytesIO()
    figure.savefig(into, format="png", bbox_inches="tight")
    return into.getvalue()
