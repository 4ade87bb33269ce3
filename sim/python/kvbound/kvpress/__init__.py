"""Presses of NVIDIA's kvpress against their papers."""
from kvbound.kvpress.press_check import Difference, PressCheck, Unexplained, check

__all__ = ["Difference", "PressCheck", "Unexplained", "check"]
