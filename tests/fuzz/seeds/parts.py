"""Parts of inputs with their lengths, as readers/reader.cpp takes them apart."""
import struct


def part(content):
    return struct.pack("<I", len(content)) + content
