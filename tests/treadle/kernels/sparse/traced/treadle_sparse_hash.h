// Hash functions that one follows by hand: the seed divides, and the rest names the place.
#pragma once
#include "treadle_device.h"

namespace treadle {

TREADLE_DEVICE uint32_t ranged(uint32_t word, uint32_t seed, uint32_t size) { return word / seed % size; }

}  // namespace treadle
