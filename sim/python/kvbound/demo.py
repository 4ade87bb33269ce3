"""A first table: six policies on a recording that comes with the package."""
from pathlib import Path

TRACE = Path(__file__).parent / "samples" / "pocket.safetensors"
"""Two layers of `pocket`, a model of 3 million parameters, that reads 1,024 bytes of prose and retrieves a number from them."""

ARGUMENTS = ("replay", str(TRACE), "--policy", "snapkv,snapkv+critical,snapkv+keepkv,h2o,tova,streaming-llm", "--base", "snapkv",
             "--budget", "5%,20%", "--columns", "entries,perturbation,relative,bound,violations,kept-mass,improved-heads")
AFTERWARDS = f"""
L is how far a query head's contribution to the hidden state moves, bound what CriticalKV's theorem 3.3 allows: violations are
counted. Improved heads are those with a smaller L than under snapkv. That was, in short:

  kvbound {ARGUMENTS[0]} TRACE {" ".join(ARGUMENTS[2:6])} {" ".join(ARGUMENTS[6:8])}
  TRACE={TRACE}

Next:

  kvbound record --help      a trace of a model of yours (GGUF or Hugging Face)
  kvbound policies           what policies consist of
  kvbound check --help       a call of a kernel of yours against the reference; in Python: help(kvbound.check_attention)
  kvbound help               everything else
"""
