"""Linear layers of models, (N, K) for one GPU, whose shapes several GEMMs bench and tune."""

from __future__ import annotations

DEEPSEEK_V3_ATTENTION = (
    (2112, 7168),  # q_a and kv_a in one
    (24576, 1536),  # q_b
    (3072, 1536),  # q_b split over 8 GPUs
    (7168, 16384),  # o_proj
    (7168, 2048),  # o_proj split over 8 GPUs
)
# gate_up and down of the dense layers, whole and split over 8 GPUs.
DEEPSEEK_V3_DENSE = (36864, 7168), (7168, 18432)
DEEPSEEK_V3_DENSE_TP8 = (4608, 7168), (7168, 2304)
