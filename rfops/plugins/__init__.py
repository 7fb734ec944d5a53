"""rfops inside the engines that serve models: vLLM and SGLang find `vllm.register` and
`sglang.register` by their entry points, in every process.

callees.py says which of their callees rfops has an op for, around.py how a call is taken or left to
the original.
"""
