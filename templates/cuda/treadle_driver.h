// The host side: a session holds the arenas of its ranks and launches kernels. Ranks may share one device (virtual
// ranks), lie on several devices of this process (peer pointers) or in other processes (shared handles).
#pragma once
#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <vector>

#include "treadle_host.h"

namespace treadle {

// The kernel of a data type; where data is only moved there is one for all.
inline Kernel select([[maybe_unused]] int dtype) {
#if TREADLE_REDUCES
    if (dtype == FLOAT32) return kernel<Reduction<Float32>>;
    if (dtype == FLOAT16) return kernel<Reduction<Float16>>;
    if (dtype == BFLOAT16) return kernel<Reduction<Bfloat16>>;
    if (dtype == INT32) return kernel<Reduction<Int32>>;
    throw std::runtime_error("no kernel for this data type");
#else
    return kernel<NoReduction>;
#endif
}

// Ranks that one launch covers: neighbours on one device, with the tables that the kernel reads there.
struct Group {
    int device, first_rank, ranks, first_block, blocks;
    BlockEntry *block_table = nullptr;
    Step *step_table = nullptr;
    char **arenas = nullptr;
    uint32_t *abort = nullptr;
};

// Bytes of a chunk: large ones begin at multiples of 16 bytes, so that words of 16 bytes can be moved.
inline int64_t chunk_width(int64_t part, int part_chunks, int64_t element) {
    const int64_t least = (part + part_chunks - 1) / part_chunks;
    const int64_t grain = least >= 256 ? std::max<int64_t>(16, element) : element;
    return (least + grain - 1) / grain * grain;
}

class Session {
  public:
    Session(const Config &config, const BlockEntry *blocks, const Step *steps)
        : threads_(config.threads),
          max_count_(std::max(1, config.max_count)),
          blocks_(blocks, blocks + config.blocks),
          steps_(steps, steps + config.steps),
          devices_(config.devices, config.devices + config.ranks),
          arenas_(config.ranks, nullptr) {
        chunk_bytes_ = std::max<int64_t>(16, config.slot_bytes / max_count_ / 16 * 16);
        shape_.ranks = config.ranks;
        shape_.slots = config.slots;
        shape_.slot_bytes = (Protocol::wire(chunk_bytes_) * max_count_ + LINE - 1) / LINE * LINE;
        shape_.max_blocks = 0;
        shape_.stride = 1;
        areas_.assign(config.ranks, 0);
        for (const BlockEntry &block : blocks_) {
            shape_.max_blocks = std::max(shape_.max_blocks, block.id + 1);
            shape_.stride = std::max(shape_.stride, block.steps + 1);
            areas_[block.rank] = std::max(areas_[block.rank], block.recv_slots + 1);
        }
        try {
            if (shape_.slots < 1 || shape_.slots & (shape_.slots - 1))
                throw std::runtime_error("expected a power of two of slots");
            group();
            for (int rank = 0; rank < config.ranks; ++rank)
                if (devices_[rank] >= 0) arenas_[rank] = static_cast<char *>(platform::allocate(devices_[rank], arena_bytes(rank)));
            prepare();
        } catch (...) {
            release();
            throw;
        }
    }
    ~Session() { release(); }
    Session(const Session &) = delete;

    platform::Handle share(int rank) const { return platform::share(devices_[rank], arenas_[rank]); }

    // Makes the arena of a rank in another process known here.
    void attach(int rank, platform::Handle handle) {
        arenas_[rank] = static_cast<char *>(platform::attach(groups_.front().device, handle));
        attached_.push_back(rank);
        prepare();
    }

    // Gives back the arenas of other processes, which they may free only then.
    void detach() {
        for (int rank : attached_) {
            platform::detach(groups_.front().device, arenas_[rank]);
            arenas_[rank] = nullptr;
        }
        attached_.clear();
    }

    void launch(const Call &call) {
        for (int rank = 0; rank < shape_.ranks; ++rank)
            if (!arenas_[rank]) throw std::runtime_error("rank " + std::to_string(rank) + " is not attached yet");
        seed_ = call.seed;
        const Kernel kernel = select(call.dtype);
        const int threads = threads_of(kernel);
        for (const Group &group : groups_)
            if (group.blocks)
                platform::start(kernel, group.device, group.blocks, threads, parameters(call, group),
                                call.streams[group.first_rank]);
    }

    // Throws when the blocks of a device cannot be resident at once, whatever kernel a launch selects.
    void fit() {
        for (int dtype : {FLOAT32, FLOAT16, BFLOAT16, INT32}) threads_of(select(dtype));
    }

    // Waits for all launches; false when one gave up, and `stuck` then knows where. Such a session is of no more use.
    bool wait() {
        for (const Group &group : groups_) platform::synchronise(group.device, seed_);
        bool ended = true;
        for (const Group &group : groups_) {
            uint32_t word = 0;
            if (group.abort) platform::download(group.device, &word, group.abort, sizeof word);
            ended = ended && !word;
        }
        return ended;
    }

    // (rank, block, step, reason, awaited block, awaited step) of every block that waited in vain.
    std::vector<std::array<int32_t, 6>> stuck() const {
        std::vector<std::array<int32_t, 6>> found;
        for (const BlockEntry &block : blocks_) {
            if (devices_[block.rank] < 0) continue;
            BlockState state;
            platform::download(devices_[block.rank], &state, arenas_[block.rank] + block.id * sizeof state, sizeof state);
            if (state.reason != NOTHING)
                found.push_back({block.rank, block.id, state.step, state.reason, state.wait_block, state.wait_step});
        }
        return found;
    }

  private:
    // Threads of a block for a kernel: all blocks of a device must be resident at once, as they wait for one another.
    int threads_of(Kernel kernel) {
        auto known = chosen_threads_.find(kernel);
        if (known != chosen_threads_.end()) return known->second;
        std::vector<int> candidates(std::begin(platform::THREADS), std::end(platform::THREADS));
        if (threads_) candidates = {threads_};
        std::string excess;
        for (int threads : candidates) {
            excess.clear();
            for (const Group &group : groups_) {
                const int most = group.blocks ? platform::resident_blocks(kernel, group.device, threads) : 0;
                if (group.blocks > most)
                    excess = "found " + std::to_string(group.blocks) + " threadblocks of " + std::to_string(group.ranks) +
                             " ranks on device " + std::to_string(group.device) + ", expected at most " +
                             std::to_string(most) + ", as many as can be resident at once; use fewer instances" +
                             (threads_ ? ", fewer threads" : "") + " or more devices";
            }
            if (excess.empty()) return chosen_threads_[kernel] = threads;
        }
        throw std::runtime_error(excess);
    }

    size_t arena_bytes(int rank) const {
        return shape_.max_blocks * sizeof(BlockState) + size_t(areas_[rank]) * shape_.slots * shape_.slot_bytes + LINE;
    }

    void group() {
        for (int rank = 0; rank < shape_.ranks; ++rank) {
            const int device = devices_[rank];
            if (device < 0) continue;
            if (device >= platform::device_count())
                throw std::runtime_error("found no device " + std::to_string(device));
            if (groups_.empty() || groups_.back().device != device ||
                groups_.back().first_rank + groups_.back().ranks != rank) {
                for (const Group &other : groups_)
                    if (other.device == device)
                        throw std::runtime_error("ranks on one device must be neighbours");
                groups_.push_back({device, rank, 0, 0, 0});
            }
            if (++groups_.back().ranks > MAX_LOCAL_RANKS)
                throw std::runtime_error("found more than " + std::to_string(MAX_LOCAL_RANKS) + " ranks on one device");
        }
        for (Group &group : groups_) {
            const auto before = [&](int rank) {
                return int(std::count_if(blocks_.begin(), blocks_.end(), [&](const BlockEntry &b) { return b.rank < rank; }));
            };
            group.first_block = before(group.first_rank);
            group.blocks = before(group.first_rank + group.ranks) - group.first_block;
        }
    }

    // Done once all arenas are known and before any launch: allocating may wait for kernels that wait for this session.
    void prepare() {
        if (std::count(arenas_.begin(), arenas_.end(), nullptr)) return;
        for (Group &group : groups_) {
            for (const Group &other : groups_) platform::connect(group.device, other.device);
            group.block_table = copied(group.device, blocks_);
            group.step_table = copied(group.device, steps_);
            group.arenas = copied(group.device, arenas_);
            group.abort = static_cast<uint32_t *>(platform::allocate(group.device, LINE));
        }
    }

    template <class T>
    T *copied(int device, const std::vector<T> &table) {
        auto memory = static_cast<T *>(platform::allocate(device, (table.size() + 1) * sizeof(T)));
        platform::upload(device, memory, table.data(), table.size() * sizeof(T));
        return memory;
    }

    Launch parameters(const Call &call, const Group &group) const {
        Launch launch{};
        launch.blocks = group.block_table;
        launch.steps = group.step_table;
        launch.arenas = group.arenas;
        launch.abort = group.abort;
        launch.shape = shape_;
        launch.first_block = group.first_block;
        launch.first_rank = group.first_rank;
        launch.part_chunks = call.part_chunks;
        launch.operation = call.operation;
        launch.part = call.part;
        launch.width = chunk_width(call.part, call.part_chunks, call.element);
        launch.slices = int32_t((launch.width + chunk_bytes_ - 1) / chunk_bytes_);
        launch.slice = std::min(chunk_bytes_, launch.width);
        launch.merged = launch.slices == 1 && launch.width * call.part_chunks == call.part;
        launch.timeout_ns = call.timeout_ns;
        std::copy_n(call.local + group.first_rank, group.ranks, launch.local);
        return launch;
    }

    void release() {
        for (Group &group : groups_)
            for (void *memory : {(void *)group.block_table, (void *)group.step_table, (void *)group.arenas, (void *)group.abort})
                if (memory) platform::release(group.device, memory);
        detach();
        for (int rank = 0; rank < shape_.ranks; ++rank)
            if (devices_[rank] >= 0 && arenas_[rank]) platform::release(devices_[rank], arenas_[rank]);
    }

    int threads_, max_count_;
    std::vector<BlockEntry> blocks_;
    std::vector<Step> steps_;
    std::vector<int> devices_, areas_, attached_;
    std::vector<char *> arenas_;
    std::vector<Group> groups_;
    Shape shape_{};
    int64_t chunk_bytes_ = 0;
    uint64_t seed_ = 0;
    std::map<Kernel, int> chosen_threads_;
};

}  // namespace treadle

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }

TREADLE_API int treadle_device_count() { return treadle::platform::device_count(); }

TREADLE_API int treadle_handle_bytes() { return sizeof(treadle::platform::Handle); }

TREADLE_API int64_t treadle_chunk_width(int64_t part, int part_chunks, int64_t element) {
    return treadle::chunk_width(part, part_chunks, element);
}

TREADLE_API int treadle_open(const treadle::Config *config, const treadle::BlockEntry *blocks,
                             const treadle::Step *steps, void **session) {
    return treadle::guarded([&] { *session = new treadle::Session(*config, blocks, steps); });
}

TREADLE_API void treadle_close(void *session) { delete static_cast<treadle::Session *>(session); }

TREADLE_API int treadle_share(void *session, int rank, void *handle) {
    return treadle::guarded([&] {
        *static_cast<treadle::platform::Handle *>(handle) = static_cast<treadle::Session *>(session)->share(rank);
    });
}

TREADLE_API int treadle_attach(void *session, int rank, const void *handle) {
    return treadle::guarded([&] {
        static_cast<treadle::Session *>(session)->attach(rank, *static_cast<const treadle::platform::Handle *>(handle));
    });
}

TREADLE_API int treadle_detach(void *session) {
    return treadle::guarded([&] { static_cast<treadle::Session *>(session)->detach(); });
}

TREADLE_API int treadle_launch(void *session, const treadle::Call *call) {
    return treadle::guarded([&] { static_cast<treadle::Session *>(session)->launch(*call); });
}

TREADLE_API int treadle_fit(void *session) {
    return treadle::guarded([&] { static_cast<treadle::Session *>(session)->fit(); });
}

// 0 when every launch has ended, 1 with a message, 2 when one gave up waiting.
TREADLE_API int treadle_wait(void *session) {
    bool ended = true;
    const int status = treadle::guarded([&] { ended = static_cast<treadle::Session *>(session)->wait(); });
    return status ? status : ended ? 0 : 2;
}

// Writes up to `most` sixes of numbers; returns how many there are, -1 with a message.
TREADLE_API int treadle_stuck(void *session, int32_t *sixes, int most) {
    int count = 0;
    const int status = treadle::guarded([&] {
        for (const auto &six : static_cast<treadle::Session *>(session)->stuck())
            if (count++ < most) sixes = std::copy(six.begin(), six.end(), sixes);
    });
    return status ? -1 : count;
}
