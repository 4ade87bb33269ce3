"""The program `kvbound` of the package: what is Python's own about it. What it computes, the tests of the commands say."""
import json
import os
import signal
import subprocess
import sys
import time

import kvbound
import pytest
from kvbound import demo

ENDLESS = ("prove", "--cases", "100000000")


def run(*words, **options):
    return subprocess.run(["kvbound", *words], capture_output=True, text=True, check=False, **options)


def test_says_its_version_and_the_codes_of_its_end():
    assert run("--version").stdout == f"kvbound {kvbound.__version__} ({kvbound.__revision__})\n"
    assert run("nothing").returncode == 2
    assert run("inspect", "nothing.safetensors").returncode == 4
    with open("/dev/full", "w", encoding="utf-8") as full:
        assert subprocess.run(["kvbound", "--help"], stdout=full, stderr=subprocess.DEVNULL, check=False).returncode == 4


def test_is_the_module_too(tmp_path):
    done = subprocess.run([sys.executable, "-m", "kvbound", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == run("--version").stdout


def test_does_not_load_numpy():
    code = "import sys; from kvbound.__main__ import main; sys.argv[1:] = ['--version']; main(); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_demo_prints_a_first_table_within_five_seconds():
    start = time.monotonic()
    done = run("demo")
    assert done.returncode == 0 and time.monotonic() - start < 5
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("snapkv ") and "%" in line]
    assert [row[1] for row in rows] == ["5%", "20%"]
    assert float(rows[0][3]) > float(rows[1][3]) > 0
    assert str(demo.TRACE) in done.stdout
    assert run("demo", "more").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ends_by_the_signal(number):
    with subprocess.Popen(["kvbound", *ENDLESS], stdout=subprocess.DEVNULL) as process:
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(10) == -number


def test_ends_where_nobody_reads():
    for word in ("figures", "demo"):
        with subprocess.Popen(["kvbound", word], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.close()
            assert process.stderr.read() == "kvbound: cannot write to standard output\n"
            assert process.wait(10) == 4


def test_a_sweep_starts_workers_of_this_program(tmp_path):
    plan = {"format": "kvbound-sweep-plan", "version": 1, "traces": [str(demo.TRACE)], "policies": ["snapkv"], "budgets": ["20%"]}
    (tmp_path / "plan.json").write_text(json.dumps(plan), "utf-8")
    done = run("sweep", "plan.json", "--out", "out", "--jobs", "2", "--json", "swept.json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run("replay", str(demo.TRACE), "--policy", "snapkv", "--budget", "20%", "--json", "replayed.json", cwd=tmp_path)
    (swept,), (replayed,) = (json.loads((tmp_path / f"{name}.json").read_text("utf-8"))["parts"] for name in ("swept", "replayed"))
    assert swept["cubes"]["runs"]["columns"]["perturbation"] == replayed["cubes"]["runs"]["columns"]["perturbation"]


def test_threads_wait_as_the_environment_says():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    shown = run("--version", env=environment | {"OMP_DISPLAY_ENV": "true"}).stderr
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in shown
    assert "'ACTIVE'" in run("--version", env=environment | {"OMP_DISPLAY_ENV": "true", "OMP_WAIT_POLICY": "active"}).stderr
