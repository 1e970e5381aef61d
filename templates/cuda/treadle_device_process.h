// The body for several processes: a rank is a process, a threadblock is an operating system's thread, a thread of it is
// all there is. Arenas are shared memory, so flags are atomics, and what the compiler and the processor may reorder is
// reordered here too; those of ranks on other hosts are reached through stand-ins (treadle_hosts.h). A line (LL128) is
// moved by the one thread where the caller has all of it, and is else refused when compiled.
#pragma once
#include <sched.h>

#include <cstring>

#include "treadle_hosts.h"

#define TREADLE_DEVICE inline
#define TREADLE_NOINLINE inline
#define TREADLE_BOTH
#define TREADLE_KERNEL void
#define TREADLE_LAUNCH const Launch &
#define TREADLE_TASK const Task &
#define TREADLE_TABLE static const
#define TREADLE_SHARED(type, name) static thread_local type name
#define TREADLE_UNROLL

namespace treadle {

constexpr int WARP = LINE_THREADS;
constexpr int MAX_THREADS = 1;
constexpr int UNROLL = 1;

using Kernel = void (*)(const Launch &);

namespace process {

inline thread_local int block = 0;
inline thread_local void *context = nullptr;
inline thread_local Hosts *hosts = nullptr;  // of the session that the thread works for, if it has ranks on others

// Random pauses, for tests: every thread has a pace of its own, so that some lag far behind. 0: none.
inline thread_local uint64_t delays = 0;
inline thread_local uint32_t pace = 0;

// splitmix64
inline uint64_t mixed(uint64_t &state) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

inline void delay() {
    if (!delays) return;
    const uint64_t dice = mixed(delays);
    if (dice % 64 < pace) sleep_ns(long(dice >> 32) % 200000);
}

// What a thread does before it runs a block; `salt` differs between the threads of all processes.
inline void begin(int index, uint64_t seed, uint64_t salt) {
    block = index;
    context = nullptr;
    delays = 0;
    if (!seed) return;
    uint64_t state = seed * 0x2545f4914f6cdd1du + salt;
    delays = mixed(state) | 1;
    pace = uint32_t(mixed(state) % 4 ? 1 : 24);
    delay();
}

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

}  // namespace process

TREADLE_DEVICE constexpr int thread() { return 0; }
TREADLE_DEVICE constexpr int threads() { return 1; }
TREADLE_DEVICE int block_index() { return process::block; }
TREADLE_DEVICE void *&block_context() { return process::context; }
TREADLE_DEVICE void barrier() {}
TREADLE_DEVICE void yield() { process::delay(); }

TREADLE_DEVICE uint64_t load_acquire_system(const uint64_t *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }
TREADLE_DEVICE uint64_t load_acquire_rank(const uint64_t *flag) { return __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

TREADLE_DEVICE void signal_rank(uint64_t *flag, uint64_t value) {
    process::delay();
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
    process::delay();
}
TREADLE_DEVICE void signal_system(uint64_t *flag, uint64_t value) {
    if (!process::hosts || !process::hosts->covers(flag)) return signal_rank(flag, value);
    process::delay();
    process::hosts->signal(flag, value);
}
TREADLE_DEVICE void deliver(const void *from, int64_t bytes, bool flagged) {
    if (process::hosts && bytes && process::hosts->covers(from)) process::hosts->deliver(from, bytes, flagged);
}

TREADLE_DEVICE uint64_t add_rank(uint64_t *counter, uint64_t by) {
    process::delay();
    return __atomic_fetch_add(counter, by, __ATOMIC_ACQ_REL);
}

TREADLE_DEVICE uint32_t compare_and_swap(uint32_t *word, uint32_t expected, uint32_t next) {
    process::delay();
    __atomic_compare_exchange_n(word, &expected, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
TREADLE_DEVICE uint32_t fetch_add(uint32_t *counter, uint32_t by) {
    process::delay();
    return __atomic_fetch_add(counter, by, __ATOMIC_RELAXED);
}
TREADLE_DEVICE void set_in(uint32_t *word, uint32_t these) { __atomic_fetch_or(word, these, __ATOMIC_RELAXED); }
TREADLE_DEVICE int ones_of(uint32_t word) { return __builtin_popcount(word); }

// Sets the abort words of this host, and has those of other hosts set.
inline void give_up(const Abort &abort) {
    set_abort(abort.word, abort.late);
    for (int i = 0; i < abort.count; ++i) set_abort(abort.others[i], abort.late);
    if (process::hosts) process::hosts->give_up(abort.late);
}

// Polls `test` until it holds, ever more rarely; false when the launch has been given up. There may be many more threads
// than cores, so whoever waits makes room for the others soon.
template <class Launch, class Test>
TREADLE_DEVICE bool spin(const void *, const Launch &launch, Test test) {
    constexpr int QUICK = 64, YIELDING = 256;
    constexpr long LONGEST_NS = 200000;
    process::delay();
    uint64_t since = 0;
    long sleeps = 2000;
    for (int turn = 0; !test(); ++turn) {
        if (turn < QUICK) {
            process::pause();
            continue;
        }
        if (__atomic_load_n(launch.abort.word, __ATOMIC_RELAXED)) return false;
        if (turn < YIELDING) {
            sched_yield();
            continue;
        }
        const uint64_t now = process::now_ns();
        if (!since) since = now;
        if (launch.timeout_ns && now - since > launch.timeout_ns) {
            give_up(launch.abort);
            return false;
        }
        process::sleep_ns(sleeps);
        if (sleeps < LONGEST_NS) sleeps *= 2;
    }
    return true;
}

TREADLE_DEVICE Word<16> load_slot(const char *from) { return *reinterpret_cast<const Word<16> *>(from); }
TREADLE_DEVICE void store_slot(char *to, Word<16> w) { *reinterpret_cast<Word<16> *>(to) = w; }

TREADLE_DEVICE void store_packet(char *to, uint32_t data, uint32_t flag) {
    __atomic_store_n(reinterpret_cast<uint64_t *>(to), uint64_t(flag) << 32 | data, __ATOMIC_RELAXED);
}

template <class Launch>
TREADLE_DEVICE bool load_packet(const Launch &launch, const char *from, uint32_t flag, uint32_t &data) {
    return spin(from, launch, [&] {
        const uint64_t packet = __atomic_load_n(reinterpret_cast<const uint64_t *>(from), __ATOMIC_RELAXED);
        data = uint32_t(packet);
        return uint32_t(packet >> 32) == flag;
    });
}

// A whole line: the thread stands for all eight; the word next to the last thread's data is the flag.
TREADLE_DEVICE void store_line(Line *line, uint64_t flag, uint64_t (&word)[LINE_THREADS][2]) {
    std::memcpy(line->word, word, LINE_DATA);
    signal_rank(&line->word[2 * LINE_THREADS - 1], flag);
}

template <class Launch>
TREADLE_DEVICE bool load_line(const Launch &launch, const Line *line, uint64_t flag, uint64_t (&word)[LINE_THREADS][2]) {
    const uint64_t *const last = &line->word[2 * LINE_THREADS - 1];
    if (!spin(last, launch, [&] { return load_acquire_system(last) == flag; })) return false;
    std::memcpy(word, line->word, LINE_DATA);
    return true;
}

template <class T>
constexpr bool LINES = false;

template <class T = void>
TREADLE_DEVICE void store_line(Line *, bool, int, uint64_t, uint64_t (&)[2]) {
    static_assert(LINES<T>, "LL128 needs eight threads in a block, processes have one");
}

template <class T = void>
TREADLE_DEVICE uint32_t ballot(bool) {
    static_assert(LINES<T>, "a warp votes, blocks of processes have one thread");
    return 0;
}

template <class T = void, class Launch>
TREADLE_DEVICE bool load_line(const Launch &, const Line *, bool, int, uint64_t, uint64_t (&)[2]) {
    static_assert(LINES<T>, "LL128 needs eight threads in a block, processes have one");
    return false;
}

}  // namespace treadle
