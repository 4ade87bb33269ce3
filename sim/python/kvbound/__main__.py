"""The program: `kvbound`, or `python -m kvbound`."""
import os
import signal
import sys


def main():
    """Runs the program with this process's arguments; returns its exit code."""
    # Threads that wait sleep, as in the program without Python. OpenMP reads it when it is loaded.
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvbound import _native  # only now

    arguments = sys.argv[1:]
    if is_demo := arguments == ["demo"]:
        from kvbound import demo
        arguments = demo.ARGUMENTS
    code = _native.run_program([sys.executable, "-P", "-m", "kvbound"], arguments)
    if is_demo and code == 0:
        try:
            os.write(1, demo.AFTERWARDS.encode())
        except OSError:
            return 4
    return code


if __name__ == "__main__":
    sys.exit(main())
