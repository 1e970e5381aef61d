// The memory of one state: two halves in a memfd, which pieces are in them, who fills one and who reads.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "crc_join.h"
#include "frame.h"

namespace treadle {

struct HeldPiece {
    uint64_t offset, bytes;
    uint32_t sum;
};

enum class Phase { EMPTY, FILLING, WHOLE };

struct Half {
    uint64_t at;  // in the memory
    Phase phase = Phase::EMPTY;
    uint64_t version = 0, bytes = 0, got = 0;
    uint32_t sum = 0;
    std::vector<HeldPiece> pieces = {};
    int readers = 0;
};

// Whoever fills a state. `cut` ends it soon, and it then lets go of the state. Of those of one state the later one stays:
// what an earlier one had sent before it died may be read after a later one has begun. 0: in any order.
struct Filler {
    const uint64_t order;
    virtual void cut(const std::string &why) = 0;

  protected:
    explicit Filler(uint64_t order) : order(order) {}
    ~Filler() = default;
};

// Calls come from any thread; the ones that may be refused return the reason, empty for none.
struct HeldState {
    const uint32_t machine, device;
    const uint64_t most;  // bytes of a version
    int memfd = -1;
    char *data = nullptr;

    HeldState(uint32_t machine, uint32_t device, uint64_t most, int halves) : machine(machine), device(device), most(most) {
        const uint64_t each = (most + HALF_ALIGNED - 1) / HALF_ALIGNED * HALF_ALIGNED;
        for (int half = 0; half < halves; ++half) this->halves.push_back({each * uint64_t(half)});
        bytes = each * uint64_t(halves);
    }
    HeldState(const HeldState &) = delete;
    HeldState &operator=(const HeldState &) = delete;
    ~HeldState() {
        if (data) munmap(data, size_t(bytes));
        if (memfd >= 0) close(memfd);
    }

    uint64_t size() const { return bytes; }
    std::string name() const { return "the state of machine " + std::to_string(machine) + ", device " + std::to_string(device); }

    // Takes the memory and touches it; false where the system refuses it. It can neither shrink nor grow later.
    bool take() {
        if (bytes == 0) return true;
        memfd = memfd_create("treadle-checkpoint", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (memfd < 0 || ftruncate(memfd, off_t(bytes)) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) return false;
        void *const found = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        if (found == MAP_FAILED) return false;
        madvise(found, size_t(bytes), MADV_HUGEPAGE);
        data = static_cast<char *>(found);
        std::memset(data, 0, size_t(bytes));
        return true;
    }

    // A version begins, in the half that `at` is set to.
    std::string begin(Filler &by, uint64_t version, uint64_t length, uint64_t &at) {
        std::unique_lock<std::mutex> lock(mutex);
        if (length > most) return "it has " + std::to_string(length) + " bytes, and memory is for " + std::to_string(most);
        if (by.order && by.order < latest) return "a later stream began version " + std::to_string(latest_version) + " of " + name();
        if (by.order) latest = by.order, latest_version = version;
        while (filler && filler != &by) {
            filler->cut("another stream began version " + std::to_string(version) + " of " + name());
            changed.wait(lock);
        }
        filler = &by;
        for (Half &half : halves)
            if (half.phase != Phase::WHOLE || half.version >= version) half.phase = Phase::EMPTY;
        Half *next = &halves.front();
        for (Half &half : halves)
            if (age(half) < age(*next) || (age(half) == age(*next) && half.readers < next->readers)) next = &half;
        next->phase = Phase::EMPTY;
        changed.wait(lock, [next] { return next->readers == 0; });
        *next = Half{next->at, Phase::FILLING, version, length};
        at = next->at;
        return {};
    }

    // Where the bytes of a piece belong.
    std::string place(const Filler &by, uint64_t version, uint64_t offset, uint64_t length, char *&into) {
        const std::lock_guard<std::mutex> lock(mutex);
        const Half *const half = filling(by, version);
        if (!half) return "version " + std::to_string(version) + " has not begun";
        if (offset > half->bytes || length > half->bytes - offset || length > half->bytes - half->got) return "a piece has bytes that are none of its version, or that are there";
        into = data + half->at + offset;
        return {};
    }

    // The bytes of a piece are where they belong.
    void took(const Filler &by, uint64_t version, const HeldPiece &piece) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (Half *const half = filling(by, version)) {
            half->pieces.push_back(piece);
            half->got += piece.bytes;
        }
    }

    // The version is whole.
    std::string commit(const Filler &by, uint64_t version, uint64_t length, uint32_t sum) {
        const std::lock_guard<std::mutex> lock(mutex);
        Half *const half = filling(by, version);
        if (!half) return "version " + std::to_string(version) + " has not begun";
        filler = nullptr;
        half->phase = Phase::EMPTY;
        changed.notify_all();
        if (length != half->bytes) return "version " + std::to_string(version) + " began with another length";
        std::sort(half->pieces.begin(), half->pieces.end(), [](const HeldPiece &a, const HeldPiece &b) { return a.offset < b.offset; });
        uint64_t end = 0;
        for (const HeldPiece &piece : half->pieces) {
            if (piece.offset != end) break;
            half->sum = crc_joined(half->sum, piece.sum, piece.bytes);
            end += piece.bytes;
        }
        if (end != length) return "version " + std::to_string(version) + " has no byte " + std::to_string(end);
        if (half->sum != sum) return "version " + std::to_string(version) + " has another sum than its owner counted";
        half->phase = Phase::WHOLE;
        return {};
    }

    // Lets go of the state; what `by` had filled of `half` is a copy of what is lost, with the phase FILLING, if anything.
    Half abandon(const Filler &by) {
        const std::lock_guard<std::mutex> lock(mutex);
        Half lost{};
        if (filler != &by) return lost;
        for (Half &half : halves)
            if (half.phase == Phase::FILLING) {
                lost = half;
                half.phase = Phase::EMPTY;
            }
        filler = nullptr;
        changed.notify_all();
        return lost;
    }

    // Calls `use` with a whole version, which no one overwrites meanwhile; false where it is not there.
    template <class Use>
    bool read(uint64_t version, Use &&use) {
        Half *found = nullptr;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            for (Half &half : halves)
                if (half.phase == Phase::WHOLE && half.version == version) found = &half;
            if (!found) return false;
            ++found->readers;
        }
        use(const_cast<const Half &>(*found));
        const std::lock_guard<std::mutex> lock(mutex);
        --found->readers;
        changed.notify_all();
        return true;
    }

    // Reads every piece again, of a version that is being read: the first byte of one that is damaged, or `bytes`.
    uint64_t damaged_at(const Half &half) const {
        for (const HeldPiece &piece : half.pieces)
            if (crc32c(0, data + half.at + piece.offset, size_t(piece.bytes)) != piece.sum) return piece.offset;
        return half.bytes;
    }

    // Drops a version that turned out to be damaged.
    void drop(uint64_t version) {
        const std::lock_guard<std::mutex> lock(mutex);
        for (Half &half : halves)
            if (half.phase == Phase::WHOLE && half.version == version) half.phase = Phase::EMPTY;
    }

    // Drops the versions from `first` on, also one that is filled: whoever does that is refused.
    void forget(uint64_t first) {
        const std::lock_guard<std::mutex> lock(mutex);
        for (Half &half : halves)
            if (half.version >= first) half.phase = Phase::EMPTY;
    }

    // The whole versions, the latest first.
    std::vector<Half> whole() const {
        const std::lock_guard<std::mutex> lock(mutex);
        std::vector<Half> found;
        for (const Half &half : halves)
            if (half.phase == Phase::WHOLE) found.push_back({half.at, half.phase, half.version, half.bytes, half.got, half.sum, {}, 0});
        std::sort(found.begin(), found.end(), [](const Half &a, const Half &b) { return a.version > b.version; });
        return found;
    }

  private:
    mutable std::mutex mutex;
    std::condition_variable changed;  // who fills, or how many read
    std::vector<Half> halves;
    uint64_t bytes;
    Filler *filler = nullptr;
    uint64_t latest = 0, latest_version = 0;  // the order of the latest filler, and what it began

    // Of two halves the younger one stays.
    static uint64_t age(const Half &half) { return half.phase == Phase::WHOLE ? half.version + 1 : 0; }

    Half *filling(const Filler &by, uint64_t version) {
        if (filler != &by) return nullptr;
        for (Half &half : halves)
            if (half.phase == Phase::FILLING && half.version == version) return &half;
        return nullptr;
    }
};

}  // namespace treadle
