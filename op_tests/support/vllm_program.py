"""A program that uses vLLM, for `rfops run --engine vllm`: greedy tokens of a batch of prompts.

    python vllm_program.py MODEL '{"prompts": [[1, 2]], "tokens": 32, "options": {...}}'

The last line of its output is JSON: the tokens of each prompt. It takes nothing of rfops.
"""

from __future__ import annotations

import json
import sys

from vllm import LLM, SamplingParams


def main() -> None:
    """Generate and print."""
    folder, request = sys.argv[1], json.loads(sys.argv[2])
    llm = LLM(
        model=folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=128,
        kv_cache_memory_bytes=16 << 20,
        **request["options"],
    )
    greedy = SamplingParams(
        temperature=0, max_tokens=request["tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
    results = llm.generate(prompts, greedy, use_tqdm=False)
    print(json.dumps([list(result.outputs[0].token_ids) for result in results]))


if __name__ == "__main__":  # an engine's processes import it
    main()
