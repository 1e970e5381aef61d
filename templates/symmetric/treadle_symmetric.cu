// The kernels over symmetric memory and their launch. Buffers, heads included, belong to the caller, who clears them once
// before the first launch; a launch allocates nothing and waits for nothing.
#include <algorithm>

#include "treadle_host.h"
#include "treadle_symmetric.h"

namespace treadle {

template <class T>
TREADLE_KERNEL symmetric(TREADLE_TASK task) {
    TREADLE_SHARED(Visit, visit);
#ifndef __CUDACC__
    // In place of a stream: all launches of a rank are queued at once.
    const uint64_t *tickets = &head_of(task, task.rank).tickets.value;
    if (!spin(tickets, task, [&] { return *tickets >= task.launches * TICKETS; })) return;
#endif
    perform<T>(task, visit);
}

inline SymmetricKernel select(int dtype) {
    switch (dtype) {
        case BYTES:
        case FLOAT32: return symmetric<Float32>;
        case FLOAT16: return symmetric<Float16>;
        case BFLOAT16: return symmetric<Bfloat16>;
        case INT32: return symmetric<Int32>;
    }
    throw std::runtime_error("no kernel for this data type");
}

inline int64_t whole_words(int64_t bytes) { return (bytes + 15) / 16 * 16; }

// Cuts the caller's tensors into parts, and a launch into blocks: by sizes alone, so alike on all ranks.
inline void cut(Task &task) {
    const int64_t ranks = task.members.ranks;
    task.parts = task.method == ONE_SHOT || task.method == BROADCAST ? 1 : int32_t(ranks);
    if (task.method == TWO_SHOT) task.part = whole_words((task.bytes + ranks - 1) / ranks);
    else task.part = task.bytes / task.parts;
    task.stride = whole_words(task.part);
    if (task.stride * task.parts > task.half)
        throw std::runtime_error("found " + std::to_string(task.bytes) + " bytes, expected at most what half a buffer of " +
                                 std::to_string(task.half) + " bytes holds");
}

}  // namespace treadle

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }

TREADLE_API int treadle_head_bytes() { return sizeof(treadle::Head); }

// Starts one launch of one rank.
TREADLE_API int treadle_exchange(const treadle::Exchange *given, int dtype, int device, void *stream) {
    using namespace treadle;
    return guarded([&] {
        Task task{*given};
        if (task.members.ranks < 1 || task.members.ranks > MAX_MEMBERS)
            throw std::runtime_error("found " + std::to_string(task.members.ranks) + " ranks, expected 1 to " + std::to_string(MAX_MEMBERS));
        task.abort.word = &head_of(task, task.rank).abort;
        task.abort.late = abort_word(LATE, task.rank);
        cut(task);
        const int64_t words = task.stride / 16, most = *std::begin(platform::THREADS);
        const int threads = int(std::clamp<int64_t>((words + WARP - 1) / WARP * WARP, WARP, most));
        const int64_t blocks = task.blocks ? task.blocks : MAX_BLOCKS;
        task.blocks = int32_t(std::clamp<int64_t>((words + threads - 1) / threads, 1, std::min<int64_t>(blocks, MAX_BLOCKS)));
        // Blocks of one GPU do not wait for one another.
        platform::start(select(dtype), device, task.blocks, threads, task, stream, false);
    });
}

// Waits for all launches on a device; on fibers they run only now, in an order that `seed` chooses.
TREADLE_API int treadle_synchronise(int device, uint64_t seed) {
    return treadle::guarded([&] { treadle::platform::synchronise(device, seed); });
}
