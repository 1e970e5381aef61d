// attention: kernels and stock NCCL calls, in order on one stream. Digest of schedule and sizes: ccfa60538b3d9683377900703a0605f9b16a231bd5b1e33cdad8f2cce6b6bfd8.
//
// from treadle.fusion import *
// 
// H, B, S = dims("H", "B", "S")
// w = Tensor("w", f16, [H, H], Sliced(0))
// x = Tensor("x", f16, [B, S, H], Sliced(2))
// b = Tensor("b", f16, [H], Replicated)
// r = Tensor("r", f16, [B, S, H], Replicated)
// layer = MatMul(x, w)
// rs = ReduceScatter("+", layer)
// d_s = Dropout(rs + b, p=0.1, key="attention.dropout")
// r_part = Slice(r)
// out_s = d_s + r_part
// ag_out = AllGather(out_s)
// fused_s = fuse("ComputationFuse", d_s, out_s)
// fused_allreduce = fuse("AllReduceFuse", rs, fused_s, ag_out)
// ol = overlap(layer, fused_allreduce)
// program = Execute("attention", [w, x, b, r], [ag_out])
//
// What stock NCCL cannot carry:
//   ol: layer, fused_allreduce run one after the other, not overlapped
//   fused_allreduce: AllReduceFuse is ReduceScatter, AllGather of NCCL, and a kernel for what is computed
//
// Tensors of each rank:
//   0: w, 256 f16, input
//   1: x, 256 f16, input
//   2: b, 32 f16, input
//   3: r, 1024 f16, input
//   4: layer, 1024 f16, temporary
//   5: rs, 256 f16, temporary
//   6: out_s, 256 f16, temporary
//   7: ag_out, 1024 f16, output
//
// nvcc -std=c++17 -shared -Xcompiler=-fPIC schedule.cu -lnccl
#include <nccl.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>

#include "treadle_random.h"
#include "treadle_reductions.h"
#include "treadle_gemm.h"

namespace treadle {

constexpr int RANKS = 4, WORLD = 4, BUFFERS = 8;
constexpr size_t ARENA_BYTES = 8320;

// layer: f16 MatMul of 32 x 8 x 32 a rank, tiles of 32 x 32.
namespace layer_product {
using Product = Gemm<f16, 32, 32>;
// By rank of the group.
TREADLE_TABLE int64_t ROWS[] = {32, 32, 32, 32};
TREADLE_TABLE int64_t COLUMNS[] = {32, 32, 32, 32};
TREADLE_TABLE int64_t DEPTH[] = {8, 8, 8, 8};
TREADLE_DEVICE Matrices<f16> matrices(const Task &task, int rank) {
    const int place = rank % 4;
    return {buffer<const f16>(task, rank, 1), buffer<const f16>(task, rank, 0),
            buffer<f16>(task, rank, 4), ROWS[place], COLUMNS[place], DEPTH[place]};
}
}  // namespace layer_product

TREADLE_KERNEL layer(TREADLE_TASK task) {
    using namespace layer_product;
    TREADLE_SHARED(Product::Shared, shared);
    gemm<Product>(task, shared, matrices(task, rank_of(task)));
}

// d_s, out_s of attention.
struct fused_allreduce_computed_elements {
    static constexpr int PACK = 8;  // elements that a thread takes at once

    // What is the same for all elements: where the tensors begin, and the scalars.
    struct Operands {
        f16 *b;
        f16 *r;
        f16 *rs;
        f16 *out_s;
        uint64_t seed, step;
    };

    static TREADLE_DEVICE Operands operands(const Task &task, int rank) {
        Operands at{};
        at.b = buffer<f16>(task, rank, 2);
        at.r = buffer<f16>(task, rank, 3);
        at.rs = buffer<f16>(task, rank, 5);
        at.out_s = buffer<f16>(task, rank, 6);
        at.seed = task.seed;
        at.step = task.step;
        return at;
    }

    template <int N>
    static TREADLE_DEVICE void apply([[maybe_unused]] const Operands &at, [[maybe_unused]] int64_t global,
                                       [[maybe_unused]] int64_t local) {
        const auto rs = load_user<f16, N>(at.rs + local);
        const auto b = repeat<f16, N, 32, 32>(at.b, global, local);
        const auto r = load_user<f16, N>(at.r + global);
        const auto d_s = op::dropout(op::add(rs, b), {at.seed, 0x1d314d25u, at.step, 0x19999999u}, global, 1.1111111111111112f);
        const auto out_s = op::add(d_s, r);
        store_user(at.out_s + local, out_s);
    }

    template <int N>
    static TREADLE_DEVICE void apply(const Task &task, int rank, int64_t global, int64_t local) {
        return apply<N>(operands(task, rank), global, local);
    }
};

// fused_allreduce_computed: d_s, out_s; 8 elements per thread and step
TREADLE_KERNEL fused_allreduce_computed(TREADLE_TASK task) {
    using Slice = BlockSlice<1, 1024, 1, 4>;
    const int rank = rank_of(task);
    const auto at = fused_allreduce_computed_elements::operands(task, rank);
    over_slice<Slice, fused_allreduce_computed_elements::PACK>(task, rank % 4, [&](auto n, int64_t global, int64_t local) {
        fused_allreduce_computed_elements::apply<n.value>(at, global, local);
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
    // layer: f16 MatMul of 32 x 8 x 32 a rank, tiles of 32 x 32
    launch(session, layer, 0, seed, step, stream);
    // rs: ReduceScatter(layer)
    require(ncclReduceScatter(session.tensor<f16>(4), session.tensor<f16>(5), 256, ncclFloat16, ncclSum, group, stream));
    // fused_allreduce_computed: d_s, out_s; 8 elements per thread and step
    launch(session, fused_allreduce_computed, 0, seed, step, stream);
    // ag_out: AllGather(out_s)
    require(ncclAllGather(session.tensor<f16>(6), session.tensor<f16>(7), 256, ncclFloat16, group, stream));
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

// The functions that others call. They return 0, or 1 and then say why in `attention_message`.
extern "C" {

const char *attention_message() { return treadle::message.c_str(); }

// `buffers`: the tensors of this rank, on its device, in the order given above. `world` has the ranks of all groups in
// their order, `group` those of this rank's own.
int attention_open(int rank, ncclComm_t group, ncclComm_t world, void *const *buffers, treadle::NcclSession **session) {
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
int attention_run(treadle::NcclSession *session, uint64_t seed, uint64_t step, cudaStream_t stream) {
    return treadle::guarded([&] { treadle::run(*session, seed, step, stream); });
}

void attention_close(treadle::NcclSession *session) {
    treadle::close(*session);
    delete session;
}

}  // extern "C"
