// What the driver needs of a machine, for ranks that are processes on Linux: memory that other processes of the host can
// map, and a thread for each block of a launch. Shared memory has no name and goes with its last process, so that none
// is left behind however they end.
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "treadle_device.h"

namespace treadle::platform {

// A file of shared memory, as the process that made it knows it.
struct Handle {
    int32_t process, file;
    int64_t bytes;
};

constexpr int THREADS[] = {1};
constexpr bool STREAMS = false;

struct Mapping {
    int file;
    size_t bytes;
};

inline std::mutex mappings_lock;
inline std::map<void *, Mapping> mappings;
inline thread_local std::vector<std::thread> running;
inline uint64_t delay_seed = 0;
inline uint64_t delay_salt = 0;

inline int device_count() { return std::numeric_limits<int>::max(); }

[[noreturn]] inline void fail(const char *what) {
    throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

inline void *mapped(int file, size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;
        ::close(file);
        errno = error;
        fail("no shared memory for the slots");
    }
    std::lock_guard<std::mutex> lock(mappings_lock);
    mappings[memory] = {file, bytes};
    return memory;
}
inline void unmapped(void *memory) {
    std::lock_guard<std::mutex> lock(mappings_lock);
    const auto found = mappings.find(memory);
    if (found == mappings.end()) return;
    munmap(memory, found->second.bytes);
    ::close(found->second.file);
    mappings.erase(found);
}

inline void *allocate(int, size_t bytes) {
    const int file = memfd_create("treadle", MFD_CLOEXEC);
    if (file < 0) fail("no shared memory for the slots");
    if (ftruncate(file, off_t(bytes))) {
        const int error = errno;
        ::close(file);
        errno = error;
        fail("no shared memory for the slots");
    }
    return mapped(file, bytes);
}
inline void release(int, void *memory) { unmapped(memory); }
inline void upload(int, void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void download(int, void *to, const void *from, size_t bytes) { std::memcpy(to, from, bytes); }

inline void connect(int, int) {}
inline Handle share(int, void *memory) {
    std::lock_guard<std::mutex> lock(mappings_lock);
    const Mapping &mapping = mappings.at(memory);
    return {getpid(), mapping.file, int64_t(mapping.bytes)};
}
inline void *attach(int, Handle handle) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", int(handle.process), int(handle.file));
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fail("found no shared memory of another rank");
    return mapped(file, size_t(handle.bytes));
}
inline void detach(int, void *memory) { unmapped(memory); }

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
