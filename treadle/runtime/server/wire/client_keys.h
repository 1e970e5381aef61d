// What a worker has asked for and still waits for, key by key: threads of the worker ask and wait, one thread answers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "frame.h"

namespace treadle {

// What a worker is told of the job, and where each of its chunks goes.
struct Layout {
    int32_t keys, servers, groups, unused;
    int64_t chunks;                 // of the whole model, numbered in the order of keys
    const int64_t *chunk_elements;  // [chunks]
    const int32_t *chunk_key;       // [chunks]
    const int32_t *chunk_server;    // [chunks]
    const int32_t *chunk_slot;      // [chunks]: the core slot of that server
    const int32_t *slots;           // [servers]: core slots of each
    const int32_t *key_type;        // [keys]: Type
};

// One lock guards what is not atomic; the thread that answers takes it once for each key that is done.
struct Keys {
    struct Key {
        uint32_t first = 0, count = 0;  // its chunks
        std::atomic<int64_t> left{0};   // chunks that have not left, or whose value is not there
        uint64_t step = 0;              // of the last request
        uint16_t op = 0;
    };

    std::mutex lock;
    std::vector<Key> keys;
    std::string failure;  // why nothing more will be done

    explicit Keys(const Layout &layout) : keys(size_t(layout.keys)) {
        for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
            Key &key = keys[size_t(layout.chunk_key[chunk])];
            if (!key.count++) key.first = uint32_t(chunk);
        }
    }

    // Notes a request, under the lock; why it is refused, or nothing.
    std::string open(size_t number, uint64_t step, uint16_t op) {
        Key &key = keys[number];
        const bool done = key.left.load(std::memory_order_acquire) == 0;
        if (!done && !(op == PULL && key.op == PUSH))
            return "key " + std::to_string(number) + " is asked for again before step " + std::to_string(key.step) + " is done with it";
        key.step = step;
        key.op = op;
        if (key.left.fetch_add(key.count, std::memory_order_acq_rel) == 0) busy.fetch_add(1, std::memory_order_relaxed);
        return {};
    }

    // One chunk of a key is done.
    void close(size_t number) {
        if (keys[number].left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        const bool last = busy.fetch_sub(1, std::memory_order_acq_rel) == 1;
        const std::lock_guard<std::mutex> guard(lock);
        one.notify_all();
        if (last) all.notify_all();
    }

    void fail(const std::string &why) {
        const std::lock_guard<std::mutex> guard(lock);
        if (failure.empty()) failure = why;
        one.notify_all();
        all.notify_all();
    }

    // Waits until a key, or with -1 all of them, has nothing left: 0, 1 for too late, -1 with `why` for a failure.
    int wait(int number, uint64_t step, int timeout_ms, std::string &why) {
        std::unique_lock<std::mutex> guard(lock);
        for (size_t each = 0; each < keys.size(); ++each)
            if ((number < 0 || each == size_t(number)) && keys[each].step < step) {
                why = "key " + std::to_string(each) + " has not been asked for in step " + std::to_string(step);
                return -1;
            }
        const auto done = [&] {
            return number < 0 ? busy.load(std::memory_order_acquire) == 0 : keys[size_t(number)].left.load(std::memory_order_acquire) == 0;
        };
        const auto over = [&] { return !failure.empty() || done(); };
        std::condition_variable &waits = number < 0 ? all : one;
        if (timeout_ms < 0)
            waits.wait(guard, over);
        else
            waits.wait_for(guard, std::chrono::milliseconds(timeout_ms), over);
        if (done()) return 0;
        why = failure;
        return failure.empty() ? 1 : -1;
    }

  private:
    std::condition_variable one, all;
    std::atomic<int64_t> busy{0};  // keys with something left
};

}  // namespace treadle
