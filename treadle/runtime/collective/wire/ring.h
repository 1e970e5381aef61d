// Rings of bytes in memory that the ranks of one host share: one for each ordered pair of them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace treadle {

constexpr uint64_t LINE = 64;  // of a cache; records in a ring start at its multiples
constexpr uint64_t LARGEST_RING = 512 << 10, SMALLEST_RING = 16 << 10;
constexpr uint64_t BOARD_BYTES = 64 << 20;  // about what all rings of a host may take

// Both counts only grow.
struct Counts {
    alignas(LINE) std::atomic<uint64_t> written;
    alignas(LINE) std::atomic<uint64_t> read;
    std::atomic<uint32_t> full;  // the writer waits for room
};

// One writer, one reader.
struct Ring {
    Counts *counts = nullptr;
    char *data = nullptr;
    uint64_t bytes = 0;  // a power of two

    explicit operator bool() const { return counts; }
    uint64_t written() const { return counts->written.load(std::memory_order_relaxed); }
    uint64_t read() const { return counts->read.load(std::memory_order_relaxed); }
    uint64_t room() const { return bytes - (written() - counts->read.load(std::memory_order_acquire)); }
    uint64_t filled() const { return counts->written.load(std::memory_order_acquire) - read(); }
};

struct Bed {
    alignas(LINE) std::atomic<uint32_t> asleep;
};

// All zeros at first: a bed for each of `ranks` ranks, then by writer and reader the counts, then the data of rings.
struct Board {
    char *memory;
    uint64_t ranks;

    static uint64_t ring_bytes(uint64_t ranks) {
        uint64_t bytes = LARGEST_RING;
        while (bytes > SMALLEST_RING && ranks * ranks * bytes > BOARD_BYTES) bytes /= 2;
        return bytes;
    }
    static uint64_t bytes(uint64_t ranks) { return ranks * sizeof(Bed) + ranks * ranks * (sizeof(Counts) + ring_bytes(ranks)); }

    std::atomic<uint32_t> &asleep(int rank) const { return reinterpret_cast<Bed *>(memory)[rank].asleep; }
    Ring ring(int writer, int reader) const {
        const uint64_t place = uint64_t(writer) * ranks + uint64_t(reader), each = ring_bytes(ranks);
        char *const counts = memory + ranks * sizeof(Bed), *const data = counts + ranks * ranks * sizeof(Counts);
        return {reinterpret_cast<Counts *>(counts) + place, data + place * each, each};
    }
};

}  // namespace treadle
