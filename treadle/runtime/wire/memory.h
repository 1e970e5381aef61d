// Memory that is there: how much this process may still take, and blocks of it that are touched before they are used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace treadle {

struct Room {
    uint64_t bytes;
    const char *of;  // what ends there
};

// The number behind `name` in a file of lines "name number", or of one number where `name` is empty; UINT64_MAX where
// there is none.
inline uint64_t number_in(const std::string &file, const std::string &name = "") {
    std::ifstream lines(file);
    std::string word;
    while (lines >> word) {
        if (!name.empty() && word != name) continue;
        if (!name.empty() && !(lines >> word)) break;
        char *end;
        const uint64_t value = std::strtoull(word.c_str(), &end, 10);
        return *end || end == word.c_str() ? UINT64_MAX : value;
    }
    return UINT64_MAX;
}

// What a control group leaves: files that it has read are given back before anything fails.
inline uint64_t left_of_group(const std::string &folder, bool second) {
    const uint64_t most = number_in(folder + (second ? "/memory.max" : "/memory.limit_in_bytes"));
    uint64_t used = number_in(folder + (second ? "/memory.current" : "/memory.usage_in_bytes"));
    if (most == UINT64_MAX || used == UINT64_MAX) return UINT64_MAX;
    const uint64_t files = number_in(folder + "/memory.stat", second ? "inactive_file" : "total_inactive_file");
    if (files != UINT64_MAX) used -= std::min(used, files);
    return most - std::min(most, used);
}

// The least of all groups around this process.
inline uint64_t left_of_groups() {
    std::ifstream lines("/proc/self/cgroup");
    uint64_t least = UINT64_MAX;
    for (std::string line; std::getline(lines, line);) {
        const size_t first = line.find(':'), next = line.find(':', first + 1);
        if (first == std::string::npos || next == std::string::npos) continue;
        const std::string names = line.substr(first + 1, next - first - 1);
        if (!names.empty() && ("," + names + ",").find(",memory,") == std::string::npos) continue;
        const std::string root = names.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        for (std::string path = line.substr(next + 1);; path.erase(path.rfind('/'))) {
            least = std::min(least, left_of_group(root + path, names.empty()));
            if (path.empty() || path == "/" || path.rfind('/') == std::string::npos) break;
        }
        least = std::min(least, left_of_group(root, names.empty()));
    }
    return least;
}

// How much more this process may take before the system or a limit stops it.
inline Room room_left() {
    Room room{UINT64_MAX, "memory"};
    const auto at_most = [&room](uint64_t bytes, const char *of) {
        if (bytes < room.bytes) room = {bytes, of};
    };
    const uint64_t free = number_in("/proc/meminfo", "MemAvailable:");
    if (free != UINT64_MAX) at_most(free * 1024, "memory of the machine");
    at_most(left_of_groups(), "memory of its control group");
    rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        const uint64_t pages = number_in("/proc/self/statm");
        const uint64_t used = pages == UINT64_MAX ? 0 : pages * uint64_t(sysconf(_SC_PAGESIZE));
        at_most(limit.rlim_cur - std::min<uint64_t>(limit.rlim_cur, used), "address space of its limit (ulimit -v)");
    }
    return room;
}

// Bytes as text.
inline std::string gib(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, bytes < (1u << 30) ? "%.1f MiB" : "%.2f GiB", double(bytes) / (bytes < (1u << 30) ? 1 << 20 : 1 << 30));
    return text;
}

// Zeroed memory at a multiple of a page, for the whole life of a job.
struct Block {
    char *data = nullptr;
    size_t bytes = 0;

    Block() = default;
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    ~Block() {
        if (data) munmap(data, bytes);
    }

    // False where there is none. The thread that calls it has the pages in the memory next to it.
    bool take(size_t wanted) {
        if (wanted == 0 || data) return true;
        void *const found = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED) return false;
        madvise(found, wanted, MADV_HUGEPAGE);
        data = static_cast<char *>(found);
        bytes = wanted;
        std::memset(data, 0, bytes);
        return true;
    }
};

}  // namespace treadle
