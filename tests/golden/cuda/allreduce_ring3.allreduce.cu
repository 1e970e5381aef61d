// treadle_allreduce_3: allreduce of 3 ranks, out of place. The steps of every threadblock, one after the other.
// Compile with -DTREADLE_REDUCES=1.
#include "treadle_steps.h"

namespace treadle {

using Protocol = Simple;

// gpu 0 tb 0: receives from gpu 2 tb 0 and sends to gpu 1 tb 0
template <class Reduce>
TREADLE_DEVICE void gpu_0_tb_0([[maybe_unused]] const Launch &launch, [[maybe_unused]] Block &block) {
    step<Reduce, Protocol, S>(launch, block, 0, {INPUT, 0}, {}, 1, UNAWAITED);
    step<Reduce, Protocol, RRS>(launch, block, 1, {INPUT, 2}, {}, 1, UNAWAITED);
    step<Reduce, Protocol, RRCS>(launch, block, 2, {INPUT, 1}, {OUTPUT, 1}, 1, UNAWAITED);
    step<Reduce, Protocol, RCS>(launch, block, 3, {}, {OUTPUT, 0}, 1, UNAWAITED);
    step<Reduce, Protocol, R>(launch, block, 4, {}, {OUTPUT, 2}, 1, UNAWAITED);
}

// gpu 1 tb 0: receives from gpu 0 tb 0 and sends to gpu 2 tb 0
template <class Reduce>
TREADLE_DEVICE void gpu_1_tb_0([[maybe_unused]] const Launch &launch, [[maybe_unused]] Block &block) {
    step<Reduce, Protocol, S>(launch, block, 0, {INPUT, 1}, {}, 1, UNAWAITED);
    step<Reduce, Protocol, RRS>(launch, block, 1, {INPUT, 0}, {}, 1, UNAWAITED);
    step<Reduce, Protocol, RRCS>(launch, block, 2, {INPUT, 2}, {OUTPUT, 2}, 1, UNAWAITED);
    step<Reduce, Protocol, RCS>(launch, block, 3, {}, {OUTPUT, 1}, 1, UNAWAITED);
    step<Reduce, Protocol, R>(launch, block, 4, {}, {OUTPUT, 0}, 1, UNAWAITED);
}

// gpu 2 tb 0: receives from gpu 1 tb 0 and sends to gpu 0 tb 0
template <class Reduce>
TREADLE_DEVICE void gpu_2_tb_0([[maybe_unused]] const Launch &launch, [[maybe_unused]] Block &block) {
    step<Reduce, Protocol, S>(launch, block, 0, {INPUT, 2}, {}, 1, UNAWAITED);
    step<Reduce, Protocol, RRS>(launch, block, 1, {INPUT, 1}, {}, 1, UNAWAITED);
    step<Reduce, Protocol, RRCS>(launch, block, 2, {INPUT, 0}, {OUTPUT, 0}, 1, UNAWAITED);
    step<Reduce, Protocol, RCS>(launch, block, 3, {}, {OUTPUT, 2}, 1, UNAWAITED);
    step<Reduce, Protocol, R>(launch, block, 4, {}, {OUTPUT, 1}, 1, UNAWAITED);
}

template <class Reduce>
TREADLE_KERNEL kernel(TREADLE_LAUNCH launch) {
    TREADLE_SHARED(Block, block);
    execute<Reduce>(launch, block, [&] {
        switch (launch.first_block + block_index()) {
            case 0: return gpu_0_tb_0<Reduce>(launch, block);
            case 1: return gpu_1_tb_0<Reduce>(launch, block);
            case 2: return gpu_2_tb_0<Reduce>(launch, block);
        }
    });
}

}  // namespace treadle

#include "treadle_driver.h"
