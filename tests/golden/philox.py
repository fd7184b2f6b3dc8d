"""dp::Random (engine/include/dp/random.h) in NumPy: draws the same numbers."""

import numpy as np

USES = {"init": 1, "synthetic": 6}
MASK = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)


def philox4x32(counter, key0, key1):
    """Ten rounds over arrays of counters. The uint64 arrays have 32-bit words."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        a = np.uint64(0xD2511F53) * c0
        b = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> SHIFT) ^ c1 ^ np.uint64(key0), b & MASK, (a >> SHIFT) ^ c3 ^ np.uint64(key1), a & MASK
        key0 = (key0 + 0x9E3779B9) & 0xFFFFFFFF
        key1 = (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


class Random:
    def __init__(self, seed, use, a=0, b=0):
        self.key0 = (seed & 0xFFFFFFFF) ^ (USES[use] << 28)
        self.key1 = (seed >> 32) ^ (b >> 32)
        self.tail = (a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF)
        self.words = np.empty(0, np.uint64)
        self.blocks = 0

    def next(self, count):
        missing = count - len(self.words)
        if missing > 0:
            blocks = (missing + 3) // 4
            counter = [np.arange(self.blocks, self.blocks + blocks, dtype=np.uint64)]
            counter += [np.full(blocks, word, np.uint64) for word in self.tail]
            words = philox4x32(counter, self.key0, self.key1)
            self.blocks += blocks
            self.words = np.concatenate([self.words, np.stack(words, axis=1).reshape(-1)])
        taken, self.words = self.words[:count], self.words[count:]
        return taken

    def symmetric(self, bound, count):
        """uniform(-bound, bound) in float32, rounded once."""
        unit = (self.next(count) >> np.uint64(8)).astype(np.float64) * 2.0**-24
        return (np.float64(bound) * (2 * unit - 1)).astype(np.float32)

    def between(self, low, high, count):
        """uniform(low, high) in float32, rounded once. The bounds are float32 numbers."""
        unit = (self.next(count) >> np.uint64(8)).astype(np.float64) * 2.0**-24
        return (np.float64(low) + (np.float64(high) - np.float64(low)) * unit).astype(np.float32)

    def below(self, bound, count):
        threshold = (1 << 32) % bound
        taken = []
        while len(taken) < count:
            product = int(self.next(1)[0]) * bound
            if product & 0xFFFFFFFF >= threshold:
                taken.append(product >> 32)
        return np.array(taken, np.int32)


def check_known_answer():
    words = philox4x32([np.array([w], np.uint64) for w in (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)], 0xA4093822, 0x299F31D0)
    assert [int(w[0]) for w in words] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1], "Philox is wrong"
