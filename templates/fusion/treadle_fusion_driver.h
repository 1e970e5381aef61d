// The host side of a schedule: a session holds the arenas of its ranks and runs all launches, one after the other. The
// text above it says what the kernels are: KERNELS, RANKS, BUFFERS, ARENA_BYTES.
#pragma once
#include <algorithm>
#include <vector>

#include "treadle_fusion_entries.h"
#include "treadle_host.h"

namespace treadle {

struct FusedCall {
    void *const *streams;  // by rank
    uint64_t timeout_ns, seed, step, order;
    uint64_t begin, end;  // launches: a run may be made in several calls, the last of which has the last of them
};

// A block that waited in vain. `kernel` numbers KERNELS, `awaited` is of treadle_fusion.h.
struct FusedStuck {
    int32_t rank, kernel, block, awaited, peer;
    int64_t index;
    uint64_t expected, found;
};

// Ranks that one launch covers: neighbours on one device, with the tables that kernels read there.
struct Neighbours {
    int device, first_rank, ranks;
    char **arenas = nullptr;
    void ***rows = nullptr;
    void **cells = nullptr;
    uint32_t *abort = nullptr;
    uint64_t *runs = nullptr;  // where launches queue up: counted on the device, behind each run
    std::vector<void *> side_streams;
};

#ifdef __CUDACC__
__global__ void count_run(uint64_t *runs) {
    if (threadIdx.x == 0) ++*runs;
}
inline void count_runs(const Neighbours &group, void *stream) {
    platform::start(count_run, group.device, 1, WARP, group.runs, stream, false);
}
#else
inline void count_runs(const Neighbours &group, void *) { ++*group.runs; }
#endif

class FusedSession {
  public:
    // `devices` by rank, -1 for ranks of other processes; `threads` of a block, 0 for as many as fit; `blocks` of a rank
    // for kernels that take any number, 0 for as many as fit.
    FusedSession(const int32_t *devices, int threads, int blocks)
        : threads_(threads), blocks_(blocks), devices_(devices, devices + RANKS), arenas_(RANKS, nullptr) {
        try {
            for (int rank = 0; rank < RANKS; ++rank) {
                if (devices_[rank] < 0) continue;
                if (devices_[rank] >= platform::device_count())
                    throw std::runtime_error("found no device " + std::to_string(devices_[rank]));
                if (groups_.empty() || groups_.back().device != devices_[rank] || groups_.back().first_rank + groups_.back().ranks != rank)
                    groups_.push_back({devices_[rank], rank, 0});
                ++groups_.back().ranks;
                arenas_[rank] = static_cast<char *>(platform::allocate(devices_[rank], ARENA_BYTES));
            }
            prepare();
        } catch (...) {
            release();
            throw;
        }
    }
    ~FusedSession() { release(); }
    FusedSession(const FusedSession &) = delete;

    platform::Handle share(int rank) const { return platform::share(devices_[rank], arenas_[rank]); }

    void attach(int rank, platform::Handle handle) {
        arenas_[rank] = static_cast<char *>(platform::attach(groups_.front().device, handle));
        attached_.push_back(rank);
        prepare();
    }
    void detach() {
        for (int rank : attached_) {
            platform::detach(groups_.front().device, arenas_[rank]);
            arenas_[rank] = nullptr;
        }
        attached_.clear();
    }

    // The tensors of all later runs: BUFFERS for each rank, null for ranks of other processes.
    void bind(void *const *buffers) {
        const std::vector<void *> cells(buffers, buffers + RANKS * BUFFERS);
        for (const Neighbours &group : groups_) platform::upload(group.device, group.cells, cells.data(), cells.size() * sizeof(void *));
        bound_ = true;
    }

    // Queues launches. Where there are no streams it returns when they have ended.
    void run(const FusedCall &call) {
        if (std::count(arenas_.begin(), arenas_.end(), nullptr)) throw std::runtime_error("found a rank that is not attached yet");
        if (!bound_) throw std::runtime_error("found no tensors, expected them bound");
        constexpr int KERNELS_IN_ALL = sizeof KERNELS / sizeof *KERNELS;
        for (int first = 0, last; first < KERNELS_IN_ALL; first = last) {
            for (last = first; last < KERNELS_IN_ALL && KERNELS[last].launch == KERNELS[first].launch;) ++last;
            if (uint64_t(KERNELS[first].launch) < call.begin || uint64_t(KERNELS[first].launch) >= call.end) continue;
            for (Neighbours &group : groups_) launch(group, call, first, last);
            if (!platform::STREAMS) {
                synchronise(call.order + first);
                if (given_up()) break;
            }
        }
        if (uint64_t(KERNELS[KERNELS_IN_ALL - 1].launch) < call.end)
            for (const Neighbours &group : groups_) count_runs(group, call.streams ? call.streams[group.first_rank] : nullptr);
        order_ = call.order;
    }

    // Waits for all runs; false when one gave up, and `stuck` then knows where. Such a session is of no more use.
    bool wait() {
        synchronise(order_);
        return !given_up();
    }

    std::vector<FusedStuck> stuck() const {
        constexpr int KERNELS_IN_ALL = sizeof KERNELS / sizeof *KERNELS;
        std::vector<FusedStuck> found;
        std::vector<Report> reports(KERNELS_IN_ALL * REPORTED);
        for (int rank = 0; rank < RANKS; ++rank) {
            if (devices_[rank] < 0) continue;
            platform::download(devices_[rank], reports.data(), arenas_[rank] + sizeof(Counts), reports.size() * sizeof(Report));
            for (int i = 0; i < int(reports.size()); ++i)
                if (reports[i].awaited != NO_WAIT)
                    found.push_back({rank, i / REPORTED, i % REPORTED, reports[i].awaited, reports[i].peer, reports[i].index,
                                     reports[i].expected, reports[i].found});
        }
        return found;
    }

    Counts counts(int rank) const {
        Counts counts;
        platform::download(devices_[rank], &counts, arenas_[rank], sizeof counts);
        return counts;
    }

  private:
    void prepare() {
        if (std::count(arenas_.begin(), arenas_.end(), nullptr)) return;
        for (Neighbours &group : groups_) {
            for (const Neighbours &other : groups_) platform::connect(group.device, other.device);
            group.arenas = static_cast<char **>(platform::allocate(group.device, RANKS * sizeof(char *)));
            platform::upload(group.device, group.arenas, arenas_.data(), RANKS * sizeof(char *));
            group.cells = static_cast<void **>(platform::allocate(group.device, (RANKS * BUFFERS + 1) * sizeof(void *)));
            std::vector<void **> rows;
            for (int rank = 0; rank < RANKS; ++rank) rows.push_back(group.cells + rank * BUFFERS);
            group.rows = static_cast<void ***>(platform::allocate(group.device, RANKS * sizeof(void **)));
            platform::upload(group.device, group.rows, rows.data(), RANKS * sizeof(void **));
            group.abort = static_cast<uint32_t *>(platform::allocate(group.device, LINE));
            group.runs = static_cast<uint64_t *>(platform::allocate(group.device, LINE));
        }
    }

    void launch(Neighbours &group, const FusedCall &call, int first, int last) {
        void *stream = call.streams ? call.streams[group.first_rank] : nullptr;
        for (int number = first + 1; number < last; ++number) {
            if (int(group.side_streams.size()) < number - first) group.side_streams.push_back(platform::stream_of(group.device));
            platform::follow(group.device, group.side_streams[number - first - 1], stream);
        }
        int waiting = 0;  // blocks that others of this launch need room beside
        for (int number = first; number < last; ++number) waiting += KERNELS[number].blocks * group.ranks;
        for (int number = first; number < last; ++number) {
            const KernelEntry &entry = KERNELS[number];
            const int threads = threads_of(entry, group);
            const int blocks = entry.blocks ? entry.blocks : any_blocks(entry, group, threads, waiting);
            Task task{};
            task.buffers = group.rows;
            task.arenas = group.arenas;
            task.abort = group.abort;
            task.timeout_ns = call.timeout_ns;
            task.ranks = RANKS;
            task.first_rank = group.first_rank;
            task.blocks = blocks;
            task.first_report = number * REPORTED;
            task.runs = group.runs;
            task.seed = call.seed;
            task.step = call.step;
            platform::start(entry.kernel, group.device, blocks * group.ranks, threads, task,
                            number == first ? stream : group.side_streams[number - first - 1], entry.blocks && last == first + 1);
        }
        for (int number = first + 1; number < last; ++number)
            platform::follow(group.device, stream, group.side_streams[number - first - 1]);
    }

    // As many threads as let all blocks of a kernel whose blocks wait for one another be resident.
    int threads_of(const KernelEntry &entry, const Neighbours &group) const {
        if (threads_) return threads_;
        for (int threads : platform::THREADS)
            if (platform::resident_blocks(entry.kernel, group.device, threads) >= entry.blocks * group.ranks) return threads;
        throw std::runtime_error("found " + std::to_string(entry.blocks * group.ranks) + " threadblocks of " + entry.name +
                                 " on device " + std::to_string(group.device) + ", more than can be resident at once; use fewer channels");
    }

    int any_blocks(const KernelEntry &entry, const Neighbours &group, int threads, int waiting) const {
        if (blocks_) return blocks_;
        if (!platform::STREAMS) return 2;
        // Others of this launch spin until this kernel has made what they wait for: it must never wait for their places.
        const int blocks = (platform::resident_blocks(entry.kernel, group.device, threads) - waiting) / group.ranks;
        if (blocks > 0) return blocks;
        throw std::runtime_error("found " + std::to_string(waiting) + " threadblocks that wait for " + entry.name + " on device " +
                                 std::to_string(group.device) + ", which leave it no room; use fewer channels");
    }

    void synchronise(uint64_t order) {
        for (const Neighbours &group : groups_) platform::synchronise(group.device, order);
    }

    bool given_up() const {
        for (const Neighbours &group : groups_) {
            uint32_t word = 0;
            if (group.abort) platform::download(group.device, &word, group.abort, sizeof word);
            if (word) return true;
        }
        return false;
    }

    void release() {
        for (Neighbours &group : groups_) {
            for (void *stream : group.side_streams) platform::release_stream(group.device, stream);
            for (void *memory : {(void *)group.arenas, (void *)group.rows, (void *)group.cells, (void *)group.abort, (void *)group.runs})
                if (memory) platform::release(group.device, memory);
        }
        detach();
        for (int rank = 0; rank < RANKS; ++rank)
            if (devices_[rank] >= 0 && arenas_[rank]) platform::release(devices_[rank], arenas_[rank]);
    }

    int threads_, blocks_;
    std::vector<int> devices_, attached_;
    std::vector<char *> arenas_;
    std::vector<Neighbours> groups_;
    uint64_t order_ = 0;
    bool bound_ = false;
};

}  // namespace treadle

TREADLE_API const char *treadle_fusion_message() { return treadle::message.c_str(); }
TREADLE_API int treadle_fusion_device_count() { return treadle::platform::device_count(); }
TREADLE_API int treadle_fusion_handle_bytes() { return sizeof(treadle::platform::Handle); }
TREADLE_API int treadle_fusion_ranks() { return treadle::RANKS; }
TREADLE_API int treadle_fusion_buffers() { return treadle::BUFFERS; }
TREADLE_API const char *treadle_fusion_kernel(int number) { return treadle::KERNELS[number].name; }

TREADLE_API int treadle_fusion_open(const int32_t *devices, int threads, int blocks, void **session) {
    return treadle::guarded([&] { *session = new treadle::FusedSession(devices, threads, blocks); });
}

TREADLE_API void treadle_fusion_close(void *session) { delete static_cast<treadle::FusedSession *>(session); }

TREADLE_API int treadle_fusion_share(void *session, int rank, void *handle) {
    return treadle::guarded([&] {
        *static_cast<treadle::platform::Handle *>(handle) = static_cast<treadle::FusedSession *>(session)->share(rank);
    });
}

TREADLE_API int treadle_fusion_attach(void *session, int rank, const void *handle) {
    return treadle::guarded([&] {
        static_cast<treadle::FusedSession *>(session)->attach(rank, *static_cast<const treadle::platform::Handle *>(handle));
    });
}

TREADLE_API int treadle_fusion_detach(void *session) {
    return treadle::guarded([&] { static_cast<treadle::FusedSession *>(session)->detach(); });
}

TREADLE_API int treadle_fusion_bind(void *session, void *const *buffers) {
    return treadle::guarded([&] { static_cast<treadle::FusedSession *>(session)->bind(buffers); });
}

TREADLE_API int treadle_fusion_run(void *session, const treadle::FusedCall *call) {
    return treadle::guarded([&] { static_cast<treadle::FusedSession *>(session)->run(*call); });
}

// 0 when every run has ended, 1 with a message, 2 when one gave up waiting.
TREADLE_API int treadle_fusion_wait(void *session) {
    bool ended = true;
    const int status = treadle::guarded([&] { ended = static_cast<treadle::FusedSession *>(session)->wait(); });
    return status ? status : ended ? 0 : 2;
}

// Writes up to `most` rows; returns how many there are, -1 with a message.
TREADLE_API int treadle_fusion_stuck(void *session, treadle::FusedStuck *rows, int most) {
    int count = 0;
    const int status = treadle::guarded([&] {
        for (const auto &row : static_cast<treadle::FusedSession *>(session)->stuck())
            if (count++ < most) *rows++ = row;
    });
    return status ? -1 : count;
}

// What a rank of this process has loaded, stored and sent since the session opened; built with -DTREADLE_COUNT.
TREADLE_API int treadle_fusion_counts(void *session, int rank, treadle::Counts *counts) {
    return treadle::guarded([&] { *counts = static_cast<treadle::FusedSession *>(session)->counts(rank); });
}
