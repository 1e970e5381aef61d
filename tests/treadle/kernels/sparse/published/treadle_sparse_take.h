// How "Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training" takes a slot: a test, a store and a
// look at what is there. Two threads that both find it empty can each see its own word: it loses indices.
#pragma once
#include "treadle_device.h"

namespace treadle {

TREADLE_DEVICE bool take(uint32_t *slot, uint32_t word) {
    yield();
    if (*slot) return false;
    yield();
    *slot = word;
    yield();
    return *slot == word;
}

}  // namespace treadle
