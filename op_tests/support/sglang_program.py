"""A program that uses SGLang, for `rfops run --engine sglang`: greedy tokens of a batch of prompts.

    python sglang_program.py MODEL '{"prompts": [[1, 2]], "tokens": 32, "options": {...}}'

The last line of its output is JSON: the tokens of each prompt. It takes nothing of rfops.
"""

from __future__ import annotations

import json
import sys

import sglang


def main() -> None:
    """Generate and print."""
    folder, request = sys.argv[1], json.loads(sys.argv[2])
    engine = sglang.Engine(
        model_path=folder,
        skip_tokenizer_init=True,
        disable_cuda_graph=True,
        context_length=128,
        max_running_requests=4,
        max_total_tokens=1024,
        skip_server_warmup=True,
        **request["options"],
    )
    greedy = {"temperature": 0, "max_new_tokens": request["tokens"], "ignore_eos": True}
    results = engine.generate(input_ids=request["prompts"], sampling_params=greedy)
    engine.shutdown()
    print(json.dumps([result["output_ids"] for result in results]))


if __name__ == "__main__":  # an engine's processes import it
    main()
