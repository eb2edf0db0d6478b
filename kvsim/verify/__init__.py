"""Proof by replay: recorded vLLM traces against kvsim's core, field by field."""

from kvsim.verify.compare import Verdict, verify_paths, verify_trace

__all__ = ["Verdict", "verify_paths", "verify_trace"]
