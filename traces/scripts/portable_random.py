"""The random numbers of traces/portable_random.hpp: the same bits on every platform and in both languages."""
GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def mix(state):
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


class Stream:
    """A random function of an index; children of different names are independent of each other (SplitMix64)."""

    def __init__(self, seed):
        self.key = mix(seed)

    def child(self, *names):
        stream = self
        for name in names:
            stream = Stream(stream.key ^ mix(name + GAMMA & MASK))
        return stream

    def bits(self, index):
        """64 random bits."""
        return mix(self.key + (index + 1) * GAMMA & MASK)

    def below(self, index, count):
        """A number in 0..count - 1."""
        return self.bits(index) % count


class Permutation:
    """A random order of 0, 1, ..., count - 1."""

    def __init__(self, random, count):
        self.random, self.count, self.width = random, count, (count - 1).bit_length()

    def __call__(self, index):
        index = self._shuffled(index)
        while index >= self.count:
            index = self._shuffled(index)
        return index

    def _shuffled(self, index):
        mask = (1 << self.width) - 1
        for step in range(4):
            index = index * (self.random.bits(2 * step) | 1) + self.random.bits(2 * step + 1) & mask
            index ^= index >> (self.width + 1) // 2
        return index
