"""How long one engine step takes: calibrated closed forms, laid out for one model (docs/cost.md).

The engine knows nothing of this package but `StepCost.parameters`, `COST_DTYPE` and `step_time`.
"""

from kvsim.gpu.cost.model_cost import CUDA_GRAPH_TOKENS, StepCost
from kvsim.gpu.cost.step import COST_DTYPE, StepShape, step_time

__all__ = ["COST_DTYPE", "CUDA_GRAPH_TOKENS", "StepCost", "StepShape", "step_time"]
