// The rings of an arena, each with one thread that puts entries and one that takes them, and the bells that wake these.
//
// The other end is another process: what it wrote is copied once and checked, and each end keeps its own count.
#pragma once

#include <cerrno>
#include <unistd.h>

#include "arena.h"
#include "frame.h"

namespace treadle {

// Wakes the thread that waits for this eventfd.
inline void ring_bell(int bell) {
    const uint64_t one = 1;
    while (write(bell, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

// Takes back what rang, so that the eventfd is quiet until the next time.
inline void quiet_bell(int bell) {
    uint64_t count;
    while (read(bell, &count, sizeof count) < 0 && errno == EINTR) {
    }
}

struct RingWriter {
    Ring *ring = nullptr;
    int bell = -1;  // of the reader
    uint64_t put = 0;
    bool urgent = false;

    uint64_t waiting() const { return put - ring->taken.load(std::memory_order_acquire); }
    bool full() const { return waiting() >= RING; }

    // Adds an entry where the ring is not full; what was written before is visible to its reader. Wakes nobody.
    void add(const Entry &entry) {
        ring->entries[put % RING] = entry;
        urgent |= entry.op == FAILED;
        ring->put.store(++put, std::memory_order_seq_cst);
    }

    // Behind the last entry of a batch. Both ends write one count and then look at the other one's, in one order of all
    // threads: either the reader sees the entry before it sleeps, or this sees that it sleeps.
    void wake() {
        const uint32_t until = ring->sleeps.load(std::memory_order_seq_cst);
        if (until == 0 || (int32_t(uint32_t(put) - until) < 0 && !urgent)) return;
        if (ring->sleeps.exchange(0, std::memory_order_seq_cst)) ring_bell(bell);
    }
};

struct RingReader {
    Ring *ring = nullptr;
    uint64_t taken = 0;

    // Entries that wait; more than RING where the other end is broken.
    uint64_t waiting() const { return ring->put.load(std::memory_order_acquire) - taken; }

    // The next entry, where one waits. It stays in the ring, with the memory that it names, until `drop`.
    Entry front() const { return ring->entries[taken % RING]; }
    void drop() { ring->taken.store(++taken, std::memory_order_release); }

    // Asks for the bell once `entries` have come; false where some are there already, and the bell may ring none the less.
    bool sleep(uint64_t entries = 1) {
        const uint32_t until = uint32_t(taken + (entries < RING / 2 ? entries : RING / 2));
        ring->sleeps.store(until ? until : UINT32_MAX, std::memory_order_seq_cst);
        if (ring->put.load(std::memory_order_seq_cst) == taken) return true;
        ring->sleeps.store(0, std::memory_order_relaxed);
        return false;
    }
    void awake() { ring->sleeps.store(0, std::memory_order_relaxed); }
};

}  // namespace treadle
