// MurmurHash3 (x86, 32 bits) of one word.
#pragma once
#include "treadle_device.h"

namespace treadle {

TREADLE_DEVICE uint32_t murmur3(uint32_t word, uint32_t seed) {
    uint32_t k = word * 0xcc9e2d51u;
    k = (k << 15 | k >> 17) * 0x1b873593u;
    uint32_t h = seed ^ k;
    h = (h << 13 | h >> 19) * 5 + 0xe6546b64u;
    h ^= 4;
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

TREADLE_DEVICE uint32_t ranged(uint32_t word, uint32_t seed, uint32_t size) {
    return uint32_t(uint64_t(murmur3(word, seed)) * size >> 32);
}

}  // namespace treadle
