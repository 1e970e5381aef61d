// Kernels of the server for GPUs: a thread for each element, and the same bits as processors with exact square roots.
#pragma once
#include "treadle_device.h"
#include "treadle_server_order.h"

namespace treadle::kernels {

// A call: sums, states and weights of one key on one device. `scratch` has lanes for LAMB, `lanes_of` says how many.
struct ServerCall {
    Update update;
    const void *incoming;
    double *scratch;
    int64_t chunk;  // elements of the key's chunks, over which LAMB's norms are added
    int32_t type, first, device;
    void *stream;
    uint64_t order;  // of fibers: a seed
};

// The parameters of a launch.
struct Task : ServerCall {
    Factors factors;
    Abort abort;
    int64_t blocks;
};
using ServerKernel = void (*)(TREADLE_TASK);

template <class Work>
TREADLE_DEVICE void each_of(const Task &task, int64_t count, Work work) {
    const int64_t step = task.blocks * threads();
    for (int64_t i = int64_t(block_index()) * threads() + thread(); i < count; i += step) work(i);
}

TREADLE_KERNEL add_gradient(TREADLE_TASK task) {
    float *sum = const_cast<float *>(task.update.sum);
    const auto single = static_cast<const float *>(task.incoming);
    const auto half = static_cast<const uint16_t *>(task.incoming);
    each_of(task, task.update.n, [&](int64_t i) {
        const float value = task.type == FLOAT32 ? single[i] : task.type == FLOAT16 ? widen_half(half[i]) : widen_brain(half[i]);
        sum[i] = task.first ? value : sum[i] + value;
    });
}

TREADLE_KERNEL step_mean(TREADLE_TASK task) {
    const Update &u = task.update;
    each_of(task, u.n, [&](int64_t i) { u.weight_out[i] = mean_of(task.factors, u.sum[i]); });
}

TREADLE_KERNEL step_sgd(TREADLE_TASK task) {
    const Update &u = task.update;
    each_of(task, u.n, [&](int64_t i) {
        float state = u.state_in[0][i];
        u.weight_out[i] = sgd(task.factors, u.sum[i], u.weight_in[i], state);
        u.state_out[0][i] = state;
    });
}

// Of Adam the weights, of LAMB the direction in their place.
TREADLE_KERNEL step_moments(TREADLE_TASK task) {
    const Update &u = task.update;
    each_of(task, u.n, [&](int64_t i) {
        const float weight = u.weight_in[i];
        float first = u.state_in[0][i], second = u.state_in[1][i];
        moments(task.factors, gradient_of(task.factors, u.sum[i], weight), first, second);
        const float root = sqrtf(second);
        u.weight_out[i] = u.optimizer == ADAM ? adam(task.factors, weight, first, root) : lamb(task.factors, weight, first, root);
        u.state_out[0][i] = first;
        u.state_out[1][i] = second;
    });
}

// The lanes of all leaves: those of the weights, then as many of the direction.
TREADLE_KERNEL add_rows(TREADLE_TASK task) {
    const Update &u = task.update;
    const int64_t lanes = lanes_of(u.n, task.chunk);
    each_of(task, 2 * lanes, [&](int64_t place) {
        const float *values = place < lanes ? u.weight_in : u.weight_out;
        const Span leaf = leaf_at(place % lanes / LANES, u.n, task.chunk);
        double total = 0;
        for (int64_t i = leaf.begin + place % LANES; i < leaf.end; i += LANES) total += squared(values[i]);
        task.scratch[place] = total;
    });
}

TREADLE_KERNEL fold_lanes(TREADLE_TASK task) {
    const int64_t lanes = lanes_of(task.update.n, task.chunk);
    each_of(task, 2 * lanes / LANES, [&](int64_t leaf) { fold(task.scratch + leaf * LANES); });
}

// Chunk after chunk, and leaf after leaf of a chunk; the ratio of both norms takes the place of the first lane.
TREADLE_KERNEL add_leaves(TREADLE_TASK task) {
    const int64_t lanes = lanes_of(task.update.n, task.chunk), leaves = leaves_of(task.chunk);
    each_of(task, 1, [&](int64_t) {
        double norms[2] = {0, 0};
        for (int which = 0; which < 2; ++which)
            for (int64_t chunk = 0; chunk < lanes; chunk += leaves * LANES) {
                double sum = 0;
                for (int64_t at = chunk; at < lanes && at < chunk + leaves * LANES; at += LANES)
                    sum += task.scratch[which * lanes + at];
                norms[which] += sum;
            }
        task.scratch[0] = lamb_ratio(norms[0], norms[1]);
    });
}

TREADLE_KERNEL step_lamb(TREADLE_TASK task) {
    const Update &u = task.update;
    const float step = lamb_step(task.factors, task.scratch[0]);
    each_of(task, u.n, [&](int64_t i) { u.weight_out[i] = fmaf(step, u.weight_out[i], u.weight_in[i]); });
}

TREADLE_KERNEL narrow(TREADLE_TASK task) {
    const auto out = static_cast<uint16_t *>(const_cast<void *>(task.incoming));
    each_of(task, task.update.n, [&](int64_t i) {
        out[i] = task.type == FLOAT16 ? narrow_half(task.update.sum[i]) : narrow_brain(task.update.sum[i]);
    });
}

}  // namespace treadle::kernels
