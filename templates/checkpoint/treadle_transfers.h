// Copies of a state on their route from GPU to GPU to host memory, in the order of a plan: "GEMINI: Fast Failure
// Recovery in Distributed Training with In-Memory Checkpoints", sections on chunked transfers and sub-buffers.
//
// `queue` is the stream on which the training queues its collectives, and `communicator` theirs, so that pieces run
// between two messages and never next to one. Received pieces go on to pinned host memory from their buffer, on a stream
// of their own: a buffer is filled again once its copy has ended. Nothing here waits on the host but `Transfers::wait`.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "checkpoint_plan.h"
#include "treadle_nccl.h"

namespace treadle {

inline void require(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
inline void require(ncclResult_t status) {
    if (status != ncclSuccess) throw std::runtime_error(ncclGetErrorString(status));
}

// A part of the state where it lies in device memory; together they are the state.
struct Segment {
    char *data;
    size_t bytes;
};

struct Event {
    cudaEvent_t event = nullptr;
    void make() { require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
    ~Event() {
        if (event) cudaEventDestroy(event);
    }
};

class Transfers {
   public:
    Transfers(int rank, ncclComm_t communicator, cudaStream_t queue)
        : machine(rank / DEVICES), device(rank % DEVICES), communicator(communicator), queue(queue) {
        if (rank < 0 || rank >= MACHINES * DEVICES) throw std::runtime_error("found rank " + std::to_string(rank) + " of " + std::to_string(MACHINES * DEVICES));
        try {
            allocate();
        } catch (...) {
            release_all();
            throw;
        }
    }
    Transfers(const Transfers &) = delete;
    ~Transfers() { release_all(); }

    // Memory of the host into which states are copied; as long as this lives it stays in its place.
    void pin(void *memory, size_t bytes) {
        const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
        if (status == cudaErrorHostMemoryAlreadyRegistered) {
            cudaGetLastError();
            return;
        }
        require(status);
        pinned.push_back(memory);
    }

    void unpin() {
        require(cudaStreamSynchronize(copies));
        for (void *memory : pinned) cudaHostUnregister(memory);
        pinned.clear();
    }

    // Starts a version: the state in `segments` as `training`, the stream of the updates, has made it by now. `memory`:
    // for each round STATE_BYTES of pinned memory, which nothing reads before `wait`.
    void begin(const Segment *segments, int count, char *const *memory, cudaStream_t training) {
        state.assign(segments, segments + count);
        size_t bytes = 0;
        for (const Segment &segment : state) bytes += segment.bytes;
        if (bytes != STATE_BYTES) throw std::runtime_error("found a state of " + std::to_string(bytes) + " bytes, expected " + std::to_string(STATE_BYTES));
        std::copy(memory, memory + COPIES, host);
        piece = own = 0;
        require(cudaEventRecord(ready.event, training));
        require(cudaStreamWaitEvent(queue, ready.event, 0));
    }

    // Queues the pieces of all spans up to `span`; called when the message before it has been queued.
    void release(int span) {
        for (; PIECES[piece].span <= span && PIECES[piece].bytes; ++piece) send(PIECES[piece]);
    }

    // Copies to the own host while message `number` runs, MESSAGES: after the last; called when it is next in the queue.
    void message(int number) {
        if (!OWN[own].bytes || OWN[own].message > number) return;
        require(cudaEventRecord(turn.event, queue));
        require(cudaStreamWaitEvent(copies, turn.event, 0));
        for (; OWN[own].message <= number && OWN[own].bytes; ++own) copy_own(OWN[own]);
    }

    // Queues what is left; `training` goes on, to the update, when all has been sent and copied.
    void drain(cudaStream_t training) {
        message(MESSAGES);
        release(SPANS - 1);
        // The copies follow what arrived, and what was sent has left when that of the same group arrived.
        require(cudaEventRecord(whole.event, copies));
        require(cudaStreamWaitEvent(training, whole.event, 0));
    }

    // Blocks until the version that was drained last is whole in host memory.
    void wait() { require(cudaEventSynchronize(whole.event)); }

   private:
    const int machine, device;
    const ncclComm_t communicator;
    const cudaStream_t queue;
    cudaStream_t copies = nullptr;
    std::vector<Segment> state;
    char *host[COPIES] = {}, *buffers = nullptr, *staging = nullptr;
    Event ready, turn, whole, filled[BUFFERS], emptied[BUFFERS];
    std::vector<void *> pinned;
    int piece = 0, own = 0;

    static int rank_of(int machine, int device) { return machine * DEVICES + device; }

    void send(const Piece &each) {
        const char *data = contiguous(each.offset, each.bytes);
        char *buffer = buffers + each.buffer * BUFFER_BYTES;
        require(cudaStreamWaitEvent(queue, emptied[each.buffer].event, 0));
        require(ncclGroupStart());
        require(ncclSend(data, each.bytes, ncclUint8, rank_of(SENDS[machine][each.round], device), communicator, queue));
        require(ncclRecv(buffer, each.bytes, ncclUint8, rank_of(RECEIVES[machine][each.round], device), communicator, queue));
        require(ncclGroupEnd());
        require(cudaEventRecord(filled[each.buffer].event, queue));
        require(cudaStreamWaitEvent(copies, filled[each.buffer].event, 0));
        require(cudaMemcpyAsync(host[each.round] + each.offset, buffer, each.bytes, cudaMemcpyDeviceToHost, copies));
        require(cudaEventRecord(emptied[each.buffer].event, copies));
    }

    // Bytes of the state where they lie, or gathered on the queue where they lie in several segments.
    const char *contiguous(size_t offset, size_t bytes) {
        size_t begin = 0;
        for (const Segment &segment : state) {
            if (offset >= begin && offset + bytes <= begin + segment.bytes) return segment.data + (offset - begin);
            begin += segment.bytes;
        }
        copy(staging, offset, bytes, cudaMemcpyDeviceToDevice, queue);
        return staging;
    }

    void copy_own(const Own &each) { copy(host[0] + each.offset, each.offset, each.bytes, cudaMemcpyDeviceToHost, copies); }

    void copy(char *to, size_t offset, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
        size_t begin = 0;
        for (const Segment &segment : state) {
            const size_t first = std::max(offset, begin), end = std::min(offset + bytes, begin + segment.bytes);
            if (first < end) require(cudaMemcpyAsync(to + (first - offset), segment.data + (first - begin), end - first, kind, stream));
            begin += segment.bytes;
        }
    }

    void allocate() {
        require(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
        for (Event *event : {&ready, &turn, &whole}) event->make();
        for (int number = 0; number < BUFFERS; ++number) {
            filled[number].make();
            emptied[number].make();
        }
        if (COPIES > 1) require(cudaMalloc((void **)&buffers, BUFFERS * BUFFER_BYTES));
        if (COPIES > 1) require(cudaMalloc((void **)&staging, BUFFER_BYTES));
    }

    void release_all() {
        if (copies) cudaStreamSynchronize(copies);
        for (void *memory : pinned) cudaHostUnregister(memory);
        cudaFree(buffers);
        cudaFree(staging);
        if (copies) cudaStreamDestroy(copies);
    }
};

}  // namespace treadle
