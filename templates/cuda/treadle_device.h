// What kernels are written against: threads, barrier, yield; signal, add to and wait on growing counters; atomic
// operations and votes of a warp; loads and stores of slots, packets (LL) and lines (LL128). `deliver` follows stores to
// another rank's arena, before the signal: it matters where that rank is on another host. Three bodies: CUDA, host
// fibers with every thread of every block resident, and processes.
#pragma once
#include "treadle_types.h"

namespace treadle {

// N bytes that a thread moves at once.
template <int N>
struct alignas(N) Word {
    uint32_t part[N / 4];
};

// LL128: 120 bytes of data and 8 of flag; eight neighbouring threads move one line, 16 bytes each.
struct alignas(LINE) Line {
    uint64_t word[16];
};
constexpr int LINE_THREADS = 8;
constexpr int LINE_DATA = 120;

}  // namespace treadle

#ifdef __CUDACC__
#include "treadle_device_cuda.h"
#elif defined(TREADLE_PROCESS)
#include "treadle_device_process.h"
#else
#include "treadle_device_fibers.h"
#endif
