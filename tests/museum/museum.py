"""Prints what the field's usual tests say of every fault in the museum, and what `kvbound check` says.

usage: museum.py KVBOUND [--markdown]      KVBOUND: the program's path
"""
import argparse
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import attention, topk, cache  # noqa: E401, F401: what they register, in this order
from fault import FAULTS, Fault
from usual import TESTS

REPOSITORIES = {
    "1bit-MONSTER": "1bit-MONSTER/1bit-MONSTER", "aiter": "ROCm/aiter", "b12x": "local-inference-lab/b12x",
    "CUTLASS": "NVIDIA/cutlass", "FlashAttention": "Dao-AILab/flash-attention", "FlashInfer": "flashinfer-ai/flashinfer",
    "imp": "kekzl/imp", "ipex-llm": "intel/ipex-llm", "jax-js": "ekzhang/jax-js",
    "KernelBench": "ScalingIntelligence/KernelBench", "llama.cpp": "ggml-org/llama.cpp", "mlir-air": "Xilinx/mlir-air",
    "NeMo Automodel": "NVIDIA-NeMo/Automodel", "ONNX": "onnx/onnx", "pegainfer": "pegainfer-project/pegainfer",
    "rocMLIR": "ROCm/rocMLIR", "SGLang": "sgl-project/sglang", "TensorRT-LLM": "NVIDIA/TensorRT-LLM",
    "transformers": "huggingface/transformers", "tt-metal": "tenstorrent/tt-metal", "vLLM": "vllm-project/vllm",
    "vLLM's FlashAttention": "vllm-project/flash-attention", "vllm-metal": "vllm-project/vllm-metal", "zml": "zml/zml"}


@dataclass(frozen=True)
class Exhibit:
    """A fault as it is shown: what the usual tests say ({test: whether it passes}), and how `check` ends on it and on the same
    file with a sound kernel's results."""
    fault: Fault
    usual: dict
    faulty: subprocess.CompletedProcess
    sound: subprocess.CompletedProcess


def check(program, operation, file):
    """Runs `kvbound check` on a KernelFile: the finished process."""
    with tempfile.TemporaryDirectory(prefix="kvbound-museum-") as folder:
        path = file.write(Path(folder) / "kernel.safetensors")
        return subprocess.run([program, "check", operation, path], stdin=subprocess.DEVNULL, capture_output=True, text=True)


def exhibits(program):
    for fault in FAULTS.values():
        case = fault.case()
        yield Exhibit(fault, TESTS[fault.operation](fault, case), check(program, fault.operation, case.file),
                      check(program, fault.operation, case.sound_file))


def message(process):
    """What a check says on standard error, without its prefix and with numbers of three digits."""
    said = process.stderr.strip().removeprefix("kvbound: ").split(".safetensors: ", 1)[-1]
    return re.sub(r"-?\d+\.\d+(e[-+]\d+)?", lambda number: f"{float(number[0]):.3g}", said) or "nothing"


def link(thread):
    project, number = thread.rsplit(" ", 1)
    return f"[{thread}](https://github.com/{REPOSITORIES[project]}/issues/{number})"


def tests(exhibit, passing):
    return ", ".join(test for test, passes in exhibit.usual.items() if passes is passing) or "none"


def totals(shown):
    """How many faults of each operation pass the usual tests, and `check`: a list's items."""
    for operation in TESTS:
        faults = [exhibit for exhibit in shown if exhibit.fault.operation == operation]
        passed = Counter()
        for exhibit in faults:
            for place, (test, passes) in enumerate(exhibit.usual.items()):
                passed["its project's test" if operation == "attention" and place == 0 else test] += passes
            passed["`check`"] += exhibit.faulty.returncode == 0
        yield f"{operation}: of {len(faults)} faults {', '.join(f'{count} pass {test}' for test, count in passed.items())}"


def markdown(shown):
    """The table of README.md, and what it adds up to."""
    lines = [["fault", "reported in", "usual tests that pass it", "that find it", "what `kvbound check` says"], 5 * ["---"]]
    for exhibit in shown:
        fault = exhibit.fault
        lines.append([f"**{fault.name}** {fault.what}", ", ".join(map(link, fault.threads)), tests(exhibit, True),
                      tests(exhibit, False), message(exhibit.faulty)])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return table + "\n" + "".join(f"- {item}\n" for item in totals(shown))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", metavar="KVBOUND", type=Path)
    parser.add_argument("--markdown", action="store_true", help="as the table of README.md")
    given = parser.parse_args()
    shown = list(exhibits(given.program.resolve(strict=True)))
    if given.markdown:
        print(markdown(shown), end="")
        return
    for exhibit in shown:
        print(f"{exhibit.fault.name}: {exhibit.fault.what}\n  reported in: {', '.join(exhibit.fault.threads)}\n"
              f"  passed by: {tests(exhibit, True)}\n  found by: {tests(exhibit, False)}\n  kvbound: {message(exhibit.faulty)}")
    print("\n".join(totals(shown)))


if __name__ == "__main__":
    main()
