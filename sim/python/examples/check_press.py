"""What a press of NVIDIA's kvpress does otherwise than its paper (needs the extra `kvpress`).

    python check_press.py MODEL TEXT      a Hugging Face directory of a model whose tokens are bytes, such as
                                          traces/samples/pocket of the project, and any text
"""
import sys
from pathlib import Path

import kvbound.kvpress
from kvpress import CriticalKVPress, SnapKVPress, StreamingLLMPress

model, text = sys.argv[1:]
ids = list(Path(text).read_bytes()[:1000])
for press in (StreamingLLMPress(0.5), SnapKVPress(0.5), CriticalKVPress(SnapKVPress(0.5))):
    print(kvbound.kvpress.check(press, model, ids), end="\n\n")
