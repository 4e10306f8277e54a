"""What Accelerate does with an optimizer, where a program uses it."""

import sys


def leaves_steps_out() -> bool:
    """Whether Accelerate accumulates gradients, and so leaves out the steps of the optimizers that it has prepared."""
    state = sys.modules.get("accelerate.state")
    return state is not None and not state.GradientState().sync_gradients
