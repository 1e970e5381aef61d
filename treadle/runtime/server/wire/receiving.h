// What comes to a core: frames and entries are checked, and gradients go where they are added up.
#pragma once

#include "part.h"

namespace treadle {

inline uint64_t Part::receive(Link &link) { return link.arena ? receive_ring(link) : receive_stream(link); }

// Why an operation is refused; null where it is right.
inline const char *Part::refused(Link &link, uint16_t op, uint16_t flags, int64_t chunk, uint64_t step) {
    const bool peers = peer(link);
    const auto because = [&link](const std::string &why) {
        link.reason = "sent " + why;
        return link.reason.c_str();
    };
    if (flags & ~EMPTY) return because("unknown flags");
    if (op == SETTINGS && !peers) return chunk == model.groups ? nullptr : because("settings of " + std::to_string(chunk) + " groups, not " + std::to_string(model.groups));
    if (op != PUSH_PULL && (peers ? op != VALUE : op != PUSH && op != PULL)) return because("an operation of no meaning here: " + std::to_string(op));
    if (chunk >= model.chunks || place[size_t(chunk)] < 0) return because("chunk " + std::to_string(chunk) + ", which is not on this core");
    if (flags && op != PUSH && op != PUSH_PULL) return because("flags that belong to a gradient");
    const Chunk &own = chunks[size_t(place[size_t(chunk)])];
    if (peers && (op == VALUE ? model.owner[size_t(chunk)] != link.sender - model.workers : !model.mine(chunk)))
        return because("chunk " + std::to_string(chunk) + ", which has another owner");
    if (op == PULL || !model.synchronous || step <= own.version) return nullptr;
    const std::string what = "chunk " + std::to_string(chunk) + " for version " + std::to_string(step);
    if (step != own.version + 1) return because(what + ", where " + std::to_string(own.version + 1) + " is next");
    if (op == VALUE) return own.waits ? nullptr : because(what + " before its sum");
    const Mark &mark = peers ? own.racks.marks[link.sender - model.workers] : own.local.marks[link.sender];
    return mark.here && !mark.former ? because(what + " twice") : nullptr;
}

// Where the body of a frame goes: to the memory where it waits for its turn, or where it is added at once.
inline const char *Part::body_place(Link &link, const Frame &frame, char *&into) {
    if (const char *why = refused(link, frame.op, frame.flags, frame.chunk, frame.step)) return why;
    link.kept = false;
    const int64_t elements = frame.op == SETTINGS ? 0 : model.elements[frame.chunk];
    int64_t bytes = 0;
    if (frame.op == SETTINGS) {
        bytes = int64_t(link.numbers.size() * sizeof(double));
        into = reinterpret_cast<char *>(link.numbers.data());
    } else if (frame.op != PULL && !(frame.flags & EMPTY)) {
        bytes = peer(link) ? 4 * elements : model.places.bytes[frame.chunk];
        into = link.scratch.data;
        const Chunk &chunk = chunks[size_t(place[frame.chunk])];
        const Gather &sum = peer(link) ? chunk.racks : chunk.local;
        const int index = peer(link) ? link.sender - model.workers : link.sender;
        const bool next = !model.wide && (model.arrival_order || sum.added == index);
        if (model.synchronous && frame.op != VALUE && frame.step > chunk.version && !sum.marks[index].here && !next) {
            into = store.stash_of(link.sender, chunk);
            link.kept = true;
        }
    }
    if (frame.bytes == uint64_t(bytes)) return nullptr;
    link.reason = "sent " + std::to_string(frame.bytes) + " bytes of chunk " + std::to_string(frame.chunk) + ", which has " + std::to_string(bytes);
    return link.reason.c_str();
}

inline uint64_t Part::receive_stream(Link &link) {
    uint64_t moved = 0;
    while (moved < SHARE / 2) {
        const Moved state = link.reader.next(link.file, [&](const Frame &frame, char *&into) {
            const char *why = body_place(link, frame, into);
            link.into = into;
            return why;
        });
        if (state == Moved::WAITS) {
            link.readable = false;
            return moved;
        }
        if (state != Moved::WHOLE) {
            state == Moved::ENDED ? lose(link, link.reader.why) : fail(link, link.reader.why);
            return moved + 1;
        }
        const Frame &frame = link.reader.frame;
        moved += sizeof frame + frame.bytes;
        slot.count(BYTES_IN, sizeof frame + frame.bytes);
        slot.count(FRAMES_IN, 1);
        const void *const body = frame.op == SETTINGS ? static_cast<const void *>(link.numbers.data()) : link.into;
        if (!take(link, frame.op, frame.flags, frame.chunk, frame.step, body, link.kept)) return moved;
    }
    return moved;
}

inline uint64_t Part::receive_ring(Link &link) {
    uint64_t moved = 0;
    while (moved < SHARE / 2) {
        const uint64_t waiting = link.in.waiting();
        if (waiting > RING) {
            fail(link, "broke its ring");
            return moved + 1;
        }
        if (waiting == 0) {
            if (moved || !link.arena->head().closed.load(std::memory_order_acquire) || link.in.waiting()) return moved;
            lose(link, "closed its arena");
            return 1;
        }
        const Entry entry = link.in.front();
        if (const char *why = refused(link, entry.op, entry.flags, entry.chunk, entry.step)) {
            fail(link, why);
            return moved + 1;
        }
        const bool body = entry.op != PULL && !(entry.flags & EMPTY);
        const uint64_t bytes = entry.op == SETTINGS || !body ? 0 : model.places.bytes[entry.chunk];
        const void *data = entry.op == SETTINGS ? static_cast<const void *>(link.turns[entry.step & 1]) : link.gradients + model.places.offset[entry.chunk];
        moved += sizeof entry + bytes;
        slot.count(BYTES_IN, sizeof entry + bytes);
        slot.count(FRAMES_IN, 1);
        if (!take(link, entry.op, entry.flags, entry.chunk, entry.step, data, true)) return moved;
        link.in.drop();  // the worker may write there again
    }
    return moved;
}

// What has been checked. False where the link is gone since.
inline bool Part::take(Link &link, uint16_t op, uint16_t flags, int64_t number, uint64_t step, const void *data, bool kept) {
    if (op == SETTINGS) return take_settings(link, step, static_cast<const double *>(data));
    Chunk &chunk = chunks[size_t(place[size_t(number)])];
    if (op == VALUE) {
        if (step > chunk.version) take_value(chunk, data);
        return true;
    }
    if (op == PULL) {
        if (step <= chunk.version) {
            queue(link.sender, chunk);
        } else {
            Mark &mark = chunk.local.marks[link.sender];
            mark.pull = mark.pulls ? std::min(mark.pull, step) : step;
            mark.pulls = true;
        }
        return true;
    }
    take_push(link, chunk, op, flags & EMPTY, step, data, kept);
    return true;
}

inline void Part::take_push(Link &link, Chunk &chunk, uint16_t op, bool empty, uint64_t step, const void *data, bool kept) {
    log(ARRIVED, chunk, link.sender, step);
    if (!model.synchronous) {
        if (!empty) apply(chunk, link.sender, data);
        if (op == PUSH_PULL) queue(link.sender, chunk);
        return;
    }
    if (step <= chunk.version) {  // what it has pushed before it was lost
        if (op == PUSH_PULL) queue(link.sender, chunk);
        return;
    }
    const bool racks = peer(link);
    Gather &into = racks ? chunk.racks : chunk.local;
    const int index = racks ? link.sender - model.workers : link.sender;
    Mark &mark = into.marks[index];
    mark.wants = op == PUSH_PULL;
    if (!mark.here) return gather(chunk, into, index, data, empty, !kept);
    mark.former = false;  // it is there already, from the stream before
}

// Those of worker 0 count; the others' are compared with them.
inline bool Part::take_settings(Link &link, uint64_t step, const double *numbers) {
    link.settings.put(step, numbers);
    if (!model.synchronous) return true;
    const SettingsTurns *const first = links[0] ? &links[0]->settings : nullptr;
    if (link.sender == 0) first_settings.put(step, numbers);
    for (int worker = 1; worker < model.workers && first; ++worker) {
        Link *const other = links[size_t(worker)].get();
        if (!other || (link.sender && other != &link)) continue;
        const SettingsTurns::Turn *const mine = other->settings.exactly(step), *const counts = first->exactly(step);
        if (!mine || !counts || std::memcmp(mine->numbers.data(), counts->numbers.data(), mine->numbers.size() * sizeof(double)) == 0) continue;
        fail(*other, "has other settings of the optimizer than worker 0 for version " + std::to_string(step));
        if (other == &link) return false;
    }
    return true;
}

inline void Part::report_lost(int sender, const std::string &why) {
    if (shared.lost[size_t(sender)].exchange(1)) return;
    const bool worker = sender < model.workers;
    slot.report(make_event(worker ? LOST : PEER, job, worker ? sender : sender - model.workers, chunks.empty() ? 0 : least, name_of(sender) + " " + why));
}

inline void Part::lose(Link &link, const std::string &why) {
    report_lost(link.sender, why);
    dead.push_back(release(link));
}

// Takes a link out. Gradients of it that are whole still count; what was on its way is dropped.
inline std::unique_ptr<Link> Part::release(Link &link) {
    const bool racks = peer(link);
    for (Chunk &chunk : chunks) {
        Gather &sum = racks ? chunk.racks : chunk.local;
        Mark &mark = sum.marks[racks ? link.sender - model.workers : link.sender];
        mark.wants = mark.pulls = false;
        mark.former = mark.here;
        if (!mark.data || !link.arena || !link.arena->holds(mark.data)) continue;
        if (store.stash[size_t(link.sender)].take(size_t(store.stash_bytes))) {
            char *const kept = store.stash_of(link.sender, chunk);
            std::memcpy(kept, mark.data, model.places.bytes[size_t(chunk.number)]);
            mark.data = kept;
        } else {
            mark.here = mark.former = false;
            --sum.here;
        }
    }
    for (Link *&each : to_flush)
        if (each == &link) each = nullptr;
    return std::move(links[size_t(link.sender)]);
}

}  // namespace treadle
