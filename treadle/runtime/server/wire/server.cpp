// The server of parameters: a thread for each core slot, and the calls by which Python runs it.
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "core.h"

#define TREADLE_API extern "C" __attribute__((visibility("default")))

namespace treadle {

constexpr int FAILED_CALL = -1, NO_MEMORY = -2;
constexpr uint32_t MOST_RINGS = 1 << 16;

struct Server {
    std::atomic<bool> stop{false};
    const int event_bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    Team team;
    std::vector<std::unique_ptr<Core>> cores;
    std::vector<std::unique_ptr<JobState>> jobs;
    std::string message;

    Server(int count, const int32_t *processors) : team(count, stop) {
        for (int number = 0; number < count; ++number) {
            cores.push_back(std::make_unique<Core>(number, processors ? processors[number] : -1, event_bell, team, stop));
            team.slots.push_back(&cores.back()->slot);
        }
        for (auto &core : cores) core->slot.all = team.slots;
    }
    ~Server() {
        stop = true;
        for (auto &core : cores) core->join();
        if (event_bell >= 0) close(event_bell);
    }

    bool ready() const {
        return event_bell >= 0 && std::all_of(cores.begin(), cores.end(), [](const auto &core) { return core->ready(); });
    }
    int fail(const std::string &why, int code = FAILED_CALL) {
        message = why;
        return code;
    }
    JobState *job_at(int job) { return job >= 0 && job < int(jobs.size()) ? jobs[size_t(job)].get() : nullptr; }

    // Each core in turn.
    template <class Order>
    void ask_all(Order &&order) {
        for (auto &core : cores) core->ask([&] { order(*core); });
    }

    int add(const Job &given);
    int attach(int job, int sender, int slot, int file);
    int attach_arena(int job, int worker, int first, int count, const int *slots, int file, const int *bells);
    void drop(JobState &job, int sender, const std::string &why, bool say);
    void renew(JobState &job, int sender);
    std::unique_ptr<Link> new_link(JobState &job, int sender, int slot, bool stream);
};

int Server::add(const Job &given) {
    Model model(given);
    const std::string problem = model.complete(int(cores.size()));
    if (!problem.empty()) return fail("job " + model.name + ": " + problem);
    const int number = int(jobs.size());
    auto job = std::make_unique<JobState>(std::move(model), int(cores.size()), given.log);
    uint64_t needed = 0;
    for (auto &core : cores) {
        job->parts.push_back(std::make_unique<Part>(job->model, job->shared, core->slot, team, number));
        needed += job->parts.back()->store.bytes();
    }
    const Room room = room_left();
    if (needed > room.bytes)
        return fail("job " + job->model.name + " needs " + gib(needed) + ", where " + gib(room.bytes) + " are left of the " + room.of, NO_MEMORY);
    std::atomic<bool> whole{true};
    std::vector<std::thread> takers;  // each next to its core, so that pages are too
    for (size_t core = 0; core < cores.size(); ++core)
        takers.emplace_back([&, core] {
            pin(cores[core]->processor);
            if (!job->parts[core]->store.take(job->model.workers, job->model.rack)) whole = false;
        });
    for (std::thread &taker : takers) taker.join();
    if (!whole) return fail("job " + job->model.name + " needs " + gib(needed) + ", which the system refused", NO_MEMORY);
    {
        const std::lock_guard<std::mutex> lock(team.jobs_mutex);
        team.jobs.push_back(job.get());
    }
    ask_all([&](Core &core) { core.parts.push_back(job->parts[size_t(core.slot.number)].get()); });
    jobs.push_back(std::move(job));
    return number;
}

std::unique_ptr<Link> Server::new_link(JobState &job, int sender, int slot, bool stream) {
    const Part &part = *job.parts[size_t(slot)];
    auto link = std::make_unique<Link>(sender, std::max<size_t>(part.chunks.size(), 1), job.model.settings.size());
    const size_t longest = size_t(part.store.longest) * sizeof(float);
    if (stream && !link->scratch.take(longest + 64)) return nullptr;
    link->rest.reserve(longest + 2 * sizeof(Frame) + 1024);
    return link;
}

void Server::drop(JobState &job, int sender, const std::string &why, bool say) {
    ask_all([&](Core &core) { job.parts[size_t(core.slot.number)]->drop(sender, why, say); });
}

// A worker that was lost comes again: what is left of it goes first.
void Server::renew(JobState &job, int sender) {
    if (!job.shared.lost[size_t(sender)].load()) return;
    drop(job, sender, "", false);
    job.shared.lost[size_t(sender)] = 0;
}

int Server::attach(int job_number, int sender, int slot, int file) {
    JobState *const job = job_at(job_number);
    if (!job || sender < 0 || sender >= job->model.workers + job->model.racks || slot < 0 || slot >= int(cores.size()) || file < 0) {
        if (file >= 0) close(file);
        return fail("no such job, worker, rack or core");
    }
    renew(*job, sender);
    std::unique_ptr<Link> link = new_link(*job, sender, slot, true);
    if (!link) {
        close(file);
        return fail("no memory for another stream", NO_MEMORY);
    }
    link->file = file;
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
    Part &part = *job->parts[size_t(slot)];
    bool whole = true;
    cores[size_t(slot)]->ask([&] {
        const bool stash = sender < job->model.workers && (job->model.wide || (job->model.synchronous && !job->model.arrival_order && job->model.workers > 1));
        whole = !stash || part.store.stash[size_t(sender)].take(size_t(part.store.stash_bytes));
        if (whole) part.attach(std::move(link));
    });
    return whole ? 0 : fail("no memory for early gradients", NO_MEMORY);
}

// Rings `first` and those behind it belong to `count` of this server's cores.
int Server::attach_arena(int job_number, int worker, int first, int count, const int *slots, int file, const int *bells) {
    JobState *const job = job_at(job_number);
    const auto refuse = [&](const std::string &why) {
        close(file);
        for (int each = 0; each < count; ++each) close(bells[each]);
        return fail("worker " + std::to_string(worker) + " " + why);
    };
    if (!job || worker < 0 || worker >= job->model.workers) return refuse("is not of this job");
    if (std::any_of(slots, slots + count, [this](int slot) { return slot < 0 || slot >= int(cores.size()); })) return refuse("asks for other cores");
    struct stat state;
    Arena head{};
    if (fstat(file, &state) != 0 || !(fcntl(file, F_GET_SEALS) & F_SEAL_SHRINK)) return refuse("shares no memory that stays");
    if (pread(file, &head, offsetof(Arena, closed), 0) != ssize_t(offsetof(Arena, closed)) || head.magic != ARENA_MAGIC || head.slots > MOST_RINGS)
        return refuse("shares what is no arena");
    const int64_t groups = job->model.groups;
    const ArenaParts parts(int64_t(head.slots), groups, job->model.places.total);
    if (first < 0 || first + count > int64_t(head.slots) || head.groups != uint32_t(groups) || head.bytes != uint64_t(parts.bytes) || state.st_size < parts.bytes ||
        head.settings != uint64_t(parts.settings) || head.gradients != uint64_t(parts.gradients) || head.values != uint64_t(parts.values))
        return refuse("shares an arena of another job");
    void *const data = mmap(nullptr, size_t(parts.bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (data == MAP_FAILED) return refuse("shares an arena that cannot be mapped");
    const auto arena = std::make_shared<Mapping>(static_cast<char *>(data), size_t(parts.bytes));
    close(file);
    renew(*job, worker);
    for (int each = 0; each < count; ++each) {
        const int slot = slots[each], ring = first + each;
        std::unique_ptr<Link> link = new_link(*job, worker, slot, false);
        Rings *const rings = parts.rings_of(arena->data, ring);
        link->arena = arena;
        link->in.ring = &rings->to_server;
        link->in.taken = rings->to_server.taken.load();
        link->out.ring = &rings->to_worker;
        link->out.put = rings->to_worker.put.load();
        link->out.bell = bells[each];
        link->gradients = arena->data + parts.gradients;
        link->values = arena->data + parts.values;
        for (uint64_t step = 0; step < 2; ++step) link->turns[step] = parts.settings_of(arena->data, ring, groups, step);
        Part &part = *job->parts[size_t(slot)];
        cores[size_t(slot)]->ask([&] { part.attach(std::move(link)); });
    }
    return 0;
}

std::string first_message;  // of a server that could not be opened

Server *open_server(int cores, const int32_t *processors) {
    if (cores < 1 || cores > 1024) {
        first_message = "a server has 1 to 1024 cores";
        return nullptr;
    }
    auto server = std::make_unique<Server>(cores, processors);
    if (!server->ready()) {
        first_message = std::string("cannot make what wakes cores: ") + std::strerror(errno);
        return nullptr;
    }
    for (auto &core : server->cores) core->start();
    return server.release();
}

}  // namespace treadle

using namespace treadle;

static Server &of(void *server) { return *static_cast<Server *>(server); }

TREADLE_API void *server_open(int cores, const int32_t *processors) {
    try {
        return open_server(cores, processors);
    } catch (const std::exception &error) {
        first_message = error.what();
        return nullptr;
    }
}

TREADLE_API const char *server_message(void *server) { return server ? of(server).message.c_str() : first_message.c_str(); }

TREADLE_API int server_add_job(void *server, const Job *job) {
    try {
        return of(server).add(*job);
    } catch (const std::bad_alloc &) {
        return of(server).fail("no memory for the tables of a job", NO_MEMORY);
    }
}

TREADLE_API int server_stream(void *server, int job, int worker, int slot, int file) {
    const JobState *const state = of(server).job_at(job);
    return of(server).attach(job, state && worker >= state->model.workers ? -1 : worker, slot, file);
}

TREADLE_API int server_peer(void *server, int job, int rack, int slot, int file) {
    const JobState *const state = of(server).job_at(job);
    const bool other = state && state->model.two_level() && rack >= 0 && rack < state->model.racks && rack != state->model.rack;
    return of(server).attach(job, other ? state->model.workers + rack : -1, slot, file);
}

TREADLE_API int server_arena(void *server, int job, int worker, int first, int count, const int *slots, int file, const int *bells) {
    return of(server).attach_arena(job, worker, first, count, slots, file, bells);
}

TREADLE_API int server_bell(void *server, int slot) { return of(server).cores[size_t(slot)]->slot.bell; }

TREADLE_API int server_drop(void *server, int job, int worker, const char *why) {
    JobState *const state = of(server).job_at(job);
    if (!state || worker < 0 || worker >= state->model.workers) return of(server).fail("no such job or worker");
    state->shared.lost[size_t(worker)] = 1;  // it is known: no event follows, and a new stream finds nothing of the old ones
    of(server).drop(*state, worker, why, true);
    return 0;
}

TREADLE_API int server_events(void *server, Event *out, int most, int timeout_ms) {
    const auto take = [&] {
        int count = 0;
        for (auto &core : of(server).cores)
            while (count < most && core->slot.events.take(out[count])) ++count;
        return count;
    };
    if (const int count = take()) return count;
    pollfd bell{of(server).event_bell, POLLIN, 0};
    if (poll(&bell, 1, timeout_ms) > 0) quiet_bell(of(server).event_bell);
    return take();
}

TREADLE_API int server_versions(void *server, int job, uint64_t *least, uint64_t *most) {
    JobState *const state = of(server).job_at(job);
    if (!state) return of(server).fail("no such job");
    *least = UINT64_MAX;
    *most = 0;
    of(server).ask_all([&](Core &core) {
        for (const Chunk &chunk : state->parts[size_t(core.slot.number)]->chunks) {
            *least = std::min(*least, chunk.version);
            *most = std::max(*most, chunk.version);
        }
    });
    return 0;
}

TREADLE_API int server_read(void *server, int job, uint64_t version, int part, float *out, uint64_t *updates) {
    JobState *const state = of(server).job_at(job);
    if (!state || part < 0 || part > state->model.states) return of(server).fail("no such job or state");
    bool all = true;
    of(server).ask_all([&](Core &core) { all = all && state->parts[size_t(core.slot.number)]->read(version, part, out, updates); });
    return all ? 0 : of(server).fail("version " + std::to_string(version) + " is not there");
}

TREADLE_API int server_load(void *server, int job, uint64_t version, const float *weights, const float *const *states, const uint64_t *updates) {
    JobState *const state = of(server).job_at(job);
    if (!state) return of(server).fail("no such job");
    of(server).ask_all([&](Core &core) { state->parts[size_t(core.slot.number)]->load(version, weights, states, updates); });
    state->shared.finished = version;
    return 0;
}

TREADLE_API int server_copy(void *server, int job, uint64_t version, int part, float *out, uint64_t *updates) {
    JobState *const state = of(server).job_at(job);
    if (!state || part < 0 || part > state->model.states) return of(server).fail("no such job or state");
    if (version == 0 || state->shared.snapshot.held() != version) return of(server).fail("no copy of version " + std::to_string(version) + " is held");
    for (auto &own : state->parts) own->read_copy(part, out, updates);
    return 0;
}

TREADLE_API int server_release(void *server, int job) {
    JobState *const state = of(server).job_at(job);
    if (!state) return of(server).fail("no such job");
    state->shared.snapshot.release();
    return 0;
}

TREADLE_API int64_t server_log(void *server, int job, Logged *out, int64_t most) {
    JobState *const state = of(server).job_at(job);
    return state ? state->shared.log.copy(out, most) : of(server).fail("no such job");
}

TREADLE_API void server_counts(void *server, int slot, uint64_t *out) {
    for (int which = 0; which < COUNTS; ++which) out[which] = of(server).cores[size_t(slot)]->slot.counted(Count(which));
}

TREADLE_API void server_close(void *server) { delete &of(server); }
