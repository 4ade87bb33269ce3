"""Traces and dumps written, and models in transformers recorded. Nothing here needs the compiled module."""
