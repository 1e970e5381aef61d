// attention for B = 2, H = 32, S = 16 on 4 ranks. Digest of schedule, sizes and choices: 8a0f2b5c16febafdb63c6b8182d58379f5df7e061286bc7e32d61fc874c21946.
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
// Launches, one after the other:
//   layer: f16 MatMul of 32 x 8 x 32 a rank, tiles of 32 x 32
//   and together with it fused_allreduce: rs, d_s, out_s, ag_out; treadle_allreduce_4, LL
//     by all-pairs, LL, 16 channels
// Tensors of each rank:
//   0: w, 256 f16, input
//   1: x, 256 f16, input
//   2: b, 32 f16, input
//   3: r, 1024 f16, input
//   4: layer, 1024 f16, temporary
//   5: ag_out, 1024 f16, output
//
// nvcc compiles this for GPUs, g++ for fibers and, with -DTREADLE_PROCESS, for one process per rank.
#include "schedule_tables.h"
#include "treadle_collective.h"
#include "treadle_random.h"
#include "treadle_reductions.h"
#include "treadle_buckets.h"
#include "treadle_gemm.h"

namespace treadle {

constexpr int RANKS = 4, BUFFERS = 6;
constexpr bool SENDS_LINES = false;
constexpr size_t ARENA_BYTES = 197376;

namespace layer_to_fused_allreduce_tables {
TREADLE_TABLE int32_t NEED[] = TABLE_1;  // 64 numbers
TREADLE_TABLE int32_t ROWS[] = {0};
TREADLE_TABLE int32_t STARTS[] = {0, 32};
TREADLE_TABLE int32_t FEEDS[] = TABLE_2;  // 32 numbers
}  // namespace layer_to_fused_allreduce_tables
struct layer_to_fused_allreduce {
    static constexpr int RANKS = 1;
    static constexpr int64_t AT = 65664, UNITS = 64;
    static TREADLE_DEVICE uint64_t need(int place, int64_t unit) { return layer_to_fused_allreduce_tables::NEED[place * UNITS + unit]; }
    static TREADLE_DEVICE Units feeds(int place, int64_t unit) {
        using namespace layer_to_fused_allreduce_tables;
        const int32_t *start = STARTS + ROWS[place] + unit;
        return {FEEDS + start[0], FEEDS + start[1]};
    }
};
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

namespace Order_tables {
TREADLE_TABLE int32_t FIRST[] = {0, 1, 2, 3, 4};
TREADLE_TABLE int32_t UNITS[] = {0, 0, 0, 0};
}  // namespace Order_tables
struct Order {
    static constexpr int RANKS = 4;
    static constexpr int64_t AT = 66176;
    static TREADLE_DEVICE int64_t count(int place) {
        return Order_tables::FIRST[place + 1] - Order_tables::FIRST[place];
    }
    static TREADLE_DEVICE int64_t unit(int place, int64_t turn) {
        return Order_tables::UNITS[Order_tables::FIRST[place] + turn];
    }
};
}  // namespace layer_product

TREADLE_KERNEL layer(TREADLE_TASK task) {
    using namespace layer_product;
    TREADLE_SHARED(Turns<Product>, shared);
    gemm<Product, Order, Always, treadle::Done<layer_to_fused_allreduce>>(task, shared, matrices(task, rank_of(task)));
}

// d_s, out_s of attention.
struct fused_allreduce_elements {
    static constexpr int PACK = 8;  // elements that a thread takes at once

    // What is the same for all elements: where the tensors begin, and the scalars.
    struct Operands {
        f16 *b;
        f16 *r;
        uint64_t seed, step;
    };

    static TREADLE_DEVICE Operands operands(const Task &task, int rank) {
        Operands at{};
        at.b = buffer<f16>(task, rank, 2);
        at.r = buffer<f16>(task, rank, 3);
        at.seed = task.seed;
        at.step = task.step;
        return at;
    }

    template <int N>
    static TREADLE_DEVICE Pack<f16, N> apply([[maybe_unused]] const Operands &at, [[maybe_unused]] int64_t global,
                                       [[maybe_unused]] int64_t local, Pack<f16, N> rs) {
        const auto b = repeat<f16, N, 32, 32>(at.b, global, local);
        const auto r = load_user<f16, N>(at.r + global);
        const auto d_s = op::dropout(op::add(rs, b), {at.seed, 0x1d314d25u, at.step, 0x19999999u}, global, 1.1111111111111112f);
        const auto out_s = op::add(d_s, r);
        return out_s;
    }

    template <int N>
    static TREADLE_DEVICE Pack<f16, N> apply(const Task &task, int rank, int64_t global, int64_t local, Pack<f16, N> value) {
        return apply<N>(operands(task, rank), global, local, value);
    }
};

// fused_allreduce: rs, d_s, out_s, ag_out; treadle_allreduce_4, LL
struct fused_allreduce_about {
    using In = f16;
    using Out = f16;
    using Finish = fused_allreduce_elements;
    using Join = Plus;
    using Slots = LLSlots;
    using Chunks = Rectangles<1024, 256, 16, 32, 1, 32, 32>;
    using Ready = treadle::Ready<layer_to_fused_allreduce>;
    using Done = Always;
    static constexpr bool COMPUTES = true, TAKES = true, REDUCES = true;
    static constexpr int INPUT = 4, OUTPUT = 5;
    static constexpr bool INPUT_SLICED = false, OUTPUT_SLICED = false;
    static constexpr bool INPUT_SCATTERED = false, OUTPUT_SCATTERED = false;
    static constexpr int PACK = 4, RANKS = 4, BLOCKS = 80, STRIDE = 4, SLOTS = 8;
    static constexpr int64_t CHUNKS = 64;
    static constexpr int64_t OUTPUT_AT = -1;
    static constexpr int64_t LANES = 66304, INBOXES = 97024, STAGED = 195328;
    static constexpr int64_t CHUNK_BYTES = 256, SLOT_BYTES = 256, STAGE_BYTES = 128;
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
    {"layer", TREADLE_ENTRY(layer), 0, 0},
    {"fused_allreduce", TREADLE_ENTRY(fused_allreduce), 80, 0},
};

}  // namespace treadle

#include "treadle_fusion_driver.h"
