"""The NumPy writer in traces/README.md, run unchanged: kvbound must accept the file that it writes.

usage: readme_writer_test.py KVBOUND      KVBOUND: the program's path
"""

import pathlib
import re
import subprocess
import sys
import tempfile

readme = pathlib.Path(__file__).resolve().parent.parent.parent / "traces" / "README.md"
blocks = re.findall(r"^```python\n(.*?)^```$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
assert len(blocks) == 1, f"{readme} has {len(blocks)} Python blocks; expected 1"

program = pathlib.Path(sys.argv[1]).resolve()
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-c", blocks[0]], cwd=folder, check=True)
    inspect = subprocess.run([program, "inspect", "trace.safetensors"], cwd=folder)
sys.exit(inspect.returncode)
