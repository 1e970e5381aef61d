// Chunks of the whole model, and where they lie in the buffers of both ends.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

#include "plan.h"
#include "treadle_server_kernels.h"

namespace treadle {

constexpr int64_t LINE = 64;

struct Chunk {
    int key, slot;
    int64_t elements, bytes;
    int64_t offset;   // in a worker's gradients, and in its values
    int64_t in_slot;  // in what a slot receives from one worker
};

struct Chunks {
    std::vector<Chunk> all;
    std::vector<size_t> first;                             // of each key; behind them the number of chunks
    std::vector<int64_t> key_offset;                       // where each key begins in a worker's buffers
    int64_t bytes = 0;                                     // of a worker's gradients
    std::vector<int64_t> slot_bytes, slot_chunks;          // of one worker

    Chunks() : slot_bytes(std::size(plan::SLOTS)), slot_chunks(std::size(plan::SLOTS)) {
        for (size_t key = 0; key < std::size(plan::KEYS); ++key) {
            const plan::Key &it = plan::KEYS[key];
            const int64_t width = it.type == kernels::FLOAT32 ? 4 : 2, most = plan::CHUNK_BYTES / width;
            first.push_back(all.size());
            key_offset.push_back(bytes);
            for (int64_t done = 0; done < it.elements; done += most) {
                const size_t slot = plan::PLACES[all.size()];
                const int64_t elements = it.elements - done < most ? it.elements - done : most;
                all.push_back({int(key), int(slot), elements, elements * width, bytes, slot_bytes[slot]});
                const int64_t padded = (elements * width + LINE - 1) / LINE * LINE;
                bytes += padded;
                slot_bytes[slot] += padded;
                ++slot_chunks[slot];
            }
        }
        first.push_back(all.size());
    }
};

}  // namespace treadle
