"""The program `kvbound`: what the module `kvbound._native` runs, without the rest of the package, for which NumPy is loaded."""
import importlib.machinery
import importlib.util
import os
import signal
import sys

_PACKAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kvbound")


def main():
    """Runs the program with this process's arguments; returns its exit code."""
    # Threads that wait sleep, as in the program that is built without Python. OpenMP reads it when it is loaded.
    if "GOMP_SPINCOUNT" not in os.environ:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    spec = importlib.machinery.PathFinder.find_spec("_native", [_PACKAGE])
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    return native.run_program([sys.executable, os.path.abspath(__file__)], sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
