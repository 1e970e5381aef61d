// The server's kernels on GPUs. A call queues its work on the stream of the caller, allocates nothing and waits for
// nothing.
#include <algorithm>

#include "treadle_host.h"
#include "treadle_server_device.h"

namespace treadle::kernels {

constexpr int BLOCK = platform::STREAMS ? 256 : 16;
constexpr int64_t MAX_BLOCKS = platform::STREAMS ? 2048 : 3;
inline thread_local uint32_t deadlock = 0;

inline void launch(ServerKernel kernel, const ServerCall &call, int64_t most) {
    Task task{call, factors(call.update)};
    task.abort.word = &deadlock;
    task.blocks = std::max<int64_t>(1, std::min(MAX_BLOCKS, (most + BLOCK - 1) / BLOCK));
    platform::start(kernel, task.device, int(task.blocks), BLOCK, task, task.stream, false);
    if (platform::STREAMS) return;
    platform::synchronise(task.device, task.order);
    if (deadlock) throw std::runtime_error("kernels wait for one another");
}

inline void step(const ServerCall &call) {
    const int64_t n = call.update.n;
    switch (call.update.optimizer) {
        case MEAN: return launch(step_mean, call, n);
        case SGD:
        case NESTEROV: return launch(step_sgd, call, n);
        case ADAM: return launch(step_moments, call, n);
        case LAMB: {
            const int64_t lanes = lanes_of(n, call.chunk);
            launch(step_moments, call, n);
            launch(add_rows, call, 2 * lanes);
            launch(fold_lanes, call, 2 * lanes / LANES);
            launch(add_leaves, call, 1);
            return launch(step_lamb, call, n);
        }
    }
    throw std::runtime_error("no optimizer of this number");
}

}  // namespace treadle::kernels

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }
TREADLE_API int64_t treadle_lanes(int64_t n, int64_t chunk) { return treadle::kernels::lanes_of(n, chunk); }
TREADLE_API int treadle_add(const treadle::kernels::ServerCall *call) {
    return treadle::guarded([&] { treadle::kernels::launch(treadle::kernels::add_gradient, *call, call->update.n); });
}
TREADLE_API int treadle_step(const treadle::kernels::ServerCall *call) {
    return treadle::guarded([&] { treadle::kernels::step(*call); });
}
TREADLE_API int treadle_narrow(const treadle::kernels::ServerCall *call) {
    return treadle::guarded([&] { treadle::kernels::launch(treadle::kernels::narrow, *call, call->update.n); });
}
