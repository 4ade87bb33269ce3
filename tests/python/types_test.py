"""The package tells type checkers what its functions return."""
import subprocess
import sys
from pathlib import Path

import kvbound


def mypy(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "mypy", "--ignore-missing-imports", *arguments], capture_output=True, text=True,
                          check=False, **options)


def test_the_package_has_no_error_of_types(tmp_path):
    done = mypy("-p", "kvbound", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert (Path(kvbound.__file__).parent / "_native.pyi").exists()


def test_a_caller_s_error_is_found(tmp_path):
    (tmp_path / "right.py").write_text("import kvbound\nprint(kvbound.check_topk([[0]], [[1.0]]).diagnosis().upper())\n", "utf-8")
    (tmp_path / "wrong.py").write_text("import kvbound\nprint(kvbound.check_topk([[0]], [[1.0]]).okay)\n", "utf-8")
    assert mypy("right.py", cwd=tmp_path).returncode == 0
    assert '"CheckResult" has no attribute "okay"' in mypy("wrong.py", cwd=tmp_path).stdout
