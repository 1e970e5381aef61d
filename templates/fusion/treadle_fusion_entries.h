// The table of the kernels of a schedule.
#pragma once
#include "treadle_fusion.h"

namespace treadle {

// One kernel of a schedule; neighbours of the same `launch` run at the same time. `blocks` of a rank, 0 for any number.
struct KernelEntry {
    const char *name;
    FusedKernel kernel;
    int blocks, launch;
};

#ifdef TREADLE_COUNT
template <FusedKernel KERNEL>
void counted(TREADLE_TASK task) {
    block_context() = &counts_of(task, rank_of(task));
    KERNEL(task);
}
#define TREADLE_ENTRY(kernel) counted<kernel>
#else
#define TREADLE_ENTRY(kernel) kernel
#endif

}  // namespace treadle
