// Memory that the processes of a host share, and the notice that one of them has ended (Linux). The memory has no name
// and goes with its last process, so that none is left behind however they end, and no two programs meet in it.
#pragma once
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace treadle::shared {

// Shared memory, as the process that made it knows it.
struct Handle {
    int32_t process, file;
    int64_t bytes;
};

struct Mapping {
    int file;
    size_t bytes;
};

inline std::mutex mappings_lock;
inline std::map<void *, Mapping> mappings;

[[noreturn]] inline void fail(const char *what, int error = errno) {
    throw std::runtime_error(std::string(what) + ": " + std::strerror(error));
}

inline void *mapped(int file, size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
        const int error = errno;
        ::close(file);
        fail("no shared memory", error);
    }
    std::lock_guard<std::mutex> lock(mappings_lock);
    mappings[memory] = {file, bytes};
    return memory;
}

inline void *allocate(size_t bytes) {
    const int file = memfd_create("treadle", MFD_CLOEXEC);
    if (file < 0) fail("no shared memory");
    if (ftruncate(file, off_t(bytes))) {
        const int error = errno;
        ::close(file);
        fail("no shared memory", error);
    }
    return mapped(file, bytes);
}

inline void release(void *memory) {
    std::lock_guard<std::mutex> lock(mappings_lock);
    const auto found = mappings.find(memory);
    if (found == mappings.end()) return;
    munmap(memory, found->second.bytes);
    ::close(found->second.file);
    mappings.erase(found);
}

inline Handle share(void *memory) {
    std::lock_guard<std::mutex> lock(mappings_lock);
    const Mapping &mapping = mappings.at(memory);
    return {getpid(), mapping.file, int64_t(mapping.bytes)};
}

inline void *attach(Handle handle) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", int(handle.process), int(handle.file));
    const int file = ::open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) fail("found no shared memory of another rank");
    return mapped(file, size_t(handle.bytes));
}

// Whether a process has ended, reaped or not.
inline bool ended(int process) {
    char path[64], state = 0;
    std::snprintf(path, sizeof path, "/proc/%d/stat", process);
    std::FILE *file = std::fopen(path, "r");
    if (!file) return true;
    if (std::fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    std::fclose(file);
    return state == 'Z' || state == 'X';
}

// Calls `on_end` with the index of each of `processes` that ends, from a thread of its own, until it is destroyed.
class Watch {
  public:
    Watch(const std::vector<int> &processes, std::function<void(size_t)> on_end)
        : processes_(processes), on_end_(std::move(on_end)), stop_(eventfd(0, EFD_CLOEXEC)) {
        if (stop_ < 0) fail("no watch over the other processes");
        for (int process : processes_) files_.push_back({int(syscall(PIDFD_OPEN, process, 0)), POLLIN, 0});
        files_.push_back({stop_, POLLIN, 0});
        thread_ = std::thread([this] { run(); });
    }
    ~Watch() {
        const uint64_t one = 1;
        (void)!::write(stop_, &one, sizeof one);
        thread_.join();
        for (const pollfd &each : files_)
            if (each.fd >= 0) ::close(each.fd);
    }
    Watch(const Watch &) = delete;

  private:
    static constexpr long PIDFD_OPEN = 434;  // Linux 5.3; the processes of older ones are looked up now and then
    static constexpr int TICK_MS = 100;

    void run() {
        std::vector<pollfd> waited = files_;
        std::vector<bool> known(processes_.size(), false);
        for (;;) {
            bool looked_up = false;
            for (size_t i = 0; i < processes_.size(); ++i) looked_up |= files_[i].fd < 0 && !known[i];
            poll(waited.data(), nfds_t(waited.size()), looked_up ? TICK_MS : -1);
            if (waited.back().revents) return;
            for (size_t i = 0; i < processes_.size(); ++i) {
                if (known[i] || !(files_[i].fd < 0 ? ended(processes_[i]) : waited[i].revents != 0)) continue;
                known[i] = true;
                waited[i].fd = -1;
                on_end_(i);
            }
        }
    }

    std::vector<int> processes_;
    std::function<void(size_t)> on_end_;
    int stop_;
    std::vector<pollfd> files_;
    std::thread thread_;
};

}  // namespace treadle::shared
