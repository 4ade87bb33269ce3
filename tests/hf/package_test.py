"""The package for Python with torch and flashinfer-bench: pytest's tests in package/.

usage: package_test.py KVBOUND PACKAGE      KVBOUND is not used; PACKAGE: sim/python, which is installed first, by pip. Needs
                                            tests/hf/package_requirements.txt.
"""
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
# Without what it needs of a GPU, which its evaluators do not.
FLASHINFER_BENCH = "flashinfer-bench==0.1.2"

if __name__ == "__main__":
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", FLASHINFER_BENCH, sys.argv[2]], check=True)
    # Their helpers are those of the tests of the package alone.
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", FOLDER / "package"], check=False,
                            env=os.environ | {"PYTHONPATH": str(FOLDER.parent / "python")}).returncode)
