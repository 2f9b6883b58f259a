"""vLLM's engine with blockmgr as its block manager. Needs vLLM 0.32 beside blockmgr.

Give it a model: python examples/vllm_on_blockmgr.py Qwen/Qwen3-0.6B
"""

import sys

from vllm import LLM, SamplingParams


def main(model: str) -> None:
    # The one change: without `additional_config`, vLLM uses its own manager.
    llm = LLM(
        model=model,
        max_model_len=1024,
        additional_config={"blockmgr": {"min_partial_tokens": 8, "report_every": 10}},
    )
    system = "You are a careful assistant. Answer in one sentence. "
    questions = ["What is a KV cache?", "What is paged attention?", "What is beam search?"]
    prompts = [system + question for question in questions]
    sampling = SamplingParams(temperature=0.0, max_tokens=48)
    llm.generate(prompts[:1], sampling)  # the others find the blocks of its prefix
    for output in llm.generate(prompts, sampling):
        print(
            f"{output.num_cached_tokens} prompt tokens from the cache: {output.outputs[0].text!r}"
        )


if __name__ == "__main__":  # vLLM starts processes that import this file
    main(sys.argv[1])
