// Streams, events and copies of CUDA in one process without a GPU. What is queued runs in `step`, one operation at a
// time, in any order that streams and events allow: each seed is another one.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

enum cudaError_t { cudaSuccess, cudaErrorHostMemoryAlreadyRegistered, cudaErrorUnknown };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1, cudaHostRegisterPortable = 1 };

namespace emulated {

enum Outcome { blocked, moved, ended };
struct Stream {
    std::deque<std::function<Outcome()>> queued;
    int priority = 0;
};
struct Event {
    uint64_t recorded = 0, reached = 0;
};
inline std::vector<Stream *> streams;
inline std::mt19937 choice;
inline int ignored_line = 0;
inline std::recursive_mutex mutex;
// Whether other threads may still queue what is waited for.
inline bool patient = false;
inline std::function<void(const char *)> on_copy = [](const char *) {};

inline void start(unsigned seed) {
    choice.seed(seed);
    for (Stream *stream : streams) stream->priority = choice();
}

inline void push(Stream *stream, std::function<Outcome()> action) {
    const std::lock_guard lock(mutex);
    stream->queued.push_back(std::move(action));
}

inline void then(Stream *stream, std::function<void()> action) {
    push(stream, [action] { return action(), ended; });
}

// Runs one operation, most often of the stream that the seed prefers; false where none can run.
inline bool step() {
    const std::lock_guard lock(mutex);
    std::vector<Stream *> order = streams;
    std::shuffle(order.begin(), order.end(), choice);
    if (choice() % 8) std::stable_sort(order.begin(), order.end(), [](Stream *a, Stream *b) { return a->priority > b->priority; });
    for (Stream *stream : order) {
        if (stream->queued.empty()) continue;
        const Outcome outcome = stream->queued.front()();
        if (outcome == ended) stream->queued.pop_front();
        if (outcome != blocked) return true;
    }
    return false;
}

template <class Reached>
bool run_until(Reached reached) {
    for (int idle = 0; idle < (patient ? 10'000 : 1);) {
        if (reached()) return true;
        if (!step()) {
            ++idle;
            std::this_thread::sleep_for(std::chrono::milliseconds(patient));
        }
    }
    return reached();
}

}  // namespace emulated

using cudaStream_t = emulated::Stream *;
using cudaEvent_t = emulated::Event *;

inline const char *cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMalloc(void **data, size_t bytes) { return *data = std::malloc(bytes), cudaSuccess; }
inline cudaError_t cudaFree(void *data) { return std::free(data), cudaSuccess; }
inline cudaError_t cudaHostRegister(void *, size_t, unsigned) { return cudaSuccess; }
inline cudaError_t cudaHostUnregister(void *) { return cudaSuccess; }
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    emulated::streams.push_back(*stream = new emulated::Stream);
    (*stream)->priority = emulated::choice();
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return emulated::run_until([=] { return stream->queued.empty(); }) ? cudaSuccess : cudaErrorUnknown;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return *event = new emulated::Event, cudaSuccess; }
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const std::lock_guard lock(emulated::mutex);
    const uint64_t number = ++event->recorded;
    emulated::then(stream, [=] { event->reached = std::max(event->reached, number); });
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return emulated::run_until([=] { return event->reached >= event->recorded; }) ? cudaSuccess : cudaErrorUnknown;
}
inline cudaError_t wait_at(int line, cudaStream_t stream, cudaEvent_t event) {
    const uint64_t number = event->recorded;
    if (line != emulated::ignored_line)
        emulated::push(stream, [=] { return event->reached < number ? emulated::blocked : emulated::ended; });
    return cudaSuccess;
}
#define cudaStreamWaitEvent(stream, event, flags) wait_at(__LINE__, stream, event)
inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    emulated::then(stream, [=] {
        emulated::on_copy(static_cast<char *>(to));
        std::memcpy(to, from, bytes);
    });
    return cudaSuccess;
}
