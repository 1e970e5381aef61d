// The CUDA body. Data is published by st.release after a block barrier and taken by ld.acquire before one, which orders
// the accesses of all threads of both blocks (PTX memory model: release and acquire patterns are cumulative). Scope sys
// reaches other GPUs, scope gpu the blocks of one rank.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define TREADLE_DEVICE __device__ __forceinline__
#define TREADLE_NOINLINE __device__ __noinline__
#define TREADLE_BOTH __host__ __device__
#define TREADLE_KERNEL __global__ void __launch_bounds__(MAX_THREADS, 1)
#define TREADLE_LAUNCH const __grid_constant__ Launch
#define TREADLE_TASK const __grid_constant__ Task
#define TREADLE_TABLE static __device__ const
#define TREADLE_SHARED(type, name) __shared__ type name
#define TREADLE_UNROLL _Pragma("unroll")

namespace treadle {

constexpr int WARP = 32;
constexpr int MAX_THREADS = 512;
constexpr int UNROLL = 4;

using Kernel = void (*)(const Launch);

TREADLE_DEVICE int thread() { return threadIdx.x; }
TREADLE_DEVICE int threads() { return blockDim.x; }
TREADLE_DEVICE int block_index() { return blockIdx.x; }
TREADLE_DEVICE void barrier() { __syncthreads(); }
TREADLE_DEVICE void yield() {}

TREADLE_DEVICE uint64_t load_acquire_system(const uint64_t *flag) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

TREADLE_DEVICE uint64_t load_acquire_rank(const uint64_t *flag) {
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
    return value;
}

TREADLE_DEVICE void deliver(const void *, int64_t, bool) {}
TREADLE_DEVICE void signal_system(uint64_t *flag, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

TREADLE_DEVICE void signal_rank(uint64_t *flag, uint64_t value) {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Adds to a counter of this rank; what it was before. Publishes what the block stored up to its last barrier, and takes
// what those before published.
TREADLE_DEVICE uint64_t add_rank(uint64_t *counter, uint64_t by) {
    uint64_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(counter), "l"(by) : "memory");
    return before;
}

// Atomic operations on 32 bits of this rank, which order nothing else; what was there before.
TREADLE_DEVICE uint32_t compare_and_swap(uint32_t *word, uint32_t expected, uint32_t next) { return atomicCAS(word, expected, next); }
TREADLE_DEVICE uint32_t fetch_add(uint32_t *counter, uint32_t by) { return atomicAdd(counter, by); }
TREADLE_DEVICE void set_in(uint32_t *word, uint32_t these) { atomicOr(word, these); }
TREADLE_DEVICE int ones_of(uint32_t word) { return __popc(word); }

// A bit of each thread of the warp, all of which call it together; the first thread's is the lowest.
TREADLE_DEVICE uint32_t ballot(bool vote) { return __ballot_sync(0xffffffff, vote); }

// Sets all abort words that are not set yet. No atomic operation: PCIe has none that the host takes part in.
TREADLE_DEVICE void give_up(const Abort &abort) {
    for (int i = -1; i < abort.count; ++i) {
        volatile uint32_t *word = i < 0 ? abort.word : abort.others[i];
        if (!*word) *word = abort.late;
    }
}

// True when this launch, which has `abort` and `timeout_ns`, has been given up. The clock and the abort word are read
// rarely, they are slow; a wait of that length also leaves the memory to others for a moment at each turn.
template <class Given>
TREADLE_DEVICE bool given_up(const Given &launch, uint32_t turn, uint64_t &since) {
    if (turn > 1024) __nanosleep(64);
    if (turn % 1024) return false;
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (!since) since = now;
    if (launch.timeout_ns && now - since > launch.timeout_ns) give_up(launch.abort);
    return *(volatile uint32_t *)launch.abort.word != 0;
}

// Polls `test` until it holds; false when the launch has been given up.
template <class Given, class Test>
TREADLE_DEVICE bool spin(const void *, const Given &launch, Test test) {
    uint64_t since = 0;
    for (uint32_t turn = 1; !test(); ++turn)
        if (given_up(launch, turn, since)) return false;
    return true;
}

TREADLE_DEVICE Word<16> load_slot(const char *from) {
    Word<16> w;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.part[0]), "=r"(w.part[1]), "=r"(w.part[2]), "=r"(w.part[3])
                 : "l"(from)
                 : "memory");
    return w;
}

TREADLE_DEVICE void store_slot(char *to, Word<16> w) { *(uint4 *)to = *(uint4 *)&w; }

TREADLE_DEVICE void store_packet(char *to, uint32_t data, uint32_t flag) {
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(data), "r"(flag) : "memory");
}

template <class Given>
TREADLE_DEVICE bool load_packet(const Given &launch, const char *from, uint32_t flag, uint32_t &data) {
    return spin(from, launch, [&] {
        uint32_t found;
        asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(data), "=r"(found) : "l"(from) : "memory");
        return found == flag;
    });
}

// Lines are moved by whole warps in step, so that the 128 bytes of a line travel in one transaction. `word` holds this
// thread's 16 bytes; of the last of the eight threads only the first half is data.
TREADLE_DEVICE void store_line(Line *line, bool active, int lane, uint64_t flag, uint64_t (&word)[2]) {
    uint64_t second = lane == LINE_THREADS - 1 ? flag : word[1];
    __syncwarp();
    if (active)
        asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(&line->word[2 * lane]), "l"(word[0]),
                     "l"(second)
                     : "memory");
}

template <class Given>
TREADLE_DEVICE bool load_line(const Given &launch, const Line *line, bool active, int lane, uint64_t flag,
                              uint64_t (&word)[2]) {
    const bool watches = active && lane == LINE_THREADS - 1;
    __syncwarp();
    uint64_t since = 0;
    for (uint32_t turn = 1;; ++turn) {
        if (active)
            asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                         : "=l"(word[0]), "=l"(word[1])
                         : "l"(&line->word[2 * lane])
                         : "memory");
        if (!__any_sync(0xffffffff, watches && word[1] != flag)) return true;
        if (__any_sync(0xffffffff, given_up(launch, turn, since))) return false;
    }
}

}  // namespace treadle
