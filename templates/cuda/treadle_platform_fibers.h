// What the driver needs of a machine, on the host: memory is memory, devices are only numbers, launches wait in the one
// world of fibers of this thread until a caller synchronises.
#pragma once
#include <cstdlib>
#include <cstring>
#include <limits>

#include "treadle_device.h"

namespace treadle::platform {

using Handle = void *;
using HostHandle = void *;

// All ranks are in this process.
struct Watch {
    template <class OnEnd>
    Watch(const std::vector<int> &, const OnEnd &) {}
};

constexpr int THREADS[] = {LINE_THREADS};
constexpr bool STREAMS = false;

inline thread_local fibers::World world;
inline thread_local std::vector<uint32_t *> abort_words;

inline int device_count() { return std::numeric_limits<int>::max(); }

inline void *allocate(int, size_t bytes) {
    void *memory = std::aligned_alloc(LINE, (bytes + LINE - 1) / LINE * LINE);
    if (!memory) throw std::runtime_error("no memory for the slots");
    std::memset(memory, 0, bytes);
    return memory;
}
inline void release(int, void *memory) { std::free(memory); }
inline void upload(int, void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void download(int, void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }

inline void connect(int, int) {}
inline bool whole_lines(int, int) { return true; }
inline Handle share(int, void *memory) { return memory; }
inline int device_of(int, Handle) { return 0; }
inline void *attach(int, Handle handle) { return handle; }
inline void detach(int, void *) {}

// The sessions that know it are counted in front of it.
inline int &users(void *memory) { return *reinterpret_cast<int *>(static_cast<char *>(memory) - LINE); }
inline void *allocate_host(int device, size_t bytes) {
    void *memory = static_cast<char *>(allocate(device, LINE + bytes)) + LINE;
    users(memory) = 1;
    return memory;
}
inline void release_host(int device, void *memory) {
    if (!--users(memory)) release(device, static_cast<char *>(memory) - LINE);
}
inline HostHandle share_host(void *memory) { return memory; }
inline void *attach_host(int, HostHandle handle) {
    ++users(handle);
    return handle;
}
inline void *on_device(int, void *memory) { return memory; }
inline int process_of(HostHandle) { return 0; }
inline bool lives_elsewhere(int) { return false; }

template <class AnyKernel>
int resident_blocks(AnyKernel, int, int) { return std::numeric_limits<int>::max(); }

template <class AnyKernel, class Parameters>
void start(AnyKernel kernel, int, int blocks, int threads, const Parameters &launch, void *, bool = true) {
    if (threads % LINE_THREADS) throw std::runtime_error("expected a multiple of 8 threads");
    abort_words.push_back(launch.abort.word);
    world.queue(blocks, threads, [kernel, launch] { kernel(launch); });
}

inline void *stream_of(int) { return nullptr; }
inline void release_stream(int, void *) {}
inline void follow(int, void *, void *) {}

inline void synchronise(int, uint64_t seed) {
    const bool ended = world.run(seed);
    if (!ended)
        for (uint32_t *word : abort_words) set_abort(word, abort_word(DEADLOCK, 0));
    abort_words.clear();
}

}  // namespace treadle::platform
