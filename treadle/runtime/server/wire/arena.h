// Memory that a worker and a server on one host share: a ring in each direction for every core, gradients and values.
//
// The worker makes it as a sealed memfd (it cannot shrink) and passes it on. Layout, each part at a multiple of 4096:
// Arena, one Rings for each core slot (of all servers in their order, where a worker has several), settings (for each
// slot two turns of `groups` * NUMBERS doubles), gradients, values. Both of these hold chunk c at chunk_offset[c], which
// both sides count alike: chunks in the order of their numbers, each at a multiple of 64 bytes.
#pragma once

#include <atomic>
#include <cstdint>

namespace treadle {

constexpr uint32_t ARENA_MAGIC = 0x41525354;  // "TSRA"
constexpr uint32_t RING = 1 << 12;            // entries, a power of two

struct Entry {
    uint32_t chunk;
    uint16_t op;  // as in frame.h
    uint16_t flags;
    uint64_t step;
};

struct Ring {
    alignas(64) std::atomic<uint64_t> put;    // entries so far
    alignas(64) std::atomic<uint64_t> taken;  // entries so far
    // 0, or the lowest bits of the count `put` at which the reader, which waits for its eventfd, is to be woken.
    alignas(64) std::atomic<uint32_t> sleeps;
    alignas(64) Entry entries[RING];
};

struct Rings {
    Ring to_server;
    Ring to_worker;
};

struct alignas(4096) Arena {
    uint32_t magic;
    uint32_t slots;
    uint32_t groups;
    uint32_t unused;
    uint64_t bytes;
    uint64_t settings, gradients, values;  // where these begin
    std::atomic<uint32_t> closed;          // the worker is done
};

}  // namespace treadle
