// The host side: a session holds the arenas of its ranks and launches kernels. Ranks may share one device (virtual
// ranks), lie on several devices of this process (peer pointers) or in other processes (shared handles).
#pragma once
#include "treadle_session.h"

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

// What the kernel reads on a device.
struct Tables {
    BlockEntry *blocks;
    Step *steps;
};

// A threadblock whose wait timed out.
struct Stuck {
    int32_t rank, block, step, reason, wait_block, wait_step;
};

// Bytes of a chunk: large ones begin at multiples of 16 bytes, so that words of 16 bytes can be moved.
inline int64_t chunk_width(int64_t part, int part_chunks, int64_t element) {
    const int64_t least = (part + part_chunks - 1) / part_chunks;
    const int64_t grain = least >= 256 ? std::max<int64_t>(16, element) : element;
    return (least + grain - 1) / grain * grain;
}

class Session : public Arenas {
  public:
    Session(const Config &config, const BlockEntry *blocks, const Step *steps)
        : Arenas(config.devices, config.ranks),
          threads_(config.threads),
          max_count_(std::max(1, config.max_count)),
          blocks_(blocks, blocks + config.blocks),
          steps_(steps, steps + config.steps) {
        chunk_bytes_ = std::max<int64_t>(16, config.slot_bytes / max_count_ / 16 * 16);
        shape_.ranks = config.ranks;
        shape_.slots = config.slots;
        shape_.slot_bytes = (Protocol::wire(chunk_bytes_) * max_count_ + LINE - 1) / LINE * LINE;
        shape_.max_blocks = 0;
        shape_.stride = 1;
        std::vector<int> areas(config.ranks, 0);
        for (const BlockEntry &block : blocks_) {
            shape_.max_blocks = std::max(shape_.max_blocks, block.id + 1);
            shape_.stride = std::max(shape_.stride, block.steps + 1);
            areas[block.rank] = std::max(areas[block.rank], block.recv_slots + 1);
        }
        if (shape_.slots < 1 || shape_.slots & (shape_.slots - 1))
            throw std::runtime_error("expected a power of two of slots");
        for (const Neighbours &group : groups_)
            if (group.ranks > MAX_LOCAL_RANKS)
                throw std::runtime_error("found more than " + std::to_string(MAX_LOCAL_RANKS) + " ranks on one device");
        make([&](int rank) {
            return shape_.max_blocks * sizeof(BlockState) + size_t(areas[rank]) * shape_.slots * shape_.slot_bytes + LINE;
        });
    }

    void launch(const Call &call) {
        require_attached();
        count_call();
        order_ = call.seed;
        const Kernel kernel = select(call.dtype);
        const int threads = threads_of(kernel);
        for (const Neighbours &group : groups_)
            if (const int blocks = blocks_of(group))
                platform::start(kernel, group.device, blocks, threads, parameters(call, group),
                                call.streams[group.first_rank]);
    }

    // The share of a device that the blocks take which are resident at once, of the kernel that takes most. Throws when
    // they cannot be.
    double fit() {
        double most = 0;
        for (int dtype : {FLOAT32, FLOAT16, BFLOAT16, INT32})
            for (const Neighbours &group : groups_) {
                const Kernel kernel = select(dtype);
                most = std::max(most, blocks_of(group) / double(platform::resident_blocks(kernel, group.device, threads_of(kernel))));
            }
        return most;
    }

    std::vector<Stuck> stuck() const {
        std::vector<Stuck> found;
        for (const BlockEntry &block : blocks_) {
            if (!local(block.rank)) continue;
            BlockState state;
            download(block.rank, &state, block.id * sizeof state, sizeof state);
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
            for (const Neighbours &group : groups_) {
                const int blocks = blocks_of(group);
                const int most = blocks ? platform::resident_blocks(kernel, group.device, threads) : 0;
                if (blocks > most)
                    excess = "found " + std::to_string(blocks) + " threadblocks of " + std::to_string(group.ranks) +
                             " ranks on device " + std::to_string(group.device) + ", expected at most " +
                             std::to_string(most) + ", as many as can be resident at once; use fewer instances" +
                             (threads_ ? ", fewer threads" : "") + " or more devices";
            }
            if (excess.empty()) return chosen_threads_[kernel] = threads;
        }
        throw std::runtime_error(excess);
    }

    // Threadblocks of ranks before this one: they come in order of ranks.
    int before(int rank) const {
        const auto end = std::partition_point(blocks_.begin(), blocks_.end(), [&](const BlockEntry &b) { return b.rank < rank; });
        return int(end - blocks_.begin());
    }
    int blocks_of(const Neighbours &group) const {
        return before(group.first_rank + group.ranks) - before(group.first_rank);
    }

    void sees([[maybe_unused]] const Neighbours &group, [[maybe_unused]] int rank, [[maybe_unused]] int device) override {
        if constexpr (Protocol::LINES) {
            if (platform::whole_lines(group.device, device)) return;
            for (const BlockEntry &block : blocks_)
                if (block.send_block >= 0 && block.send_rank == rank && group.first_rank <= block.rank && block.rank < group.first_rank + group.ranks)
                    refuse_lines(block.rank, group.device, rank, device);
        }
    }

    void equip(const Neighbours &group) override {
        tables_[group.device] = {copied(group.device, blocks_), copied(group.device, steps_)};
    }

    Launch parameters(const Call &call, const Neighbours &group) const {
        Launch launch{};
        const Tables &tables = tables_.at(group.device);
        launch.blocks = tables.blocks;
        launch.steps = tables.steps;
        launch.arenas = group.arenas;
        launch.abort = group.abort;
        launch.shape = shape_;
        launch.first_block = before(group.first_rank);
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

    int threads_, max_count_;
    std::vector<BlockEntry> blocks_;
    std::vector<Step> steps_;
    std::map<int, Tables> tables_;  // by device
    Shape shape_{};
    int64_t chunk_bytes_ = 0;
    std::map<Kernel, int> chosen_threads_;
};

}  // namespace treadle

TREADLE_API int64_t treadle_chunk_width(int64_t part, int part_chunks, int64_t element) {
    return treadle::chunk_width(part, part_chunks, element);
}

TREADLE_API int treadle_open(const treadle::Config *config, const treadle::BlockEntry *blocks,
                             const treadle::Step *steps, void **session) {
    return treadle::guarded([&] { *session = static_cast<treadle::Arenas *>(new treadle::Session(*config, blocks, steps)); });
}

TREADLE_API int treadle_launch(void *session, const treadle::Call *call) {
    return treadle::guarded([&] { treadle::opened<treadle::Session>(session).launch(*call); });
}

// The share of a device that must be resident at once.
TREADLE_API int treadle_fit(void *session, double *share) {
    return treadle::guarded([&] { *share = treadle::opened<treadle::Session>(session).fit(); });
}

// Writes up to `most` rows; returns how many there are, -1 with a message.
TREADLE_API int treadle_stuck(void *session, treadle::Stuck *rows, int most) {
    return treadle::stuck<treadle::Session>(session, rows, most);
}
