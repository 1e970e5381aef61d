// Hierarchical hashing on GPUs ("Zen: Near-Optimal Sparse Tensor Synchronization for Distributed DNN Training",
// algorithm 3.2): a unit's part depends on the unit alone, its place within the part on who came first.
#pragma once
#include "treadle_sparse_hash.h"
#include "treadle_sparse_take.h"

namespace treadle {

constexpr int MAX_FUNCTIONS = 8;

// Words of all parts, 0 for none: the slots that functions name, then those that are taken in turn. `taken` counts the
// latter, beyond `serial` too, by which the host sees what was not placed.
struct Memory {
    uint32_t *words, *taken;
    int32_t parts, slots, serial, functions;
    uint32_t seeds[1 + MAX_FUNCTIONS];

    TREADLE_BOTH int64_t part_words() const { return int64_t(slots) + serial; }
};

TREADLE_DEVICE void insert(const Memory &memory, uint32_t unit) {
    const uint32_t part = ranged(unit, memory.seeds[0], memory.parts), word = unit + 1;
    uint32_t *own = memory.words + part * memory.part_words();
    for (int i = 1; i <= memory.functions; ++i)
        if (take(own + ranged(unit, memory.seeds[i], memory.slots), word)) return;
    const uint32_t at = fetch_add(&memory.taken[part], 1);
    if (at < uint32_t(memory.serial)) own[memory.slots + at] = word;
}

}  // namespace treadle
