"""rfops inside the engines that serve models: vLLM and SGLang find `vllm.register` and
`sglang.register` by their entry points, in every process.

targets.py names the callees that rfops has an op for, callees.py says what is known of each,
wrapper.py how a call is taken or left to the original, binding.py how its arguments are known,
layouts.py how the order of expert weights is. around.py puts wrappers in place and tells of them at
exit, symbols.py finds what is missing.
"""
