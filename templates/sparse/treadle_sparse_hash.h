// The hash functions of sparse gradients, for CPUs and GPUs: MurmurHash3 (x86, 32 bits) of one word, and ranges of it.
#pragma once
#include "treadle_device.h"

namespace treadle {

TREADLE_DEVICE uint32_t rotated(uint32_t word, int by) { return word << by | word >> (32 - by); }

TREADLE_DEVICE uint32_t murmur3(uint32_t word, uint32_t seed) {
    uint32_t hash = seed ^ rotated(word * 0xcc9e2d51u, 15) * 0x1b873593u;
    hash = (rotated(hash, 13) * 5 + 0xe6546b64u) ^ 4u;
    hash = (hash ^ hash >> 16) * 0x85ebca6bu;
    hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
    return hash ^ hash >> 16;
}

// In [0, size).
TREADLE_DEVICE uint32_t ranged(uint32_t word, uint32_t seed, uint32_t size) {
    return uint32_t(uint64_t(murmur3(word, seed)) * size >> 32);
}

}  // namespace treadle
