// Executes any program in one launch, step by step from a table. Compile with -DTREADLE_PROTOCOL=Simple, LL or LL128 and
// -DTREADLE_REDUCES=0 for programs that only move data, 1 for others.
#include "treadle_steps.h"

namespace treadle {

using Protocol = TREADLE_PROTOCOL;

template <class Reduce>
TREADLE_KERNEL kernel(TREADLE_LAUNCH launch) {
    TREADLE_SHARED(Block, block);
    execute<Reduce>(launch, block, [&] {
        const Step *steps = launch.steps + block.entry->first_step;
        for (int number = 0; number < block.entry->steps; ++number)
            perform<Reduce, Protocol>(launch, block, steps[number].flow, number, steps[number]);
    });
}

}  // namespace treadle

#include "treadle_driver.h"
