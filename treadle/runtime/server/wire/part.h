// What one core does for one job. Nobody else touches it, except the team of the wide engine between its barriers.
#pragma once

#include <numeric>

#include "link.h"
#include "slot.h"

#include "treadle_server_kernels.h"

namespace treadle {

struct Part;

// A team of all cores that works on one key at a time: the wide engine.
struct WideQueue {
    virtual void put(int job, int32_t key) = 0;
    virtual ~WideQueue() = default;
};

struct Part {
    const Model &model;
    Shared &shared;
    Slot &slot;
    WideQueue &team;
    const int job;
    std::vector<Chunk> chunks;   // of this core, in the order of their numbers
    std::vector<int32_t> place;  // [chunks of the model]: where a chunk is in `chunks`, -1 elsewhere
    Store store;
    std::vector<std::unique_ptr<Link>> links;    // [workers, then racks]
    std::vector<std::unique_ptr<Link>> leaving;  // those that have been told why they end

    Part(const Model &model, Shared &shared, Slot &slot, WideQueue &team, int job);

    // One round: about SHARE bytes, so that jobs take turns. How many moved.
    uint64_t serve();
    void attach(std::unique_ptr<Link> link);
    void drop(int sender, const std::string &why, bool say);  // FAILED to it where `say`, then gone
    void tidy();                                              // what is late, what has been told long enough
    bool norms_wait() const;                                  // whether norms are there that this core waits for
    bool stuck() const { return full_rings; }
    void load(uint64_t version, const float *weights, const float *const *states, const uint64_t *updates);
    bool read(uint64_t version, int part, float *out, uint64_t *updates) const;
    void read_copy(int part, float *out, uint64_t *updates) const;
    void advance(Chunk &chunk, bool skip);
    void flush();
    void send_on();  // where sockets take more again
    void ring_bells(bool idle);
    kernels::Update update_of(const Chunk &chunk, const float *sum) const;
    bool reads(const Link &link) const { return link.arena ? link.in.waiting() > 0 || link.arena->head().closed.load(std::memory_order_relaxed) : link.readable; }

  private:
    static constexpr uint64_t SHARE = 64 << 10;
    static constexpr uint64_t SILENCE_NS = 500000;
    std::vector<Mark> marks;
    std::vector<int64_t> whole_offset;  // [chunks of the model]: where its elements begin among all of them
    std::vector<std::unique_ptr<Link>> dead;
    std::vector<Link *> to_flush;
    std::vector<int32_t> waiting_keys;  // for norms
    std::vector<uint64_t> copy_updates;
    size_t turn = 0;
    uint64_t least = 0;
    size_t at_least = 0;
    bool full_rings = false;
    int64_t formed = -1;  // the chunk whose value `store.form` holds, in the type of its key
    uint64_t formed_version = 0;
    const Chunk *fresh = nullptr;  // whose newest weights are in the cache too, at `store.fresh`
    const bool past_cache;         // weights, states and values of arenas are written past the cache, which they do not fit
    SettingsTurns first_settings;
    friend struct Team;

    bool peer(const Link &link) const { return link.sender >= model.workers; }
    std::string name_of(int sender) const;
    void log(Act act, const Chunk &chunk, int worker, uint64_t step) { shared.log.add(act, int32_t(chunk.number), worker, slot.thread, step); }

    // receiving.h
    uint64_t receive(Link &link);
    uint64_t receive_stream(Link &link);
    uint64_t receive_ring(Link &link);
    const char *refused(Link &link, uint16_t op, uint16_t flags, int64_t chunk, uint64_t step);
    const char *body_place(Link &link, const Frame &frame, char *&into);
    bool take(Link &link, uint16_t op, uint16_t flags, int64_t chunk, uint64_t step, const void *data, bool kept);
    bool take_settings(Link &link, uint64_t step, const double *numbers);
    void take_push(Link &link, Chunk &chunk, uint16_t op, bool empty, uint64_t step, const void *data, bool kept);
    void fail(Link &link, const std::string &why);
    void lose(Link &link, const std::string &why);
    void report_lost(int sender, const std::string &why);
    void report_late(int worker, uint64_t version);
    std::unique_ptr<Link> release(Link &link);

    // finishing.h
    void gather(Chunk &chunk, Gather &into, int sender, const void *data, bool empty, bool now);
    void add(Chunk &chunk, Gather &into, int sender);
    void complete(Chunk &chunk);
    void update(Chunk &chunk, Gather &from);
    void optimize(Chunk &chunk, const kernels::Update &update);
    float *sum_of(const Chunk &chunk, const Gather &of) const;
    void start_norms(Chunk &chunk, const kernels::Update &update);
    void finish_norms();
    void apply(Chunk &chunk, int worker, const void *data);
    void take_value(Chunk &chunk, const void *data);
    void carry_over(Chunk &chunk);
    void copy_snapshot(Chunk &chunk);
    void count_least();
    int64_t first_here(int32_t key) const;  // the first of its chunks on this core, in `chunks`
    const double *settings_for(const Chunk &chunk, int worker, uint64_t step) const;

    // sending.h
    void queue(int sender, Chunk &chunk);
    void send(Link &link);
    bool send_stream(Link &link);
    bool send_ring(Link &link);
    bool send_rest(Link &link);
    void let_go();
    Frame message(Link &link, Chunk &chunk, const void *&body);
    const void *value_of(Link &link, Chunk &chunk);
};

// What an exchange reads and writes over arenas: gradients and values of all workers, weights and states twice.
inline int64_t traffic_of(const Model &model) {
    return model.places.total * 2 * model.workers + 8 * (1 + model.states) * std::accumulate(model.elements.begin(), model.elements.end(), int64_t(0));
}

inline int64_t cache_bytes() {
    const int64_t found = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return found > 0 ? found : int64_t(32) << 20;
}

inline Part::Part(const Model &model, Shared &shared, Slot &slot, WideQueue &team, int job)
    : model(model),
      shared(shared),
      slot(slot),
      team(team),
      job(job),
      chunks([&] {
          std::vector<Chunk> mine;
          for (int64_t c = 0; c < model.chunks; ++c) {
              if (model.slot[size_t(c)] != slot.number) continue;
              mine.emplace_back();
              mine.back().number = c;
              mine.back().elements = model.elements[size_t(c)];
              mine.back().key = model.key[size_t(c)];
          }
          return mine;
      }()),
      place(size_t(model.chunks), -1),
      store(model, chunks),
      links(size_t(model.workers + model.racks)),
      marks(chunks.size() * size_t(model.workers + (model.two_level() ? model.racks : 0))),
      whole_offset(size_t(model.chunks)),
      copy_updates(model.snapshot_every ? chunks.size() : 0),
      past_cache(model.shared && !model.two_level() && traffic_of(model) > cache_bytes()),
      first_settings(model.settings.size()) {
    first_settings.put(0, model.settings.data());
    Mark *next = marks.data();
    for (size_t c = 0; c < chunks.size(); ++c) {
        Chunk &chunk = chunks[c];
        place[size_t(chunk.number)] = int32_t(c);
        chunk.local.marks = next;
        chunk.local.senders = model.workers;
        next += model.workers;
        if (!model.two_level()) continue;
        chunk.racks.marks = next;
        chunk.racks.senders = model.racks;
        next += model.racks;
    }
    for (size_t c = 1; c < whole_offset.size(); ++c) whole_offset[c] = whole_offset[c - 1] + model.elements[c - 1];
    to_flush.reserve(links.size());
    at_least = chunks.size();
    if (!chunks.empty()) shared.least[size_t(slot.number)] = 0;
}

inline int64_t Part::first_here(int32_t key) const {
    const auto before = [](const Chunk &chunk, int32_t key) { return chunk.key < key; };
    return std::lower_bound(chunks.begin(), chunks.end(), key, before) - chunks.begin();
}

inline std::string Part::name_of(int sender) const {
    return sender < model.workers ? "worker " + std::to_string(sender) : "the server of rack " + std::to_string(sender - model.workers);
}

inline uint64_t Part::serve() {
    dead.clear();
    uint64_t moved = 0;
    if (norms_wait()) {
        finish_norms();
        moved = 1;
    }
    for (size_t tries = 0; tries < links.size() && moved < SHARE; ++tries) {
        if (++turn >= links.size()) turn = 0;
        if (links[turn] && reads(*links[turn])) moved += receive(*links[turn]);
    }
    flush();
    return moved;
}

}  // namespace treadle
