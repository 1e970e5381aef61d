// fused_allreduce: rs, d_s, out_s, ag_out, of attention: one kernel on NCCL's device API. Digest of schedule and sizes: ccfa60538b3d9683377900703a0605f9b16a231bd5b1e33cdad8f2cce6b6bfd8.
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
// Tensors of each rank:
//   0: w, 256 f16, input
//   1: x, 256 f16, input
//   2: b, 32 f16, input
//   3: r, 1024 f16, input
//   4: layer, 1024 f16, temporary; in symmetric memory
//   5: ag_out, 1024 f16, output; in symmetric memory
//
// nvcc -std=c++17 -shared -Xcompiler=-fPIC schedule.cu -lnccl
#include <nccl.h>
#include <nccl_device.h>

#include "treadle_collective.h"
#include "treadle_random.h"
#include "treadle_slices.h"

namespace treadle {

constexpr int RANKS = 4, THREADBLOCKS = 32;

// A tensor in symmetric memory: rank `peer` has it at the same place of its window.
struct Symmetric {
    ncclWindow_t window;
    size_t offset;

    template <class T>
    TREADLE_DEVICE T *of(int peer) const {
        return static_cast<T *>(ncclGetLsaPointer(window, offset, peer));
    }
};

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

// fused_allreduce: rs, d_s, out_s, ag_out
__global__ void __launch_bounds__(MAX_THREADS, 1)
fused_allreduce(const __grid_constant__ ncclDevComm comm, Symmetric input, Symmetric output, TREADLE_TASK task) {
    using Slice = BlockSlice<1, 1024, 1, 4>;
    using Finish = fused_allreduce_elements;
    const int rank = comm.lsaRank;
    const auto at = Finish::operands(task, rank);
    ncclLsaBarrierSession<ncclCoopCta> ranks(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
    ranks.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all inputs are there, all have read what lay in the outputs
    over_slice<Slice, 8>(task, rank, [&](auto n, int64_t global, int64_t local) {
        Pack<f16, n.value> parts[RANKS];
        TREADLE_UNROLL
        for (int peer = 0; peer < RANKS; ++peer)
            parts[peer] = load_user<f16, n.value>(input.of<const f16>(peer) + global);
        TREADLE_UNROLL
        for (int peer = 1; peer < RANKS; ++peer) parts[0] = Plus::join(parts[0], parts[peer]);
        const auto result = Finish::apply<n.value>(at, global, local, parts[0]);
        TREADLE_UNROLL
        for (int peer = 0; peer < RANKS; ++peer) store_user(output.of<f16>(peer) + global, result);
    });
    ranks.sync(ncclCoopCta(), cuda::memory_order_acq_rel);  // all results are there
}

}  // namespace treadle

extern "C" {

// What ncclDevCommCreate needs for it.
ncclDevCommRequirements fused_allreduce_requirements() {
    ncclDevCommRequirements requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    requirements.lsaBarrierCount = treadle::THREADBLOCKS;
    return requirements;
}

// Queues one run on the device of `comm`. `rows`, on the device, has the tensors of each rank in the order given above, of
// which it reads those of this one; those in symmetric memory are registered by ncclCommWindowRegister.
ncclResult_t fused_allreduce_run(const ncclDevComm *comm, treadle::Symmetric input, treadle::Symmetric output, void *const *const *rows,
                            uint64_t seed, uint64_t step, cudaStream_t stream) {
    if (comm->lsaSize != treadle::RANKS || comm->nRanks != treadle::RANKS) return ncclInvalidUsage;
    treadle::Task task{};
    task.buffers = rows;
    task.ranks = treadle::RANKS;
    task.first_rank = comm->lsaRank;
    task.blocks = treadle::THREADBLOCKS;
    task.seed = seed;
    task.step = step;
    treadle::fused_allreduce<<<treadle::THREADBLOCKS, treadle::MAX_THREADS, 0, stream>>>(*comm, input, output, task);
    return cudaGetLastError() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // extern "C"
