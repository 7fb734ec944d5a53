"""Whether torch has to see an op: a mode or a transform is active in this thread.

A call that went past torch's dispatcher then would be missing in what the mode records, traces,
fakes or transforms.
"""

from __future__ import annotations

import torch

# Each is true (the functorch one: an object) while something of its kind is active.
MODES = (
    torch._C._len_torch_dispatch_stack,
    torch._C._len_torch_function_stack,
    torch._C._functorch.peek_interpreter_stack,
)


def are_active() -> bool:
    """Of any kind. 0.2 us."""
    dispatch, function, transform = MODES
    return bool(dispatch() or function() or transform() is not None)
