"""JSON reports as text."""
import re


def without_times_and_hosts(path):
    """The text of a replay's document without what another run may have otherwise: seconds, times of operations, the machine."""
    text = re.sub(r'^( *)"times": \[\n.*?^\1\],?\n', "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r'^ *"(?:compress|steps|device|threads)": [^{\[\n]*\n', "", text, flags=re.MULTILINE)
