#!/usr/bin/env python3
"""KnormPress (arXiv:2406.11430) for `kvbound replay`, with NumPy only: of the prompt's entries those of smallest |key| are kept.

    knorm_press.py TRACE GIVEN
    kvbound replay TRACE --policy snapkv,snapkv+critical,given:file=GIVEN --budget 20%

For `kvbound evaluate`, a file for each task, in one folder: TRACE is of the task's tokens before compression.

    knorm_press.py --task ID TRACE FOLDER/ID.safetensors

Replace score() by your method.
"""
import numpy as np
from script_options import Parser, run

from kvbound.recording.trace_file import Files
from kvbound.recording.trace_reader import Trace


def score(keys):
    """A score of each of the prompt's entries, [kv_heads, n]: larger ones are kept."""
    return -np.linalg.norm(keys.astype("f8"), axis=2)


def main(path, given, task):
    trace = Trace(path)
    n = trace.count("prompt_tokens")
    scores = {f"layers.{layer}.score": score(trace.tensor(f"layers.{layer}.key")[:, :n])
              for layer in range(trace.count("layers"))}
    subject = {"task_id": task} if task else {"trace_sha256": trace.sha256}
    metadata = {"format": "kvbound-given", "version": "1", **subject, "name": "KnormPress"}
    with Files(given, metadata, [{name: ("F64", array.shape) for name, array in scores.items()}]) as file:
        for name, array in scores.items():
            file.write(name, array)
        file.commit()


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.add_argument("trace", metavar="TRACE")
    parser.add_argument("given", metavar="GIVEN")
    parser.add_argument("--task", metavar="ID", help="of a file of tasks for kvbound evaluate")
    arguments = parser.parse_args()
    run("knorm_press", lambda: main(arguments.trace, arguments.given, arguments.task))
