// Encoders and decoders of sparse payloads on GPUs. The key of rank k is found in three rounds, each with a histogram of
// more bits of it; then the elements of each chunk are counted, and each chunk knows where its elements go.
#pragma once
#include "treadle_compression_kernels.h"

namespace treadle {

TREADLE_KERNEL accumulate(TREADLE_TASK task) {
    each_of(task, task.elements, [&](int64_t i) {
        if (key_of(accumulated(task, i)) >= INFINITE) task.selection->infinite = 1;
    });
}

// Leaves nothing of what is not finite and was not taken.
TREADLE_KERNEL forget_infinite(TREADLE_TASK task) {
    if (!task.selection->infinite) return;
    each_of(task, task.elements, [&](int64_t i) { task.residual[i] = left_of(task.residual[i], 0.0f); });
}

TREADLE_KERNEL clear_words(TREADLE_TASK task) {
    each_of(task, task.words - task.kept, [&](int64_t i) { task.payload[task.kept + i] = 0; });
}

// By one block.
TREADLE_KERNEL begin_selection(TREADLE_TASK task) {
    each_here(BINS, [&](int bin) { task.selection->bins[bin] = 0; });
    if (thread()) return;
    Selection &selection = *task.selection;
    selection.prefix = selection.sampled = selection.infinite = 0;
    selection.rank = task.sampling ? task.sample_rank : task.kept;
}

struct Bins {
    uint32_t count[BINS];
};

TREADLE_DEVICE int width_at(int shift) { return shift ? 11 : 9; }

// Counts the keys that begin with `prefix` by their next bits: of a sample or of all.
TREADLE_KERNEL histogram(TREADLE_TASK task) {
    TREADLE_SHARED(Bins, bins);
    const int width = width_at(task.shift);
    const uint32_t prefix = task.selection->prefix;
    each_here(BINS, [&](int bin) { bins.count[bin] = 0; });
    barrier();
    each_of(task, task.sampling ? SAMPLES : task.elements, [&](int64_t j) {
        const int64_t i = task.sampling ? random_index(task.seed, task.elements, SAMPLES, j) : j;
        const uint32_t key = key_of(value_of(task, i));
        if (key >> (task.shift + width) == prefix) add_to(&bins.count[key >> task.shift & ((1u << width) - 1)], 1);
    });
    barrier();
    each_here(BINS, [&](int bin) {
        if (bins.count[bin]) add_to(&task.selection->bins[bin], bins.count[bin]);
    });
}

// By one block: the bin that holds the rank. After the last one, what is taken.
TREADLE_KERNEL pick(TREADLE_TASK task) {
    Selection &selection = *task.selection;
    const int width = width_at(task.shift);
    if (thread() == 0) {
        int bin = (1 << width) - 1;
        for (; bin && selection.rank > int64_t(selection.bins[bin]); --bin) selection.rank -= selection.bins[bin];
        selection.prefix = selection.prefix << width | uint32_t(bin);
        if (!task.shift && task.sampling) {
            selection.sampled = selection.prefix ? selection.prefix : 1;
            selection.prefix = 0;
            selection.rank = task.kept;
        } else if (!task.shift) {
            const bool few = selection.prefix < selection.sampled;  // reach the threshold of the sample
            selection.low = few ? 0 : selection.prefix;
            selection.high = few ? selection.sampled - 1 : selection.prefix;
        }
    }
    barrier();
    each_here(BINS, [&](int bin) { selection.bins[bin] = 0; });
}

// 2: taken, 1: perhaps, 0: not.
TREADLE_DEVICE int chance_of(const Selection &selection, float v) {
    const uint32_t key = key_of(v);
    return key > selection.high ? 2 : key >= selection.low;
}

struct Counts {
    uint32_t greater, equal;
};

TREADLE_KERNEL count_chunks(TREADLE_TASK task) {
    TREADLE_SHARED(Counts, counts);
    for (int64_t chunk = block_index(); chunk < task.chunks; chunk += task.blocks) {
        if (thread() == 0) counts = Counts{0, 0};
        barrier();
        uint32_t greater = 0, equal = 0;
        each_here(CHUNK, [&](int at) {
            const int64_t i = chunk * CHUNK + at;
            const int chance = i < task.elements ? chance_of(*task.selection, value_of(task, i)) : 0;
            greater += chance == 2;
            equal += chance == 1;
        });
        add_to(&counts.greater, greater);
        add_to(&counts.equal, equal);
        barrier();
        if (thread() == 0) {
            task.greater[chunk] = counts.greater;
            task.equal[chunk] = counts.equal;
        }
        barrier();
    }
}

struct Sums {
    int64_t greater[MAX_THREADS + 1], equal[MAX_THREADS + 1];
};

// Each number of a thread becomes the sum of those of the threads before it.
template <class T>
TREADLE_DEVICE void sum_before(T *number) {
    barrier();
    if (thread() == 0) {
        T before = 0;
        for (int i = 0; i <= threads(); ++i) {
            const T here = i < threads() ? number[i] : 0;
            number[i] = before;
            before += here;
        }
    }
    barrier();
}

// By one block: counts of chunks become those of all chunks before.
TREADLE_KERNEL count_before(TREADLE_TASK task) {
    TREADLE_SHARED(Sums, sums);
    const int64_t begin = task.chunks * thread() / threads(), end = task.chunks * (thread() + 1) / threads();
    int64_t greater = 0, equal = 0;
    for (int64_t chunk = begin; chunk < end; ++chunk) {
        greater += task.greater[chunk];
        equal += task.equal[chunk];
    }
    sums.greater[thread()] = greater;
    sums.equal[thread()] = equal;
    sum_before(sums.greater);
    sum_before(sums.equal);
    greater = sums.greater[thread()];
    equal = sums.equal[thread()];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t here = task.greater[chunk], also = task.equal[chunk];
        task.greater[chunk] = greater;
        task.equal[chunk] = equal;
        greater += here;
        equal += also;
    }
    if (thread() == 0) task.selection->take = task.kept - sums.greater[threads()];
}

TREADLE_DEVICE void put(const Task &task, int64_t j, int64_t i) {
    task.payload[j] = bits<uint32_t>(value_of(task, i));
    if (task.residual) task.residual[i] = 0;
}

TREADLE_DEVICE void put_index(const Task &task, const Indices &layout, int64_t j, int64_t i) {
    const int64_t high = (i >> layout.low) + j, bit = j * layout.low;
    set_in(&task.payload[layout.highs + high / 32], 1u << high % 32);
    if (!layout.low) return;
    const uint64_t low = (uint64_t(i) & ((uint64_t(1) << layout.low) - 1)) << bit % 32;
    set_in(&task.payload[layout.lows + bit / 32], uint32_t(low));
    if (low >> 32) set_in(&task.payload[layout.lows + bit / 32 + 1], uint32_t(low >> 32));
}

struct PlaceChunk {
    uint8_t chance[CHUNK];
    uint32_t greater[MAX_THREADS + 1], equal[MAX_THREADS + 1];
};

// Writes what a chunk has of the payload: a thread takes a run of its elements, after those of the threads before.
TREADLE_KERNEL place_chunks(TREADLE_TASK task) {
    TREADLE_SHARED(PlaceChunk, shared);
    const Indices layout(task.elements, task.kept);
    const int64_t take = task.selection->take;
    for (int64_t chunk = block_index(); chunk < task.chunks; chunk += task.blocks) {
        each_here(CHUNK, [&](int at) {
            const int64_t i = chunk * CHUNK + at;
            shared.chance[at] = i < task.elements ? uint8_t(chance_of(*task.selection, value_of(task, i))) : 0;
        });
        barrier();
        const int begin = CHUNK * thread() / threads(), end = CHUNK * (thread() + 1) / threads();
        uint32_t greater = 0, equal = 0;
        for (int at = begin; at < end; ++at) {
            greater += shared.chance[at] == 2;
            equal += shared.chance[at] == 1;
        }
        shared.greater[thread()] = greater;
        shared.equal[thread()] = equal;
        sum_before(shared.greater);
        sum_before(shared.equal);
        int64_t above = task.greater[chunk] + shared.greater[thread()], also = task.equal[chunk] + shared.equal[thread()];
        for (int at = begin; at < end; ++at) {
            const bool taken = shared.chance[at] == 2 || (shared.chance[at] == 1 && also < take);
            if (taken) {
                const int64_t j = above + (also < take ? also : take);
                put(task, j, chunk * CHUNK + at);
                put_index(task, layout, j, chunk * CHUNK + at);
            }
            above += shared.chance[at] == 2;
            also += shared.chance[at] == 1;
        }
        barrier();
    }
}

TREADLE_KERNEL gather_random(TREADLE_TASK task) {
    each_of(task, task.kept, [&](int64_t j) { put(task, j, random_index(task.seed, task.elements, task.kept, j)); });
}

TREADLE_KERNEL decode_random(TREADLE_TASK task) {
    each_of(task, task.kept, [&](int64_t j) {
        float &out = task.out[random_index(task.seed, task.elements, task.kept, j)];
        for (int piece = 0; piece < task.pieces; ++piece) out = sum(out, bits<float>(task.payload[piece * task.words + j]));
        if (task.clears) out = 0;
    });
}

struct WordSums {
    uint32_t before, ones[MAX_THREADS + 1];
};

// Adds one piece: a thread takes a word of high bits, a block as many as it has threads. It counts the ones before.
TREADLE_KERNEL decode_sparse(TREADLE_TASK task) {
    TREADLE_SHARED(WordSums, sums);
    const Indices layout(task.elements, task.kept);
    const uint32_t *payload = task.payload + task.piece * task.words, *highs = payload + layout.highs;
    const int64_t words = layout.end - layout.highs, first = int64_t(block_index()) * threads(), word = first + thread();
    if (thread() == 0) sums.before = 0;
    barrier();
    uint32_t ones = 0;
    for (int64_t each = thread(); each < first; each += threads()) ones += ones_of(highs[each]);
    add_to(&sums.before, ones);
    sums.ones[thread()] = word < words ? ones_of(highs[word]) : 0;
    sum_before(sums.ones);
    if (word >= words) return;
    layout.each(payload, word, sums.before + sums.ones[thread()], [&](int64_t j, int64_t index) {
        task.out[index] = task.clears ? 0.0f : sum(task.out[index], bits<float>(payload[j]));
        return true;
    });
}

}  // namespace treadle
