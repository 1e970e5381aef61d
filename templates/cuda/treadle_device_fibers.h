// The host body: a thread is a fiber, a warp is the eight threads that move a line. Nothing runs at the same time, so
// what is tried here is every order of threads, blocks and ranks, not the memory model of a GPU.
#pragma once
#include <cstring>

#include "treadle_fibers.h"

#define TREADLE_DEVICE inline
#define TREADLE_NOINLINE inline
#define TREADLE_BOTH
#define TREADLE_KERNEL void
#define TREADLE_LAUNCH const Launch &
#define TREADLE_TASK const Task &
#define TREADLE_TABLE static const
#define TREADLE_SHARED(type, name) \
    static_assert(sizeof(type) <= sizeof(fibers::Block::shared)); \
    type &name = *reinterpret_cast<type *>(fibers::World::current->block->shared)
#define TREADLE_UNROLL

namespace treadle {

constexpr int WARP = LINE_THREADS;
constexpr int MAX_THREADS = 512;
constexpr int UNROLL = 1;

using Kernel = void (*)(const Launch &);

TREADLE_DEVICE int thread() { return fibers::World::current->thread; }
TREADLE_DEVICE int threads() { return fibers::World::current->block->threads; }
TREADLE_DEVICE int block_index() { return fibers::World::current->block->index; }
TREADLE_DEVICE void *&block_context() { return fibers::World::current->block->context; }
TREADLE_DEVICE void barrier() { fibers::World::world->barrier(); }
TREADLE_DEVICE void yield() { fibers::World::world->yield(); }

TREADLE_DEVICE uint64_t load_acquire_system(const uint64_t *flag) { return *flag; }
TREADLE_DEVICE uint64_t load_acquire_rank(const uint64_t *flag) { return *flag; }

TREADLE_DEVICE void deliver(const void *, int64_t, bool) {}
TREADLE_DEVICE void signal_system(uint64_t *flag, uint64_t value) {
    *flag = value;
    fibers::World::world->wake(flag);
    yield();
}
TREADLE_DEVICE void signal_rank(uint64_t *flag, uint64_t value) { signal_system(flag, value); }

TREADLE_DEVICE uint64_t add_rank(uint64_t *counter, uint64_t by) {
    const uint64_t before = *counter;
    signal_system(counter, before + by);
    return before;
}

// Others may run before each, so that what they do to the same word comes in any order.
TREADLE_DEVICE uint32_t compare_and_swap(uint32_t *word, uint32_t expected, uint32_t next) {
    yield();
    const uint32_t before = *word;
    if (before == expected) *word = next;
    return before;
}
TREADLE_DEVICE uint32_t fetch_add(uint32_t *counter, uint32_t by) {
    yield();
    const uint32_t before = *counter;
    *counter = before + by;
    return before;
}
TREADLE_DEVICE void set_in(uint32_t *word, uint32_t these) { *word |= these; }
TREADLE_DEVICE int ones_of(uint32_t word) { return __builtin_popcount(word); }

TREADLE_DEVICE uint32_t ballot(bool vote) {
    const int lane = thread() % WARP;
    fibers::World::current->block->lines[thread() / WARP].word[lane] = vote;
    const auto &all = fibers::World::world->together([](fibers::Line &shared) {
        shared.votes = 0;
        for (int i = 0; i < WARP; ++i) shared.votes |= uint32_t(shared.word[i]) << i;
    });
    return all.votes;
}

// Sleeps until `address` is stored to and `test` holds; false when the launch has been given up.
template <class Given, class Test>
TREADLE_DEVICE bool spin(const void *address, const Given &launch, Test test) {
    yield();
    while (!test()) {
        if (fibers::World::world->gave_up() || __atomic_load_n(launch.abort.word, __ATOMIC_RELAXED)) return false;
        fibers::World::world->sleep(address);
    }
    return true;
}

TREADLE_DEVICE Word<16> load_slot(const char *from) { return *reinterpret_cast<const Word<16> *>(from); }
TREADLE_DEVICE void store_slot(char *to, Word<16> w) { *reinterpret_cast<Word<16> *>(to) = w; }

TREADLE_DEVICE void store_packet(char *to, uint32_t data, uint32_t flag) {
    const uint32_t packet[2] = {data, flag};
    std::memcpy(to, packet, sizeof packet);
    fibers::World::world->wake(to);
}

template <class Given>
TREADLE_DEVICE bool load_packet(const Given &launch, const char *from, uint32_t flag, uint32_t &data) {
    return spin(from, launch, [&] {
        uint32_t packet[2];
        std::memcpy(packet, from, sizeof packet);
        data = packet[0];
        return packet[1] == flag;
    });
}

TREADLE_DEVICE void store_line(Line *line, bool active, int lane, uint64_t flag, uint64_t (&word)[2]) {
    auto &shared = fibers::World::current->block->lines[thread() / LINE_THREADS];
    shared.word[2 * lane] = word[0];
    shared.word[2 * lane + 1] = lane == LINE_THREADS - 1 ? flag : word[1];
    fibers::World::world->together([&](fibers::Line &all) {
        if (!active) return;
        std::memcpy(line->word, all.word, sizeof all.word);
        fibers::World::world->wake(line);
    });
    yield();
}

template <class Given>
TREADLE_DEVICE bool load_line(const Given &launch, const Line *line, bool active, int lane, uint64_t flag,
                              uint64_t (&word)[2]) {
    const auto &all = fibers::World::world->together([&](fibers::Line &shared) {
        if (!active) return;
        shared.good = spin(line, launch, [&] { return line->word[15] == flag; });
        std::memcpy(shared.word, line->word, sizeof shared.word);
    });
    word[0] = all.word[2 * lane];
    word[1] = all.word[2 * lane + 1];
    return all.good;
}

}  // namespace treadle
