// What the driver needs of a machine, for ranks that are processes on Linux: memory that other processes of the host can
// map, and a thread for each block of a launch.
#pragma once
#include <unistd.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

#include "treadle_device.h"
#include "treadle_shared.h"

namespace treadle::platform {

using Handle = shared::Handle;
using HostHandle = shared::Handle;
using Watch = shared::Watch;

constexpr int THREADS[] = {1};
constexpr bool STREAMS = false;

inline thread_local std::vector<std::thread> running;
inline uint64_t delay_seed = 0;
inline uint64_t delay_salt = 0;

inline int device_count() { return std::numeric_limits<int>::max(); }

inline void *allocate(int, size_t bytes) { return shared::allocate(bytes); }
inline void release(int, void *memory) { shared::release(memory); }
inline void upload(int, void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void download(int, void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }

inline void connect(int, int) {}
inline bool whole_lines(int, int) { return true; }
inline Handle share(int, void *memory) { return shared::share(memory); }
inline int device_of(int, const Handle &) { return 0; }
inline void *attach(int, const Handle &handle) { return shared::attach(handle); }
inline void detach(int, void *memory) { shared::release(memory); }

inline void *allocate_host(int, size_t bytes) { return shared::allocate(bytes); }
inline void release_host(int, void *memory) { shared::release(memory); }
inline HostHandle share_host(void *memory) { return shared::share(memory); }
inline void *attach_host(int, HostHandle handle) { return shared::attach(handle); }
inline void *on_device(int, void *memory) { return memory; }
inline int process_of(HostHandle handle) { return handle.process; }
inline bool lives_elsewhere(int process) { return process != getpid() && !shared::ended(process); }

template <class Parameters>
int resident_blocks(void (*)(const Parameters &), int, int) {
    return std::numeric_limits<int>::max();
}

// Threads run at once; launches that must follow one another have `synchronise` between them.
template <class Parameters>
void start(void (*kernel)(const Parameters &), int, int blocks, int threads, const Parameters &launch, void *, bool = true) {
    if (threads != 1) throw std::runtime_error("expected one thread in a block");
    const uint64_t seed = delay_seed;
    process::Hosts *const hosts = process::hosts;
    for (int block = 0; block < blocks; ++block) {
        const uint64_t salt = ++delay_salt + (uint64_t(getpid()) << 32);
        running.emplace_back([kernel, launch, block, hosts, seed, salt] {
            process::hosts = hosts;
            process::begin(block, seed, salt);
            kernel(launch);
        });
    }
}

inline void *stream_of(int) { return nullptr; }
inline void release_stream(int, void *) {}
inline void follow(int, void *, void *) {}

inline void synchronise(int, uint64_t) {
    for (std::thread &each : running) each.join();
    running.clear();
}

}  // namespace treadle::platform

// Random pauses in all later launches of this process, chosen by `seed`; 0 for none.
extern "C" __attribute__((visibility("default"))) void treadle_delays(uint64_t seed) {
    treadle::platform::delay_seed = seed;
}
