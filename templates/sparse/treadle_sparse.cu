// Sparse gradients on GPUs. A call queues its kernels on the stream of the caller, allocates nothing and waits for
// nothing.
#include <algorithm>

#include "treadle_host.h"
#include "treadle_sparse_kernels.h"

namespace treadle {

constexpr int BLOCK = platform::STREAMS ? 256 : 16;
constexpr int64_t MAX_BLOCKS = platform::STREAMS ? 2048 : 3;
inline thread_local uint32_t deadlock = 0;

// Launches a kernel whose threads take `most` pieces of work between them, in at most `limit` blocks.
inline void launch(SparseKernel kernel, const SparseCall &call, int64_t most, int64_t limit = MAX_BLOCKS) {
    Task task{call};
    task.abort.word = &deadlock;
    task.blocks = std::max<int64_t>(1, std::min(limit, (most + BLOCK - 1) / BLOCK));
    platform::start(kernel, task.device, int(task.blocks), BLOCK, task, task.stream, false);
    if (platform::STREAMS) return;
    platform::synchronise(task.device, task.order);
    if (deadlock) throw std::runtime_error("kernels wait for one another");
}

inline void count(const SparseCall &call) {
    launch(count_chunks, call, call.chunks * WARP);
    launch(count_before, call, BLOCK, 1);
}

inline void run(const SparseCall &call, int32_t step) {
    const int64_t runs = (call.count + run_of(call.width) - 1) / run_of(call.width);
    switch (step) {
        case 0: return launch(insert_listed, call, call.count);
        case 1: return launch(collect, call, runs * WARP);
        case 2: return count(call);
        case 3: return launch(place_chunks, call, call.chunks * WARP);
        case 4: return launch(gather, call, call.count * call.width);
        case 5: return launch(add_rows, call, call.count * call.width);
        case 6: return launch(sum_rows, call, call.count * call.width);
        case 7: return launch(write_rows, call, call.count * call.width);
    }
    throw std::runtime_error("no kernel of this number");
}

}  // namespace treadle

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }
TREADLE_API int64_t treadle_chunk() { return treadle::CHUNK; }
TREADLE_API int treadle_sparse(const treadle::SparseCall *call, int32_t step) {
    return treadle::guarded([&] { treadle::run(*call, step); });
}
