// The host side of a schedule: a session holds the arenas of its ranks and runs all launches, one after the other. The
// text above it says what the kernels are: KERNELS, RANKS, BUFFERS, SENDS_LINES (by LL128), ARENA_BYTES.
#pragma once
#include "treadle_fusion_entries.h"
#include "treadle_session.h"

namespace treadle {

struct FusedCall {
    void *const *streams;  // by rank
    uint64_t timeout_ns, seed, step, order;
    uint64_t begin, end;  // launches: a run may be made in several calls, the last of which has the last of them
};

// A block whose wait timed out. `kernel` numbers KERNELS, `awaited` is of treadle_fusion.h.
struct FusedStuck {
    int32_t rank, kernel, block, awaited, peer;
    int64_t index;
    uint64_t expected, found;
};

// What kernels read on a device.
struct FusedTables {
    void ***rows;
    void **cells;
    uint64_t *runs;  // where launches queue up: counted on the device, behind each run
    std::vector<void *> side_streams;
};

#ifdef __CUDACC__
__global__ void count_run(uint64_t *runs) {
    if (threadIdx.x == 0) ++*runs;
}
inline void count_runs(int device, uint64_t *runs, void *stream) { platform::start(count_run, device, 1, WARP, runs, stream, false); }
#else
inline void count_runs(int, uint64_t *runs, void *) { ++*runs; }
#endif

class FusedSession : public Arenas {
  public:
    // `devices` by rank, -1 for ranks of other processes; `threads` of a block, 0 for as many as fit; `blocks` of a rank
    // for kernels that take any number, 0 for as many as fit.
    FusedSession(const int32_t *devices, int threads, int blocks) : Arenas(devices, RANKS), threads_(threads), blocks_(blocks) {
        make([](int) { return ARENA_BYTES; });
    }
    ~FusedSession() override {
        for (auto &[device, tables] : tables_)
            for (void *stream : tables.side_streams) platform::release_stream(device, stream);
    }

    // The tensors of all later runs: BUFFERS for each rank, null for ranks of other processes.
    void bind(void *const *buffers) {
        const std::vector<void *> cells(buffers, buffers + RANKS * BUFFERS);
        for (const auto &[device, tables] : tables_) platform::upload(device, tables.cells, cells.data(), cells.size() * sizeof(void *));
        bound_ = true;
    }

#ifdef TREADLE_PROCESS
    // Makes the arenas of ranks on other hosts reachable over sockets, once those of this host are attached.
    void reach(const int32_t *files, const uint8_t *remote, uint64_t latency_ns) {
        if (groups_.size() > 1 || groups_.front().ranks > 1)
            throw std::runtime_error("found several ranks in a process and others on another host, expected one rank in each process");
        char *const own = arena(groups_.front().first_rank);
        hosts_ = std::make_unique<process::Hosts>(files, remote, RANKS, own, ARENA_BYTES, latency_ns);
        for (int rank = 0; rank < RANKS; ++rank)
            if (remote[rank]) stand_in(rank, hosts_->arena(rank));
        require_attached();
        hosts_->start(words());
    }
    uint32_t aborted() const override {
        const uint32_t cause = Arenas::aborted();
        if (cause && hosts_) hosts_->settle();
        return cause;
    }
#else
    void reach(const int32_t *, const uint8_t *, uint64_t) { throw std::runtime_error("found ranks on other hosts, expected processes"); }
#endif

    // Queues launches. Where there are no streams it returns when they have ended.
    void run(const FusedCall &call) {
        order_ = call.order;
        require_attached();
        if (!call.begin) count_call();
        if (!bound_) throw std::runtime_error("found no tensors, expected them bound");
        constexpr int KERNELS_IN_ALL = sizeof KERNELS / sizeof *KERNELS;
#ifdef TREADLE_PROCESS
        process::hosts = hosts_.get();
        if (hosts_ && !call.begin) hosts_->begin_run();
#endif
        for (int first = 0, last; first < KERNELS_IN_ALL; first = last) {
            for (last = first; last < KERNELS_IN_ALL && KERNELS[last].launch == KERNELS[first].launch;) ++last;
            if (uint64_t(KERNELS[first].launch) < call.begin || uint64_t(KERNELS[first].launch) >= call.end) continue;
            for (const Neighbours &group : groups_) launch(group, call, first, last);
            if (!platform::STREAMS) {
                synchronise(call.order + first);
                if (aborted()) break;
            }
        }
        if (uint64_t(KERNELS[KERNELS_IN_ALL - 1].launch) >= call.end) return;
#ifdef TREADLE_PROCESS
        if (hosts_ && !aborted()) hosts_->end_run();
#endif
        for (const Neighbours &group : groups_) count_runs(group.device, tables_[group.device].runs, call.streams ? call.streams[group.first_rank] : nullptr);
    }

    std::vector<FusedStuck> stuck() const {
        constexpr int KERNELS_IN_ALL = sizeof KERNELS / sizeof *KERNELS;
        std::vector<FusedStuck> found;
        std::vector<Report> reports(KERNELS_IN_ALL * REPORTED);
        for (int rank = 0; rank < RANKS; ++rank) {
            if (!local(rank)) continue;
            download(rank, reports.data(), sizeof(Counts), reports.size() * sizeof(Report));
            for (int i = 0; i < int(reports.size()); ++i)
                if (reports[i].awaited != NO_WAIT)
                    found.push_back({rank, i / REPORTED, i % REPORTED, reports[i].awaited, reports[i].peer, reports[i].index,
                                     reports[i].expected, reports[i].found});
        }
        return found;
    }

    Counts counts(int rank) const {
        Counts counts;
        download(rank, &counts, 0, sizeof counts);
        return counts;
    }

  private:
    void sees(const Neighbours &group, int rank, int device) override {
        if (SENDS_LINES && !platform::whole_lines(group.device, device)) refuse_lines(group.first_rank, group.device, rank, device);
    }

    void equip(const Neighbours &group) override {
        FusedTables &tables = tables_[group.device];
        tables.cells = reserved<void *>(group.device, RANKS * BUFFERS);
        std::vector<void **> rows;
        for (int rank = 0; rank < RANKS; ++rank) rows.push_back(tables.cells + rank * BUFFERS);
        tables.rows = copied(group.device, rows);
        tables.runs = reserved<uint64_t>(group.device, LINE / sizeof(uint64_t));
    }

    void launch(const Neighbours &group, const FusedCall &call, int first, int last) {
        void *stream = call.streams ? call.streams[group.first_rank] : nullptr;
        FusedTables &tables = tables_[group.device];
        std::vector<void *> &side_streams = tables.side_streams;
        for (int number = first + 1; number < last; ++number) {
            if (int(side_streams.size()) < number - first) side_streams.push_back(platform::stream_of(group.device));
            platform::follow(group.device, side_streams[number - first - 1], stream);
        }
        int waiting = 0;  // blocks of the other kernels of this launch
        for (int number = first; number < last; ++number) waiting += KERNELS[number].blocks * group.ranks;
        for (int number = first; number < last; ++number) {
            const KernelEntry &entry = KERNELS[number];
            const int threads = threads_of(entry, group);
            const int blocks = entry.blocks ? entry.blocks : any_blocks(entry, group, threads, waiting);
            Task task{};
            task.buffers = tables.rows;
            task.arenas = group.arenas;
            task.abort = group.abort;
            task.timeout_ns = call.timeout_ns;
            task.ranks = RANKS;
            task.first_rank = group.first_rank;
            task.blocks = blocks;
            task.first_report = number * REPORTED;
            task.runs = tables.runs;
            task.seed = call.seed;
            task.step = call.step;
            platform::start(entry.kernel, group.device, blocks * group.ranks, threads, task,
                            number == first ? stream : side_streams[number - first - 1], entry.blocks && last == first + 1);
        }
        for (int number = first + 1; number < last; ++number)
            platform::follow(group.device, stream, side_streams[number - first - 1]);
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

    int threads_, blocks_;
#ifdef TREADLE_PROCESS
    std::unique_ptr<process::Hosts> hosts_;
#endif
    std::map<int, FusedTables> tables_;  // by device
    bool bound_ = false;
};

}  // namespace treadle

TREADLE_API int treadle_fusion_ranks() { return treadle::RANKS; }
TREADLE_API int treadle_fusion_buffers() { return treadle::BUFFERS; }
TREADLE_API const char *treadle_fusion_kernel(int number) { return treadle::KERNELS[number].name; }

TREADLE_API int treadle_fusion_open(const int32_t *devices, int threads, int blocks, void **session) {
    return treadle::guarded([&] { *session = static_cast<treadle::Arenas *>(new treadle::FusedSession(devices, threads, blocks)); });
}

TREADLE_API int treadle_fusion_bind(void *session, void *const *buffers) {
    return treadle::guarded([&] { treadle::opened<treadle::FusedSession>(session).bind(buffers); });
}

TREADLE_API int treadle_fusion_run(void *session, const treadle::FusedCall *call) {
    return treadle::guarded([&] { treadle::opened<treadle::FusedSession>(session).run(*call); });
}

// By rank: sockets, -1 for the rank of this process, and whether it is on another host.
TREADLE_API int treadle_fusion_reach(void *session, const int32_t *files, const uint8_t *remote, uint64_t latency_ns) {
    return treadle::guarded([&] { treadle::opened<treadle::FusedSession>(session).reach(files, remote, latency_ns); });
}

// Writes up to `most` rows; returns how many there are, -1 with a message.
TREADLE_API int treadle_fusion_stuck(void *session, treadle::FusedStuck *rows, int most) {
    return treadle::stuck<treadle::FusedSession>(session, rows, most);
}

// What a rank of this process has loaded, stored and sent since the session opened; built with -DTREADLE_COUNT.
TREADLE_API int treadle_fusion_counts(void *session, int rank, treadle::Counts *counts) {
    return treadle::guarded([&] { *counts = treadle::opened<treadle::FusedSession>(session).counts(rank); });
}
