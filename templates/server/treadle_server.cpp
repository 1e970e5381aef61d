// The kernels of the server for tests and measurements; the server itself includes their text.
#include "treadle_server_kernels.h"

#define TREADLE_API extern "C" __attribute__((visibility("default")))

using namespace treadle::kernels;

TREADLE_API void treadle_add(float *sum, const void *incoming, int64_t n, int32_t type, int32_t first, int32_t bypass) {
    add_into(sum, incoming, n, type, first, bypass);
}
TREADLE_API void treadle_optimize(const Update *update) { optimize(*update); }
TREADLE_API void treadle_lamb_norms(const Update *update, double *out) { lamb_norms(*update, out); }
TREADLE_API double treadle_lamb_ratio(double weights, double direction) { return lamb_ratio(weights, direction); }
TREADLE_API void treadle_to_type(void *out, const float *values, int64_t n, int32_t type) {
    to_type(out, values, n, type);
}

// What a core does for the chunks of all workers, one chunk after the other: `keep` adds to what the sums hold already.
TREADLE_API void treadle_add_chunks(float *sum, const void *const *incoming, int32_t workers, int64_t n, int64_t chunk,
                                    int32_t type, int32_t keep, int32_t bypass) {
    const int64_t bytes = type == FLOAT32 ? 4 : 2;
    for (int64_t begin = 0; begin < n; begin += chunk)
        for (int32_t worker = 0; worker < workers; ++worker)
            add_into(sum + begin, static_cast<const char *>(incoming[worker]) + begin * bytes,
                     n - begin < chunk ? n - begin : chunk, type, !keep && worker == 0, bypass);
}

// Steps of the optimizer, chunk after chunk.
TREADLE_API void treadle_optimize_chunks(const Update *update, int64_t chunk) {
    for (int64_t begin = 0; begin < update->n; begin += chunk) {
        Update part = *update;
        part.n = update->n - begin < chunk ? update->n - begin : chunk;
        part.sum += begin;
        part.weight_in += begin;
        part.weight_out += begin;
        for (int place = 0; place < 2; ++place)
            if (update->state_in[place]) part.state_in[place] += begin, part.state_out[place] += begin;
        double norms[2];
        if (part.optimizer == LAMB) lamb_norms(part, norms);
        optimize(part);
    }
}
