// What the sessions of all drivers share: the arenas of the ranks here and in other processes, the memory next to
// them, waiting, and giving up. Their functions in C are at the end; each driver adds those that open and run.
#pragma once
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "treadle_host.h"

namespace treadle {

// Ranks that one launch covers, all those of a device: one more launch would wait for blocks that it leaves no room.
struct Neighbours {
    int device, first_rank, ranks;
    std::vector<char *> reached{};  // arenas of all ranks as the device knows them, null while unknown
    char **arenas = nullptr;        // the same, in memory of the device
    Abort abort{};
};

// What a process shows of a program to all processes of its host.
struct Page {
    alignas(LINE) uint32_t abort;  // kernels poll it
    alignas(LINE) uint64_t calls;  // that its ranks have made
    uint32_t left;                 // it reaches no arena of others any more
};

// What another process attaches.
struct Shared {
    platform::Handle arena;
    platform::HostHandle page;
};

class Arenas {
  public:
    // `devices` by rank, -1 for ranks of other processes.
    Arenas(const int32_t *devices, int ranks) : devices_(devices, devices + ranks), arenas_(ranks, nullptr), pages_(ranks, nullptr) {
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
        if (groups_.empty()) throw std::runtime_error("found no rank of this process");
        for (Neighbours &group : groups_) group.reached.assign(ranks, nullptr);
        own_ = static_cast<Page *>(platform::allocate_host(groups_.front().device, sizeof(Page)));
    }
    virtual ~Arenas() {
        if (!own_->left && !others_.empty()) close_early();
        detach();
        const bool free = !aborted() || all_left();
        for (const auto &[device, memory] : reserved_) platform::release(device, memory);
        for (int rank = 0; rank < ranks(); ++rank)
            if (free && arenas_[rank]) platform::release(devices_[rank], arenas_[rank]);
        for (const Other &other : others_) platform::release_host(groups_.front().device, other.page);
        platform::release_host(groups_.front().device, own_);
    }
    Arenas(const Arenas &) = delete;

    Shared share(int rank) const { return {platform::share(devices_[rank], arenas_[rank]), platform::share_host(own_)}; }

    // Makes the arena of a rank in another process known here: on each device, as every one reaches it by a path of its own.
    void attach(int rank, const Shared &shared) {
        for (Neighbours &group : groups_) {
            group.reached[rank] = static_cast<char *>(platform::attach(group.device, shared.arena));
            attached_.push_back({group.device, group.reached[rank]});
            sees(group, rank, platform::device_of(group.device, shared.arena));
        }
        pages_[rank] = page_of(shared.page, rank);
        prepare();
    }

    // Gives back the arenas of other processes, which they may free only then.
    void detach() {
        watch_.reset();
        for (const auto &[device, arena] : attached_) platform::detach(device, arena);
        if (!attached_.empty())
            for (Neighbours &group : groups_) group.reached.assign(ranks(), nullptr);
        attached_.clear();
        __atomic_store_n(&own_->left, 1u, __ATOMIC_RELEASE);
    }

    // From now on a process that ends before it has left ends all launches, however long they may wait.
    void watch() {
        std::vector<int> processes;
        for (const Other &other : others_) processes.push_back(platform::process_of(other.handle));
        watch_ = std::make_unique<platform::Watch>(processes, [this](size_t i) {
            if (!__atomic_load_n(&others_[i].page->left, __ATOMIC_ACQUIRE)) give_up(abort_word(LOST, others_[i].first_rank));
        });
    }

    // Waits for all launches; false when one gave up, and `stuck` then knows where. The session must not be used after.
    bool wait() {
        synchronise(order_);
        return !aborted();
    }

    // Why the program was given up, 0 while it was not.
    virtual uint32_t aborted() const {
        uint32_t cause = __atomic_load_n(&own_->abort, __ATOMIC_RELAXED);
        if (cause)
            for (const Other &other : others_) cause = std::max(cause, __atomic_load_n(&other.page->abort, __ATOMIC_RELAXED));
        return cause;
    }

    // The calls that each rank of this host has made; of others the largest number.
    void calls(uint64_t *by_rank) const {
        for (int rank = 0; rank < ranks(); ++rank)
            by_rank[rank] = pages_[rank] ? __atomic_load_n(&pages_[rank]->calls, __ATOMIC_RELAXED) : UINT64_MAX;
    }

  protected:
    // What launches on these ranks need in addition to arenas.
    virtual void equip(const Neighbours &group) = 0;

    int ranks() const { return int(devices_.size()); }
    bool local(int rank) const { return devices_[rank] >= 0; }

    // Called once for each other rank that a device will reach; `peer` is its device, -1 if it is not visible here.
    virtual void sees(const Neighbours &, int, int) {}

    // Lets `arena` stand for that of a rank which memory does not reach.
    void stand_in(int rank, char *arena) {
        for (Neighbours &group : groups_) group.reached[rank] = arena;
        prepare();
    }

    void count_call() { __atomic_fetch_add(&own_->calls, 1, __ATOMIC_RELAXED); }

    // The abort words of this host.
    std::vector<uint32_t *> words() const {
        std::vector<uint32_t *> words{&own_->abort};
        for (const Other &other : others_) words.push_back(&other.page->abort);
        return words;
    }

    [[noreturn]] static void refuse_lines(int rank, int device, int other, int peer) {
        throw std::runtime_error("rank " + std::to_string(rank) + " on device " + std::to_string(device) +
                                 " has no path with stores of 128 bytes at once to rank " + std::to_string(other) +
                                 (peer < 0 ? ", whose device is not visible here" : " on device " + std::to_string(peer)) +
                                 ", which protocol LL128 needs: NVLink has them, PCIe has not; take protocol Simple or LL");
    }

    // Makes the arenas of the ranks here, of `bytes(rank)`.
    template <class Bytes>
    void make(const Bytes &bytes) {
        for (int rank = 0; rank < ranks(); ++rank)
            if (local(rank)) {
                arenas_[rank] = static_cast<char *>(platform::allocate(devices_[rank], bytes(rank)));
                for (Neighbours &group : groups_) {
                    group.reached[rank] = arenas_[rank];
                    sees(group, rank, devices_[rank]);
                    pages_[rank] = own_;
                }
            }
        prepare();
    }

    void require_attached() const {
        for (int rank = 0; rank < ranks(); ++rank)
            if (!groups_.front().reached[rank]) throw std::runtime_error("rank " + std::to_string(rank) + " is not attached yet");
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

    char *arena(int rank) const { return arenas_[rank]; }

    std::vector<Neighbours> groups_;
    uint64_t order_ = 0;  // seed of the order of fibers in `wait`

  private:
    // Another process of this host.
    struct Other {
        platform::HostHandle handle;
        Page *page;
        int first_rank;
    };
    static constexpr std::chrono::seconds LEAVING{2};

    // Done once all arenas are known and before any launch: allocating may wait for kernels that wait for this session.
    void prepare() {
        for (const Neighbours &group : groups_)
            if (std::count(group.reached.begin(), group.reached.end(), nullptr)) return;
        for (Neighbours &group : groups_) {
            for (const Neighbours &other : groups_) platform::connect(group.device, other.device);
            group.arenas = copied(group.device, group.reached);
            std::vector<uint32_t *> others;
            for (const Other &other : others_) others.push_back(&on(group, other.page)->abort);
            group.abort = {&on(group, own_)->abort, copied(group.device, others), int32_t(others.size()), abort_word(LATE, group.first_rank)};
            equip(group);
        }
    }

    static Page *on(const Neighbours &group, Page *page) { return static_cast<Page *>(platform::on_device(group.device, page)); }

    Page *page_of(platform::HostHandle handle, int rank) {
        for (const Other &other : others_)
            if (!std::memcmp(&other.handle, &handle, sizeof handle)) return other.page;
        auto page = static_cast<Page *>(platform::attach_host(groups_.front().device, handle));
        others_.push_back({handle, page, rank});
        return page;
    }

    void give_up(uint32_t cause) {
        for (uint32_t *word : words()) set_abort(word, cause);
    }

    // The kernels here and those that wait for them have to end, before their arenas go.
    void close_early() {
        watch_.reset();
        give_up(abort_word(CLOSED, groups_.front().first_rank));
        if (!platform::STREAMS) return;
        try {
            synchronise(order_);
        } catch (const std::exception &) {
            // nothing runs on a device that is broken
        }
    }

    // Waits until no other process stores here any more; false when one does not come to its end soon.
    bool all_left() const {
        const auto last = std::chrono::steady_clock::now() + LEAVING;
        for (const Other &other : others_)
            while (!__atomic_load_n(&other.page->left, __ATOMIC_ACQUIRE) && platform::lives_elsewhere(platform::process_of(other.handle))) {
                if (std::chrono::steady_clock::now() > last) return false;
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        return true;
    }

    std::vector<int> devices_;
    std::vector<char *> arenas_;  // of the ranks here
    std::vector<std::pair<int, char *>> attached_;
    std::vector<std::pair<int, void *>> reserved_;
    Page *own_;
    std::vector<Page *> pages_;  // by rank, null where a rank is on another host
    std::vector<Other> others_;
    std::unique_ptr<platform::Watch> watch_;
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

TREADLE_API int treadle_handle_bytes() { return sizeof(treadle::Shared); }

TREADLE_API void treadle_close(void *session) { delete static_cast<treadle::Arenas *>(session); }

TREADLE_API int treadle_share(void *session, int rank, void *handle) {
    return treadle::guarded([&] {
        *static_cast<treadle::Shared *>(handle) = treadle::opened<treadle::Arenas>(session).share(rank);
    });
}

TREADLE_API int treadle_attach(void *session, int rank, const void *handle) {
    return treadle::guarded([&] {
        treadle::opened<treadle::Arenas>(session).attach(rank, *static_cast<const treadle::Shared *>(handle));
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

TREADLE_API int treadle_watch(void *session) {
    return treadle::guarded([&] { treadle::opened<treadle::Arenas>(session).watch(); });
}

// The abort word of treadle_types.h.
TREADLE_API uint32_t treadle_aborted(void *session) { return treadle::opened<treadle::Arenas>(session).aborted(); }

TREADLE_API void treadle_calls(void *session, uint64_t *by_rank) { treadle::opened<treadle::Arenas>(session).calls(by_rank); }
