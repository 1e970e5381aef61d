// The transfers of a plan behind functions of C. They return 0, or 1 and then say why in `treadle_message`.
//
// nvcc -std=c++17 -shared -Xcompiler=-fPIC treadle_checkpoint.cu -lnccl
#include <memory>

#include "treadle_transfers.h"

namespace treadle {

thread_local std::string message;

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

using treadle::guarded;
using treadle::Transfers;

extern "C" {

const char *treadle_message() { return treadle::message.c_str(); }

// The arguments are those of `Transfers`; `communicator` has all ranks, those of a machine one after another.
int treadle_transfers_open(int rank, ncclComm_t communicator, cudaStream_t queue, Transfers **made) {
    return guarded([&] { *made = std::make_unique<Transfers>(rank, communicator, queue).release(); });
}
int treadle_transfers_pin(Transfers *transfers, void *memory, size_t bytes) {
    return guarded([&] { transfers->pin(memory, bytes); });
}
int treadle_transfers_unpin(Transfers *transfers) {
    return guarded([&] { transfers->unpin(); });
}
int treadle_transfers_begin(Transfers *transfers, const treadle::Segment *segments, int count, char *const *memory, cudaStream_t training) {
    return guarded([&] { transfers->begin(segments, count, memory, training); });
}
int treadle_transfers_release(Transfers *transfers, int span) {
    return guarded([&] { transfers->release(span); });
}
int treadle_transfers_message(Transfers *transfers, int number) {
    return guarded([&] { transfers->message(number); });
}
int treadle_transfers_drain(Transfers *transfers, cudaStream_t training) {
    return guarded([&] { transfers->drain(training); });
}
int treadle_transfers_wait(Transfers *transfers) {
    return guarded([&] { transfers->wait(); });
}
void treadle_transfers_close(Transfers *transfers) { delete transfers; }

}  // extern "C"
