// What the kernels of a schedule share: their parameters, packs of elements, waits that are reported when they are in
// vain. Everything between ranks travels through arenas, which are zero when a session opens and whose counters only
// grow: so nothing is cleared between runs, and a flag of an earlier run is never taken for one of this run.
#pragma once
#include "treadle_reduce.h"

namespace treadle {

// The parameters of every kernel, by value.
struct Task {
    void *const *const *buffers;  // [rank][buffer]: tensors of the caller and temporaries; null for other processes' ranks
    char *const *arenas;          // [rank]: reports, then the slots, flags and counters of each kernel
    Abort abort;
    uint64_t timeout_ns;
    int32_t ranks, first_rank, blocks;  // ranks in all; first of this launch; threadblocks of one rank in this launch
    int32_t first_report;               // this kernel's part of the reports
    uint64_t epoch, seed, step;         // runs before this one; key and step of dropout
    const uint64_t *runs;               // counts the runs on the device instead, so that replays of a CUDA graph count
};
using FusedKernel = void (*)(TREADLE_TASK);

TREADLE_DEVICE int rank_of(const Task &task) { return task.first_rank + block_index() / task.blocks; }
TREADLE_DEVICE int block_of(const Task &task) { return block_index() % task.blocks; }

// Runs of the schedule before this one.
TREADLE_DEVICE uint64_t epoch_of(const Task &task) { return task.runs ? *task.runs : task.epoch; }

template <class T>
TREADLE_DEVICE T *buffer(const Task &task, int rank, int index) {
    return static_cast<T *>(task.buffers[rank][index]);
}

// What a block waits for, for the report; `peer` and `index` say more.
enum Awaited : int32_t { NO_WAIT, A_MESSAGE, ROOM, A_STEP, BLOCKS, TILES, PARTIAL_SUMS };

// The first wait of a block that timed out. An arena begins with what is counted and one report per kernel and block.
struct alignas(LINE) Report {
    int32_t awaited, peer;
    int64_t index;
    uint64_t expected, found;
};

struct alignas(LINE) Counts {
    uint64_t loaded, stored, loaded_bytes, stored_bytes;  // elements of tensors of the caller
    uint64_t sent, sent_on;                               // elements to ranks of the group, and of the next one
};

constexpr int REPORTED = 64;  // reports of one kernel and rank; further blocks share them

TREADLE_DEVICE Counts &counts_of(const Task &task, int rank) { return *reinterpret_cast<Counts *>(task.arenas[rank]); }
TREADLE_DEVICE Report &report_of(const Task &task, int rank) {
    return reinterpret_cast<Report *>(task.arenas[rank] + sizeof(Counts))[task.first_report + block_of(task) % REPORTED];
}

// Done by one thread of a block.
TREADLE_DEVICE void report(const Task &task, Awaited awaited, int peer, int64_t index, uint64_t expected, uint64_t found) {
    Report &report = report_of(task, rank_of(task));
    if (report.awaited != NO_WAIT) return;
    report.peer = peer;
    report.index = index;
    report.expected = expected;
    report.found = found;
    report.awaited = awaited;
}

// Waits until a counter in the arena of the calling rank has come to `value`. False when the run has been given up: then
// the block moves and signals nothing any more, but still comes to its end. Called by one thread, before a barrier.
TREADLE_DEVICE bool wait_system(const Task &task, const uint64_t *flag, uint64_t value, Awaited awaited, int peer,
                                int64_t index) {
    if (spin(flag, task, [&] { return load_acquire_system(flag) >= value; })) return true;
    report(task, awaited, peer, index, value, load_acquire_system(flag));
    return false;
}
// The same where blocks of the calling rank signal.
TREADLE_DEVICE bool wait_rank(const Task &task, const uint64_t *flag, uint64_t value, Awaited awaited, int peer,
                              int64_t index) {
    if (spin(flag, task, [&] { return load_acquire_rank(flag) >= value; })) return true;
    report(task, awaited, peer, index, value, load_acquire_rank(flag));
    return false;
}

// All threads of all blocks of a rank meet for the `meeting`-th time since the session opened, counted from 1. `counter`
// lies in the rank's arena. False when the run has been given up, for the first thread; the others do not know.
TREADLE_DEVICE bool meet(const Task &task, uint64_t *counter, uint64_t meeting) {
    barrier();
    bool good = true;
    if (thread() == 0) {
        add_rank(counter, 1);
        good = wait_rank(task, counter, meeting * task.blocks, BLOCKS, -1, int64_t(meeting));
    }
    barrier();
    return good;
}

// N elements that a thread moves at once.
template <class T, int N>
struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * (N & -N)) Pack {
    T value[N];
    TREADLE_BOTH T &operator[](int i) { return value[i]; }
    TREADLE_BOTH const T &operator[](int i) const { return value[i]; }
};

template <class T>
TREADLE_DEVICE bool aligned_to(const void *pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % alignof(T) == 0;
}

// N elements from `from` on, 16 bytes at once where they are aligned. They may be in a cache, as this kernel has loaded
// them before: they do not count as traffic. g++ joins a load that is aligned and one of the same bytes that is not into
// an aligned one, so that on the host neither is written.
template <class T, int N>
TREADLE_DEVICE Pack<T, N> load_again(const T *from) {
    Pack<T, N> pack;
#ifdef __CUDACC__
    if (aligned_to<Pack<T, N>>(from)) return *reinterpret_cast<const Pack<T, N> *>(from);
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) pack[i] = from[i];
#else
    memcpy(&pack, from, sizeof(T) * N);
#endif
    return pack;
}

template <class T, int N>
TREADLE_DEVICE void store_pack(T *to, const Pack<T, N> &pack) {
#ifdef __CUDACC__
    if (aligned_to<Pack<T, N>>(to)) {
        *reinterpret_cast<Pack<T, N> *>(to) = pack;
        return;
    }
    TREADLE_UNROLL
    for (int i = 0; i < N; ++i) to[i] = pack[i];
#else
    memcpy(to, &pack, sizeof(T) * N);
#endif
}

#ifdef TREADLE_COUNT
// On the host, where each block knows the counts of its rank.
TREADLE_DEVICE void count(uint64_t Counts::*elements, uint64_t Counts::*bytes, int n, int size) {
    Counts &counts = *static_cast<Counts *>(block_context());
    __atomic_fetch_add(&(counts.*elements), n, __ATOMIC_RELAXED);
    __atomic_fetch_add(&(counts.*bytes), n * size, __ATOMIC_RELAXED);
}
#endif

// N elements of a tensor of the caller from `from` on.
template <class T, int N>
TREADLE_DEVICE Pack<T, N> load_user(const T *from) {
#ifdef TREADLE_COUNT
    count(&Counts::loaded, &Counts::loaded_bytes, N, sizeof(T));
#endif
    return load_again<T, N>(from);
}

template <class T, int N>
TREADLE_DEVICE void store_user(T *to, const Pack<T, N> &pack) {
#ifdef TREADLE_COUNT
    count(&Counts::stored, &Counts::stored_bytes, N, sizeof(T));
#endif
    store_pack(to, pack);
}

}  // namespace treadle
