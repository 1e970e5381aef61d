// The wide engine, for comparison: all cores work on one key at a time, each on a slice, and wait for each other.
#pragma once

#include <deque>
#include <mutex>
#include <sched.h>

#include "orders.h"

namespace treadle {

// A server's part of one job.
struct JobState {
    Model model;
    Shared shared;
    std::vector<std::unique_ptr<Part>> parts;  // [cores]

    JobState(Model &&given, int cores, int64_t log) : model(std::move(given)), shared(model, cores, log) {}
};

// All cores of a server pass it together.
struct Barrier {
    explicit Barrier(int cores) : cores(cores) {}

    // False where the server ends.
    bool wait(const std::atomic<bool> &stop) {
        const uint64_t turn = turns.load(std::memory_order_acquire);
        if (here.fetch_add(1, std::memory_order_acq_rel) + 1 == cores) {
            here.store(0, std::memory_order_relaxed);
            turns.store(turn + 1, std::memory_order_release);
            return true;
        }
        while (turns.load(std::memory_order_acquire) == turn) {
            if (stop.load(std::memory_order_relaxed)) return false;
            sched_yield();
        }
        return true;
    }

  private:
    const int cores;
    std::atomic<int> here{0};
    std::atomic<uint64_t> turns{0};
};

struct Team : WideQueue {
    std::vector<JobState *> jobs;  // changed by all cores' consent: while none works
    std::vector<Slot *> slots;
    Barrier barrier;
    const std::atomic<bool> &stop;

    Team(int cores, const std::atomic<bool> &stop) : barrier(cores), stop(stop) {}

    bool waits() const { return open.load() > 0; }

    void put(int job, int32_t key) override {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            queue.push_back({job, key});
        }
        open.fetch_add(1);
        for (Slot *slot : slots) slot->wake();
    }

    // One key. All cores come here as soon as they see that one waits.
    void work(int core) {
        if (!barrier.wait(stop)) return;
        const Work work = front();
        JobState &job = *job_of(work.job);
        const int64_t first = job.model.first_of_key[size_t(work.key)], end = job.model.first_of_key[size_t(work.key) + 1];
        slice(job, first, end, core, [&](Part &part, Chunk &chunk, int64_t from, int64_t count) { add_up(job, part, chunk, from, count); });
        if (!barrier.wait(stop)) return;
        slice(job, first, end, core, [&](Part &part, Chunk &chunk, int64_t from, int64_t count) { optimize(job, part, chunk, from, count); });
        if (!barrier.wait(stop)) return;
        if (job.model.optimizer == LAMB) {
            const double ratio = job.shared.norms[size_t(work.key)].ratio_of(end - first);
            slice(job, first, end, core, [&](Part &part, Chunk &chunk, int64_t, int64_t) {
                kernels::Update update = part.update_of(chunk, nullptr);
                update.ratio = ratio;
                chunk.skips ? part.carry_over(chunk) : kernels::optimize(update);
            });
        }
        if (core == 0) {
            job.shared.key_ready[size_t(work.key)].store(0);
            const std::lock_guard<std::mutex> lock(mutex);
            queue.pop_front();
            open.fetch_sub(1);
        }
        if (!barrier.wait(stop)) return;
        Part &own = *job.parts[size_t(core)];
        for (size_t at = size_t(own.first_here(work.key)); at < own.chunks.size() && own.chunks[at].key == work.key; ++at)
            own.advance(own.chunks[at], own.chunks[at].skips);
        own.flush();
    }

    // Between keys only.
    std::mutex jobs_mutex;

  private:
    struct Work {
        int job;
        int32_t key;
    };
    std::mutex mutex;
    std::deque<Work> queue;
    std::atomic<int> open{0};

    Work front() {
        const std::lock_guard<std::mutex> lock(mutex);
        return queue.front();
    }
    JobState *job_of(int job) {
        const std::lock_guard<std::mutex> lock(jobs_mutex);
        return jobs[size_t(job)];
    }

    // Calls `work` for what is in this core's slice of a key: at multiples of 64 bytes, whole chunks under LAMB, whose
    // sums belong to chunks.
    template <class Act>
    void slice(JobState &job, int64_t first, int64_t end, int core, Act &&act) {
        const bool whole = job.model.optimizer == LAMB;
        int64_t total = 0, before = 0;
        for (int64_t c = first; c < end; ++c)
            if (job.model.slot[size_t(c)] >= 0) total += job.model.elements[size_t(c)];
        const int64_t cores = int64_t(slots.size()), step = rounded((total + cores - 1) / cores, 32);
        const int64_t low = core * step, high = low + step;
        for (int64_t c = first; c < end; ++c) {
            if (job.model.slot[size_t(c)] < 0) continue;
            Part &part = *job.parts[size_t(job.model.slot[size_t(c)])];
            Chunk &chunk = part.chunks[size_t(part.place[size_t(c)])];
            const int64_t from = std::max<int64_t>(rounded(low - before, 32), 0), to = std::min(rounded(high - before, 32), chunk.elements);
            if (whole && before >= low && before < high) act(part, chunk, 0, chunk.elements);
            if (!whole && from < to) act(part, chunk, from, to - from);
            before += chunk.elements;
        }
    }

    void add_up(JobState &job, Part &part, Chunk &chunk, int64_t from, int64_t count) {
        const int32_t type = job.model.type[size_t(chunk.key)];
        for (int worker = 0; worker < job.model.workers; ++worker) {
            const Mark &mark = chunk.local.marks[worker];
            const void *const data = mark.empty ? static_cast<const void *>(part.store.zeros) : static_cast<const char *>(mark.data) + from * type_bytes(type);
            kernels::add_into(part.store.sums + chunk.at + from, data, count, mark.empty ? FLOAT32 : type, worker == 0, job.model.bypass);
            part.log(ADDED, chunk, worker, chunk.version + 1);
        }
    }

    void optimize(JobState &job, Part &part, Chunk &chunk, int64_t from, int64_t count) {
        const bool skips = chunk.local.empty == chunk.local.senders;
        kernels::Update update = part.update_of(chunk, part.store.sums + chunk.at);
        if (job.model.optimizer == LAMB) {
            Norms &norms = job.shared.norms[size_t(chunk.key)];
            double *const own = norms.parts.get() + 2 * (chunk.number - job.model.first_of_key[size_t(chunk.key)]);
            own[0] = own[1] = 0;
            chunk.skips = skips;
            if (!skips) kernels::lamb_norms(update, own);
            return;
        }
        if (from == 0) chunk.skips = skips;
        if (skips) {
            if (from == 0) part.carry_over(chunk);
            return;
        }
        update.n = count;
        update.sum += from;
        update.weight_in += from;
        update.weight_out += from;
        for (int state = 0; state < job.model.states; ++state) {
            update.state_in[state] += from;
            update.state_out[state] += from;
        }
        kernels::optimize(update);
    }
};

}  // namespace treadle
