"""The program's `evaluate` judged by closed_loop.py: every number of a task, within what single precision may make of it.

u = 2^-24, and D = 32 u times a tensor's largest number is taken as the error of a logit or a hidden state that has passed
through the model in single precision. (The model of closed_loop.py in single precision errs by 5 u at most in the logits
and 2 u in hidden states and measures: cli/independent_closed_loop_test.py, which also shows that a change by a thousandth would
be noticed.)
To first order in D, and with Pinsker's inequality sum |p - q| <= sqrt(2 KL):

    nll            2 D
    kl             D (2 KL + 3 sqrt(2 KL)) + 4 D^2: q's logits have the weights q - p in KL's derivative, p's the weights
                   p (ln(p/q) - KL)
    hidden_error   32 u (2 + hidden_error)
    L, layer_L     32 u (L + the output's size L / relative); theta 32 u (theta + the same); relative figures and kept mass
                   32 u (1 + the figure)
    top1           the same, where the lead over the second exceeds 4 D
"""
import numpy as np

from independent.policy import parse_policy

ROUNDING = 32 * 2.0**-24


def tolerances(found):
    """The bounds for the fields of one of closed_loop.evaluate's runs, or of its "full"."""
    logit = ROUNDING * np.array(found["largest_logit"])
    bounds = {"nll": 2 * logit}
    if "kl" in found:
        bounds["kl"] = logit * (2 * np.array(found["kl"]) + 3 * np.sqrt(2 * np.maximum(found["kl"], 0))) + 4 * logit**2
        bounds["hidden_error"] = ROUNDING * (2 + np.array(found["hidden_error"]))
    if "relative" in found:
        size = found["perturbation"] / found["relative"] if found["relative"] else 0.0
        for kind, unit in (("perturbation", size), ("layer_perturbation", size), ("bound", size), ("relative", 1),
                           ("layer_relative", 1), ("kept_mass", 1)):
            bounds[kind] = None if found[kind] is None else ROUNDING * (found[kind] + unit)
        bounds["recall"] = 1e-9
    return bounds


class Judgement:
    """One task of the program's JSON, compared with closed_loop.evaluate's result for it.

    failures   texts that name the task, the run, the field, the index, both numbers and the bound
    worst      {field: the largest difference in units of its bound}
    undecided  the number of tokens whose top1 single precision may decide either way
    """

    def __init__(self, task, ours, theirs, runs):
        """task: closed_loop.Task; theirs: the JSON's task; runs: the JSON's own list of runs."""
        self.failures, self.worst, self.undecided, self.name = [], {}, 0, theirs.get("id")
        for field, expected in (("prompt_tokens", len(task.prompt)), ("compress_at", task.compress_at), ("steps", task.steps),
                                ("target", task.target)):
            if theirs.get(field) != expected:
                self.fail("", field, "", theirs.get(field), expected)
        self.judge("full cache", ours["full"], theirs["full"])
        wanted = {(str(parse_policy(run["policy"])), run["budget"]): run for run in ours["runs"]}
        if len(theirs["runs"]) != len(runs) or len(runs) != len(wanted):
            self.fail("", "runs", "", [len(runs), len(theirs["runs"])], len(wanted))
        for which, run in zip(runs, theirs["runs"]):
            name, key = f"{which['policy']} @ {which['budget']}", (str(parse_policy(which["policy"])), which["budget"])
            if key not in wanted:
                self.fail(name, "runs", "", "there", "no such run")
            else:
                self.judge(name, wanted.pop(key), run)
        for policy, budget in wanted:
            self.fail(f"{policy} @ {budget}", "runs", "", "missing", "there")

    def fail(self, run, field, at, theirs, ours, bound=0):
        self.failures.append(f"task {self.name}, {run or 'itself'}: {field}{at} is {theirs} where {ours} is expected, bound "
                             f"{bound:.3g}")

    def judge(self, name, ours, theirs):
        for field, bound in tolerances(ours).items():
            self.compare(name, field, ours[field], theirs.get(field, "missing"), bound)
        logit = ROUNDING * np.array(ours["largest_logit"])
        if len(theirs["top1"]) != len(ours["top1"]):
            self.fail(name, "top1", "", theirs["top1"], ours["top1"])
        for at, (our, their, lead, error) in enumerate(zip(ours["top1"], theirs["top1"], ours["lead"], logit)):
            self.undecided += lead <= 4 * error
            if our != their and lead > 4 * error:
                self.fail(name, "top1", [at], their, our)

    def compare(self, name, field, ours, theirs, bound):
        """Numbers or lists of numbers; None must be null."""
        if ours is None or theirs is None or isinstance(theirs, str) or np.shape(ours) != np.shape(theirs):
            if ours is not theirs:
                self.fail(name, field, "", theirs, ours)
            return
        numbers, expected = np.array(theirs, float), np.array(ours, float)  # null becomes NaN
        share = np.nan_to_num(abs(numbers - expected) / np.maximum(bound, np.finfo(float).tiny), nan=np.inf)
        if not share.size:
            return
        self.worst[field] = max(self.worst.get(field, 0.0), float(share.max()))
        for at in np.argwhere(np.atleast_1d(share > 1)):
            index = tuple(at) if share.ndim else ()
            self.fail(name, field, list(map(int, index)) if index else "", numbers[index], expected[index],
                      np.broadcast_to(bound, share.shape)[index])
