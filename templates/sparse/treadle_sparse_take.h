// A slot of hash memory, 0 while it is empty.
#pragma once
#include "treadle_device.h"

namespace treadle {

// Whether `word`, which is nowhere else, is in the slot now. A test of the slot and a store after it, as published, lose one of two words
// that come at once, even with a look at it at the end: see tests.
TREADLE_DEVICE bool take(uint32_t *slot, uint32_t word) {
    return compare_and_swap(slot, 0, word) == 0;
}

}  // namespace treadle
