// What the sessions of all drivers share: the arenas of the ranks here and in other processes, the memory next to
// them, and waiting. Their functions in C are at the end; each driver adds those that open and run.
#pragma once
#include <algorithm>
#include <map>
#include <vector>

#include "treadle_host.h"

namespace treadle {

// Ranks that one launch covers, all those of a device: one more launch would wait for blocks that it leaves no room.
struct Neighbours {
    int device, first_rank, ranks;
    char **arenas = nullptr;  // arenas of all ranks, in memory of the device
    uint32_t *abort = nullptr;
};

class Arenas {
  public:
    // `devices` by rank, -1 for ranks of other processes.
    Arenas(const int32_t *devices, int ranks) : devices_(devices, devices + ranks), arenas_(ranks, nullptr) {
        for (int rank = 0; rank < ranks; ++rank) {
            const int device = devices_[rank];
            if (device < 0) continue;
            if (device >= platform::device_count()) throw std::runtime_error("found no device " + std::to_string(device));
            if (groups_.empty() || groups_.back().device != device || groups_.back().first_rank + groups_.back().ranks != rank) {
                for (const Neighbours &other : groups_)
                    if (other.device == device) throw std::runtime_error("ranks on one device must be neighbours");
                groups_.push_back({device, rank, 0});
            }
            ++groups_.back().ranks;
        }
    }
    virtual ~Arenas() {
        for (const auto &[device, memory] : reserved_) platform::release(device, memory);
        detach();
        for (int rank = 0; rank < ranks(); ++rank)
            if (devices_[rank] >= 0 && arenas_[rank]) platform::release(devices_[rank], arenas_[rank]);
    }
    Arenas(const Arenas &) = delete;

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

    // Waits for all launches; false when one gave up, and `stuck` then knows where. The session must not be used after.
    bool wait() {
        synchronise(order_);
        return !given_up();
    }

  protected:
    // What launches on these ranks need in addition to arenas.
    virtual void equip(const Neighbours &group) = 0;

    int ranks() const { return int(devices_.size()); }
    bool local(int rank) const { return devices_[rank] >= 0; }

    // Lets `arena` stand for that of a rank which memory does not reach.
    void stand_in(int rank, char *arena) {
        arenas_[rank] = arena;
        prepare();
    }

    // Makes the arenas of the ranks here, of `bytes(rank)`.
    template <class Bytes>
    void make(const Bytes &bytes) {
        for (int rank = 0; rank < ranks(); ++rank)
            if (local(rank)) arenas_[rank] = static_cast<char *>(platform::allocate(devices_[rank], bytes(rank)));
        prepare();
    }

    void require_attached() const {
        for (int rank = 0; rank < ranks(); ++rank)
            if (!arenas_[rank]) throw std::runtime_error("rank " + std::to_string(rank) + " is not attached yet");
    }

    void download(int rank, void *to, size_t offset, size_t bytes) const {
        platform::download(devices_[rank], to, arenas_[rank] + offset, bytes);
    }

    // Zeroed memory of a device, until the session ends.
    template <class T>
    T *reserved(int device, size_t count) {
        auto memory = static_cast<T *>(platform::allocate(device, (count + 1) * sizeof(T)));
        reserved_.push_back({device, memory});
        return memory;
    }
    template <class T>
    T *copied(int device, const std::vector<T> &table) {
        T *memory = reserved<T>(device, table.size());
        platform::upload(device, memory, table.data(), table.size() * sizeof(T));
        return memory;
    }

    void synchronise(uint64_t order) const {
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

    char *arena(int rank) const { return arenas_[rank]; }

    std::vector<Neighbours> groups_;
    uint64_t order_ = 0;  // seed of the order of fibers in `wait`

  private:
    // Done once all arenas are known and before any launch: allocating may wait for kernels that wait for this session.
    void prepare() {
        if (std::count(arenas_.begin(), arenas_.end(), nullptr)) return;
        for (Neighbours &group : groups_) {
            for (const Neighbours &other : groups_) platform::connect(group.device, other.device);
            group.arenas = copied(group.device, arenas_);
            group.abort = reserved<uint32_t>(group.device, LINE / sizeof(uint32_t));
            equip(group);
        }
    }

    std::vector<int> devices_, attached_;
    std::vector<char *> arenas_;
    std::vector<std::pair<int, void *>> reserved_;
};

// What C knows as a pointer to anything: always an Arenas.
template <class Session>
Session &opened(void *session) {
    return *static_cast<Session *>(static_cast<Arenas *>(session));
}

// Writes up to `most` rows of waits of `session` that timed out; returns how many there are, -1 with a message.
template <class Session, class Row>
int stuck(void *session, Row *rows, int most) {
    int count = 0;
    const int status = guarded([&] {
        for (const Row &row : opened<Session>(session).stuck())
            if (count++ < most) *rows++ = row;
    });
    return status ? -1 : count;
}

}  // namespace treadle

TREADLE_API const char *treadle_message() { return treadle::message.c_str(); }

TREADLE_API int treadle_handle_bytes() { return sizeof(treadle::platform::Handle); }

TREADLE_API void treadle_close(void *session) { delete static_cast<treadle::Arenas *>(session); }

TREADLE_API int treadle_share(void *session, int rank, void *handle) {
    return treadle::guarded([&] {
        *static_cast<treadle::platform::Handle *>(handle) = treadle::opened<treadle::Arenas>(session).share(rank);
    });
}

TREADLE_API int treadle_attach(void *session, int rank, const void *handle) {
    return treadle::guarded([&] {
        treadle::opened<treadle::Arenas>(session).attach(rank, *static_cast<const treadle::platform::Handle *>(handle));
    });
}

TREADLE_API int treadle_detach(void *session) {
    return treadle::guarded([&] { treadle::opened<treadle::Arenas>(session).detach(); });
}

// 0 when every launch has ended, 1 with a message, 2 when one gave up waiting.
TREADLE_API int treadle_wait(void *session) {
    bool ended = true;
    const int status = treadle::guarded([&] { ended = treadle::opened<treadle::Arenas>(session).wait(); });
    return status ? status : ended ? 0 : 2;
}
