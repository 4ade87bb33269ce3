"""Pseudo-random draws in integers, for replay.py: those of the host random, and CaM's."""
import numpy as np

GOLDEN, MASK = 0x9E3779B97F4A7C15, 2**64 - 1


def mixed(number):
    """The final mixing steps of SplitMix64."""
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK
    return number ^ number >> 31


def draw(seed, *words):
    """64 bits for a seed and what is drawn for."""
    bits = seed
    for word in (0, *words):
        bits = mixed((bits + word + GOLDEN) & MASK)
    return bits


def drawn(policy, layer, kv_head, candidates, count):
    """The candidates that the host random keeps, ascending: the smallest draws, ties to the smaller position."""
    order = sorted(candidates.tolist(), key=lambda position: (draw(policy.seed, layer, kv_head, position), position))
    return np.sort(np.array(order[:count], np.int64))
