// sgd: kernels and stock NCCL calls, in order on one stream. Digest of schedule and sizes: 774f020b616848f0bececfee22bfe36d2cafc1e23fa75150c5833b71618f52fe.
//
// from treadle.fusion import *
// 
// N = dims("N")
// g = Tensor("g", f32, [N], Local)
// p = Tensor("p", f32, [N], Replicated)
// lr = Scalars("lr", f32)
// rs = ReduceScatter("+", g)
// p_part = Slice(p)
// p_s = Update(p, p_part - lr * rs)
// ag_p = AllGather(p_s)
// fused_allreduce = fuse("AllReduceFuse", rs, p_s, ag_p)
// program = Execute("sgd", [g, p, lr], [ag_p])
//
// What stock NCCL cannot carry:
//   fused_allreduce: AllReduceFuse is ReduceScatter, AllGather of NCCL, and a kernel for what is computed
//
// Tensors of each rank:
//   0: g, 4096 f32, input
//   1: p, 4096 f32, state
//   2: lr, 1 f32, input
//   3: rs, 1024 f32, temporary
//
// nvcc -std=c++17 -shared -Xcompiler=-fPIC schedule.cu -lnccl
#include <nccl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "treadle_random.h"
#include "treadle_reductions.h"

namespace treadle {

constexpr int RANKS = 4, WORLD = 4, BUFFERS = 4;
constexpr size_t ARENA_BYTES = 8320;

// p_s of sgd.
struct p_s_elements {
    static constexpr int PACK = 4;  // elements that a thread takes at once

    // What is the same for all elements: where the tensors begin, and the scalars.
    struct Operands {
        float *p;
        float *rs;
        float lr;
    };

    static TREADLE_DEVICE Operands operands(const Task &task, int rank) {
        Operands at{};
        at.p = buffer<float>(task, rank, 1);
        at.rs = buffer<float>(task, rank, 3);
        at.lr = *buffer<float>(task, rank, 2);
        return at;
    }

    template <int N>
    static TREADLE_DEVICE void apply([[maybe_unused]] const Operands &at, [[maybe_unused]] int64_t global,
                                       [[maybe_unused]] int64_t local) {
        const auto rs = load_user<float, N>(at.rs + local);
        const auto p = load_user<float, N>(at.p + global);
        const auto p_s = op::sub(p, op::mul(at.lr, rs));
        store_user(at.p + global, p_s);
    }

    template <int N>
    static TREADLE_DEVICE void apply(const Task &task, int rank, int64_t global, int64_t local) {
        return apply<N>(operands(task, rank), global, local);
    }
};

// p_s: p_s; 4 elements per thread and step
TREADLE_KERNEL p_s(TREADLE_TASK task) {
    using Slice = BlockSlice<1, 4096, 1, 4>;
    const int rank = rank_of(task);
    const auto at = p_s_elements::operands(task, rank);
    over_slice<Slice, p_s_elements::PACK>(task, rank % 4, [&](auto n, int64_t global, int64_t local) {
        p_s_elements::apply<n.value>(at, global, local);
    });
}

// What lasts from run to run: the tables that kernels read on the device, and an arena for their totals.
struct NcclSession {
    int rank, place;  // in all groups, and in its own
    ncclComm_t group, world;
    void *buffers[BUFFERS];
    char *arena = nullptr;
    void **cells = nullptr, ***rows = nullptr;
    char **arenas = nullptr;
    uint32_t *abort = nullptr;
    int threads = MAX_THREADS, processors = 1;
    uint64_t epoch = 0;

    template <class T>
    T *tensor(int index) const {
        return static_cast<T *>(buffers[index]);
    }
    // Elements of this rank's part of `size`.
    int64_t elements(int64_t size, int64_t part) const {
        return std::max<int64_t>(0, std::min(size, (place + 1) * part) - place * part);
    }
};

thread_local std::string message;

inline void require(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
inline void require(ncclResult_t status) {
    if (status != ncclSuccess) throw std::runtime_error(ncclGetErrorString(status));
}

inline void launch(const NcclSession &session, void (*kernel)(const Task), int blocks, uint64_t seed, uint64_t step, cudaStream_t stream) {
    Task task{};
    task.buffers = session.rows;
    task.arenas = session.arenas;
    task.abort = {session.abort, nullptr, 0, abort_word(LATE, session.rank)};
    task.ranks = WORLD;
    task.first_rank = session.rank;
    task.blocks = blocks ? blocks : 4 * session.processors;
    task.epoch = session.epoch;
    task.seed = seed;
    task.step = step;
    kernel<<<task.blocks, session.threads, 0, stream>>>(task);
    require(cudaGetLastError());
}

inline void run(NcclSession &session, uint64_t seed, uint64_t step, cudaStream_t stream) {
    [[maybe_unused]] const ncclComm_t group = session.group, world = session.world;
    // rs: ReduceScatter(g)
    require(ncclReduceScatter(session.tensor<float>(0), session.tensor<float>(3), 1024, ncclFloat32, ncclSum, group, stream));
    // p_s: p_s; 4 elements per thread and step
    launch(session, p_s, 0, seed, step, stream);
    // ag_p: AllGather(p_s), in place
    require(ncclAllGather(session.tensor<float>(1) + session.place * int64_t(1024), session.tensor<float>(1), 1024, ncclFloat32, group, stream));
    ++session.epoch;
}

inline void open(NcclSession &session, void *const *buffers) {
    std::copy(buffers, buffers + BUFFERS, session.buffers);
    int device;
    require(cudaGetDevice(&device));
    require(cudaDeviceGetAttribute(&session.processors, cudaDevAttrMultiProcessorCount, device));
    require(cudaMalloc(&session.arena, ARENA_BYTES));
    require(cudaMemset(session.arena, 0, ARENA_BYTES));
    require(cudaMalloc(&session.cells, sizeof session.buffers));
    require(cudaMemcpy(session.cells, buffers, sizeof session.buffers, cudaMemcpyDefault));
    require(cudaMalloc(&session.rows, WORLD * sizeof(void **)));
    require(cudaMemcpy(session.rows + session.rank, &session.cells, sizeof(void **), cudaMemcpyDefault));
    require(cudaMalloc(&session.arenas, WORLD * sizeof(char *)));
    require(cudaMemcpy(session.arenas + session.rank, &session.arena, sizeof(char *), cudaMemcpyDefault));
    require(cudaMalloc(&session.abort, sizeof(uint32_t)));
    require(cudaMemset(session.abort, 0, sizeof(uint32_t)));
}

inline void close(NcclSession &session) {
    for (void *memory : {(void *)session.arena, (void *)session.cells, (void *)session.rows, (void *)session.arenas, (void *)session.abort})
        cudaFree(memory);
}

template <class Action>
int guarded(Action action) {
    try {
        action();
        return 0;
    } catch (const std::exception &error) {
        message = error.what();
        return 1;
    }
}

}  // namespace treadle

// The functions that others call. They return 0, or 1 and then say why in `sgd_message`.
extern "C" {

const char *sgd_message() { return treadle::message.c_str(); }

// `buffers`: the tensors of this rank, on its device, in the order given above. `world` has the ranks of all groups in
// their order, `group` those of this rank's own.
int sgd_open(int rank, ncclComm_t group, ncclComm_t world, void *const *buffers, treadle::NcclSession **session) {
    return treadle::guarded([&] {
        auto made = std::make_unique<treadle::NcclSession>();
        made->rank = rank;
        made->place = rank % treadle::RANKS;
        made->group = group;
        made->world = world;
        treadle::open(*made, buffers);
        *session = made.release();
    });
}

// Queues one run. Returns before it has ended.
int sgd_run(treadle::NcclSession *session, uint64_t seed, uint64_t step, cudaStream_t stream) {
    return treadle::guarded([&] { treadle::run(*session, seed, step, stream); });
}

void sgd_close(treadle::NcclSession *session) {
    treadle::close(*session);
    delete session;
}

}  // extern "C"
