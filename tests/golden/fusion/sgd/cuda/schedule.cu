// sgd for N = 4096 on 4 ranks. Digest of schedule, sizes and choices: 5b8a7f019b4495ed0fce6b020186c2a44568fc830f5da2161688c15925a795d5.
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
// Launches, one after the other:
//   fused_allreduce: rs, p_s, ag_p; treadle_allreduce_4, LL
//     by all-pairs, LL, 16 channels
// Tensors of each rank:
//   0: g, 4096 f32, input
//   1: p, 4096 f32, state
//   2: lr, 1 f32, input
//
// nvcc compiles this for GPUs, g++ for fibers and, with -DTREADLE_PROCESS, for one process per rank.
#include "treadle_collective.h"
#include "treadle_random.h"
#include "treadle_reductions.h"
#include "treadle_buckets.h"

namespace treadle {

constexpr int RANKS = 4, BUFFERS = 3;
constexpr bool SENDS_LINES = false;
constexpr size_t ARENA_BYTES = 313472;

// p_s of sgd.
struct fused_allreduce_elements {
    static constexpr int PACK = 4;  // elements that a thread takes at once

    // What is the same for all elements: where the tensors begin, and the scalars.
    struct Operands {
        float *p;
        float lr;
    };

    static TREADLE_DEVICE Operands operands(const Task &task, int rank) {
        Operands at{};
        at.p = buffer<float>(task, rank, 1);
        at.lr = *buffer<float>(task, rank, 2);
        return at;
    }

    template <int N>
    static TREADLE_DEVICE Pack<float, N> apply([[maybe_unused]] const Operands &at, [[maybe_unused]] int64_t global,
                                       [[maybe_unused]] int64_t local, Pack<float, N> rs) {
        const auto p = load_user<float, N>(at.p + global);
        const auto p_s = op::sub(p, op::mul(at.lr, rs));
        return p_s;
    }

    template <int N>
    static TREADLE_DEVICE Pack<float, N> apply(const Task &task, int rank, int64_t global, int64_t local, Pack<float, N> value) {
        return apply<N>(operands(task, rank), global, local, value);
    }
};

// fused_allreduce: rs, p_s, ag_p; treadle_allreduce_4, LL
struct fused_allreduce_about {
    using In = float;
    using Out = float;
    using Finish = fused_allreduce_elements;
    using Join = Plus;
    using Slots = LLSlots;
    using Chunks = BlockChunks<4096, 1024, 16, 64, 64>;
    using Ready = Always;
    using Done = Always;
    static constexpr bool COMPUTES = true, TAKES = true, REDUCES = true;
    static constexpr int INPUT = 0, OUTPUT = 1;
    static constexpr bool INPUT_SLICED = false, OUTPUT_SLICED = false;
    static constexpr bool INPUT_SCATTERED = false, OUTPUT_SCATTERED = false;
    static constexpr int PACK = 2, RANKS = 4, BLOCKS = 80, STRIDE = 4, SLOTS = 8;
    static constexpr int64_t CHUNKS = 64;
    static constexpr int64_t OUTPUT_AT = -1;
    static constexpr int64_t LANES = 32896, INBOXES = 63616, STAGED = 309376;
    static constexpr int64_t CHUNK_BYTES = 640, SLOT_BYTES = 640, STAGE_BYTES = 256;
};

// Threadblocks, 80 for each rank: first move, moves, receives, sends; from rank, block, area; to rank, block, area.
TREADLE_TABLE Entry fused_allreduce_entries[] = {
    {0, 3, 2, 2, 1, 3, 0, 1, 0, 0},
    {3, 2, 2, 0, 2, 3, 16, -1, -1, -1},
    {5, 2, 2, 0, 3, 0, 32, -1, -1, -1},
    {7, 2, 0, 2, -1, -1, -1, 2, 0, 0},
    {9, 2, 0, 2, -1, -1, -1, 3, 0, 0},
    {11, 3, 2, 2, 1, 8, 1, 1, 5, 1},
    {14, 2, 2, 0, 2, 8, 17, -1, -1, -1},
    {16, 2, 2, 0, 3, 5, 33, -1, -1, -1},
    {18, 2, 0, 2, -1, -1, -1, 2, 5, 1},
    {20, 2, 0, 2, -1, -1, -1, 3, 5, 1},
    {22, 3, 2, 2, 1, 13, 2, 1, 10, 2},
    {25, 2, 2, 0, 2, 13, 18, -1, -1, -1},
    {27, 2, 2, 0, 3, 10, 34, -1, -1, -1},
    {29, 2, 0, 2, -1, -1, -1, 2, 10, 2},
    {31, 2, 0, 2, -1, -1, -1, 3, 10, 2},
    {33, 3, 2, 2, 1, 18, 3, 1, 15, 3},
    {36, 2, 2, 0, 2, 18, 19, -1, -1, -1},
    {38, 2, 2, 0, 3, 15, 35, -1, -1, -1},
    {40, 2, 0, 2, -1, -1, -1, 2, 15, 3},
    {42, 2, 0, 2, -1, -1, -1, 3, 15, 3},
    {44, 3, 2, 2, 1, 23, 4, 1, 20, 4},
    {47, 2, 2, 0, 2, 23, 20, -1, -1, -1},
    {49, 2, 2, 0, 3, 20, 36, -1, -1, -1},
    {51, 2, 0, 2, -1, -1, -1, 2, 20, 4},
    // 296 more rows, sha256 ebb64c0ff9177e64dca560439d0281d50c4ed376e2b779ce3ee0441c28594414
};

// flow, chunk, count; source, addend, target: space and number; awaited block and move; whether it is awaited.
TREADLE_TABLE Move fused_allreduce_moves[] = {
    {6, 16, 1, 1, 16, 0, 0, 0, 0, -1, -1, 0},  // rank 0, from 1, to 1
    {59, 0, 1, 0, 0, 3, 0, 2, 0, 1, 0, 1},
    {73, 16, 1, 0, 0, 0, 0, 2, 16, -1, -1, 0},
    {25, 0, 1, 0, 0, 3, 0, 3, 0, 2, 0, 1},  // rank 0, from 2
    {73, 32, 1, 0, 0, 0, 0, 2, 32, -1, -1, 0},
    {25, 0, 1, 0, 0, 1, 0, 3, 0, -1, -1, 1},  // rank 0, from 3
    {73, 48, 1, 0, 0, 0, 0, 2, 48, -1, -1, 0},
    {6, 32, 1, 1, 32, 0, 0, 0, 0, -1, -1, 0},  // rank 0, to 2
    {198, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 0},
    {6, 48, 1, 1, 48, 0, 0, 0, 0, -1, -1, 0},  // rank 0, to 3
    {198, 0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 0},
    {6, 17, 1, 1, 17, 0, 0, 0, 0, -1, -1, 0},  // rank 0, from 1, to 1
    {59, 1, 1, 0, 0, 3, 1, 2, 1, 6, 0, 1},
    {73, 17, 1, 0, 0, 0, 0, 2, 17, -1, -1, 0},
    {25, 1, 1, 0, 0, 3, 1, 3, 1, 7, 0, 1},  // rank 0, from 2
    {73, 33, 1, 0, 0, 0, 0, 2, 33, -1, -1, 0},
    {25, 1, 1, 0, 0, 1, 1, 3, 1, -1, -1, 1},  // rank 0, from 3
    {73, 49, 1, 0, 0, 0, 0, 2, 49, -1, -1, 0},
    {6, 33, 1, 1, 33, 0, 0, 0, 0, -1, -1, 0},  // rank 0, to 2
    {198, 1, 1, 2, 1, 0, 0, 0, 0, 5, 1, 0},
    {6, 49, 1, 1, 49, 0, 0, 0, 0, -1, -1, 0},  // rank 0, to 3
    {198, 1, 1, 2, 1, 0, 0, 0, 0, 5, 1, 0},
    {6, 18, 1, 1, 18, 0, 0, 0, 0, -1, -1, 0},  // rank 0, from 1, to 1
    {59, 2, 1, 0, 0, 3, 2, 2, 2, 11, 0, 1},
    // 680 more rows, sha256 e3acc45819072167093243544bbbf6d1ad5f8310b9f42b54986969e6a1d49a53
};

TREADLE_KERNEL fused_allreduce(TREADLE_TASK task) {
    TREADLE_SHARED(Lane, lane);
    Collective<fused_allreduce_about>::run(task, lane, fused_allreduce_entries, fused_allreduce_moves);
}

}  // namespace treadle

#include "treadle_fusion_entries.h"

namespace treadle {

// Name, kernel, threadblocks of a rank (0: any number), launch.
static const KernelEntry KERNELS[] = {
    {"fused_allreduce", TREADLE_ENTRY(fused_allreduce), 80, 0},
};

}  // namespace treadle

#include "treadle_fusion_driver.h"
